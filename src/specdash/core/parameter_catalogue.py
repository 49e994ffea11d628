"""The catalogue of backend parameters: every env key, its meaning, range, flag and attribute, declared once.

Source: `llama-server --help` of b11434 and `xllamacpp.CommonParams` of 2026.10.11549. `LLAMA_ARG_*`
variables that are not in it are in `PASSED_ON`: llama-server gets them unchanged.
"""

from __future__ import annotations

from typing import Any

from specdash.core.parameters import Parameter, ValueKind, declared

_KV_TYPES = {
    "f32": "32 bits a value",
    "f16": "16 bits a value",
    "bf16": "16 bits a value, coarser than f16 and of wider range",
    "q8_0": "8.5 bits a value: about half of f16's memory, hardly any loss",
    "q4_0": "4.5 bits a value: about a quarter of f16's memory, a loss that shows",
    "q4_1": "5 bits a value",
    "iq4_nl": "4.5 bits a value, its steps closer together near zero",
    "q5_0": "5.5 bits a value",
    "q5_1": "6 bits a value",
}
_LAYER_WORDS = (("auto", -1), ("all", -2))
_DEVICES = (r"[^\s,]+(,[^\s,]+)*", "names of devices, comma-separated")
_SHARES = (r"\d+(\.\d+)?([,/]\d+(\.\d+)?)*", "shares, one a GPU, comma-separated, as 3,1")


def _row(
    kind: ValueKind, flags: str, keys: str, attribute: str | None, meaning: str, *rest: Any, off: str = "", **more: Any
) -> Parameter:
    """One engine parameter; `flags`, `off` and `keys` are separated by blanks, the canonical flag first."""
    name = flags.split(maxsplit=1)[0].lstrip("-")
    given = {"attribute": attribute, "off_flags": tuple(off.split()), "secret": "environment" in more, **more}
    return declared(name, kind, meaning, keys, flags, *rest, **given)


def _ours(
    key: str, kind: ValueKind, meaning: str, *rest: Any, also: str = "", flags: str = "", **more: Any
) -> Parameter:
    return declared(key.lower(), kind, meaning, f"{key} {also}", flags, *rest, ours=True, **more)


_I, _N, _T, _P, _S = ValueKind.INTEGER, ValueKind.NUMBER, ValueKind.TEXT, ValueKind.PATH, ValueKind.SWITCH
_LEN = "tokens"
_NGRAM_LEN = (1, 1024)


# fmt: off
def _ngram_map(name: str) -> tuple[Parameter, ...]:
    flag, path = f"--spec-{name}", f"speculative.{name.replace('-', '_')}"
    return (
        _row(_I, f"{flag}-size-n", "", f"{path}.size_n", "length of the looked-up n-gram", 12, _NGRAM_LEN, _LEN),
        _row(_I, f"{flag}-size-m", "", f"{path}.size_m", "length of the draft", 48, _NGRAM_LEN, _LEN),
        _row(_I, f"{flag}-min-hits", "", f"{path}.min_hits", "occurrences before an n-gram is used", 1, (1, None)),
    )


_DRAFT = "speculative.draft"


