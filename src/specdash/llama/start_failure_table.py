"""The table of `start_failures`: every way llama.cpp is known to end, abort, or run without speculation, as data."""

from __future__ import annotations

from specdash.llama.start_failure_kinds import MOST_GENERAL, Ends, KnownFailure
from specdash.llama.start_failure_speculation import ABORTS, DRAFTS, SYNTHETIC, WITHOUT

_A = r'error while handling (?P<kind>argument|environment variable) "(?P<name>[^"]+)": '
_SMALLER = "shorten LLAMA_CTX_SIZE, use a smaller or more quantised model or draft, or offload fewer layers"

ARGUMENTS: tuple[KnownFailure, ...] = (
    KnownFailure(
        "argument_removed",
        "a flag or variable that llama.cpp removed",
        Ends.EXIT,
        "llama.cpp removed the {kind} {name}",
        "{instead}",
        (_A + r"the argument has been removed\. (?P<instead>use .*)",),
    ),
    KnownFailure(
        "spec_type_unknown",
        "a type of speculation that this build does not know",
        Ends.EXIT,
        "this build knows no speculative type {type}",
        "use one of: {types}",
        (_A + r"unknown speculative type: (?P<type>.*)",),
    ),
    KnownFailure(
        "argument_range",
        "a value outside the range of its flag",
        Ends.EXIT,
        "{name} is out of range: {said}",
        "correct the value",
        (_A + r"(?P<said>.*must be.*)",),
    ),
    KnownFailure(
        "device_unknown",
        "a device that this build, or this machine, does not have",
        Ends.EXIT,
        "there is no device {device} for {name}",
        "`llama-server --list-devices` names them; `specdash doctor` tells why a GPU is missing",
        (_A + r"invalid device: (?P<device>.*)",),
    ),
    KnownFailure(
        "argument_value",
        "a value that cannot be read",
        Ends.EXIT,
        "llama.cpp does not take the value of {name} ({said})",
        "correct the value",
        (_A + r"(?P<said>.*)",),
    ),
    KnownFailure(
        "argument_unknown",
        "a flag that this build does not know",
        Ends.EXIT,
        "this build knows no argument {name}",
        "remove it, or use the name that `llama-server --help` has",
        (r"error: invalid argument: (?P<name>\S.*)",),
    ),
    KnownFailure(
        "setting_refused",
        "a setting that the xllamacpp package refuses",
        Ends.EXIT,
        "the package does not take {name} ({said})",
        "correct the value, or use the llama-server binary",
        (r"error: cannot set (?P<name>.*) to .*: (?P<said>.*)",),
    ),
    KnownFailure(
        "cannot_run",
        "the program cannot be run",
        Ends.EXIT,
        "{said}",
        "correct LLAMA_BIN, or install the libraries it needs",
        (r"(?P<said>error while loading shared libraries: .*|error: \S+ cannot be run: .*)",),
    ),
    KnownFailure(
        "bind",
        "the port is in use, or the address is not this machine's",
        Ends.EXIT,
        "it could not listen on {host}:{port}",
        "stop whoever has the port (`ss -ltnp`), or set another LLAMA_PORT or LLAMA_HOST",
        (r"couldn't bind HTTP server socket, hostname: (?P<host>[^,\n]*), port: (?P<port>\d+)",),
        ("bind_failed",),
    ),
)

MEMORY: tuple[KnownFailure, ...] = (
    KnownFailure(
        "gpu_memory",
        "the GPU's memory is out",
        Ends.EXIT,
        "device {device} has no {mib} MiB left",
        _SMALLER,
        (r"allocating (?P<mib>[\d.]+) MiB on device (?P<device>\d+): \w*Malloc failed",),
    ),
    KnownFailure(
        "gpu_memory_running",
        "the GPU's memory ran out while it ran",
        Ends.ABORT,
        "the GPU's memory ran out",
        _SMALLER,
        (r"(?:CUDA|ROCm|MUSA) error: out of memory",),
        ("gpu_out_of_memory",),
    ),
    KnownFailure(
        "gpu_error",
        "the GPU reported an error",
        Ends.ABORT,
        "the GPU reported: {said}",
        "update the driver and llama.cpp, and look at `dmesg` for Xid lines: it is a bug, or the hardware",
        (r"(?:CUDA|ROCm|MUSA) error:? (?P<said>.*)",),
        ("cuda_error",),
    ),
    KnownFailure(
        "compute_buffer",
        "no room to compute a batch in",
        Ends.EXIT,
        "the room to compute a batch in could not be allocated",
        f"lower --ubatch-size, or {_SMALLER}",
        (r"failed to allocate (?:compute|graph)",),
        ("compute_buffer_failed",),
    ),
    KnownFailure(
        "kv_cache",
        "no room for the KV cache",
        Ends.EXIT,
        "the KV cache could not be allocated",
        _SMALLER,
        (r"failed to allocate buffer for kv cache|failed to allocate buffer for (?:rs|recurrent)",),
    ),
    KnownFailure(
        "memory",
        "memory could not be allocated",
        Ends.EXIT,
        "memory could not be allocated ({line})",
        _SMALLER,
        (r"failed to allocate \S+ buffer of size \d+|unable to allocate \S+ buffer|std::bad_alloc",),
        ("alloc_failed",),
    ),
)

