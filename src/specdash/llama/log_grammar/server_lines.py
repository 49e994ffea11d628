"""What the server says about itself: life cycle, what it loaded, and the start-up detail that is only recognised."""

from __future__ import annotations

from specdash.llama.log_grammar.forms import ERROR, NOTICE, WARNING, LineClass, anywhere, detail, event, whole_line

SERVER_STARTING = "server_starting"
"""Number of the class whose line begins a new server's log."""

LIFE_CYCLE: tuple[LineClass, ...] = (
    LineClass(
        SERVER_STARTING,
        "a server starts",
        (
            *anywhere("initializing ...", make=event(SERVER_STARTING)),
            *whole_line(
                "build: {build:d} ({commit:w}) with {compiler:s}",
                make=event(SERVER_STARTING, "build", "commit", "compiler"),
            ),
        ),
    ),
    LineClass(
        "build",
        "which build it is",
        (
            *anywhere(
                "build {build:d} ({commit:w}) with {compiler:s}", make=event("build", "build", "commit", "compiler")
            ),
            *anywhere("build_info: {build:s}", make=event("build", "build")),
        ),
    ),
    LineClass(
        "verbosity",
        "how much it logs",
        anywhere("verbosity = {verbosity:d} (adjust with the `-lv N` CLI arg)", make=event("verbosity", "verbosity")),
    ),
    LineClass(
        "model_loading",
        "a model is being loaded",
        (
            *anywhere("loading model '{path:s}'", make=event("model_loading", "path")),
            *anywhere("loading model", "local path '{:s}'"),
        ),
    ),
    LineClass(
        "slots_ready",
        "the slots are set up",
        (
            *anywhere(
                "initializing, n_slots = {slots:d}, n_ctx_slot = {n_ctx:d}, kv_unified = '{unified:s}'",
                make=event("slots_ready", "slots", "n_ctx_slot", "kv_unified"),
            ),
            *anywhere("initializing slots, n_slots = {slots:d}", make=event("slots_ready", "slots")),
        ),
    ),
    LineClass("model_loaded", "the model is loaded", anywhere("model loaded", make=event("model_loaded"))),
    LineClass(
        "listening",
        "the server answers on this address",
        (
            *anywhere("listening on {url:s}", make=event("listening", "url")),
            *anywhere("HTTP server listening{:rest}", make=event("listening")),
            *anywhere("server is listening on {url:s} - starting the main loop", make=event("listening", "url")),
            *anywhere(
                "HTTP server is listening, hostname: {host:s} port: {port:d}, http threads: {:d}",
                make=event("listening", "host", "port"),
            ),
        ),
    ),
    LineClass(
        "router_mode",
        "the server is a router: it starts child servers on demand",
        anywhere("starting server in router mode. {:rest}", make=event("router_mode")),
    ),
    LineClass(
        "child_started",
        "a router starts a child server",
        anywhere(
            "spawning server instance with name={model:s} on port {port:d}",
            make=event("child_started", "model", "port"),
        ),
    ),
    LineClass(
        "child_ended",
        "a router's child server ended",
        anywhere("instance name={model:s} exited with status {status:d}", make=event("child_ended", "model", "status")),
    ),
    LineClass("sleeping", "the server went to sleep", anywhere("entering sleeping state", make=event("sleeping"))),
    LineClass("awake", "the server woke up", anywhere("exiting sleeping state", make=event("awake"))),
    LineClass("stopping", "the server is stopping", anywhere("cleaning up before exit...", make=event("stopping"))),
    LineClass(
        "context_checkpoints",
        "context checkpoints are kept",
        anywhere(
            "context checkpoints enabled, max = {max:d}, min spacing = {spacing:d}",
            make=event("context_checkpoints", "max", "min_spacing"),
        ),
    ),
    LineClass(
        "prompt_cache_enabled",
        "the prompt cache is on",
        (
            *anywhere(
                "prompt cache is enabled, size limit: {limit:d} MiB", make=event("prompt_cache_enabled", "limit_mib")
            ),
            *anywhere("prompt cache is enabled, size limit: {limit:s}", make=event("prompt_cache_enabled", "limit")),
        ),
    ),
)