OURS: tuple[Parameter, ...] = (
    _ours("LLAMA_ENGINE", _T, "which engine runs the model", "auto", choices={
        "auto": "llama-server where there is a binary, else xllamacpp",
        "llama-server": "the binary, LLAMA_BIN or the one on PATH",
        "xllamacpp": "llama.cpp as a Python package",
    }),
    _ours("LLAMA_BIN", _P, "the llama-server binary; unset: the one on PATH"),
    _ours("LLAMA_SPEC_TYPE", _T, "speculation: 'none', a comma-separated chain of types, or 'auto'",
         also="LLAMA_ARG_SPEC_TYPE", flags="--spec-type"),
    _ours("LLAMA_DRAFT_MAX", _I, "longest draft, for every type in the chain that has such a knob", None, (1, 1024),
         _LEN),
    _ours("LLAMA_DRAFT_MIN", _I, "shortest draft worth verifying, for every type that has such a knob", None,
         (0, 1024), _LEN),
    _ours("LLAMA_DRAFT_P_MIN", _N, "probability below which a draft model stops drafting", None, (0, 1)),
    _ours("LLAMA_HYBRID_ROLLBACK_MODE", _T, "how a patched build rolls back recurrent state after a rejected draft"),
    _ours("LLAMA_EXTRA_ARGS", _T, "more llama-server arguments, split as a shell would; they win over every key"),
    _ours("LLAMA_LOG_FILE", _P, "where the server's output is kept", also="LLAMA_ARG_LOG_FILE",
         flags="--log-file"),
    _ours("LLAMA_LOG_MAX_MIB", _I, "size at which the log is moved to '.1'; 0: never", 256, (0, None), "MiB"),
    _ours("LLAMA_STOP_TIMEOUT", _N, "wait between SIGTERM, the second SIGTERM and SIGKILL", 5.0, (0, 600), "s"),
    _ours("LLAMA_START_PROBE", _T, "1: after every start, one short completion shows whether drafts are made; 0: none",
         "1", choices={"0": "no completion after a start", "1": "one short completion shows whether drafts are made"}),
    _ours("LLAMA_START_BASELINE", _T, "1: after a start that speculates, seconds of completions of two tokens measure "
         "decode without speculation; 0, or LLAMA_START_PROBE=0: none", "1", choices={
             "0": "decode without speculation is not measured at a start",
             "1": "it is, for some seconds after a start that speculates",
         }),
    _ours("LLAMA_TRACE", _T, "a log line for every verification step", "1",
         levels={"0": "none", "1": "live acceptance comes from there"}),
)

MODEL: tuple[Parameter, ...] = (
    _row(_P, "--model -m", "LLAMA_MODEL LLAMA_ARG_MODEL", "model.path", "the model, a GGUF file"),
    _row(_T, "--model-url -mu", "LLAMA_ARG_MODEL_URL", "model.url", "URL to download the model from"),
    _row(_T, "--hf-repo -hf -hfr", "LLAMA_ARG_HF_REPO", "model.hf_repo", "Hugging Face repository of the model"),
    _row(_T, "--hf-file -hff", "LLAMA_ARG_HF_FILE", "model.hf_file", "file in that repository"),
    _row(_T, "--docker-repo -dr", "LLAMA_ARG_DOCKER_REPO", "model.docker_repo", "Docker Hub repository of the model"),
    _row(_T, "--hf-token -hft", "HF_TOKEN", "hf_token", "Hugging Face access token", environment="HF_TOKEN"),
    _row(_S, "--offline", "LLAMA_ARG_OFFLINE", "offline", "never use the network", False),
    _row(_T, "--alias -a", "LLAMA_ALIAS LLAMA_ARG_ALIAS", "model_alias", "model names the API answers to"),
    _row(_P, "--mmproj -mm", "LLAMA_ARG_MMPROJ", "mmproj.path", "multimodal projector file"),
    _row(_P, "--chat-template-file", "LLAMA_ARG_CHAT_TEMPLATE_FILE", "chat_template", "chat template from a file"),
    _row(_T, "--chat-template", "LLAMA_ARG_CHAT_TEMPLATE", "chat_template", "chat template text or name"),
    _row(_S, "--jinja", "LLAMA_ARG_JINJA", "use_jinja", "render chat templates with jinja", True, off="--no-jinja"),
)

