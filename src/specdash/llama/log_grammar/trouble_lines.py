"""The warning classes: lines that are counted, each with what it means and when it is normal.

What the server prints as a warning is not always trouble, and some trouble is printed as information; the severity here
is specdash's own. Here are false alarms and the memory and computation of the engine; the others are in
`speculation_trouble`, `request_trouble`, `server_trouble` and `router_lines`, in `memory_lines` where they belong to
its facts.
"""

from __future__ import annotations

from specdash.core.log_facts import LogFact, TaskCancelled, TaskFailed
from specdash.llama.log_grammar.forms import (
    ERROR,
    NOTICE,
    WARNING,
    Context,
    Form,
    Groups,
    LineClass,
    Maker,
    Number,
    Seconds,
    anywhere,
    each,
    in_slot,
    text,
    whole_line,
)


@each
def _cancelled(_slot: Number, _task: Number, g: Groups, at: Seconds, origin: Number) -> LogFact:
    return TaskCancelled(int(g[0]), at, origin)


@each
def _failed(_slot: Number, _task: Number, g: Groups, at: Seconds, origin: Number) -> LogFact:
    return TaskFailed(int(g[0]), text(g[1]), at, origin)


def _failed_with(error: str) -> Maker:
    return each(lambda _slot, _task, g, at, origin: TaskFailed(int(g[0]), error, at, origin))


def _failed_because(reason: str) -> Form:
    """The server's answer to a task with an error that begins with these words (`…` for a number)."""
    return Form(Context.AFTER_FUNCTIONS, f"task id = {{id:d}}, error: {reason}{{:rest}}", _failed_with(reason))


