"""Lines that are counted as warnings: what each means, when it is normal, and what it says of a server that ended.

What the server prints as a warning is not always trouble, and some trouble is printed as information; the severity here
is specdash's own. Where several causes fit a log, the first in table order is named, general ones last.
"""

from __future__ import annotations

from functools import partial

from specdash.core.log_facts import TaskCancelled, TaskFailed
from specdash.llama.log.forms import ERROR, NOTICE, WARNING, Cause, LineClass, ServerEnd


def _failed(task: int | None = None, error: str = "", at_s: float | None = None, **_place: object) -> TaskFailed | None:
    error = error or "request exceeds the available context size"
    return TaskFailed(task, error, at_s=at_s) if task is not None else None


DRAFT_LOAD_FAILED = "draft_load_failed"
FALSE_ALARM = "draft_unmeasured"
"""Id of the class of which llama.cpp itself says that it is normal, although it prints it as an error."""

_LESS_MEMORY = "shorten LLAMA_CTX_SIZE, use a smaller or more quantised model or draft, or offload fewer layers"
_GPUS = ("CUDA", "ROCm", "MUSA")
_OF_THE_FAMILY = (
    "use a draft model of the target's family and tokenizer (`specdash gguf MODEL --draft DRAFT` compares them)"
)
_A_BUG = "it is a bug, or a combination it does not support: try without speculation, then another build"
_INIT = "failed to initialize speculative decoding context: "


def _argument(rest: str) -> tuple[str, ...]:
    return tuple(
        f'error while handling {{kind:={kind}}} "{{name:s}}": {rest}' for kind in ("argument", "environment variable")
    )


_abort = partial(Cause, ends=ServerEnd.ABORT)
_without = partial(Cause, ends=ServerEnd.WITHOUT)

BEFORE_START = frozenset({"bad_argument", "normal", "other_error", "other_warning"})
"""Classes whose lines may come before the line with which a server starts."""