MEMORY: tuple[Parameter, ...] = (
    _row(_I, "--ctx-size -c", "LLAMA_CTX_SIZE LLAMA_ARG_CTX_SIZE", "n_ctx",
         "context of all slots together; 0: as the model was trained", 0, (0, None), _LEN, always=True),
    _row(_I, "--parallel -np", "LLAMA_PARALLEL LLAMA_ARG_N_PARALLEL", "n_parallel",
         "slots; each gets ctx-size/slots tokens; -1: the engine's automatic (4 slots, one shared cache)", 1,
         (-1, 256), always=True),
    _row(_I, "--kv-unified-per-slot", "LLAMA_ARG_KV_UNIFIED_PER_SLOT", "kv_unified_per_slot",
         "context limit of a slot", None, (0, None), _LEN),
    _row(_S, "--kv-unified -kvu", "LLAMA_ARG_KV_UNIFIED", "kv_unified", "one cache shared by all slots", False,
         off="--no-kv-unified -no-kvu"),
    _row(_I, "--batch-size -b", "LLAMA_ARG_BATCH", "n_batch", "logical batch", 2048, (1, None), _LEN),
    _row(_I, "--ubatch-size -ub", "LLAMA_ARG_UBATCH", "n_ubatch", "physical batch", 512, (1, None), _LEN),
    _row(_T, "--cache-type-k -ctk", "LLAMA_CACHE_TYPE_K LLAMA_ARG_CACHE_TYPE_K", "cache_type_k",
         "type of cached keys", "f16", choices=_KV_TYPES),
    _row(_T, "--cache-type-v -ctv", "LLAMA_CACHE_TYPE_V LLAMA_ARG_CACHE_TYPE_V", "cache_type_v",
         "type of cached values", "f16", choices=_KV_TYPES),
    _row(_T, "--flash-attn -fa", "LLAMA_FLASH_ATTN LLAMA_ARG_FLASH_ATTN", "flash_attn_type", "flash attention",
         "auto", choices={
             "on": "always",
             "off": "never; cached values cannot be quantised then",
             "auto": "where the devices that hold the layers can",
         }),
    _row(_S, "--swa-full", "LLAMA_ARG_SWA_FULL", "swa_full", "full-size sliding-window cache", False),
    _row(_I, "--ctx-checkpoints -ctxcp --swa-checkpoints", "LLAMA_ARG_CTX_CHECKPOINTS", "n_ctx_checkpoints",
         "context checkpoints kept per slot", 32, (0, None)),
    _row(_I, "--checkpoint-min-step -cms", "LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT", "checkpoint_min_step",
         "least distance between checkpoints", 8192, (0, None), _LEN),
    _row(_I, "--cache-ram -cram", "LLAMA_ARG_CACHE_RAM", "cache_ram_mib", "prompt cache; -1: no limit, 0: off", 8192,
         (-1, None), "MiB"),
    _row(_I, "--cache-reuse", "LLAMA_ARG_CACHE_REUSE", "n_cache_reuse", "smallest chunk reused by shifting the cache",
         0, (0, None), _LEN),
    _row(_S, "--cache-prompt", "LLAMA_ARG_CACHE_PROMPT", "cache_prompt", "keep prompts for reuse", True,
         off="--no-cache-prompt"),
    _row(_S, "--cache-idle-slots", "LLAMA_ARG_CACHE_IDLE_SLOTS", "cache_idle_slots",
         "save idle slots to the prompt cache", True, off="--no-cache-idle-slots"),
    _row(_S, "--context-shift", "LLAMA_ARG_CONTEXT_SHIFT", "ctx_shift", "drop the oldest context when it is full",
         False, off="--no-context-shift"),
    _row(_T, "--fit -fit", "LLAMA_ARG_FIT", "fit_params", "adjust unset parameters to the memory there is", "on",
         choices={"on": "unset ones are lowered until the model fits", "off": "they are taken as they are"}),
    _row(_I, "--fit-ctx -fitc", "LLAMA_ARG_FIT_CTX", "fit_params_min_ctx", "least context --fit may choose", 4096,
         (0, None), _LEN),
)