REQUEST_TROUBLE: tuple[LineClass, ...] = (
    LineClass(
        "request_cancelled",
        "a client went away before its request was done",
        (
            *anywhere("cancel task, id_task = {task:d}", make=_cancelled),
            *anywhere("request for conv_id={:s} cancelled while model name={:rest}"),
        ),
        NOTICE,
        "Normal when a user interrupts; many mean that clients time out.",
    ),
    LineClass(
        "context_exceeded",
        "a request does not fit the context",
        (
            _failed_because("Context size has been exceeded"),
            *anywhere(
                "task id = {task:d}, error: request ({:d} tokens) exceeds the available context size{:rest}",
                make=_failed_with("request exceeds the available context size"),
            ),
            _failed_because("the request exceeds the available context size"),
            *anywhere(
                "Context size has been exceeded.{:rest}",
                "request ({:d} tokens) exceeds the available context size{:rest}",
            ),
        ),
        ERROR,
        "The client gets an error. Shorten the prompt or raise the context per slot.",
    ),
    LineClass(
        "compute_error",
        "the computation of a batch failed",
        (
            _failed_because("Compute error."),
            _failed_because("Invalid input batch."),
            *anywhere(
                "Compute error.{:rest}",
                "Invalid input batch.{:rest}",
                "failed to decode, ret = {:d}",
                "failed to encode, ret = {:d}",
                "llama_process() failed: {:d}",
                "llama_decode() failed: {:d}",
                "failed to compute graph, compute status: {:d}",
                "ggml_backend_sched_graph_compute failed with error {:d}",
                "ggml_backend_sched_graph_compute_async failed with error {:d}",
                "compute failed while preparing batch of size {:d}",
                "could not reserve space for batch with {:d} outputs",
                "failed to apply memory context",
                "failed to initialize batch",
                "could not initialize batch",
                "failed to initialize graph",
            ),
        ),
        ERROR,
        "The requests in that batch end with an error.",
    ),
    LineClass(
        "decode_failed",
        "the server's loop failed on a batch",
        anywhere(
            "decode() failed: {:rest}",
            "pre_decode() failed: {:rest}",
            "post_decode() failed: {:rest}",
            "fatal error - please provide logs and repro in {:rest}",
        ),
        ERROR,
        "The requests in that batch end with an error; the line says why. /health stays ok all the while.",
    ),
    LineClass(
        "launch_failed",
        "a slot could not begin a request",
        anywhere(
            "failed to launch slot with task, id_task = {:d}",
            "failed to launch slot with parent task, id_task = {:d}",
            "failed to launch slot with child task, id_task = {:d}",
        ),
        ERROR,
        "The request ends with an error; the line before says why.",
    ),
    LineClass(
        "media_failed",
        "an image or audio part of a prompt could not be read",
        (
            *in_slot(
                "failed to decode mtmd chunk, idx = {:d}, res = {:d}",
                "failed to encode mtmd batch for chunk idx = {:d}, res = {:d}",
                "failed to process mtmd chunk, res = {:d}",
            ),
            *anywhere(
                "failed to encode image",
                "failed to preprocess audio",
                "failed to decode buffer as either image/audio/video",
                "failed to start ffmpeg {:rest}",
                "failed to process mtmd chunk",
                "error: empty audio data",
                "error: invalid bitmap dimensions: nx = {:d}, ny = {:d}",
                "error: model does not support audio input",
                "error: model does not support vision input",
                "error: number of bitmaps ({:d}) does not match number of markers ({:d})",
            ),
        ),
        ERROR,
        "The request ends with an error.",
    ),
    LineClass(
        "batch_index_error",
        "a speculative batch was split in the wrong place",
        (
            _failed_because("speculative batch index"),
            *anywhere(
                "got exception: speculative batch index {:rest}", "speculative batch index {:d} is not inside {:rest}"
            ),
        ),
        ERROR,
        "A known fault (llama.cpp #24840) when a unified KV cache is nearly full while speculating. The request fails.",
    ),
    LineClass(
        "request_failed",
        "a request ended with an error",
        (
            *anywhere("task id = {task:d}, error: {error:s}", make=_failed),
            *anywhere("got exception: {:rest}", "got another exception: {:rest}"),
            *in_slot("got exception: {:rest}", "failed to get embeddings, token = {:d}, seq_id = {:d}"),
        ),
        ERROR,
        "The line says why.",
    ),
    LineClass(
        "unauthorized",
        "a request came without the right API key",
        anywhere("unauthorized: Invalid API Key", "Unauthorized: Invalid API Key"),
        WARNING,
        "A client, or a monitor, does not send the key.",
    ),
    LineClass(
        "control_unknown_completion",
        "a control request named no running completion",
        anywhere(
            "control {:w} on unknown completion id={:rest}",
            "stop on unknown stream session, conv_id={:rest}",
            "router stop for unknown conv_id={:rest}",
        ),
        NOTICE,
        "The completion had ended already.",
    ),
    LineClass(
        "request_part_ignored",
        "the server ignored part of what a request asks for",
        (
            *anywhere(
                "unsupported Responses tool type '{:s}' skipped",
                "embd_normalize is not supported by pooling type {:d}, ignoring it",
            ),
            *in_slot(
                "alora {:d} requested, but not found. deactivating",
                "cache reuse is not supported - ignoring n_cache_reuse = {:d}",
            ),
        ),
        NOTICE,
        "The line names it; the rest of the request is served.",
    ),
    LineClass(
        "origin_refused",
        "a web page of another host called the server",
        anywhere("(CORS) skip non-localhost origin: {:rest}"),
        NOTICE,
        "The page's browser hides the answer from it. Allow a page of yours with --cors-origins.",
    ),
)


_PROCESS = ("llama_process", "llama_decode")
"""The engine's entry point, by its name in current builds and before them."""

