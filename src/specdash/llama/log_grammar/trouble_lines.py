"""The warning classes: lines that are counted, each with what it means and when it is normal.

What the server prints as a warning is not always trouble, and some trouble is printed as information; the severity here
is ours. Here are false alarms and the memory and computation of the engine; the others are in `speculation_trouble`,
`request_trouble`, `server_trouble` and `router_lines`, and in `memory_lines` where they belong to its facts.
"""

from __future__ import annotations

from specdash.llama.log_grammar.forms import Context, Form, LineClass, Severity, anywhere, in_slot
from specdash.llama.log_grammar.request_trouble import REQUEST_TROUBLE
from specdash.llama.log_grammar.speculation_trouble import SPECULATION_TROUBLE

SLOT = Context.SLOT
ERROR, WARNING, NOTICE = Severity.ERROR, Severity.WARNING, Severity.NOTICE

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
        (
            Form(
                SLOT,
                "need to evaluate at least {:d} token for each active slot (n_past = {:d}, task.n_tokens() = {:d})",
            ),
            Form(SLOT, "need to evaluate at least {:d} token{:rest}"),
        ),
        NOTICE,
        "Normal when the same prompt is sent again: its last token is read once more, to have something to go on from.",
    ),
    LineClass("prompt_rewound", "second line of prompt_fully_cached", (Form(SLOT, "n_past was set to {:d}"),)),
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
        (*anywhere("purging slot {:d} with {:d} tokens"), Form(SLOT, "purging slot {:d} with {:d} tokens")),
        WARNING,
        "KV pressure: the next request on that conversation is read from its start.",
    ),
    LineClass(
        "context_shift",
        "the oldest tokens were dropped because the context was full",
        (Form(SLOT, "slot context shift, n_keep = {:d}, n_left = {:d}, n_discard = {:d}"),),
        WARNING,
        "Only with --context-shift. The model forgets the dropped part.",
    ),
    LineClass(
        "input_truncated",
        "a prompt was cut to fit the context",
        (
            Form(SLOT, "input truncated, n_ctx = {:d}, n_keep = {:d}, n_left = {:d}, n_prompt_tokens = {:d}"),
            Form(SLOT, "input truncated, {:rest}"),
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
            Form(Context.BARE, template)
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
