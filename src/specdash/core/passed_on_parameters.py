"""Variables that llama-server reads and the catalogue does not map: handed on unread, and told of here.

They have no attribute in xllamacpp, or one of another shape. Source: `llama-server --help` of b11434.
"""

from __future__ import annotations

from specdash.core.parameters import Kind, Parameter

_I, _N, _T, _P, _S = Kind.INTEGER, Kind.NUMBER, Kind.TEXT, Kind.PATH, Kind.SWITCH


def _row(kind: Kind, key: str, flag: str, meaning: str, choices: str = "") -> Parameter:
    return Parameter(
        name=flag.lstrip("-"),
        kind=kind,
        meaning=meaning,
        keys=(f"LLAMA_ARG_{key}",),
        flags=(flag,),
        choices=tuple(choices.split()),
    )


# fmt: off
PASSED_ON: tuple[Parameter, ...] = (
    _row(_S, "AGENT", "--agent", "the CORS proxy and all built-in tools; not for untrusted networks"),
    _row(_S, "BACKEND_SAMPLING", "--backend-sampling", "sample on the device (experimental)"),
    _row(_T, "CHAT_TEMPLATE_KWARGS", "--chat-template-kwargs", "more parameters of the chat template, a JSON object"),
    _row(_S, "CORS_CREDENTIALS", "--cors-credentials", "allow credentials in requests from other origins"),
    _row(_T, "CORS_HEADERS", "--cors-headers", "headers allowed from other origins"),
    _row(_T, "CORS_METHODS", "--cors-methods", "methods allowed from other origins"),
    _row(_T, "CORS_ORIGINS", "--cors-origins", "origins whose pages may ask"),
    _row(_S, "CPU_MOE", "--cpu-moe", "keep all expert weights in main memory"),
    _row(_N, "DEFRAG_THOLD", "--defrag-thold", "deprecated: threshold at which the cache was defragmented"),
    _row(_T, "FIT_TARGET", "--fit-target", "memory in MiB that --fit leaves free, per device"),
    _row(_N, "FREQUENCY_PENALTY", "--frequency-penalty", "penalty on tokens by how often they occurred; 0: off"),
    _row(_I, "IMAGE_MAX_TOKENS", "--image-max-tokens", "most tokens of an image"),
    _row(_I, "IMAGE_MIN_TOKENS", "--image-min-tokens", "fewest tokens of an image"),
    _row(_T, "LAZY_MODE", "--lazy-mode", "read rows of large tensors from disk on demand", "on off auto"),
    _row(_T, "LOG_COLORS", "--log-colors", "colour in the log", "on off auto"),
    _row(_S, "LOG_PREFIX", "--log-prefix", "time and level before each line of the log"),
    _row(_S, "LOG_TIMESTAMPS", "--log-timestamps", "time before each line of the log"),
    _row(_P, "MCP_SERVERS_CONFIG", "--mcp-servers-config", "file with MCP servers (experimental)"),
    _row(_T, "MCP_SERVERS_JSON", "--mcp-servers-json", "MCP servers as JSON (experimental)"),
    _row(_S, "MMPROJ_AUTO", "--mmproj-auto", "look for a multimodal projector beside the model"),
    _row(_S, "MMPROJ_OFFLOAD", "--mmproj-offload", "keep the multimodal projector on the GPU"),
    _row(_T, "MMPROJ_URL", "--mmproj-url", "URL of a multimodal projector"),
    _row(_S, "MODELS_AUTOLOAD", "--models-autoload", "router: load a model when it is asked for"),
    _row(_P, "MODELS_DIR", "--models-dir", "router: directory of models"),
    _row(_I, "MODELS_MAX", "--models-max", "router: most models loaded at once; 0: no limit"),
    _row(_P, "MODELS_PRESET", "--models-preset", "router: INI file of presets"),
    _row(_I, "MTMD_BATCH_MAX_TOKENS", "--mtmd-batch-max-tokens", "most image tokens in a batch"),
    _row(_S, "NO_HOST", "--no-host", "go round the host buffer"),
    _row(_T, "NUMA", "--numa", "placement on NUMA machines", "distribute isolate numactl"),
    _row(_I, "N_CPU_FFN", "--n-cpu-ffn", "first layers whose dense FFN weights stay in main memory"),
    _row(_I, "N_CPU_MOE", "--n-cpu-moe", "first layers whose expert weights stay in main memory"),
    _row(_T, "OVERRIDE_TENSOR", "--override-tensor", "where tensors are kept: pattern=buffer, comma-separated"),
    _row(_S, "PERF", "--perf", "libllama's own timings"),
    _row(_T, "POOLING", "--pooling", "pooling of embeddings", "none mean cls last rank"),
    _row(_S, "PREFILL_ASSISTANT", "--prefill-assistant", "go on with the last message when it is the assistant's"),
    _row(_N, "PRESENCE_PENALTY", "--presence-penalty", "penalty on tokens that occurred; 0: off"),
    _row(_T, "REASONING", "--reasoning", "thinking in the chat", "on off auto"),
    _row(_T, "REASONING_EFFORT", "--reasoning-effort", "effort the chat template is told, as 'low' or 'high'"),
    _row(_S, "REASONING_PRESERVE", "--reasoning-preserve", "keep the reasoning of all messages, not of the last alone"),
    _row(_S, "REPACK", "--repack", "repack weights for the CPU"),
    _row(_N, "REPEAT_PENALTY", "--repeat-penalty", "penalty on repeated tokens; 1: off"),
    _row(_S, "RERANKING", "--reranking", "serve reranking"),
    _row(_S, "REUSE_PORT", "--reuse-port", "let several sockets bind the port"),
    _row(_N, "ROPE_FREQ_BASE", "--rope-freq-base", "RoPE base frequency"),
    _row(_N, "ROPE_FREQ_SCALE", "--rope-freq-scale", "RoPE frequency scale"),
    _row(_N, "ROPE_SCALE", "--rope-scale", "RoPE context scale"),
    _row(_T, "ROPE_SCALING_TYPE", "--rope-scaling", "RoPE scaling", "none linear yarn"),
    _row(_T, "RPC", "--rpc", "RPC servers, host:port, comma-separated"),
    _row(_S, "SKIP_CHAT_PARSING", "--skip-chat-parsing", "hand answers out unparsed"),
    _row(_I, "SSE_PING_INTERVAL", "--sse-ping-interval", "seconds between pings on a stream; -1: none"),
    _row(_P, "SSL_CERT_FILE", "--ssl-cert-file", "certificate (PEM) to serve TLS with"),
    _row(_P, "SSL_KEY_FILE", "--ssl-key-file", "private key (PEM) of the certificate"),
    _row(_P, "STATIC_PATH", "--path", "directory of static files to serve"),
    _row(_T, "TAGS", "--tags", "tags of the model, comma-separated"),
    _row(_T, "THINK", "--reasoning-format", "where thoughts go in an answer", "none deepseek deepseek-legacy auto"),
    _row(_I, "THINK_BUDGET", "--reasoning-budget", "most tokens of thinking; -1: no limit, 0: none"),
    _row(_T, "THINK_BUDGET_MESSAGE", "--reasoning-budget-message", "text that ends thinking at the end of its budget"),
    _row(_T, "TOOLS", "--tools", "built-in tools (experimental); not for untrusted networks"),
    _row(_T, "TOOLS_RUNTIME", "--tools-runtime", "where built-in tools run (experimental)"),
    _row(_T, "UI_CONFIG", "--ui-config", "settings of the web page, as JSON"),
    _row(_P, "UI_CONFIG_FILE", "--ui-config-file", "file with settings of the web page"),
    _row(_S, "UI_MCP_PROXY", "--ui-mcp-proxy", "proxy for MCP in the web page (experimental)"),
    _row(_P, "VIDEO_FFMPEG_DIR", "--video-ffmpeg-dir", "directory of ffmpeg and ffprobe"),
    _row(_N, "VIDEO_FPS", "--video-fps", "frames taken from a second of video"),
    _row(_I, "VIDEO_TIMESTAMP_INTERVAL", "--video-timestamp-interval", "milliseconds between time stamps of a video"),
    _row(_N, "YARN_ATTN_FACTOR", "--yarn-attn-factor", "YaRN attention factor"),
    _row(_N, "YARN_BETA_FAST", "--yarn-beta-fast", "YaRN beta for high frequencies"),
    _row(_N, "YARN_BETA_SLOW", "--yarn-beta-slow", "YaRN beta for low frequencies"),
    _row(_N, "YARN_EXT_FACTOR", "--yarn-ext-factor", "YaRN extrapolation factor"),
    _row(_I, "YARN_ORIG_CTX", "--yarn-orig-ctx", "context the model was trained with, for YaRN"),
)
# fmt: on

BY_KEY: dict[str, Parameter] = {one.key: one for one in PASSED_ON}
