"""What the log says about checkpoints of the context and about the prompt cache in host memory."""

from __future__ import annotations

from specdash.core.log_facts import CheckpointEvent, LogFact, PromptCacheState
from specdash.llama.log_grammar.captures import event
from specdash.llama.log_grammar.forms import (
    Context,
    Form,
    Groups,
    LineClass,
    Maker,
    Severity,
    anywhere,
    in_slot,
)

SLOT, ANY = Context.SLOT, Context.ANY
Id = int | None
Seconds = float | None


def _checkpoint(action: str, *fields: str, kind: str = "context") -> Maker:
    """Makes a `CheckpointEvent`; `fields` names what the form captures, of `n_tokens`, `size_mib`, `size_bytes`."""

    def make(slot: Id, task: Id, g: Groups, at: Seconds, origin: Id) -> LogFact:
        values = dict(zip(fields, g, strict=True))
        n_tokens = int(values["n_tokens"]) if "n_tokens" in values else None
        size = float(values["size_mib"]) if "size_mib" in values else None
        if "size_bytes" in values:
            size = int(values["size_bytes"]) / 2**20
        return CheckpointEvent(action, kind, slot, task, n_tokens, size, at, origin)

    return make


def _cache_state(_slot: Id, _task: Id, g: Groups, at: Seconds, origin: Id) -> LogFact:
    return PromptCacheState(int(g[0]), float(g[1]), float(g[2]), int(g[3]), at, origin)


_POS = "pos_min = {:d}, pos_max = {:d}"
_TOKENS_SIZE = ("n_tokens", "size_mib")
_SIZED = f"({_POS}, n_tokens = {{n:d}}, size = {{size:f}} MiB)"
_SIZED_OLD = f"({_POS}, size = {{size:f}} MiB)"


def _erased(words: str) -> tuple[Form, ...]:
    return (
        Form(SLOT, f"{words} {_SIZED}", _checkpoint("erased", *_TOKENS_SIZE)),
        Form(SLOT, f"{words} {_SIZED_OLD}", _checkpoint("erased", "size_mib")),
        Form(
            SLOT,
            f"{words} ({_POS}, n_tokens = {{n:d}}, n_swa = {{:d}}, pos_next = {{:d}}, size = {{size:f}} MiB)",
            _checkpoint("erased", *_TOKENS_SIZE),
        ),
        Form(
            SLOT,
            f"{words} ({_POS}, n_tokens = {{n:d}}, n_swa = {{:d}}, size = {{size:f}} MiB)",
            _checkpoint("erased", *_TOKENS_SIZE),
        ),
        Form(
            SLOT,
            f"{words} ({_POS}, n_swa = {{:d}}, size = {{size:f}} MiB)",
            _checkpoint("erased", "size_mib"),
        ),
        Form(SLOT, f"{words} ({{:rest}}", _checkpoint("erased")),
    )


