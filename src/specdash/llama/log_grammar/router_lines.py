"""What a router says about its child servers and their models, downloads included; trouble first."""

from __future__ import annotations

from specdash.llama.log_grammar.forms import Context, Form, LineClass, Severity, anywhere

ERROR, WARNING, NOTICE = Severity.ERROR, Severity.WARNING, Severity.NOTICE

ROUTER_TROUBLE: tuple[LineClass, ...] = (
    LineClass(
        "child_failed",
        "a router could not start, reach or follow a child server",
        anywhere(
            "queued load of name={:s} did not go through: {:rest}",
            "failed to get stdout/stderr of child process for name={:rest}",
            "failed to parse child state update for name={:rest}",
            "failed to spawn server instance",
            "failed to get server executable path: {:rest}",
            "failed to resolve the model of '{:s}': {:rest}",
            "failed to read the multimodal capabilities of '{:s}': {:rest}",
            "failed to fetch model metadata: {:rest}",
            "unknown error while validating model '{:s}'",
            "[{:d}] unexpected output on the command pipe: {:rest}",
            "http client error: {:rest}",
        ),
        ERROR,
        "Requests for that model fail, or end early. The child's own lines, which begin with its [PORT], say why.",
    ),
    LineClass(
        "child_killed",
        "a router killed a child server that did not stop by itself",
        anywhere(
            "force-killing model instance name={:s} after timeout",
            "model name={:s} is still loading, force-killing",
            "old process for model name={:s} is still alive, this is unexpected",
        ),
        WARNING,
        "Its requests are lost. The timeout is stop-timeout in the model's preset.",
    ),
    LineClass(
        "model_evicted",
        "a router unloaded a model to make room for another",
        anywhere("models_max limit reached, removing LRU name={:rest}", "evicting idle LRU name={:rest}"),
        NOTICE,
        "The next request for it waits until it is loaded again. If models alternate, raise --models-max.",
    ),
    LineClass(
        "model_unavailable",
        "a request named a model that does not run",
        anywhere("model {:s} is not ready", "model instance name={:s} is not running"),
        NOTICE,
        "Normal while a model is loading or was just unloaded.",
    ),
    LineClass(
        "alias_conflict",
        "two models claim the same alias",
        anywhere("(reload) alias '{:s}' for model '{:s}' conflicts with model '{:s}', skipping"),
        NOTICE,
        "The alias keeps naming the other model.",
    ),
    LineClass(
        "download_failed",
        "a model could not be downloaded",
        anywhere(
            "download failed for model name={:rest}",
            "failed to download model: {:rest}",
            "download failed after {:d} attempts",
            "download failed: {:s} (status: {:d})",
            "download received non-successful status code: {:d}",
            "required file is not available in cache (offline mode): {:rest}",
            "no GGUF files found in repository {:rest}",
            "Docker Model download failed: {:rest}",
            "error writing to file: {:rest}",
        ),
        ERROR,
        "One failure prints several such lines. Without another copy of the model the server exits, or the router does "
        "not offer it.",
    ),
)

ROUTER_LINES: tuple[LineClass, ...] = (
    LineClass(
        "router_detail",
        "a router's housekeeping",
        (
            *anywhere(
                "Available models ({:d}):{:rest}",
                "no models found on the system {:rest}",
                "[models_dir] {:rest}",
                "[cache] {:rest}",
                "[preset] {:rest}",
                "[models_preset] {:rest}",
                "Loaded {:d} cached model presets from {:rest}",
                "Loaded {:d} custom model presets from {:rest}",
                "Loaded {:d} local model presets from {:rest}",
                "hiding cache model name={:rest}",
                "(startup) loading model {:rest}",
                "(reload) {:rest}",
                "request for name={:s} queued at position {:d}",
                "request for name={:s} joined the queue, {:d} waiting",
                "router stop for conv_id={:s} while model name={:rest}",
                "waiting until model name={:s} is fully loaded...",
                "slot available, loading queued model name={:rest}",
                "spawning server instance with args:",
                "using original argv[{:d}] as fallback: {:rest}",
                "stopping model instance name={:rest}",
                "removing model name={:rest}",
                "child server monitoring thread started, {:rest}",
                "exit command received, exiting...",
                "EOF on stdin detected, forcing shutdown...",
                "server is entering sleeping state",
                "server is exiting sleeping state",
                "forcefully terminating {:rest}",
            ),
            Form(Context.DETAIL, "srv load: {:rest}"),
        ),
    ),
    LineClass(
        "download",
        "a model is being downloaded",
        anywhere(
            "starting download for model '{:s}'",
            "cancelling download for model name={:rest}",
            "download completed {:rest}",
            "downloading from {:rest}",
            "retrying after {:d} seconds...",
            "using cached file (offline mode): {:rest}",
            "using cached file (same etag): {:rest}",
            "using cached file (no server etag): {:rest}",
            "using cached file (HEAD failed): {:rest}",
            "using cached file: {:rest}",
            "Downloading Docker Model: {:rest}",
            "Downloaded Docker Model to: {:rest}",
            "file etag saved: {:rest}",
        ),
    ),
    LineClass(
        "proxying",
        "a router passed a request on",
        anywhere(
            "proxying {:s} request to {:s}://{:rest}",
            "proxying stream resume to model {:rest}",
            "start proxy thread {:rest}",
            "client request thread ended",
        ),
    ),
)