SPECULATION_TROUBLE: tuple[LineClass, ...] = (
    LineClass(
        "spec_init_failed",
        "speculation could not be set up",
        anywhere("failed to initialize speculative decoding context: {:rest}", "n_seq mismatch: {:d} != {:d}"),
        ERROR,
        "The server goes on WITHOUT speculation.",
    ),
    LineClass(
        "vocab_mismatch",
        "the draft model's vocabulary is not the target's",
        anywhere(
            "the target and draft vocabs are not compatible{:rest}",
            "the draft model '{:s}' is not compatible with the target model '{:s}'",
            "draft model vocab type must match target model {:rest}",
            "draft model special tokens must match target model {:rest}",
            "draft model bos tokens must match target model {:rest}",
            "draft model eos tokens must match target model {:rest}",
            "draft vocab special tokens must match target vocab {:rest}",
            "draft model vocab must {:rest}",
        ),
        ERROR,
        "The server goes on WITHOUT speculation. Use a draft model of the same family and tokenizer.",
    ),
    LineClass(
        "draft_load_failed",
        "the draft model could not be loaded",
        anywhere(
            "failed to load draft model{:rest}",
            "failed to create MTP context{:rest}",
            "failed to create draft context{:rest}",
        ),
        ERROR,
        "Printed twice for one failure. The server exits, or goes on without speculation.",
    ),
    LineClass(
        "draft_decode_failed",
        "the draft model failed to compute",
        anywhere(
            "failed to decode draft batch, ret = {:d}",
            "failed to process speculative batch",
            *(f"{function} returned {{:d}}" for function in _PROCESS),
            *(f"{function}(ctx_dft) failed rc={{:d}} (n_tokens={{:d}}, {{:rest}}" for function in _PROCESS),
            *(f"{function}(ctx_dft) head={{:d}} failed rc={{:d}} (pos={{:d}})" for function in _PROCESS),
            *(f"{function}[{{:d}}] returned {{:d}}" for function in _PROCESS),
        ),
        ERROR,
        "On the prompt, the request fails with it (decode_failed); while drafting, the step goes without drafts. If it "
        "happens to every request, this draft model or type does not work here: try without images, or without it.",
    ),
    LineClass(
        "draft_behind",
        "the draft context missed part of the prompt",
        anywhere("ctx_dft pos_max={:d} < N-1={:d} - process() {:rest}", "ctx_dft pos_max={:d} < N-2={:d}"),
        WARNING,
        "Drafts get worse, which nothing else tells but a falling acceptance; the answers stay right.",
    ),
    LineClass(
        "draft_behind_detail",
        "second line of draft_behind",
        whole_line("process() did not run on every prefill ubatch. Drafts may degrade."),
    ),
    LineClass(
        "draft_input_dropped",
        "the draft model cannot read the target's image or audio embeddings",
        anywhere("target embeddings of size {:d} do not fit the draft input width {:d}, {:rest}"),
        WARNING,
        "Drafts after an image or audio part of a prompt are poor; the answers stay right. Printed once.",
    ),
    LineClass(
        "draft_sampler_on_cpu",
        "the draft model's sampler could not run on the device",
        anywhere("backend offload failed for seq_id={:d}; using CPU sampler"),
        NOTICE,
        "Drafting works, a little slower.",
    ),
    LineClass(
        "lookup_cache_failed",
        "an n-gram lookup cache file could not be read",
        anywhere("failed to open static lookup cache: {:rest}", "failed to open dynamic lookup cache: {:rest}"),
        ERROR,
        "Only with --lookup-cache-static or --lookup-cache-dynamic. The server aborts.",
    ),
    LineClass(
        "rollback_unsupported",
        "the model cannot roll its recurrent state back",
        anywhere("n_rs_seq={:d} requested but model does not support recurrent partial rollback; clamping to {:d}"),
        NOTICE,
        "Rejected draft tokens are undone by restoring a checkpoint and computing again, which costs speed.",
    ),
    LineClass(
        "draft_clamped",
        "the draft length was clamped to the draft model's block size",
        anywhere(
            "requested draft size (n_max={:d}, n_min={:d}) exceeds the trained block size {:d} -- clamping to {:d}"
        ),
        WARNING,
        "DFlash and DSpark cannot draft more than their block: a larger --spec-draft-n-max has no effect.",
    ),
    LineClass(
        "spec_unsupported",
        "this context cannot speculate",
        anywhere(
            "speculative decoding not supported by this context{:rest}", "speculative decoding is not supported{:rest}"
        ),
        WARNING,
        "The server goes on WITHOUT speculation.",
    ),
    LineClass(
        "ngram_mod_reset",
        "the n-gram table was emptied",
        anywhere(
            "ngram_mod occupancy {:f} exceeds threshold ({:f}) - resetting", "low acceptance streak ({:d}) {:rest}"
        ),
        NOTICE,
        "Its drafts begin anew; acceptance dips until it has learnt the text again.",
    ),
    LineClass(
        "ngram_match_short",
        "the n-gram match length is short",
        anywhere("ngram_mod n_match={:d} is too small - poor quality is possible{:rest}"),
        NOTICE,
        "Short matches draft often and wrongly.",
    ),
    LineClass(
        "synth_limit_reduced",
        "the draft length of synthetic acceptance was reduced",
        anywhere("synthetic acceptance draft limit was reduced from {:d} to {:d}{:rest}"),
        WARNING,
        "Only with --spec-synth-len or --spec-synth-rates.",
    ),
    LineClass(
        "synth_enabled",
        "acceptance is simulated",
        anywhere("synthetic speculative acceptance is enabled for benchmarking; generated output is not valid"),
        WARNING,
        "Only with --spec-synth-len or --spec-synth-rates: for tests and planning, the text is garbage.",
    ),
    LineClass(
        "synth_needs_speculation",
        "synthetic acceptance was asked for, but nothing speculates",
        anywhere("synthetic acceptance requires an initialized speculative decoding context"),
        ERROR,
        "The server exits.",
    ),
    LineClass(
        "trace_enabled",
        "LLAMA_TRACE is set",
        anywhere("LLAMA_TRACE = {:d}"),
        NOTICE,
        "Wanted: it prints every verification step, the only live acceptance that the server has.",
    ),
)


