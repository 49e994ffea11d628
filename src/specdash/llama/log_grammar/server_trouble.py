"""Warning classes of start-up, arguments, security and the server's end."""

from __future__ import annotations

from specdash.llama.log_grammar.forms import Context, Form, LineClass, Severity
from specdash.llama.log_grammar.trouble_lines import anywhere

BARE = Context.BARE
ERROR, WARNING, NOTICE = Severity.ERROR, Severity.WARNING, Severity.NOTICE

SERVER_TROUBLE: tuple[LineClass, ...] = (
    LineClass(
        "bind_failed",
        "the port could not be bound",
        anywhere("couldn't bind HTTP server socket, hostname: {:s} port: {:d}", "couldn't bind {:rest}"),
        ERROR,
        "Another process owns the port. The server exits.",
    ),
    LineClass(
        "model_load_failed",
        "a model could not be loaded",
        anywhere(
            "exiting due to model loading error",
            "failed to load model{:rest}",
            "error loading model{:rest}",
            "failed to open GGUF file {:rest}",
            "failed to initialize the context: {:rest}",
        ),
        ERROR,
        "One failure prints several such lines. The server exits; the first of the lines says why.",
    ),
    LineClass(
        "bad_argument",
        "the command line or environment is not valid",
        anywhere(
            'error while handling argument "{:rest}',
            'error while handling environment variable "{:rest}',
            "error: invalid argument: {:rest}",
            "error: {:rest}",
        ),
        ERROR,
        "The server exits at once; flags change between builds.",
        continues=True,
    ),
    LineClass(
        "deprecated_argument",
        "an argument is deprecated or given twice",
        anywhere("DEPRECATED: {:rest}"),
        WARNING,
        "Of an argument given twice only the last value counts.",
    ),
    LineClass(
        "environment_overridden",
        "an environment variable is overridden by an argument",
        (
            Form(BARE, "warn: {:w} environment variable is set, but will be overwritten by {:rest}"),
            *anywhere("{:w} environment variable is set, but will be overwritten by {:rest}"),
        ),
        NOTICE,
        "Said of --spec-type too, whose values really add up.",
    ),
    LineClass(
        "no_api_key",
        "the server answers anybody",
        anywhere("security: no API key is set and CORS allows all origins {:rest}"),
        NOTICE,
        "Normal on a machine of one's own, where the server listens on 127.0.0.1 only.",
    ),
    LineClass(
        "router_exposed",
        "the router starts models for anybody who asks",
        anywhere("security: router mode enabled - do not expose to untrusted environments"),
        NOTICE,
        "Normal on a machine of one's own.",
    ),
    LineClass(
        "default_port_changes",
        "the default port will change in a later build",
        anywhere("notice: server default port will be changed {:rest}"),
        NOTICE,
        "Give --port to be sure.",
    ),
    LineClass(
        "feature_disabled",
        "a feature was switched off because this model or context cannot have it",
        anywhere(
            "KV cache shifting is not supported for this context, disabling KV cache shifting",
            "cache_reuse is not supported by {:rest}",
            "ctx_shift is not supported by {:rest}",
            "context shift is not supported {:rest}",
            "prompt caching is not supported {:rest}",
        ),
        NOTICE,
        "The line names the feature.",
    ),
    LineClass(
        "ggml_assert",
        "the server aborted on a failed assertion",
        (Form(BARE, "{:s}:{:d}: GGML_ASSERT({:rest}"), *anywhere("GGML_ASSERT: {:rest}", "GGML_ASSERT({:rest}")),
        ERROR,
        "A bug in llama.cpp, or a combination of flags that it does not support. The process ends; a backtrace may "
        "follow.",
    ),
    LineClass(
        "aborted",
        "the server aborted",
        (
            *(
                Form(BARE, f"{{:s}}.{suffix}:{{:d}}: {{:rest}}")
                for suffix in ("cpp", "c", "cu", "cuh", "h", "hpp", "m", "mm")
            ),
            Form(BARE, "terminate called {:rest}"),
            Form(BARE, "what(): {:rest}"),
            Form(BARE, "Segmentation fault{:rest}"),
            Form(BARE, "Aborted{:rest}"),
            Form(BARE, "Killed"),
        ),
        ERROR,
        "The process ended; the lines before it say why.",
    ),
    LineClass(
        "interrupted_twice",
        "a second signal ended the server at once",
        anywhere("Received second interrupt, terminating immediately.{:rest}"),
        NOTICE,
        "The server waits for connected clients after the first signal; requests in flight are lost after the second.",
    ),
)