_FUNCTIONS = (
    "llama_model_loader", "llama_model_load", "llama_model_load_from_file_impl", "llama_load_model_from_file",
    "print_info", "load", "load_hparams", "load_tensors", "load_vocab", "load_arch_hparams", "load_arch_tensors",
    "load_backend", "load_all_data", "init_tokenizer", "llm_load_print_meta", "llm_load_tensors", "llm_load_vocab",
    "llm_load_hparams", "llama_context", "llama_init_from_model", "llama_new_context_with_model", "sched_reserve",
    "graph_reserve", "resolve_fused_ops", "llama_kv_cache", "llama_kv_cache_iswa", "llama_kv_cache_unified",
    "llama_kv_cache_unified_iswa", "llama_kv_cache_init", "llama_kv_cache_dsa", "llama_memory_recurrent",
    "llama_memory_hybrid", "llama_adapter_lora_init_impl", "create_memory", "create_tensor", "done_getting_tensors",
    "set_abort_callback", "common_memory_breakdown_print", "common_params_fit_impl", "common_fit_params",
    "common_params_fit_to_free_memory", "llama_params_fit", "llama_params_fit_impl", "common_init_from_params",
    "common_init_result", "common_speculative_init_result", "common_speculative_impl_draft_dflash",
    "llama_memory_breakdown_print", "llama_perf_context_print", "llama_perf_sampler_print", "ggml_cuda_init",
    "ggml_backend_cuda_get_available_uma_memory", "ggml_vulkan", "ggml_vk_instance_init", "ggml_metal_init",
    "ggml_metal_device_init", "ggml_metal_library_init", "ggml_metal_free", "ggml_opencl", "ggml_sycl_init",
    "ggml_backend_load_best", "clip_model_loader", "clip_ctx", "clip_init", "alloc_compute_meta", "warmup",
    "common_download_file_single", "common_download_file_single_online",
    "llama_prefetch_model", "model_load_progress", "init_audio", "init_vision",
)  # fmt: skip
"""Functions of libllama, ggml and common that print what they load, line by line."""

_DEVICE_LISTS = (
    "Device {:d}: {:rest}",
    "- CPU : {:rest}",
    "- CUDA{:d} : {:rest}",
    "- Vulkan{:d} : {:rest}",
    "- ROCm{:d} : {:rest}",
    "- Metal{:rest}",
    "- MTL{:d} : {:rest}",
    "- BLAS : {:rest}",
)

RECOGNISED: tuple[LineClass, ...] = (
    LineClass(
        "startup",
        "start-up detail",
        detail(*(f"{name}: {{:rest}}" for name in _FUNCTIONS))
        + anywhere(
            *_DEVICE_LISTS,
            "running without SSL",
            "The UI is disabled",
            "Web UI is disabled",
            "Use --ui/--no-ui (or deprecated --webui/--no-webui) to enable/disable",
            "using {:d} threads for HTTP server",
            "binding port with default address family",
            "binding port {:rest}",
            "fitting params to device memory ...",
            "(for bugs during this step {:rest}",
            "getting device memory data for {:rest}",
            "added {:s} logit bias = {:rest}",
            "llama threadpool init, n_threads = {:d}",
            "setting n_parallel = {:d} and kv_unified = {:rest}",
            "warming up the model with an empty run - please wait ... {:rest}",
            "the context does not support partial sequence removal",
            "the context supports bounded partial sequence removal",
            "use `--cache-ram {:d}` to disable the prompt cache",
            "for more info see {:rest}",
            "idle slots will be saved to prompt cache upon starting a new task",
            "idle slots will be saved to prompt cache and cleared upon starting a new task",
            "chat template, thinking = {:d}",
            "preserve_reasoning kwarg: {:rest}",
            "chat template supports preserving reasoning, {:rest}",
            "chat template does NOT support preserving reasoning, {:rest}",
            "prompt cache is disabled - use `--cache-ram N` to enable it",
            "context checkpoints disabled",
            "n_parallel is set to auto, {:rest}",
            "setting address family to AF_UNIX",
            "--kv-unified-per-slot: sizing KV pool to {:rest}",
            "api_keys: {:d} keys loaded",
            "api_keys: ****{:rest}",
            "Google Cloud Platform compat: {:rest}",
            "decision model type: {:rest}",
            "LLAMA_SERVER_SLOTS_DEBUG = {:d}",
            "LLAMA_SERVER_SLOTS_N_DIFF = {:d}",
            "--n-gpu-layers {:rest}",
            "system_info: {:rest}",
            "system info: {:rest}",
            "device_info:",
            "n_ctx_seq ({:d}) < n_ctx_train ({:d}) -- {:rest}",
        )
        + whole_line(".{:dots}"),
    ),
    LineClass(
        "chat_template",
        "the chat template's example",
        anywhere(
            "chat template, example_format: '{:rest}",
            "chat template, chat_template: {:rest}",
            "chat template example:{:rest}",
        ),
        continues=True,
    ),
    LineClass(
        "backtrace",
        "a debugger's report after an abort",
        whole_line(
            "#{:d} 0x{:x} in {:rest}",
            "0x{:x} in {:rest}",
            "[New LWP {:d}]",
            "[Thread debugging using libthread_db enabled]",
            "[Inferior {:d} (process {:d}) detached]",
            "Using host libthread_db library {:rest}",
            "{:d} in ../{:rest}",
            "{:d} ../{:rest}",
            "warning: {:d} ../{:rest}",
            "No stack.",
            "The program is not being run.",
            "ptrace: {:rest}",
            "Could not attach to process.{:rest}",
        ),
    ),
    LineClass(
        "json_record", "a JSON record that is not a log line", whole_line('{"type":"fit_memory_breakdown",{:rest}')
    ),
    LineClass(
        "comment",
        "a note that whoever ran the server or collected the log wrote into it",
        whole_line("# {:rest}", "## {:rest}", "specdash: {:rest}"),
    ),
    LineClass("continuation", "a further line of the message before it", ()),
    LineClass("blank", "an empty line", whole_line("")),
    LineClass("unrecognised", "a line that specdash does not know", ()),
)