HARDWARE: tuple[Parameter, ...] = (
    _row(_T, "--device -dev", "LLAMA_DEVICE LLAMA_ARG_DEVICE", None,
         "devices to run on, as `specdash doctor` lists them; 'none': the CPU; unset: every GPU", looks=_DEVICES),
    _row(_I, "--gpu-layers -ngl --n-gpu-layers", "LLAMA_GPU_LAYERS LLAMA_N_GPU_LAYERS LLAMA_ARG_N_GPU_LAYERS",
         "n_gpu_layers", "layers kept in GPU memory: a number, 'auto' or 'all'", -1, (-2, None), "layers",
         words=_LAYER_WORDS),
    _row(_I, "--main-gpu -mg", "LLAMA_MAIN_GPU LLAMA_ARG_MAIN_GPU", "main_gpu",
         "index of the GPU that holds all (LLAMA_SPLIT_MODE=none) or the intermediate results (row)", 0, (0, None)),
    _row(_T, "--tensor-split -ts", "LLAMA_TENSOR_SPLIT LLAMA_ARG_TENSOR_SPLIT", "tensor_split",
         "share of the model on each GPU", looks=_SHARES),
    _row(_T, "--split-mode -sm", "LLAMA_SPLIT_MODE LLAMA_ARG_SPLIT_MODE", "split_mode",
         "how several GPUs share the model", "layer", choices={
             "none": "one GPU holds all of it",
             "layer": "each GPU holds some layers and their cache; they work one after the other",
             "row": "each GPU holds rows of every weight; they work at once",
             "tensor": "each GPU holds a part of every weight and of the cache (experimental)",
         }),
    _row(_T, "--load-mode -lm", "LLAMA_ARG_LOAD_MODE", "load_mode", "how the file is read", "auto",
         choices={
             "auto": "mapped, where the devices support it",
             "none": "read into memory",
             "mmap": "mapped: a quick start, pages come from the disk as they are needed",
             "mlock": "read and kept in memory, never swapped",
             "mmap+mlock": "mapped and kept in memory",
             "dio": "read past the system's page cache",
         }),
    _row(_S, "--kv-offload -kvo", "LLAMA_ARG_KV_OFFLOAD", "no_kv_offload", "keep the cache on the GPU", True,
         off="--no-kv-offload -nkvo", inverted=True),
    _row(_I, "--threads -t", "LLAMA_THREADS LLAMA_ARG_THREADS", "cpuparams.n_threads",
         "CPU threads; -1: one per core", -1, (-1, 512)),
    _row(_I, "--threads-batch -tb", "", "cpuparams_batch.n_threads", "CPU threads for prompts; -1: as --threads", -1,
         (-1, 512)),
    _row(_S, "--warmup", "", "warmup", "run once empty after loading", True, off="--no-warmup"),
)

