"""What the server says about itself: which build it is, what it loaded, where it listens, how it sleeps and ends."""

from __future__ import annotations

from specdash.llama.log.forms import LineClass

SERVER_STARTING = "server_starting"
"""Id of the class whose line begins a new server's log."""


def event(name: str, *patterns: str, detail: bool = False) -> LineClass:
    """The class of a line that is a `ServerEvent` of this name."""
    return LineClass(name, patterns=patterns, event=True, detail=detail)


SERVER_LINES: tuple[LineClass, ...] = (
    event(SERVER_STARTING, "initializing ...", "^build: {build:d} ({commit:w}) with {compiler:s}"),
    event("build", "build {build:d} ({commit:w}) with {compiler:s}", "build_info: {build:s}"),
    event("verbosity", "verbosity = {verbosity:d} (adjust with the `-lv N` CLI arg)"),
    event("model_loading", "loading model '{path:s}'"),
    event(
        "slots_ready",
        "initializing, n_slots = {slots:d}, n_ctx_slot = {n_ctx_slot:d}, kv_unified = '{kv_unified:s}'",
        "initializing slots, n_slots = {slots:d}",
    ),
    event("model_loaded", "model loaded"),
    # It decides and does not write: there is nothing to speculate.
    event("decision_model", "decision model type: {type:s}"),
    event(
        "listening",
        "listening on {url:s}",
        "server is listening on {url:s} - starting the main loop",
        "HTTP server is listening, hostname: {host:s} port: {port:d}, http threads: {:d}",
    ),
    event("router_mode", "starting server in router mode{:rest}"),
    event("child_started", "spawning server instance with name={model:s} on port {port:d}"),
    event("child_ended", "instance name={model:s} exited with status {status:d}"),
    event("download_started", "starting download for model '{model:s}'"),
    event("sleeping", "entering sleeping state"),
    event("awake", "exiting sleeping state"),
    event("stopping", "cleaning up before exit..."),
    event("context_checkpoints", "context checkpoints enabled, max = {max:d}, min spacing = {min_spacing:d}"),
    event(
        "prompt_cache_enabled",
        "prompt cache is enabled, size limit: {limit_mib:d} MiB",
        "prompt cache is enabled, size limit: {limit:s}",
    ),
)
LIFE_CYCLE_CLASSES = frozenset(line_class.id for line_class in SERVER_LINES)