_FIT = "(this warning is normal during memory fitting)"

FALSE_ALARMS: tuple[LineClass, ...] = (
    LineClass(
        "ctx_other_missing",
        "a draft context was tried without its target while memory was measured",
        anywhere(f"failed to initialize the context: {{:w}} requires ctx_other to be set {_FIT}"),
        NOTICE,
        "A false alarm, although printed as an error: it comes from fitting DFlash or EAGLE-3 drafts to memory.",
    ),
    LineClass(
        "extra_model_unmeasured",
        "the draft model's memory could not be measured beforehand",
        anywhere("failed to measure the memory of the extra model{:rest}"),
        NOTICE,
        "A false alarm unless an allocation fails later: memory is fitted without the draft model.",
    ),
    LineClass(
        "prompt_fully_cached",
        "the slot already held the whole prompt",
        in_slot(
            "need to evaluate at least {:d} token for each active slot (n_past = {:d}, task.n_tokens() = {:d})",
            "need to evaluate at least {:d} token{:rest}",
        ),
        NOTICE,
        "Normal when the same prompt is sent again: its last token is read once more, to have something to go on from.",
    ),
    LineClass("prompt_rewound", "second line of prompt_fully_cached", in_slot("n_past was set to {:d}")),
)

MEMORY_TROUBLE: tuple[LineClass, ...] = (
    LineClass(
        "find_slot_non_consecutive",
        "token positions do not follow each other in recurrent memory",
        anywhere("non-consecutive token position {:d} after {:d} for sequence {:d} with {:d} new tokens"),
        NOTICE,
        "Only recurrent and hybrid models print it. Normal, and by the thousand, when a prompt holds images, whose "
        "tokens share positions. With text alone it means that a state was restored wrongly: update llama.cpp.",
    ),
    LineClass(
        "kv_no_free_space",
        "no room for the batch in the KV cache",
        anywhere("failed to find free space in the KV cache{:rest}"),
        WARNING,
        "KV pressure: the server tries again with smaller batches, which is slow. Raise the context size or serve "
        "fewer slots.",
    ),
    LineClass(
        "kv_no_memory_slot",
        "the KV cache had no place for a batch (second line of kv_no_free_space)",
        anywhere(
            "failed to find a memory slot for batch of size {:d}",
            "failed to find KV cache slot for ubatch of size {:d}",
            "failed to prepare attention ubatches",
            "failed to prepare attention base ubatches",
            "failed to prepare attention swa ubatches",
            "failed to prepare recurrent ubatches",
        ),
        WARNING,
        "Comes with kv_no_free_space.",
    ),
    LineClass(
        "slot_purged",
        "an idle slot was emptied to make room in the KV cache",
        (*anywhere("purging slot {:d} with {:d} tokens"), *in_slot("purging slot {:d} with {:d} tokens")),
        WARNING,
        "KV pressure: the next request on that conversation is read from its start.",
    ),
    LineClass(
        "context_shift",
        "the oldest tokens were dropped because the context was full",
        in_slot("slot context shift, n_keep = {:d}, n_left = {:d}, n_discard = {:d}"),
        WARNING,
        "Only with --context-shift. The model forgets the dropped part.",
    ),
    LineClass(
        "input_truncated",
        "a prompt was cut to fit the context",
        in_slot(
            "input truncated, n_ctx = {:d}, n_keep = {:d}, n_left = {:d}, n_prompt_tokens = {:d}",
            "input truncated, {:rest}",
        ),
        WARNING,
        "Builds until 2025 cut too long prompts in the middle; later ones refuse them (context_exceeded).",
    ),
    LineClass(
        "compute_buffer_failed",
        "a compute buffer could not be allocated",
        anywhere(
            "failed to allocate compute {:rest}",
            "failed to initialize the context: failed to allocate compute {:rest}",
            "failed to allocate graph{:rest}",
        ),
        ERROR,
        "The model and its cache fitted, the room to compute a batch in did not: lower the physical batch or the "
        "context. At start the server exits; while it runs the batch fails.",
    ),
    LineClass(
        "alloc_failed",
        "memory could not be allocated",
        anywhere(
            "allocating {:f} MiB on device {:d}: {:rest}",
            "failed to allocate {:rest}",
            "unable to allocate {:rest}",
            "insufficient memory (attempted to allocate {:f} MB)",
            "failed to initialize the context: failed to allocate {:rest}",
        ),
        ERROR,
        "One failure prints several such lines. Shorten the context, use a smaller or more quantised draft, or offload "
        "fewer layers.",
    ),
    LineClass(
        "gpu_out_of_memory",
        "the GPU's memory ran out while the server ran",
        anywhere(
            "CUDA error: out of memory{:rest}", "ROCm error: out of memory{:rest}", "MUSA error: out of memory{:rest}"
        ),
        ERROR,
        "The server aborts after it. Shorten the context, offload fewer layers, or free the GPU of others.",
    ),
    LineClass(
        "cuda_error",
        "the GPU reported an error",
        anywhere("CUDA error: {:rest}", "CUDA error {:rest}", "ROCm error: {:rest}", "MUSA error: {:rest}"),
        ERROR,
        "The server aborts after it. An illegal memory access is a bug or bad hardware.",
    ),
    LineClass(
        "cuda_error_detail",
        "second line of cuda_error",
        anywhere(
            "current device: {:d}, in function {:rest}",
            "cudaStreamSynchronize({:rest}",
            "cudaMalloc{:rest}",
            "cudaMemcpy{:rest}",
        ),
    ),
)