SERVER_LINES: tuple[LineClass, ...] = LIFE_CYCLE + RECOGNISED


# Warning classes of start-up, arguments, security and the server's end.

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
            "failed to create_context with model '{:s}'",
            "failed to create context with model '{:s}'",
            "failed to load multimodal model, '{:s}'",
            "failed to load CLIP model from {:rest}",
            "failed to init decision model: {:rest}",
            "failed to reload model after sleeping",
            "invalid magic characters: {:rest}",
            "this GGUF file is version {:d} but this software only supports up to version {:d}",
            "GGUFv1 is no longer supported, please use a more up-to-date version",
            "failed to create tensors",
            "wrong number of tensors; expected {:d}, got {:d}",
            "no CPU backend found",
        ),
        ERROR,
        "One failure prints several such lines. The server exits; the first of the lines says why.",
    ),
    LineClass(
        "adapter_failed",
        "a LoRA adapter or control vector could not be loaded",
        anywhere(
            "failed to load lora adapter '{:s}'",
            "failed to apply lora adapter: {:rest}",
            "failed to load control vector file from {:rest}",
            "control vectors in {:s} does not match previous dimensions",
            "direction tensor in {:s} does not match previous dimensions",
            "invalid (non-{:d}D) direction tensor shape in {:rest}",
            "invalid (non-F{:d}) direction tensor type in {:rest}",
            "invalid (zero) direction tensor layer index in {:rest}",
            "invalid/unparsable direction tensor layer index in {:rest}",
            "no direction tensors found in {:rest}",
            "skipping {:s} due to invalid direction tensors",
        ),
        ERROR,
        "One failure prints several such lines. The server exits.",
    ),
    LineClass(
        "template_invalid",
        "the model's chat template cannot be used",
        anywhere(
            "chat template parsing error: {:rest}",
            "failed to initialize chat template",
            "please consider disabling jinja via --no-jinja, {:rest}",
            "for example: --no-jinja --chat-template chatml",
        ),
        ERROR,
        "One failure prints several such lines. The server exits: give another --chat-template, or --no-jinja.",
    ),
    LineClass(
        "template_doubtful",
        "the model's chat template may not work as meant",
        anywhere(
            "failed to parse tool use chat template (ignoring it): {:rest}",
            "Neither string content nor typed content is supported by the template. {:rest}",
            "warning: vocab does not have a {:s} token, jinja template won't work as intended.",
            "detected an outdated gemma{:d} chat template, {:rest}",
        ),
        NOTICE,
        "The server runs; look at the first answers, and at tool calls.",
    ),
    LineClass(
        "http_server_failed",
        "the HTTP server failed",
        anywhere(
            "couldn't start HTTP listener on {:rest}",
            "listener on {:s} stopped unexpectedly",
            "failed to initialize HTTP server",
            "exiting due to HTTP server error",
            "failed to stop HTTP server: {:rest}",
        ),
        ERROR,
        "Clients do not reach the server, at least not on the address that the line names.",
    ),
    LineClass(
        "threads_failed",
        "the worker threads could not be made",
        anywhere("threadpool create failed : n_threads {:d}", "batch threadpool create failed : n_threads {:d}"),
        ERROR,
        "Look at --threads, the CPU masks and the limits that the system sets for the process.",
    ),
    LineClass(
        "tools_failed",
        "a tool or MCP server of this server does not work",
        anywhere(
            "MCP '{:s}' is no longer alive: {:rest}",
            "MCP '{:s}': failed to spawn '{:s}'",
            "MCP '{:s}': failed to start: {:rest}",
            "MCP starting failed: {:rest}",
            "MCP warmup: failed to spawn '{:s}': {:rest}",
            "MCP server '{:s}' has no command, skipping",
            "MCP config: duplicate server name '{:s}', skipping",
            'MCP tool "{:rest}',
            "MCP: dropping oversized line (> {:d} bytes) from child pipe",
            'docker tools runtime container "{:rest}',
            'podman tools runtime container "{:rest}',
            "tools setup failed: {:rest}",
        ),
        WARNING,
        "Requests go without that tool; the line names it. A set-up that fails may keep the server from starting.",
    ),
    LineClass(
        "tools_exposed",
        "the server runs tools for anybody who asks",
        anywhere("security: {:s} enabled - do not expose to untrusted environments"),
        WARNING,
        "Harmless only where nobody else reaches the port: tools read files and run commands on this machine.",
    ),
    LineClass(
        "argument_adjusted",
        "an argument was changed, capped or ignored",
        anywhere(
            "--kv-unified-per-slot ({:d}) exceeds the per-slot pool capacity ({:d}) {:rest}",
            "capping per-slot context ({:d}) to --kv-unified-per-slot ({:d})",
            "embeddings enabled with n_batch ({:d}) > n_ubatch ({:d})",
            "setting n_batch = n_ubatch = {:d} to avoid assertion failure",
            "cap image_max_tokens (original={:d}) to {:d} (n_ubatch = {:d}) because {:rest}",
            "n_ctx is not divisible by n_seq_max - rounding down to {:d}",
            "invalid stop-timeout value '{:s}' for model '{:s}', using default {:d} seconds",
            "failed to set process priority {:d} : {:rest}",
            "Not enough set bits in CPU mask ({:d}) to satisfy requested thread count: {:d}",
        ),
        NOTICE,
        "The line names it, and what holds instead.",
    ),
    LineClass(
        "bad_setting",
        "a setting is not valid",
        anywhere(
            "malformed KV override '{:s}'",
            "malformed KV override '{:s}', value cannot exceed {:d} chars",
            "invalid type for KV override '{:s}'",
            "invalid boolean value for KV override '{:s}'",
            "Invalid hex character '{:s}' at position {:d}",
            "failed to parse UI config: {:rest}",
            "static assets path not found: {:rest}",
            "AIP_PREDICT_ROUTE={:s} conflicts with an existing llama-server route",
        ),
        ERROR,
        "The server exits; the line names the setting.",
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
            *whole_line("warn: {:w} environment variable is set, but will be overwritten by {:rest}"),
            *anywhere("{:w} environment variable is set, but will be overwritten by {:rest}"),
        ),
        NOTICE,
        "Said of --spec-type too, whose values really add up.",
    ),
    LineClass(
        "no_api_key",
        "no API key set",
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
            "swa_full is not supported by {:rest}",
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
        (*whole_line("{:s}:{:d}: GGML_ASSERT({:rest}"), *anywhere("GGML_ASSERT: {:rest}", "GGML_ASSERT({:rest}")),
        ERROR,
        "A bug in llama.cpp, or a combination of flags that it does not support. The process ends; a backtrace may "
        "follow.",
    ),
    LineClass(
        "killed",
        "the server was killed",
        whole_line("Killed", "Killed {:rest}"),
        ERROR,
        "Printed by the shell or script that started it. Nobody asked, and nothing else in the log: the kernel killed "
        "it because memory was out (dmesg tells).",
    ),
    LineClass(
        "aborted",
        "the server aborted",
        whole_line(
            *(f"{{:s}}.{suffix}:{{:d}}: {{:rest}}" for suffix in ("cpp", "c", "cu", "cuh", "h", "hpp", "m", "mm")),
            "terminate called {:rest}",
            "what(): {:rest}",
            "Segmentation fault{:rest}",
            "Aborted{:rest}",
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


# What a router says about its child servers and their models, downloads included; trouble first.

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
            *detail("srv load: {:rest}"),
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
