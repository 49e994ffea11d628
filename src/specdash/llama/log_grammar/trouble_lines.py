"""The warning classes: lines that are counted, each with what it means and when it is normal.

What the server prints as a warning is not always trouble, and some trouble is printed as information; the severity here
is ours. Start-up and abort are in `server_trouble`; checkpoints, which are counted too, in `memory_lines`.
"""

from __future__ import annotations

from specdash.core.log_facts import LogFact, TaskCancelled, TaskFailed
from specdash.llama.log_grammar.captures import text
from specdash.llama.log_grammar.forms import Context, Form, Groups, LineClass, Severity

SLOT, ANY = Context.SLOT, Context.ANY
ERROR, WARNING, NOTICE = Severity.ERROR, Severity.WARNING, Severity.NOTICE
Id = int | None
Seconds = float | None


def _cancelled(_slot: Id, _task: Id, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return TaskCancelled(int(g[0]), at, origin)


def _failed(_slot: Id, _task: Id, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return TaskFailed(int(g[0]), text(g[1]), at, origin)


def _failed_because(reason: str) -> Form:
    """The server's answer to a task with an error that begins with these words (`…` for a number)."""

    def make(_slot: Id, _task: Id, g: Groups, at: Seconds, origin: Id) -> LogFact:
        return TaskFailed(int(g[0]), reason, at, origin)

    return Form(ANY, f"task id = {{id:d}}, error: {reason}{{:rest}}", make)


def anywhere(*templates: str) -> tuple[Form, ...]:
    """Forms that make no fact, after any function names."""
    return tuple(Form(ANY, template) for template in templates)


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
        "alloc_failed",
        "memory could not be allocated",
        anywhere(
            "allocating {:f} MiB on device {:d}: {:rest}",
            "failed to allocate {:rest}",
            "unable to allocate {:rest}",
            "failed to initialize the context: failed to allocate {:rest}",
        ),
        ERROR,
        "One failure prints several such lines. Shorten the context, use a smaller or more quantised draft, or offload "
        "fewer layers.",
    ),
    LineClass(
        "cuda_error",
        "the GPU reported an error",
        anywhere("CUDA error: {:rest}", "CUDA error {:rest}", "ROCm error: {:rest}", "MUSA error: {:rest}"),
        ERROR,
        "The server aborts after it. An illegal memory access is a bug or bad hardware; out of memory needs a smaller "
        "context.",
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

SPECULATION_TROUBLE: tuple[LineClass, ...] = (
    LineClass(
        "spec_init_failed",
        "speculation could not be set up",
        anywhere("failed to initialize speculative decoding context: {:rest}"),
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

REQUEST_TROUBLE: tuple[LineClass, ...] = (
    LineClass(
        "request_cancelled",
        "a client went away before its request was done",
        (Form(ANY, "cancel task, id_task = {task:d}", _cancelled),),
        NOTICE,
        "Normal when a user interrupts; many mean that clients time out.",
    ),
    LineClass(
        "context_exceeded",
        "a request does not fit the context",
        (
            _failed_because("Context size has been exceeded"),
            Form(
                ANY,
                "task id = {task:d}, error: request ({:d} tokens) exceeds the available context size{:rest}",
                lambda _slot, _task, g, at, origin: TaskFailed(
                    int(g[0]), "request exceeds the available context size", at, origin
                ),
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
            *anywhere("Compute error.{:rest}", "Invalid input batch.{:rest}", "failed to decode, ret = {:d}"),
        ),
        ERROR,
        "The requests in that batch end with an error.",
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
        (Form(ANY, "task id = {task:d}, error: {error:s}", _failed), *anywhere("got exception: {:rest}")),
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
        anywhere("control {:w} on unknown completion id={:rest}"),
        NOTICE,
        "The completion had ended already.",
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
    FALSE_ALARMS + MEMORY_TROUBLE + SPECULATION_TROUBLE + REQUEST_TROUBLE + UNKNOWN_TROUBLE
)