SERVER: tuple[Parameter, ...] = (
    _row(_T, "--host", "LLAMA_HOST LLAMA_ARG_HOST", "hostnames", "address to listen on", "127.0.0.1", always=True),
    _row(_I, "--port", "LLAMA_PORT LLAMA_ARG_PORT", "port", "port to listen on; 0: any free one", 8080, (0, 65535),
         always=True),
    _row(_T, "--api-key", "LLAMA_API_KEY", "api_keys", "key clients must send", environment="LLAMA_API_KEY"),
    _row(_P, "--api-key-file", "LLAMA_API_KEY_FILE LLAMA_ARG_API_KEY_FILE", "api_keys",
         "file with such keys, one a line" ),
    _row(_P, "--ssl-cert-file", "LLAMA_ARG_SSL_CERT_FILE", "ssl_file_cert",
         "certificate (PEM) to serve TLS with; it needs the key too"),
    _row(_P, "--ssl-key-file", "LLAMA_ARG_SSL_KEY_FILE", "ssl_file_key", "private key (PEM) of the certificate"),
    _row(_S, "--metrics", "LLAMA_ARG_ENDPOINT_METRICS", "endpoint_metrics", "serve /metrics", True, always=True),
    _row(_S, "--slots", "LLAMA_ARG_ENDPOINT_SLOTS", "endpoint_slots", "serve /slots", True, off="--no-slots",
         always=True ),
    _row(_S, "--props", "LLAMA_ARG_ENDPOINT_PROPS", "endpoint_props", "accept POST /props", False),
    _row(_I, "--timeout -to", "LLAMA_ARG_TIMEOUT", "timeout_read", "read and write timeout", 3600, (1, None), "s"),
    _row(_I, "--threads-http", "LLAMA_ARG_THREADS_HTTP", "n_threads_http", "HTTP threads; -1: automatic", -1,
         (-1, None) ),
    _row(_S, "--cont-batching -cb", "LLAMA_ARG_CONT_BATCHING", "cont_batching", "continuous batching", True,
         off="--no-cont-batching -nocb"),
    _row(_I, "--sleep-idle-seconds", "", "sleep_idle_seconds", "idle time until the model is unloaded; -1: never", -1,
         (-1, None), "s"),
    _row(_P, "--slot-save-path", "LLAMA_SLOT_SAVE_PATH", "slot_save_path", "directory for saved slots"),
    _row(_N, "--slot-prompt-similarity -sps", "", "slot_prompt_similarity",
         "how alike prompts must be to share a slot", 0.1, (0, 1)),
    _row(_T, "--api-prefix", "LLAMA_ARG_API_PREFIX", "api_prefix", "path the server serves from"),
    _row(_S, "--ui --webui", "LLAMA_ARG_UI", "ui", "serve the web page", True, off="--no-ui --no-webui"),
    _row(_S, "--embeddings --embedding", "LLAMA_ARG_EMBEDDINGS", "embedding", "serve embeddings only", False),
    _row(_I, "--log-verbosity -lv --verbosity", "LLAMA_LOG_VERBOSITY LLAMA_ARG_LOG_VERBOSITY", "verbosity",
         "least important lines that are logged", 3, (0, None), always=True,
         levels={"0": "output", "1": "error", "2": "warning", "3": "info", "4": "trace", "5": "debug"}),
    _row(_S, "--log-jsonl", "LLAMA_ARG_LOG_JSONL", "log_json", "log lines as JSON", False, off="--no-log-jsonl"),
)

SAMPLING: tuple[Parameter, ...] = (
    _row(_I, "--predict -n --n-predict", "LLAMA_ARG_N_PREDICT", "n_predict", "longest answer; -1: no limit", -1,
         (-1, None), _LEN),
    _row(_I, "--keep", "", "n_keep", "prompt tokens kept by a context shift; -1: all", 0, (-1, None), _LEN),
    _row(_I, "--seed -s", "", "sampling.seed", "seed of sampling; -1: random", None, (-1, 2**32 - 1)),
    _row(_N, "--temp --temperature", "LLAMA_ARG_TEMPERATURE", "sampling.temp", "temperature", 0.8, (0, None)),
    _row(_I, "--top-k", "LLAMA_ARG_TOP_K", "sampling.top_k", "keep the k likeliest tokens; 0: all", 40, (0, None)),
    _row(_N, "--top-p", "LLAMA_ARG_TOP_P", "sampling.top_p", "keep the likeliest tokens of this mass", 0.95, (0, 1)),
    _row(_N, "--min-p", "LLAMA_ARG_MIN_P", "sampling.min_p", "drop tokens below this share of the likeliest", 0.05,
         (0, 1)),
)