TROUBLE_LINES: tuple[LineClass, ...] = (
    LineClass(
        FALSE_ALARM,
        "a draft model's memory could not be measured beforehand",
        (
            "failed to initialize the context: {:w} requires ctx_other to be set (this warning is normal {:rest}",
            "failed to measure the memory of the extra model{:rest}",
        ),
        severity=NOTICE,
        note="Printed as an error, and normal: memory is fitted without the draft model.",
    ),
    LineClass(
        "bad_argument",
        "the command line or environment is not valid",
        ("error while handling {:rest}", "^error: {:rest}"),
        severity=ERROR,
        note="The server exits at once; flags change between builds.",
        causes=(
            Cause(
                "argument_removed",
                "llama.cpp removed the {kind} {name}",
                "{instead}",
                _argument("the argument has been removed. {instead:rest}"),
            ),
            Cause(
                "spec_type_unknown",
                "this build knows no speculative type {type}",
                "use one of: {types}",
                _argument("unknown speculative type: {type:rest}"),
            ),
            Cause(
                "device_unknown",
                "this build or machine has no device {device} for {name}",
                "`llama-server --list-devices` names them; `specdash doctor` says why a GPU is missing",
                _argument("invalid device: {device:rest}"),
            ),
            Cause(
                "argument_value",
                "llama.cpp does not take the value of {name} ({message})",
                "correct the value",
                (*_argument("{message:rest}"), "^error: cannot set {name:s} to {message:rest}"),
            ),
            Cause(
                "argument_unknown",
                "this build knows no argument {name}",
                "remove it, or use the name that `llama-server --help` has",
                ("^error: invalid argument: {name:rest}",),
            ),
            Cause(
                "cannot_run",
                "it cannot be run: {message}",
                "correct LLAMA_BIN, or install the libraries it needs",
                (
                    "^{:s} error while loading shared libraries: {message:rest}",
                    "^error: {:s} cannot be run: {message:rest}",
                ),
            ),
        ),
    ),
    LineClass(
        "bind_failed",
        "the port could not be bound",
        ("couldn't bind HTTP server socket, hostname: {host:s}, port: {port:d}",),
        severity=ERROR,
        because="it could not listen on {host}:{port}",
        fix="stop the process that has the port (`ss -ltnp`), or set another LLAMA_PORT or LLAMA_HOST",
    ),
    LineClass(
        "vocab_mismatch",
        "the draft model's vocabulary is not the target's",
        (
            "the target and draft vocabs are not compatible{:rest}",
            "the draft model '{:s}' is not compatible with the target model '{:s}'",
            "draft {:w} {:w} {:w} must match target {:rest}",
            "draft model vocab must {:rest}",
        ),
        severity=ERROR,
        fix=_OF_THE_FAMILY,
        ends=ServerEnd.WITHOUT,
    ),
    LineClass(
        "spec_init_failed",
        "speculation could not be set up",
        (f"{_INIT}{{message:rest}}",),
        severity=ERROR,
        note="The server goes on WITHOUT speculation.",
        causes=(
            Cause(
                "synthetic",
                "synthetic acceptance {message}",
                "correct or remove --spec-synth-len and --spec-synth-rates",
                (
                    f"{_INIT}synthetic acceptance {{message:rest}}",
                    "synthetic acceptance {message:=requires an initialized speculative decoding context}",
                ),
            ),
            _without(
                "eagle3_wrong_draft",
                "draft-eagle3 needs a draft that reads 3 layers, and this one reads {got}",
                "name an EAGLE-3 draft made for this model, or set LLAMA_SPEC_TYPE to the type the draft is made for",
                (f"{_INIT}draft model is not eagle3 (expected 3 extract layers, got {{got:d}}{{:rest}}",),
            ),
            _without(
                "draft_not_given",
                "{type} needs a draft model, and none is given",
                "set LLAMA_DRAFT_MODEL, or an n-gram type",
                (f"{_INIT}{{type:w}} requires a draft context{{:rest}}",),
            ),
        ),
        because="speculation could not be set up: {message}",
        fix="mend what the line names, and start again; `specdash preflight` checks the settings",
        ends=ServerEnd.WITHOUT,
        general=True,
    ),
    LineClass(
        DRAFT_LOAD_FAILED,
        "the draft model could not be loaded",
        (
            "failed to load draft model{:rest}",
            "failed to create draft context{:rest}",
        ),
        severity=ERROR,
        causes=(
            Cause(
                "mtp_no_heads",
                "draft-mtp needs prediction (nextn) layers, and the model has none",
                "use another LLAMA_SPEC_TYPE, or a model with such layers (`specdash gguf FILE` names its heads)",
                ("failed to create MTP context{:rest}",),
                ends=ServerEnd.EITHER,
            ),
        ),
        because="the draft model could not be loaded ({line})",
        fix="see the lines before it in the log; `specdash gguf FILE` checks the file",
        ends=ServerEnd.EITHER,
        general=True,
    ),
    LineClass(
        "spec_unsupported",
        "this context cannot speculate",
        (
            "speculative decoding not supported by this context{:rest}",
            "speculative decoding is not supported{:rest}",
        ),
        severity=WARNING,
        because="this model's context cannot take rejected tokens back",
        fix="set LLAMA_SPEC_TYPE=none, or use another model or build",
        ends=ServerEnd.WITHOUT,
    ),
    LineClass(
        "lookup_cache_failed",
        "an n-gram lookup cache file could not be read",
        (
            "failed to open static lookup cache: {:rest}",
            "failed to open dynamic lookup cache: {:rest}",
            "^{:s}:{:d}: Couldn't read {:s} lookup cache{:rest}",
        ),
        severity=ERROR,
        fix="correct the path, or remove --lookup-cache-static and --lookup-cache-dynamic",
        ends=ServerEnd.ABORT,
    ),
    LineClass(
        "compute_buffer_failed",
        "a compute buffer could not be allocated",
        (
            "failed to allocate compute {:rest}",
            "failed to initialize the context: failed to allocate compute {:rest}",
            "failed to allocate graph{:rest}",
        ),
        severity=ERROR,
        fix=f"lower --ubatch-size, or {_LESS_MEMORY}",
    ),
    LineClass(
        "alloc_failed",
        "memory could not be allocated",
        (
            "allocating {:f} MiB on device {:d}: {:rest}",
            "failed to allocate {:rest}",
            "unable to allocate {:rest}",
            "insufficient memory (attempted to allocate {:f} MB)",
            "failed to initialize the context: failed to allocate {:rest}",
            "^what(): std::bad_alloc{:rest}",
        ),
        severity=ERROR,
        causes=(
            Cause(
                "gpu_memory",
                "device {device} has no {mib} MiB left",
                _LESS_MEMORY,
                ("allocating {mib:f} MiB on device {device:d}: {:w}Malloc failed{:rest}",),
            ),
        ),
        because="memory could not be allocated ({line})",
        fix=_LESS_MEMORY,
    ),
    LineClass(
        "aborted",
        "the server aborted",
        (
            "^terminate called {:rest}",
            "^Segmentation fault{:rest}",
            "^Aborted{:rest}",
        ),
        severity=ERROR,
        note="A bug in llama.cpp, or a combination of flags that it does not support; the lines before it say why.",
        causes=(
            _abort(
                "draft_of_other_model",
                "the draft model is made for another model ({line})",
                "use a draft made for this model",
                (
                    "^{:s}:{:d}: GGML_ASSERT(lid <= model.hparams.n_layer()){:rest}",
                    "^{:s}:{:d}: GGML_ASSERT(t_layer_inp{:rest}",
                    "^{:s}:{:d}: GGML_ASSERT({:rest}MTP input row width must match{:rest}",
                    "^{:s}:{:d}: {:w}: target layer {:d} input not extracted{:rest}",
                    "^{:s}:{:d}: {:w}: target layer id {:d} exceeds target n_layer{:rest}",
                    "^{:s}:{:d}: get_sub_batch: failed to add embedding at index{:rest}",
                ),
            ),
            _abort(
                "dflash_wrong_draft",
                (
                    "draft-dflash and draft-dspark need a draft model made for them, and this one reads no layers of "
                    "the target"
                ),
                "name such a draft, or set LLAMA_SPEC_TYPE=draft-simple",
                (
                    "^{:s}:{:d}: GGML_ASSERT({:rest}DFlash model has no target_layer_ids{:rest}",
                    "^{:s}:{:d}: GGML_ASSERT({:rest}DFlash requires ctx_tgt and ctx_dft{:rest}",
                ),
            ),
            _abort(
                "n_max_zero",
                "the longest draft is 0 tokens (--spec-draft-n-max 0), which aborts the server at its first request",
                "set LLAMA_DRAFT_MAX to 1 or more; LLAMA_SPEC_TYPE=none switches speculation off",
                ("^{:s}:{:d}: GGML_ASSERT(n_outputs_max <= cparams.n_outputs_max){:rest}",),
            ),
            _abort(
                "batch_small",
                "a batch has no room for the drafts of all slots, which aborts the server at the first long draft",
                "raise --batch-size to slots x (longest draft + 1) or more, or draft shorter",
                ("^{:s}:{:d}: GGML_ASSERT({:rest}batch must be large enough to hold the sampled{:rest}",),
            ),
            _abort(
                "draft_extra_tokens",
                "the draft model drafted token {token}, which the target does not have",
                _OF_THE_FAMILY,
                ("^{:s}:{:d}: get_sub_batch: failed to add token {token:d} at index{:rest}",),
            ),
            _abort(
                "recurrent_draft",
                (
                    "a rejected draft could not be taken back: the memory of the draft model (a recurrent one) "
                    "cannot be cut"
                ),
                "use a draft model without recurrent layers",
                ("^{:s}:{:d}: failed to remove sequence {:d} with p0={:rest}",),
            ),
            _abort(
                "exception",
                "llama.cpp aborted: {line}",
                _A_BUG,
                (
                    "^what(): {:rest}",
                    "^{:s}:{:d}: GGML_ASSERT({:rest}",
                    *(f"^{{:s}}.{ending}:{{:d}}: {{:rest}}" for ending in ("cpp", "c", "cu", "cuh", "h", "hpp")),
                ),
                general=True,
            ),
        ),
    ),
    LineClass(
        "gpu_out_of_memory",
        "the GPU's memory ran out while the server ran",
        tuple(f"{maker} error: out of memory{{:rest}}" for maker in _GPUS),
        severity=ERROR,
        fix=_LESS_MEMORY,
        ends=ServerEnd.ABORT,
    ),
    LineClass(
        "cuda_error",
        "the GPU reported an error",
        ("CUDA error {message:rest}", *(f"{maker} error: {{message:rest}}" for maker in _GPUS)),
        severity=ERROR,
        because="the GPU reported: {message}",
        fix="update the driver and llama.cpp, and look at `dmesg` for Xid lines: it is a bug, or the hardware",
        ends=ServerEnd.ABORT,
    ),
    LineClass(
        "model_load_failed",
        "a model could not be loaded",
        (
            "exiting due to model loading error",
            "failed to load model{:rest}",
            "error loading model{:rest}",
            "failed to open GGUF file {:rest}",
            "failed to create_context with model '{:s}'",
            "failed to create context with model '{:s}'",
            "failed to open '{:s}': {:rest}",
            "error: Failed to load CLIP model from {:rest}",
        ),
        severity=ERROR,
        causes=(
            Cause(
                "mmproj_broken",
                "the multimodal projector {path} could not be loaded",
                "correct --mmproj (LLAMA_ARG_MMPROJ), or start without images",
                ("failed to load multimodal model, '{path:s}'",),
            ),
            Cause(
                "lora_broken",
                "the LoRA adapter {path} could not be loaded",
                "correct --lora: it must exist, and be made for this model",
                ("failed to load lora adapter '{path:s}'",),
            ),
            Cause(
                "model_missing",
                "the model file {path} does not exist",
                "correct LLAMA_MODEL",
                (
                    "^gguf_init{:w}: failed to open GGUF file '{path:s}' (No such file or directory){:rest}",
                    "failed to open GGUF file '{path:s}' (No such file or directory){:rest}",
                ),
            ),
            Cause(
                "model_broken",
                "the model could not be loaded: {message}",
                "download or convert it again, or update llama.cpp (`specdash gguf FILE` says what is wrong)",
                (
                    "^gguf_init{:w}: {message:rest}",
                    "error loading model: {message:rest}",
                ),
            ),
            Cause(
                "context_refused",
                "the model's context could not be made: {message}",
                "correct the settings that it names",
                ("failed to initialize the context: {message:rest}",),
            ),
        ),
        because="a model could not be loaded ({line})",
        fix="`specdash gguf FILE` checks the file; see the lines before it in the log",
        general=True,
    ),
    LineClass(
        "killed",
        "the server was killed",
        ("^Killed", "^Killed {:rest}"),
        severity=ERROR,
        note="Printed by the shell. Where the log has nothing else, memory was out (see dmesg).",
    ),
    LineClass(
        "batch_index_error",
        "a speculative batch was split in the wrong place",
        (
            "task id = {task:d}, error: {error:=speculative batch index}{:rest}",
            "task id = {task:d}, error: got exception: {error:=speculative batch index}{:rest}",
            "got exception: speculative batch index {:rest}",
            "slot| got exception: speculative batch index {:rest}",
            "speculative batch index {:d} is not inside {:rest}",
        ),
        make=_failed,
        severity=ERROR,
        because="the unified KV cache was nearly full: a draft did not fit into one piece of its batch (HTTP 500)",
        fix="raise LLAMA_CTX_SIZE, serve fewer slots, or give each its own cache (--no-kv-unified)",
        ends=ServerEnd.REQUEST,
    ),
    LineClass(
        "request_cancelled",
        "a client went away before its request was done",
        ("cancel task, id_task = {task:d}",),
        make=TaskCancelled,
        severity=NOTICE,
        note="Normal when a user interrupts; many mean that clients time out.",
    ),
    LineClass(
        "context_exceeded",
        "a request does not fit the context",
        (
            "task id = {task:d}, error: {error:=Context size has been exceeded}{:rest}",
            "task id = {task:d}, error: request ({:d} tokens) exceeds the available context size{:rest}",
            "task id = {task:d}, error: {error:=the request exceeds the available context size}{:rest}",
            "Context size has been exceeded.{:rest}",
            "request ({:d} tokens) exceeds the available context size{:rest}",
            "the request exceeds the available context size{:rest}",
        ),
        make=_failed,
        severity=ERROR,
        note="The client gets an error. Shorten the prompt or raise the context per slot.",
    ),
    LineClass(
        "compute_error",
        "the computation of a batch failed",
        (
            "task id = {task:d}, error: {error:=Compute error.}{:rest}",
            "task id = {task:d}, error: {error:=Invalid input batch.}{:rest}",
            "Compute error.{:rest}",
            "Invalid input batch.{:rest}",
            "failed to {:w}, ret = {:d}",
            "llama_{:w}() failed: {:d}",
            "decode() failed: {:rest}",
            "pre_decode() failed: {:rest}",
            "post_decode() failed: {:rest}",
            "fatal error - please provide logs and repro in {:rest}",
        ),
        make=_failed,
        severity=ERROR,
        note="The requests in that batch end with an error; the line says why. /health stays ok all the while.",
    ),
    LineClass(
        "request_failed",
        "a request ended with an error",
        (
            "task id = {task:d}, error: {error:s}",
            "got exception: {:rest}",
            "got another exception: {:rest}",
            "slot| got exception: {:rest}",
        ),
        make=_failed,
        severity=ERROR,
        note="The line says why.",
    ),
    LineClass(
        "unauthorized",
        "a request came without the right API key",
        ("unauthorized: Invalid API Key",),
        severity=WARNING,
        note="A client, or a monitor, does not send the key.",
    ),
    LineClass(
        "draft_decode_failed",
        "the draft model failed to compute",
        (
            "failed to decode draft batch, ret = {:d}",
            "failed to process speculative batch",
            "llama_{:w} returned {:d}",
            "llama_{:w}(ctx_dft) {:rest}",
            "llama_{:w}[{:d}] returned {:d}",
        ),
        severity=ERROR,
        note="If it happens to every request, this draft model or type does not work here: try without images or it.",
    ),
    LineClass(
        "draft_degraded",
        "the draft model did not see a part of the prompt",
        (
            "ctx_dft pos_max={:d} < N-{:d}={:d}{:rest}",
            "target embeddings of size {:d} do not fit the draft input width {:d}, {:rest}",
            "^process() did not run on every prefill ubatch. Drafts may degrade.",
        ),
        severity=WARNING,
        note="Drafts get worse, mostly after an image or audio part; the answers stay right.",
    ),
    LineClass(
        "draft_clamped",
        "the draft length was clamped to the draft model's block size",
        ("requested draft size (n_max={:d}, n_min={:d}) exceeds the trained block size {:d} -- clamping to {:d}",),
        severity=WARNING,
        note="DFlash and DSpark cannot draft more than their block: a larger --spec-draft-n-max has no effect.",
    ),
    LineClass(
        "ngram_mod_reset",
        "the n-gram table was emptied",
        (
            "ngram_mod occupancy {:f} exceeds threshold ({:f}) - resetting",
            "low acceptance streak ({:d}) {:rest}",
        ),
        severity=NOTICE,
        note="It drafts from an empty table; acceptance dips until it has learnt the text again.",
    ),
    LineClass(
        "ngram_match_short",
        "the n-gram match length is short",
        ("ngram_mod n_match={:d} is too small - poor quality is possible{:rest}",),
        severity=NOTICE,
        note="Short matches draft often and wrongly.",
    ),
    LineClass(
        "synth_enabled",
        "acceptance is simulated",
        (
            "synthetic speculative acceptance is enabled for benchmarking; generated output is not valid",
            "synthetic acceptance draft limit was reduced from {:d} to {:d}{:rest}",
        ),
        severity=WARNING,
        note="Only with --spec-synth-len or --spec-synth-rates: for tests and planning, the text is garbage.",
    ),
    LineClass(
        "find_slot_non_consecutive",
        "token positions do not follow each other in recurrent memory",
        ("non-consecutive token position {:d} after {:d} for sequence {:d} with {:d} new tokens",),
        severity=NOTICE,
        note="Normal, and by the thousand, when a prompt holds images. With text alone a state was restored wrongly.",
    ),
    LineClass(
        "kv_no_free_space",
        "no room for the batch in the KV cache",
        ("failed to find free space in the KV cache{:rest}",),
        severity=WARNING,
        note="The server tries again with smaller batches, which is slow: raise the context or serve fewer slots.",
    ),
    LineClass(
        "slot_purged",
        "an idle slot was emptied to make room in the KV cache",
        (
            "purging slot {:d} with {:d} tokens",
            "slot| purging slot {:d} with {:d} tokens",
        ),
        severity=WARNING,
        note="KV pressure: the next request on that conversation is read from its start.",
    ),
    LineClass(
        "context_shift",
        "the oldest tokens were dropped because the context was full",
        ("slot| slot context shift, n_keep = {:d}, n_left = {:d}, n_discard = {:d}",),
        severity=WARNING,
        note="Only with --context-shift. The model forgets the dropped part.",
    ),
    LineClass(
        "normal",
        "a routine notice",
        (
            "LLAMA_TRACE = {:d}",
            "KV cache shifting is not supported for this context, disabling KV cache shifting",
            "cache_reuse is not supported by {:rest}",
            "swa_full is not supported by {:rest}",
            "ctx_shift is not supported by {:rest}",
            "context shift is not supported {:rest}",
            "prompt caching is not supported {:rest}",
            "n_rs_seq={:d} requested but model does not support recurrent partial rollback; clamping to {:d}",
            "slot| need to evaluate at least {:d} token{:rest}",
            "DEPRECATED: {:rest}",
            "^warn: {:w} environment variable is set, but will be overwritten by {:rest}",
            "{:w} environment variable is set, but will be overwritten by {:rest}",
            "notice: server default port will be changed {:rest}",
        ),
        severity=NOTICE,
        note="Nothing needs to be done; the line says what happened.",
    ),
    LineClass(
        "gpu_operation_off",
        "an operation that the GPU or this build lacks was switched off",
        (
            "{:w}: layer {:d} is assigned to device {:rest}",
            "{:w}: {:rest} not supported, set to disabled",
        ),
        severity=WARNING,
        note="Mostly Flash Attention, of a GPU that is too old for it, or a build without GGML_CUDA_FA.",
    ),
    LineClass(
        "exposed",
        "open to those who reach the port",
        ("security: {:rest}",),
        severity=NOTICE,
        note="Normal where it listens on 127.0.0.1 only. Tools read files and run commands on this machine.",
    ),
    LineClass(
        "moe_cache_small",
        "the GPU cache for experts is too small for some layers",
        ("MoE cache budget is too small for {:d} layers, they are not cached",),
        severity=WARNING,
        note="Their experts come over the bus at every token. Raise --moe-cache-mib, or keep fewer experts on the CPU.",
    ),
    LineClass(
        "second_line",  # Further lines of the warning before it.
        patterns=(
            "slot| n_past was set to {:d}",
            "context type MTP requested but model doesn't contain MTP layers",
            "[mtmd] failed to get memory usage of mmproj",
            "exiting due to HTTP server error",
            "current device: {:d}, in function {:rest}",
            "cudaStreamSynchronize({:rest}",
            "cudaMalloc{:rest}",
            "cudaMemcpy{:rest}",
            "failed to find {:w} {:w} slot for {:w} of size {:d}",
            "failed to prepare {:rest}",
        ),
    ),
)