MEMORY_LINES: tuple[LineClass, ...] = (
    LineClass(
        "checkpoint_created",
        "a context checkpoint was made",
        (
            Form(SLOT, f"created context checkpoint {{:d}} of {{:d}} {_SIZED}", _checkpoint("created", *_TOKENS_SIZE)),
            Form(SLOT, f"created context checkpoint {{:d}} of {{:d}} {_SIZED_OLD}", _checkpoint("created", "size_mib")),
            Form(
                SLOT,
                f"SWA checkpoint create, {_POS}, size = {{size:f}} MiB, {{:rest}}",
                _checkpoint("created", "size_mib"),
            ),
        ),
    ),
    LineClass(
        "checkpoint_superseded",
        "a newer context checkpoint replaced an older one",
        (Form(SLOT, "superseding context checkpoint at n_tokens = {n:d}", _checkpoint("superseded", "n_tokens")),),
    ),
    LineClass(
        "checkpoint_checked",
        "a context checkpoint was looked at for reuse",
        (
            Form(SLOT, "checking checkpoint with [{:d}, {:d}] against {:d}...", _checkpoint("checked")),
            Form(SLOT, "Checking checkpoint with [{:d}, {:d}] against {:d}...", _checkpoint("checked")),
        ),
    ),
    LineClass(
        "checkpoint_restored",
        "a context checkpoint was restored: prefill goes on from there",
        (
            Form(
                SLOT,
                f"restored context checkpoint ({_POS}, n_tokens = {{n:d}}, n_past = {{:d}}, size = {{size:f}} MiB)",
                _checkpoint("restored", *_TOKENS_SIZE),
            ),
            Form(SLOT, f"restored context checkpoint {_SIZED}", _checkpoint("restored", *_TOKENS_SIZE)),
            Form(SLOT, f"restored context checkpoint {_SIZED_OLD}", _checkpoint("restored", "size_mib")),
            Form(SLOT, f"SWA checkpoint restore, {_POS}, size = {{size:f}} MiB", _checkpoint("restored", "size_mib")),
        ),
    ),
    LineClass(
        "checkpoint_erased",
        "a context checkpoint was erased",
        (
            *_erased("erasing old context checkpoint"),
            *_erased("erased invalidated context checkpoint"),
            *_erased("erasing context checkpoint too close to an earlier one"),
            Form(SLOT, f"SWA checkpoint erase, {_POS}, size = {{size:f}} MiB", _checkpoint("erased", "size_mib")),
        ),
        Severity.NOTICE,
        "Counted for every reason: the list was full (printed as a warning), the checkpoint no longer fits the prompt, "
        "or it lies too close to another. Normal when prompts diverge; many on one conversation mean that it is read "
        "from the start again and again: raise --ctx-checkpoints.",
    ),
    LineClass(
        "checkpoint_restore_failed",
        "a context checkpoint could not be restored",
        (
            Form(SLOT, "failed to restore context checkpoint {:rest}"),
            Form(ANY, "failed to restore context checkpoint{:rest}"),
        ),
        Severity.ERROR,
        "The prompt is read again from an earlier place.",
    ),
    LineClass(
        "full_reprocess",
        "the whole prompt is read again",
        (
            Form(
                SLOT,
                "forcing full prompt re-processing due to lack of cache data {:rest}",
                _checkpoint("full_reprocess"),
            ),
        ),
        Severity.NOTICE,
        "The model keeps a recurrent state or a sliding window, and no checkpoint lies before the place where the "
        "prompt diverged, so nothing of it could be reused. Normal for a new conversation on a busy slot.",
    ),
    LineClass(
        "speculative_checkpoint_created",
        "a checkpoint was made before drafting (verbosity 5)",
        (
            Form(
                SLOT,
                f"created speculative checkpoint ({_POS}, n_tokens = {{n:d}}, size = {{size:f}} MiB, "
                "draft = {:f} MiB)",
                _checkpoint("created", *_TOKENS_SIZE, kind="speculative"),
            ),
            Form(
                SLOT,
                f"created speculative checkpoint {_SIZED}",
                _checkpoint("created", *_TOKENS_SIZE, kind="speculative"),
            ),
        ),
    ),
    LineClass(
        "speculative_checkpoint_restored",
        "rejected draft tokens were undone by restoring a checkpoint (verbosity 5)",
        (
            Form(
                SLOT,
                f"restoring speculative checkpoint ({_POS}, size = {{size:d}})",
                _checkpoint("restored", "size_bytes", kind="speculative"),
            ),
        ),
    ),
    LineClass(
        "prompt_cache_state",
        "what the prompt cache holds",
        (
            Form(
                ANY,
                "- cache state: {n:d} prompts, {size:f} MiB (limits: {limit:f} MiB, {tokens:d} tokens, {:d} est)",
                _cache_state,
            ),
        ),
    ),
    LineClass(
        "prompt_cache_saved",
        "a slot's prompt was saved to the prompt cache",
        (
            Form(
                ANY,
                "- saving prompt with length {n:d}, total state size = {size:f} MiB (draft: {:f} MiB)",
                event("prompt_cache_saved", "tokens", "size_mib"),
            ),
            Form(
                ANY,
                "- saving prompt with length {n:d}, total state size = {size:f} MiB",
                event("prompt_cache_saved", "tokens", "size_mib"),
            ),
        ),
    ),
    LineClass(
        "prompt_cache_hit",
        "the prompt cache held a better start for the prompt than the slot did",
        (Form(ANY, "- found better prompt {:rest}", event("prompt_cache_hit")),),
    ),
    LineClass(
        "prompt_cache_updated",
        "the prompt cache was brought up to date",
        (Form(ANY, "prompt cache update took {ms:f} ms", event("prompt_cache_updated", "ms")),),
    ),
    LineClass(
        "prompt_cache_detail",
        "details of the prompt cache",
        (
            Form(ANY, "updating prompt cache"),
            Form(ANY, "- looking for better prompt, {:rest}"),
            Form(ANY, "- prompt {:x}: {:d} tokens, checkpoints: {:d}, {:f} MiB"),
            Form(ANY, "- prompt with length {:d}, {:rest}"),
            Form(ANY, "- removing obsolete cached prompt with length {:d}"),
            Form(ANY, "- prompt is already in the cache, skipping"),
        ),
    ),
    LineClass(
        "prompt_cache_evicted",
        "the prompt cache dropped its oldest prompt to make room",
        anywhere(
            "- making room for prompt cache entry, removing oldest entry (size = {:f} MiB)",
            "- cache size limit reached, removing oldest entry {:rest}",
            "- cache token limit {:rest}",
        ),
        Severity.NOTICE,
        "Normal once the cache is full. A conversation that comes back after its prompt was dropped is read from its "
        "start: raise --cache-ram if there is memory to spare.",
    ),
    LineClass(
        "prompt_cache_skipped",
        "a prompt was too large for the prompt cache",
        anywhere("- prompt state size {:f} MiB exceeds cache size limit {:f} MiB, skipping"),
        Severity.NOTICE,
        "It is not kept: a conversation that lost its slot is read again from its start. Raise --cache-ram.",
    ),
    LineClass(
        "prompt_cache_shrunk",
        "the prompt cache's limit was lowered because memory ran out",
        anywhere(
            "- cache size limit reduced to {:f} MiB",
            "failed to allocate memory for prompt cache state: {:rest}",
        ),
        Severity.WARNING,
        "Two lines for one event: the host has no memory for what --cache-ram allows. Lower it.",
    ),
    LineClass(
        "state_restore_failed",
        "a saved state could not be put back into the context",
        anywhere(
            "failed to restore state with size {:d}",
            "failed to load prompt from cache",
            "failed to restore sequence state",
            "failed to find available cells in kv cache",
            "failed to find {:d} available cells in kv cache",
            "not enough cells in kv cache",
            "not enough cells in kv cache to restore state ({:d} > {:d})",
            "error loading state: {:rest}",
            "error loading sequence state file: {:rest}",
        ),
        Severity.ERROR,
        "One failure prints several such lines. The prompt is read from its start; with a unified KV cache it may only "
        "mean that the other slots left too little room.",
    ),
    LineClass(
        "slot_file_incomplete",
        "a slot file lacks its context checkpoints",
        in_slot(
            "failed to append context checkpoints to '{:s}'",
            "failed to append context checkpoints to '{:s}' - the appendix is incomplete",
            "invalid context checkpoint appendix in '{:s}' - ignored",
            "truncated context checkpoint appendix in '{:s}' - ignored",
            "draft context checkpoint data in '{:s}' does not match the draft context - dropped",
            "failed to load context checkpoint restored from a slot file",
        ),
        Severity.WARNING,
        "A slot restored from it may have to read its prompt from the start.",
    ),
    LineClass(
        "slot_file",
        "a slot was saved to a file, or restored from one",
        in_slot(
            "appended {:d} context checkpoint(s) ({:f} MiB) to '{:s}'",
            "restored {:d} context checkpoint(s) from '{:s}'",
        ),
    ),
)