SPECULATION: tuple[Parameter, ...] = (
    _row(_P, "--spec-draft-model -md --model-draft",
         "LLAMA_DRAFT_MODEL LLAMA_ARG_SPEC_DRAFT_MODEL LLAMA_ARG_MODEL_DRAFT", f"{_DRAFT}.mparams.path",
         "the draft model, a GGUF file"),
    _row(_T, "--spec-draft-hf -hfd -hfrd --hf-repo-draft", "LLAMA_ARG_SPEC_DRAFT_HF_REPO",
         f"{_DRAFT}.mparams.hf_repo", "Hugging Face repository of the draft model"),
    _row(_I, "--spec-draft-n-max", "LLAMA_ARG_SPEC_DRAFT_N_MAX", f"{_DRAFT}.n_max",
         "longest draft of a draft model; 0 would abort the server at the first request", 3, (1, None), _LEN),
    _row(_I, "--spec-draft-n-min", "LLAMA_ARG_SPEC_DRAFT_N_MIN", f"{_DRAFT}.n_min", "shortest draft worth verifying",
         0, (0, None), _LEN),
    _row(_N, "--spec-draft-p-min --draft-p-min", "LLAMA_ARG_SPEC_DRAFT_P_MIN", f"{_DRAFT}.p_min",
         "token probability below which drafting stops", 0.0, (0, 1)),
    _row(_N, "--spec-draft-p-split --draft-p-split", "LLAMA_ARG_SPEC_DRAFT_P_SPLIT", f"{_DRAFT}.p_split",
         "probability at which a draft branches", 0.1, (0, 1)),
    _row(_I, "--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft",
         "LLAMA_DRAFT_GPU_LAYERS LLAMA_DRAFT_N_GPU_LAYERS LLAMA_ARG_N_GPU_LAYERS_DRAFT", f"{_DRAFT}.n_gpu_layers",
         "draft layers kept in GPU memory: a number, 'auto' or 'all'", -1, (-2, None), "layers", words=_LAYER_WORDS),
    _row(_T, "--spec-draft-type-k -ctkd --cache-type-k-draft",
         "LLAMA_DRAFT_CACHE_TYPE_K LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K", f"{_DRAFT}.cache_type_k",
         "type of the draft's cached keys", "f16", choices=_KV_TYPES),
    _row(_T, "--spec-draft-type-v -ctvd --cache-type-v-draft",
         "LLAMA_DRAFT_CACHE_TYPE_V LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V", f"{_DRAFT}.cache_type_v",
         "type of the draft's cached values", "f16", choices=_KV_TYPES),
    _row(_T, "--spec-draft-device -devd --device-draft", "LLAMA_DRAFT_DEVICE", f"{_DRAFT}.devices",
         "devices of the draft model, likewise; 'none': the CPU; unset: as the model itself", looks=_DEVICES),
    _row(_T, "--spec-draft-override-tensor -otd --override-tensor-draft", "", f"{_DRAFT}.tensor_buft_overrides",
         "where tensors of the draft model are kept: pattern=buffer, comma-separated"),
    _row(_S, "--spec-draft-cpu-moe -cmoed --cpu-moe-draft", "LLAMA_ARG_SPEC_DRAFT_CPU_MOE", None,
         "keep the expert weights of the draft model in main memory", False),
    _row(_I, "--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft", "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
         None, "first layers of the draft model whose expert weights stay in main memory", None, (0, None), "layers"),
    _row(_I, "--spec-draft-threads -td --threads-draft", "", f"{_DRAFT}.cpuparams.n_threads",
         "CPU threads of the draft model; -1: as the model itself", -1, (-1, 512)),
    _row(_I, "--spec-draft-threads-batch -tbd --threads-batch-draft", "", f"{_DRAFT}.cpuparams_batch.n_threads",
         "CPU threads of the draft model while it reads the prompt; -1: as the model itself", -1, (-1, 512)),
    _row(_S, "--spec-draft-backend-sampling", "LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING", f"{_DRAFT}.backend_sampling",
         "sample the draft on the device", True, off="--no-spec-draft-backend-sampling"),
    _row(_T, "--spec-draft-sampling", "LLAMA_ARG_SPEC_DRAFT_SAMPLING", f"{_DRAFT}.probabilistic",
         "how the draft is sampled", "greedy", choices={
             "greedy": "the likeliest token",
             "probabilistic": "drawn by its probabilities; the target verifies by rejection sampling",
         }),
    _row(_N, "--spec-synth-len", "LLAMA_ARG_SPEC_SYNTH_LEN", "speculative.synth_len",
         "synthetic mean accepted length, target token included (testing only)", None, (1, None), _LEN),
    _row(_T, "--spec-synth-rates", "LLAMA_ARG_SPEC_SYNTH_RATES", "speculative.synth_rates",
         "synthetic acceptance per position, comma-separated (testing only)"),
    _row(_I, "--spec-ngram-mod-n-max", "", "speculative.ngram_mod.n_max", "longest draft of ngram-mod", 64,
         _NGRAM_LEN, _LEN),
    _row(_I, "--spec-ngram-mod-n-min", "", "speculative.ngram_mod.n_min", "shortest draft of ngram-mod", 48,
         (0, 1024), _LEN),
    _row(_I, "--spec-ngram-mod-n-match", "", "speculative.ngram_mod.n_match", "length of the looked-up n-gram", 24,
         _NGRAM_LEN, _LEN),
    *_ngram_map("ngram-simple"),
    *_ngram_map("ngram-map-k"),
    *_ngram_map("ngram-map-k4v"),
    _row(_P, "--lookup-cache-static -lcs", "", "speculative.ngram_cache.lookup_cache_static",
         "lookup cache that is only read; the file must exist"),
    _row(_P, "--lookup-cache-dynamic -lcd", "", "speculative.ngram_cache.lookup_cache_dynamic",
         "lookup cache that generation updates; the file must exist"),
)
# fmt: on