ENGINE_TROUBLE: tuple[LineClass, ...] = (
    LineClass(
        "inconsistent_positions",
        "the tokens of a batch do not follow on what the context holds",
        anywhere(
            "the tokens of sequence {:d} in the input batch have inconsistent sequence positions:",
            "sequence {:d} positions are decreasing (not allowed)",
            "sequence {:d} positions are not continuous",
            "sequence {:d} is coupled to {:d} in the input batch, but have divereged",
        ),
        ERROR,
        "The request fails. Known from draft models that cannot follow the positions of images, and from states "
        "restored wrongly. The lines below it give the positions.",
    ),
    LineClass(
        "inconsistent_positions_detail",
        "further lines of inconsistent_positions",
        tuple(
            Form(Context.WHOLE_LINE, template)
            for template in (
                "- the last position stored in the memory module of the context {:rest}",
                "- the tokens for sequence {:d} in the input batch have a starting position of Y = {:d}",
                "it is required that the sequence positions remain consecutive: Y = X + 1",
                "for M-RoPE, it is required that the position satisfies: {:rest}",
            )
        ),
    ),
    LineClass(
        "nothing_to_decode",
        "the server had nothing to compute although a slot was busy",
        anywhere("no tokens to decode"),
        WARNING,
        "A bug of the server; after several in a row it aborts.",
    ),
    LineClass(
        "memory_fit_failed",
        "the model could not be fitted to the free device memory",
        anywhere(
            "failed to fit params to free device memory: {:rest}",
            "encountered an error while trying to fit params to free device memory: {:rest}",
            "[mtmd] failed to get memory usage of mmproj{:rest}",
        ),
        WARNING,
        "It is loaded all the same, and may not fit: look for alloc_failed.",
    ),
    LineClass(
        "slow_fallback",
        "part of the computation takes a slower or coarser way",
        anywhere(
            "flash attention is not supported by the current backend; {:rest}",
            "WARNING: flash attention not supported by {:rest}",
            "WARNING: the CLIP graph uses unsupported operators by the backend",
            "layer {:d} is assigned to device {:rest}",
            "flash attention disabled; MSA requires it {:rest}",
            "unified KV cache with n_seq_max > {:d}; MSA needs per-sequence streams {:rest}",
            "compute buffer allocation failed, retrying without pipeline parallelism",
            "backend sampling not supported with SPLIT_MODE_TENSOR; using CPU",
            "MoE cache budget is too small for {:d} layers, they are not cached",
        ),
        WARNING,
        "The line names it. Tokens per second suffer, and where it says so the output.",
    ),
    LineClass(
        "context_overtrained",
        "a slot's context is longer than the model was trained for",
        anywhere("n_ctx_seq ({:d}) > n_ctx_train ({:d}) -- possible training context overflow"),
        WARNING,
        "Text beyond the training length gets worse, unless RoPE scaling is set for it.",
    ),
    LineClass(
        "context_capped",
        "the context of a slot was cut to what the model was trained for",
        anywhere("the slot context ({:d}) exceeds the training context of the model ({:d}) - capping"),
        NOTICE,
        "Prompts longer than that are refused, whatever --ctx-size says.",
    ),
    LineClass(
        "context_full",
        "an answer ended because its slot's context was full (verbosity 5)",
        in_slot("stopped due to running out of context capacity, {:rest}"),
        WARNING,
        "The answer is cut. Raise the context per slot.",
    ),
)

UNKNOWN_TROUBLE: tuple[LineClass, ...] = (
    LineClass(
        "other_error",
        "an error that specdash does not know",
        (),
        ERROR,
        "Counted from the level letter E; also counted as not understood.",
    ),
    LineClass(
        "other_warning",
        "a warning that specdash does not know",
        (),
        WARNING,
        "Counted from the level letter W; also counted as not understood.",
    ),
)

TROUBLE_LINES: tuple[LineClass, ...] = (
    FALSE_ALARMS + MEMORY_TROUBLE + ENGINE_TROUBLE + SPECULATION_TROUBLE + REQUEST_TROUBLE + UNKNOWN_TROUBLE
)
