"""What the server says about itself: which build it is, what it loaded, where it listens, how it sleeps and ends."""

from __future__ import annotations

from specdash.llama.log.forms import LineClass

SERVER_STARTING = "server_starting"
"""Id of the class whose line begins a new server's log."""

SERVER_LINES: tuple[LineClass, ...] = (
    LineClass(
        SERVER_STARTING,
        "a server starts",
        ("initializing ...", "^build: {build:d} ({commit:w}) with {compiler:s}"),
        event=True,
    ),
    LineClass(
        "build",
        "which build it is",
        ("build {build:d} ({commit:w}) with {compiler:s}", "build_info: {build:s}"),
        event=True,
    ),
    LineClass(
        "verbosity",
        "how much it logs",
        ("verbosity = {verbosity:d} (adjust with the `-lv N` CLI arg)",),
        event=True,
    ),
    LineClass("model_loading", "a model is being loaded", ("loading model '{path:s}'",), event=True),
    LineClass(
        "slots_ready",
        "the slots are set up",
        (
            "initializing, n_slots = {slots:d}, n_ctx_slot = {n_ctx_slot:d}, kv_unified = '{kv_unified:s}'",
            "initializing slots, n_slots = {slots:d}",
        ),
        event=True,
    ),
    LineClass("model_loaded", "the model is loaded", ("model loaded",), event=True),
    LineClass(
        "decision_model",
        "the model decides and does not write: there is nothing to speculate",
        ("decision model type: {type:s}",),
        event=True,
    ),
    LineClass(
        "listening",
        "the server answers on this address",
        (
            "listening on {url:s}",
            "server is listening on {url:s} - starting the main loop",
            "HTTP server is listening, hostname: {host:s} port: {port:d}, http threads: {:d}",
        ),
        event=True,
    ),
    LineClass(
        "router_mode",
        "the server is a router: it starts child servers on demand",
        ("starting server in router mode{:rest}",),
        event=True,
    ),
    LineClass(
        "child_started",
        "a router starts a child server",
        ("spawning server instance with name={model:s} on port {port:d}",),
        event=True,
    ),
    LineClass(
        "child_ended",
        "a router's child server ended",
        ("instance name={model:s} exited with status {status:d}",),
        event=True,
    ),
    LineClass(
        "download_started",
        "a model is being downloaded",
        ("starting download for model '{model:s}'",),
        event=True,
    ),
    LineClass("sleeping", "the server went to sleep", ("entering sleeping state",), event=True),
    LineClass("awake", "the server woke up", ("exiting sleeping state",), event=True),
    LineClass("stopping", "the server is stopping", ("cleaning up before exit...",), event=True),
    LineClass(
        "context_checkpoints",
        "context checkpoints are kept",
        ("context checkpoints enabled, max = {max:d}, min spacing = {min_spacing:d}",),
        event=True,
    ),
    LineClass(
        "prompt_cache_enabled",
        "the prompt cache is on",
        (
            "prompt cache is enabled, size limit: {limit_mib:d} MiB",
            "prompt cache is enabled, size limit: {limit:s}",
        ),
        event=True,
    ),
)
LIFE_CYCLE_CLASSES = frozenset(line_class.id for line_class in SERVER_LINES)