GROUPS: tuple[tuple[str, tuple[Parameter, ...]], ...] = (
    ("Speculation and service", OURS),
    ("Model", MODEL),
    ("Context and memory", MEMORY),
    ("Hardware", HARDWARE),
    ("Server", SERVER),
    ("Sampling defaults", SAMPLING),
    ("Draft model and n-grams", SPECULATION),
)
"""Every parameter, by what it is about."""
ENGINE: tuple[Parameter, ...] = (*MODEL, *MEMORY, *HARDWARE, *SERVER, *SAMPLING, *SPECULATION)
PARAMETERS: tuple[Parameter, ...] = (*OURS, *ENGINE)

BY_NAME: dict[str, Parameter] = {p.name: p for p in PARAMETERS}
BY_KEY: dict[str, Parameter] = {key: p for p in PARAMETERS for key in p.keys}
BY_FLAG: dict[str, tuple[Parameter, bool]] = {
    **{flag: (p, True) for p in PARAMETERS for flag in p.flags},
    **{flag: (p, False) for p in PARAMETERS for flag in p.off_flags},
}
"""Flag, as spelled, to its parameter and, for a switch, whether it turns it on."""

REMOVED_FLAGS: dict[str, str] = {
    **dict.fromkeys(("--draft", "--draft-n", "--draft-max"), "LLAMA_DRAFT_MAX, or --spec-draft-n-max"),
    **dict.fromkeys(("--draft-min", "--draft-n-min"), "LLAMA_DRAFT_MIN, or --spec-draft-n-min"),
    "--spec-ngram-size-n": "--spec-ngram-<type>-size-n or --spec-ngram-mod-n-match",
    "--spec-ngram-size-m": "--spec-ngram-<type>-size-m",
    "--spec-ngram-min-hits": "--spec-ngram-<type>-min-hits",
}
"""Flags that abort every build since b8970 (PR #22397), and what to write instead."""

SHORTHANDS: dict[str, dict[str, str]] = {
    "--spec-default": {
        "llama_spec_type": "ngram-mod",
        "spec-ngram-mod-n-match": "24",
        "spec-ngram-mod-n-min": "48",
        "spec-ngram-mod-n-max": "64",
    }
}
"""Flags that stand for several parameters, by name and text. b11434 lets them add a spec type to a chain (tried)."""

REMOVED_KEYS: dict[str, str] = {
    "LLAMA_ARG_DRAFT_MAX": "LLAMA_DRAFT_MAX",
    "LLAMA_ARG_DRAFT_MIN": "LLAMA_DRAFT_MIN",
    "LLAMA_ARG_DRAFT_P_MIN": "LLAMA_DRAFT_P_MIN",
}
"""Variables that abort those builds, or that they ignore without a word, and the key to write instead."""
IGNORED_KEYS = frozenset({"LLAMA_ARG_DRAFT_P_MIN"})
"""Those of them that are ignored."""