MODELS: tuple[KnownFailure, ...] = (
    KnownFailure(
        "model_missing",
        "the model's file is not there",
        Ends.EXIT,
        "the model file {path} does not exist",
        "correct LLAMA_MODEL",
        (r"failed to open GGUF file '(?P<path>[^'\n]*)' \(No such file or directory\)",),
    ),
    KnownFailure(
        "model_broken",
        "the model's file is broken, or of a kind that this build does not know",
        Ends.EXIT,
        "the model could not be loaded: {said}",
        "download or convert it again, or update llama.cpp (`specdash gguf FILE` tells what is wrong)",
        (
            r"(?:error loading model: |gguf_init\w*: )(?P<said>(?!llama_model_loader: failed to load model from).*)",
            r"failed to load model|exiting due to model loading error",
        ),
    ),
    KnownFailure(
        "context_refused",
        "the model's context could not be made",
        Ends.EXIT,
        "the model's context could not be made: {said}",
        "correct the settings that it names",
        (r"failed to initialize the context: (?P<said>.*)",),
    ),
    KnownFailure(
        "model_load_failed",
        "a model could not be loaded",
        Ends.EXIT,
        "a model could not be loaded ({line})",
        "`specdash gguf FILE` checks the file; see the lines before it in the log",
        (),
        ("model_load_failed",),
    ),
)

OTHERS: tuple[KnownFailure, ...] = (
    KnownFailure(
        "start_refused",
        "something else that llama.cpp names at its start",
        Ends.EXIT,
        "{title} ({line})",
        "mend what the line names",
        (),
        ("adapter_failed", "template_invalid", "http_server_failed", "threads_failed"),
    ),
    KnownFailure(
        "assertion",
        "an assertion of llama.cpp failed",
        Ends.ABORT,
        "an assertion of llama.cpp failed: {said}",
        "it is a bug, or a combination it does not support: try without speculation, then another build",
        (r"(?P<said>GGML_ASSERT\(.*)",),
        ("ggml_assert",),
    ),
    KnownFailure(
        "exception",
        "llama.cpp threw an exception",
        Ends.ABORT,
        "llama.cpp threw: {said}",
        "mend what it names; otherwise it is a bug: try without speculation, then another build",
        (r"what\(\): +(?P<said>.*)",),
    ),
    KnownFailure(
        "other_abort",
        "llama.cpp aborted with words of its own",
        Ends.ABORT,
        "llama.cpp aborted: {line}",
        "it is a bug, or a combination it does not support: try without speculation, then another build",
        (r"^\S*\.(?:cpp|cu|cuh|c|h|m):\d+: ",),
        ("aborted",),
    ),
    KnownFailure(
        "second_signal",
        "it was told to end twice",
        Ends.EXIT,
        "somebody sent it a second signal to end",
        "nothing is wrong with it: start it again",
        (),
        ("interrupted_twice",),
    ),
    KnownFailure(
        MOST_GENERAL,
        "another error that it printed last",
        Ends.EXIT,
        "{said}",
        "mend what the line names; the log has more",
    ),
    KnownFailure(
        "killed",
        "it was killed",
        Ends.ABORT,
        "it was killed (SIGKILL): by the kernel when memory is out, unless somebody did",
        "`dmesg` tells; use a smaller model or context",
    ),
    KnownFailure(
        "wrong_cpu",
        "a build for another CPU",
        Ends.ABORT,
        "it uses instructions that this CPU does not have (SIGILL)",
        "use a build for this CPU",
    ),
    KnownFailure(
        "crashed",
        "it crashed",
        Ends.ABORT,
        "it crashed (an invalid memory access)",
        "it is a bug: try without speculation, then another build",
    ),
    KnownFailure(
        "aborted",
        "it aborted without a word",
        Ends.ABORT,
        "it aborted and printed no reason",
        "try without speculation, then another build",
    ),
    KnownFailure(
        "spec_batch_index",
        "a request failed because the unified KV cache was nearly full (llama.cpp #24840)",
        Ends.REQUEST,
        "the unified KV cache was nearly full: a draft did not fit into one piece of its batch (HTTP 500)",
        "raise LLAMA_CTX_SIZE, serve fewer slots, or give each its own cache (--no-kv-unified)",
        (r"speculative batch index \d+ is not inside the current sub-batch",),
    ),
)

FAILURES: tuple[KnownFailure, ...] = (*ARGUMENTS, *SYNTHETIC, *DRAFTS, *ABORTS, *MEMORY, *MODELS, *WITHOUT, *OTHERS)
"""Every way; where a log fits several, the first row is the cause."""
