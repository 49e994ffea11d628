"""What the server says about itself: life cycle, what it loaded, and the start-up detail that is only recognised."""

from __future__ import annotations

from specdash.llama.log_grammar.captures import event
from specdash.llama.log_grammar.forms import Context, Form, LineClass, anywhere

ANY, BARE, DETAIL = Context.ANY, Context.BARE, Context.DETAIL

SERVER_STARTING = "server_starting"
"""Id of the class whose line begins a new server's log."""

LIFE_CYCLE: tuple[LineClass, ...] = (
    LineClass(
        SERVER_STARTING,
        "a server starts",
        (
            Form(ANY, "initializing ...", event(SERVER_STARTING)),
            Form(
                BARE,
                "build: {build:d} ({commit:w}) with {compiler:s}",
                event(SERVER_STARTING, "build", "commit", "compiler"),
            ),
            Form(
                BARE,
                'build info | tid="{:w}" timestamp={:d} build={build:d} commit="{commit:w}"{:rest}',
                event(SERVER_STARTING, "build", "commit"),
            ),
            Form(
                BARE,
                'build info","build":{build:d},"commit":"{commit:w}"{:rest}',
                event(SERVER_STARTING, "build", "commit"),
            ),
        ),
    ),
    LineClass(
        "build",
        "which build it is",
        (
            Form(ANY, "build {build:d} ({commit:w}) with {compiler:s}", event("build", "build", "commit", "compiler")),
            Form(ANY, "build_info: {build:s}", event("build", "build")),
        ),
    ),
    LineClass(
        "verbosity",
        "how much it logs",
        (Form(ANY, "verbosity = {verbosity:d} (adjust with the `-lv N` CLI arg)", event("verbosity", "verbosity")),),
    ),
    LineClass(
        "model_loading",
        "a model is being loaded",
        (
            Form(ANY, "loading model '{path:s}'", event("model_loading", "path")),
            *anywhere("loading model", "local path '{:s}'"),
        ),
    ),
    LineClass(
        "slots_ready",
        "the slots are set up",
        (
            Form(
                ANY,
                "initializing, n_slots = {slots:d}, n_ctx_slot = {n_ctx:d}, kv_unified = '{unified:s}'",
                event("slots_ready", "slots", "n_ctx_slot", "kv_unified"),
            ),
            Form(ANY, "initializing slots, n_slots = {slots:d}", event("slots_ready", "slots")),
            Form(
                BARE,
                'initializing slots | tid="{:w}" timestamp={:d} n_slots={slots:d}',
                event("slots_ready", "slots"),
            ),
            Form(BARE, 'initializing slots","n_slots":{slots:d}{:rest}', event("slots_ready", "slots")),
        ),
    ),
    LineClass("model_loaded", "the model is loaded", (Form(ANY, "model loaded", event("model_loaded")),)),
    LineClass(
        "listening",
        "the server answers on this address",
        (
            Form(ANY, "listening on {url:s}", event("listening", "url")),
            Form(ANY, "HTTP server listening{:rest}", event("listening")),
            Form(ANY, "server is listening on {url:s} - starting the main loop", event("listening", "url")),
            Form(
                ANY,
                "HTTP server is listening, hostname: {host:s} port: {port:d}, http threads: {:d}",
                event("listening", "host", "port"),
            ),
        ),
    ),
    LineClass(
        "router_mode",
        "the server is a router: it starts child servers on demand",
        (Form(ANY, "starting server in router mode. {:rest}", event("router_mode")),),
    ),
    LineClass(
        "child_started",
        "a router starts a child server",
        (
            Form(
                ANY,
                "spawning server instance with name={model:s} on port {port:d}",
                event("child_started", "model", "port"),
            ),
        ),
    ),
    LineClass(
        "child_ended",
        "a router's child server ended",
        (Form(ANY, "instance name={model:s} exited with status {status:d}", event("child_ended", "model", "status")),),
    ),
    LineClass("sleeping", "the server went to sleep", (Form(ANY, "entering sleeping state", event("sleeping")),)),
    LineClass("awake", "the server woke up", (Form(ANY, "exiting sleeping state", event("awake")),)),
    LineClass("stopping", "the server is stopping", (Form(ANY, "cleaning up before exit...", event("stopping")),)),
    LineClass(
        "context_checkpoints",
        "context checkpoints are kept",
        (
            Form(
                ANY,
                "context checkpoints enabled, max = {max:d}, min spacing = {spacing:d}",
                event("context_checkpoints", "max", "min_spacing"),
            ),
        ),
    ),
    LineClass(
        "prompt_cache_enabled",
        "the prompt cache is on",
        (
            Form(ANY, "prompt cache is enabled, size limit: {limit:d} MiB", event("prompt_cache_enabled", "limit_mib")),
            Form(ANY, "prompt cache is enabled, size limit: {limit:s}", event("prompt_cache_enabled", "limit")),
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
        tuple(Form(DETAIL, f"{name}: {{:rest}}") for name in _FUNCTIONS)
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
            'system info | tid="{:rest}',
            'system info","{:rest}',
            "device_info:",
            "n_ctx_seq ({:d}) < n_ctx_train ({:d}) -- {:rest}",
        )
        + (Form(BARE, ".{:dots}"),),
    ),
    LineClass(
        "chat_template",
        "the chat template's example",
        anywhere(
            "chat template, example_format: '{:rest}",
            "chat template, chat_template: {:rest}",
            "chat template example:{:rest}",
            'chat template | tid="{:rest}',
            'chat template","chat_example":{:rest}',
        ),
        continues=True,
    ),
    LineClass(
        "backtrace",
        "a debugger's report after an abort",
        (
            Form(BARE, "#{:d} 0x{:x} in {:rest}"),
            Form(BARE, "0x{:x} in {:rest}"),
            Form(BARE, "[New LWP {:d}]"),
            Form(BARE, "[Thread debugging using libthread_db enabled]"),
            Form(BARE, "[Inferior {:d} (process {:d}) detached]"),
            Form(BARE, "Using host libthread_db library {:rest}"),
            Form(BARE, "{:d} in ../{:rest}"),
            Form(BARE, "{:d} ../{:rest}"),
            Form(BARE, "warning: {:d} ../{:rest}"),
            Form(BARE, "No stack."),
            Form(BARE, "The program is not being run."),
            Form(BARE, "ptrace: {:rest}"),
            Form(BARE, "Could not attach to process.{:rest}"),
        ),
    ),
    LineClass(
        "json_record",
        "a JSON record that is not a log line",
        (Form(BARE, '{"type":"fit_memory_breakdown",{:rest}'),),
    ),
    LineClass(
        "comment",
        "a note that whoever ran the server or collected the log wrote into it",
        (Form(BARE, "# {:rest}"), Form(BARE, "## {:rest}"), Form(BARE, "specdash: {:rest}")),
    ),
    LineClass("continuation", "a further line of the message before it", ()),
    LineClass("blank", "an empty line", (Form(BARE, ""),)),
    LineClass("unrecognised", "a line that specdash does not know", ()),
)

SERVER_LINES: tuple[LineClass, ...] = LIFE_CYCLE + RECOGNISED