# Variables that llama-server reads and the catalogue does not map: handed on unread, and described here. Others of its
# own are handed on as well; its `--help` says which it has.
#
# They have no attribute in xllamacpp, or one of another shape. Source: `llama-server --help` of b11434.


def _arg(kind: ValueKind, key: str, flag: str, meaning: str, **choices: str) -> Parameter:
    listed = {value.replace("_", "-"): what for value, what in choices.items()}
    return declared(flag.lstrip("-"), kind, meaning, f"LLAMA_ARG_{key}", flag, choices=listed, secret=key in _SECRET)


_SECRET = ("MCP_SERVERS_JSON",)
# fmt: off
PASSED_ON: dict[str, Parameter] = {parameter.key: parameter for parameter in (
    _arg(_S, "AGENT", "--agent", "the CORS proxy and all built-in tools; not for untrusted networks"),
    _arg(_S, "BACKEND_SAMPLING", "--backend-sampling", "sample on the device (experimental)"),
    _arg(_T, "CHAT_TEMPLATE_KWARGS", "--chat-template-kwargs", "more parameters of the chat template, a JSON object"),
    _arg(_S, "CORS_CREDENTIALS", "--cors-credentials", "allow credentials in requests from other origins"),
    _arg(_S, "CPU_MOE", "--cpu-moe", "keep all expert weights in main memory"),
    _arg(_T, "FIT_TARGET", "--fit-target", "memory in MiB that --fit leaves free, per device"),
    _arg(_T, "MCP_SERVERS_JSON", "--mcp-servers-json", "MCP servers as JSON (experimental), with their keys"),
    _arg(_S, "MMPROJ_AUTO", "--mmproj-auto", "look for a multimodal projector beside the model"),
    _arg(_S, "MMPROJ_OFFLOAD", "--mmproj-offload", "keep the multimodal projector on the GPU"),
    _arg(_S, "MODELS_AUTOLOAD", "--models-autoload", "router: load a model when it is asked for"),
    _arg(_P, "MODELS_DIR", "--models-dir", "router: directory of models"),
    _arg(_I, "MODELS_MAX", "--models-max", "router: most models loaded at once; 0: no limit"),
    _arg(_P, "MODELS_PRESET", "--models-preset", "router: INI file of presets"),
    _arg(_T, "NUMA", "--numa", "placement on NUMA machines",
         distribute="over all nodes", isolate="on the node where it started", numactl="by the map of numactl"),
    _arg(_I, "N_CPU_FFN", "--n-cpu-ffn", "first layers whose dense FFN weights stay in main memory"),
    _arg(_I, "N_CPU_MOE", "--n-cpu-moe", "first layers whose expert weights stay in main memory"),
    _arg(_T, "OVERRIDE_TENSOR", "--override-tensor", "where tensors are kept: pattern=buffer, comma-separated"),
    _arg(_T, "REASONING", "--reasoning", "thinking in the chat",
         on="always", off="never", auto="as the chat template says"),
    _arg(_T, "REASONING_EFFORT", "--reasoning-effort", "effort for the chat template, as 'low' or 'high'"),
    _arg(_S, "REASONING_PRESERVE", "--reasoning-preserve", "keep the reasoning of all messages, not of the last alone"),
    _arg(_S, "RERANKING", "--reranking", "serve reranking"),
    _arg(_T, "RPC", "--rpc", "RPC servers, host:port, comma-separated"),
    _arg(_T, "THINK", "--reasoning-format", "where thoughts go in an answer",
         none="left in the answer", deepseek="in reasoning_content", deepseek_legacy="in both",
         auto="as the chat template says"),
    _arg(_I, "THINK_BUDGET", "--reasoning-budget", "most tokens of thinking; -1: no limit, 0: none"),
    _arg(_T, "THINK_BUDGET_MESSAGE", "--reasoning-budget-message", "text that ends thinking at the end of its budget"),
    _arg(_T, "TOOLS", "--tools", "built-in tools (experimental); not for untrusted networks"),
)}
# fmt: on
