"""What a slot prints about the requests it serves: start, prefill, decode, timings, end."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from specdash.core.log_facts import (
    AcceptancePerPosition,
    CheckpointEvent,
    DecodeProgress,
    DecodeTiming,
    LogFact,
    PrefillProgress,
    PromptCacheState,
    PromptReused,
    PromptStarted,
    PromptTiming,
    RequestAcceptance,
    SlotSelected,
    SpeculativeStatistics,
    TaskLaunched,
    TaskReleased,
    TotalTiming,
)
from specdash.llama.log_grammar.forms import (
    ERROR,
    NOTICE,
    WARNING,
    Captured,
    Context,
    Form,
    Groups,
    LineClass,
    Maker,
    Number,
    PrintedStep,
    Seconds,
    TimingHeader,
    anywhere,
    each,
    event,
    in_slot,
    integers,
    pairs,
    rates,
    slot_fact,
    whole_line,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


@each
def _header(slot: int, task: int, _g: Groups, at: Seconds, origin: Number) -> TimingHeader:
    return TimingHeader(slot, task, at, origin)


_launched = slot_fact(TaskLaunched)
_prompt_started = slot_fact(PromptStarted, int, int)
_prompt_reused = slot_fact(PromptReused, int)
_prefill = slot_fact(PrefillProgress, int, float, then=(None, None))
_prefill_timed = slot_fact(PrefillProgress, int, float, float, float)
_prefill_done = slot_fact(PrefillProgress, int, then=(1.0, None, None))
_decode = slot_fact(DecodeProgress, int, float)
_prompt_timing = slot_fact(PromptTiming, float, int)
_decode_timing = slot_fact(DecodeTiming, float, int)
_total_timing = slot_fact(TotalTiming, float, int)


_released = slot_fact(TaskReleased, int, lambda truncated: truncated != b"0")


def _selected(how: str) -> Maker:
    def made(lines: Captured) -> Iterable[LogFact]:
        similarities = map(float, lines.columns[0]) if lines.columns else repeat(None)
        return map(SlotSelected, lines.slots, repeat(how), similarities, lines.times, lines.origins)

    return made


def both(template: str, make: Maker | None = None) -> tuple[Form, ...]:
    """A form that stands after the slot prefix in current builds, and on a line of its own in older ones."""
    return (*in_slot(template, make=make), *whole_line(template, make=make))


REQUEST_LINES: tuple[LineClass, ...] = (
    LineClass(
        "slot_selected",
        "a slot was picked for a request",
        (
            *in_slot(
                "selected slot by LCP similarity, f_sim_best = {similarity:f} (> {:f} thold), f_keep = {:f}",
                "selected slot by LCP similarity, sim_best = {similarity:f} (> {:f} thold), f_keep = {:f}",
                "selected slot by lcp similarity, lcp_len = {:d}, similarity = {similarity:f}",
                make=_selected("lcp"),
            ),
            *in_slot(
                "selected slot by LRU, t_last = {:d}", "selected slot by lru, t_last = {:d}", make=_selected("lru")
            ),
            *in_slot("selected slot by id ({:d})", make=_selected("id")),
        ),
    ),
    LineClass(
        "slot_considered",
        "a slot was looked at for a request",
        in_slot(
            "- skipping, slot is empty", "- skipping, is_processing = {:d}", "- checking sim = {:f} ({:d}/{:d}) > {:f}"
        ),
    ),
    LineClass(
        "task_launched",
        "a slot began a request",
        in_slot("processing task, is_child = {:d}", "processing task", make=_launched),
    ),
    LineClass(
        "task_released",
        "a slot ended a request",
        in_slot(
            "stop processing: n_tokens = {n_tokens:d}, truncated = {truncated:d}",
            "stop processing: n_past = {n_tokens:d}, truncated = {truncated:d}",
            make=_released,
        ),
    ),
    LineClass(
        "prompt_started",
        "a prompt of known length began",
        in_slot(
            "new prompt, n_ctx_slot = {n_ctx:d}, n_keep = {:d}, task.n_tokens = {n:d}",
            "new prompt, n_ctx_slot = {n_ctx:d}, n_keep = {:d}, n_prompt_tokens = {n:d}",
            make=_prompt_started,
        ),
    ),
    LineClass(
        "prompt_reused",
        "how much of the prompt the slot already held",
        in_slot(
            "cached n_tokens = {cached:d}, memory_seq_rm [{:d}, end)",
            "n_tokens = {cached:d}, memory_seq_rm [{:d}, end)",
            "kv cache rm [{cached:d}, end)",
            make=_prompt_reused,
        ),
    ),
    LineClass(
        "prefill_progress",
        "prefill under way",
        (
            *in_slot(
                "prompt processing, n_tokens = {n:d}, progress = {p:f}, t = {t:f} s / {r:f} tokens per second",
                make=_prefill_timed,
            ),
            *in_slot(
                "prompt processing progress, n_tokens = {n:d}, batch.n_tokens = {:d}, progress = {p:f}",
                "prompt processing progress, n_past = {n:d}, n_tokens = {:d}, progress = {p:f}",
                make=_prefill,
            ),
            *in_slot(
                "prompt processing done, n_tokens = {n:d}, batch.n_tokens = {:d}",
                "prompt done, n_past = {n:d}, n_tokens = {:d}",
                "prompt done, n_tokens = {n:d}, batch.n_tokens = {:d}",
                make=_prefill_done,
            ),
        ),
    ),
    LineClass(
        "decode_progress",
        "decode under way",
        in_slot(
            "n_gen = {n:d}, tg = {r:f} t/s, tg_{:d}s = {recent:f} t/s",
            "n_gen = {n:d}, tg = {r:f} t/s",
            "n_decoded = {n:d}, tg = {r:f} t/s, tg_{:d}s = {recent:f} t/s",
            "n_decoded = {n:d}, tg = {r:f} t/s, tg(last {:d}s) = {recent:f} t/s",
            "n_decoded = {n:d}, tg = {r:f} t/s",
            make=_decode,
        ),
    ),
    LineClass("timing_header", "the header of a timing block (builds until 2026-05)", in_slot("", make=_header)),
    LineClass(
        "prompt_timing",
        "prefill time of a finished request",
        both("prompt eval time = {ms:f} ms / {tokens:d} tokens ({:rest}", _prompt_timing),
    ),
    LineClass(
        "decode_timing",
        "decode time of a finished request",
        both("eval time = {ms:f} ms / {tokens:d} tokens ({:rest}", _decode_timing),
    ),
    LineClass(
        "total_timing",
        "total time of a finished request",
        both("total time = {ms:f} ms / {tokens:d} tokens", _total_timing),
    ),
    LineClass("graphs_reused", "compute graphs reused so far", both("graphs reused = {:d}")),
    LineClass(
        "sampler",
        "sampler set-up of a request",
        (
            *in_slot(
                "init sampler, took {:f} ms, tokens: text = {:d}, total = {:d}",
                "sampler chain: {:rest}",
                "sampler params: {:rest}",
            ),
            *whole_line(
                "repeat_last_n = {:d}, repeat_penalty = {:f}, {:rest}",
                "dry_multiplier = {:f}, dry_base = {:f}, {:rest}",
                "top_k = {:d}, top_p = {:f}, min_p = {:f}, {:rest}",
                "mirostat = {:d}, mirostat_lr = {:f}, mirostat_ent = {:f}{:rest}",
            ),
        ),
    ),
    LineClass(
        "slot_setup",
        "a slot was made or put aside",
        (
            *in_slot("new slot, n_ctx = {:d}", "new slot n_ctx_slot = {:d}"),
            *in_slot("saving idle slot to prompt cache", "clearing slot with {:d} tokens"),
        ),
    ),
    LineClass(
        "image_processing",
        "an image or audio part of a prompt was encoded",
        anywhere(
            "processing image...",
            "processing mtmd chunk{:rest}",
            "image processed in {:d} ms",
            "encoding image slice...",
            "encoding image or slice...",
            "image slice encoded in {:d} ms",
            "image/slice encoded in {:d} ms",
            "decoding image batch {:d}/{:d}, n_tokens_batch = {:d}",
            "image decoded (batch {:d}/{:d}) in {:d} ms",
            "encoding audio slice...",
            "audio slice encoded in {:d} ms",
            make=event("image_processing"),
        ),
    ),
    LineClass(
        "http_request",
        "an HTTP request was logged",
        (
            *anywhere("request: {:rest}", "done request: {:rest}"),
            *anywhere(
                "conv_id={:s} (empty={:d})",
                "conv_id= (empty={:d})",
                "chat format: {:s}",
                "Chat format: {:s}",
                "proxying request to model {:s} on port {:d}",
                "proxying {:s} request to model {:s} on port {:d}",
                "reasoning-budget: {:rest}",
                "Request converted: {:rest}",
                "serve nocache for {:rest}",
            ),
        ),
    ),
    LineClass("idle", "all slots are idle", anywhere("all slots are idle", "all slots are idle{:rest}")),
)


# What the log says about speculative decoding: acceptance, per-step traces, cumulative statistics, set-up.


_OLD_TYPES = {"draft": "draft-simple", "mtp": "draft-mtp", "eagle3": "draft-eagle3"}


def current_type(printed: str) -> str:
    """The name that current builds give to a speculative type, from the name that any build printed."""
    name = printed.replace("_", "-")
    return _OLD_TYPES.get(name, name)


@each
def _acceptance(slot: Number, task: Number, g: Groups, at: Seconds, origin: Number) -> LogFact:
    mean = float(g[2]) if len(g) > 2 else None
    per_position = rates(g[3]) if len(g) > 3 else None
    return RequestAcceptance(slot, task, int(g[0]), int(g[1]), mean, per_position, at, origin)


@each
def _per_position(slot: Number, task: Number, g: Groups, at: Seconds, origin: Number) -> LogFact:
    return AcceptancePerPosition(slot, task, rates(g[0]), at, origin)


def _step(*, restored: bool) -> Maker:
    def made(lines: Captured) -> Iterable[PrintedStep]:
        accepted, generated = map(integers, lines.columns)
        return zip(lines.slots, lines.tasks, accepted, generated, repeat(restored), lines.times, lines.origins)

    return made


def _statistics(calls: int, *, mean: bool, durations: bool) -> Maker:
    """For a form that has `calls` call counts, and perhaps the mean length with the rates, and the three durations."""

    @each
    def make(_slot: Number, _task: Number, g: Groups, at: Seconds, origin: Number) -> LogFact:
        printed = g[0].decode(errors="replace")
        counts = tuple(int(value) for value in g[1 : 1 + calls])
        drafts, accepted_drafts, tokens, accepted = (int(value) for value in g[1 + calls : 5 + calls])
        return SpeculativeStatistics(
            current_type(printed),
            drafts,
            accepted_drafts,
            tokens,
            accepted,
            counts,
            float(g[5 + calls]) if mean else None,
            rates(g[6 + calls]) if mean else None,
            tuple(float(value) for value in g[-3:]) if durations else (),
            at,
            origin,
            printed,
        )

    return make


_STEP = "accepted {accepted:d}/{generated:d} draft tokens"
_ACCEPTED = "({accepted:d} accepted / {generated:d} generated)"
_THREE_CALLS = "statistics {type:w}: #calls(b,g,a) = {b:d} {g:d} {a:d}, "
_ONE_CALL = "statistics {type:w}: #calls = {calls:d}, "
_COUNTS = "#gen drafts = {gd:d}, #acc drafts = {ad:d}, #gen tokens = {gt:d}, #acc tokens = {at:d}"
_MEAN = ", #mean acc len = {mean:f}, #acc rate/pos = ({rates:list})"
_DURATIONS = ", dur(b,g,a) = {db:f}, {dg:f}, {da:f} ms"

SPECULATION_LINES: tuple[LineClass, ...] = (
    LineClass(
        "draft_acceptance",
        "draft tokens accepted and generated over a finished request",
        (
            *both(f"draft acceptance = {{:f}} {_ACCEPTED}, mean len = {{mean:f}}", _acceptance),
            *both(
                f"draft acceptance = {{:f}} {_ACCEPTED}, mean acceptance length = {{mean:f}}, "
                "acceptance rate per position = ({rates:list})",
                _acceptance,
            ),
            *both(f"draft acceptance = {{:f}} {_ACCEPTED}", _acceptance),
            *both(f"draft acceptance rate = {{:f}} {_ACCEPTED}", _acceptance),
        ),
    ),
    LineClass(
        "acceptance_per_position",
        "share of accepted draft tokens by position over a finished request",
        both("acc per pos = ({rates:list})", _per_position),
    ),
    LineClass(
        "verification_step",
        "one verification step (LLAMA_TRACE=1)",
        (
            *in_slot(_STEP, make=_step(restored=False)),
            *in_slot(f"{_STEP} (restore checkpoint)", make=_step(restored=True)),
        ),
    ),
    LineClass(
        "statistics",
        "cumulative statistics of a speculative implementation",
        (
            *anywhere(_THREE_CALLS + _COUNTS + _MEAN + _DURATIONS, make=_statistics(3, mean=True, durations=True)),
            *anywhere(_THREE_CALLS + _COUNTS + _DURATIONS, make=_statistics(3, mean=False, durations=True)),
            *anywhere(_THREE_CALLS + _COUNTS, make=_statistics(3, mean=False, durations=False)),
            *anywhere(_ONE_CALL + _COUNTS + _DURATIONS, make=_statistics(1, mean=False, durations=True)),
            *anywhere(_ONE_CALL + _COUNTS, make=_statistics(1, mean=False, durations=False)),
        ),
    ),
    LineClass(
        "spec_implementation",
        "a speculative implementation was added",
        anywhere("adding speculative implementation '{type:s}'", make=event("spec_implementation", "type")),
    ),
    LineClass(
        "spec_parameters",
        "parameters of the speculative implementation just added",
        (
            *(
                Form(Context.AFTER_FUNCTIONS, f"- {first}={{values:s}}", pairs("spec_parameters", first))
                for first in ("n_max", "n_match", "size_n", "size_key", "n_draft", "block_size", "gpu_layers")
            ),
            *anywhere("- mod size={:d} ({:f} MB)"),
        ),
    ),
    LineClass(
        "spec_autodetected",
        "the draft model's metadata chose the speculative type",
        anywhere(
            "auto-detected speculative type '{type:s}' from the draft model metadata",
            make=event("spec_autodetected", "type"),
        ),
    ),
    LineClass(
        "spec_synthetic",
        "acceptance is simulated with these rates",
        anywhere(
            "synthetic acceptance: n_max = {n_max:d}, mean length = {mean:f}, rates = [{rates:list}]",
            make=event("spec_synthetic", "n_max", "mean_length", "rates"),
        ),
    ),
    LineClass(
        "spec_ready",
        "the speculative context is ready",
        anywhere(
            "speculative decoding context initialized",
            "speculative decoding context initialized{:rest}",
            make=event("spec_ready"),
        ),
    ),
    LineClass(
        "spec_none",
        "speculative decoding is off",
        anywhere("no implementations specified for speculative decoding", make=event("spec_none")),
    ),
    LineClass(
        "spec_checkpoints",
        "speculation restores checkpoints: this model cannot drop rejected tokens from its memory",
        anywhere("speculative decoding will use checkpoints", make=event("spec_checkpoints")),
    ),
    LineClass(
        "draft_loading",
        "the draft model is being loaded",
        anywhere(
            "loading draft model '{path:s}'",
            "creating MTP draft context against the target model '{path:s}'",
            make=event("draft_loading", "path"),
        ),
    ),
    LineClass(
        "ngram_table",
        "state of the n-gram table",
        anywhere("ngram_mod occupancy = {:d}/{:d} ({:f})", "shrink cleanup begin: {:d} -> {:d}"),
    ),
)


# What the log says about checkpoints of the context and about the prompt cache in host memory.


def _checkpoint(action: str, *fields: str, kind: str = "context") -> Maker:
    """Makes a `CheckpointEvent`; `fields` names what the form captures, of `n_tokens`, `size_mib`, `size_bytes`."""

    @each
    def make(slot: Number, task: Number, g: Groups, at: Seconds, origin: Number) -> LogFact:
        values = dict(zip(fields, g, strict=True))
        n_tokens = int(values["n_tokens"]) if "n_tokens" in values else None
        size = float(values["size_mib"]) if "size_mib" in values else None
        if "size_bytes" in values:
            size = int(values["size_bytes"]) / 2**20
        return CheckpointEvent(action, kind, slot, task, n_tokens, size, at, origin)

    return make


@each
def _cache_state(_slot: Number, _task: Number, g: Groups, at: Seconds, origin: Number) -> LogFact:
    return PromptCacheState(int(g[0]), float(g[1]), float(g[2]), int(g[3]), at, origin)


_POS = "pos_min = {:d}, pos_max = {:d}"
_TOKENS_SIZE = ("n_tokens", "size_mib")
_SIZED = f"({_POS}, n_tokens = {{n:d}}, size = {{size:f}} MiB)"
_SIZED_OLD = f"({_POS}, size = {{size:f}} MiB)"


def _erased(words: str) -> tuple[Form, ...]:
    return (
        *in_slot(f"{words} {_SIZED}", make=_checkpoint("erased", *_TOKENS_SIZE)),
        *in_slot(f"{words} {_SIZED_OLD}", make=_checkpoint("erased", "size_mib")),
        *in_slot(
            f"{words} ({_POS}, n_tokens = {{n:d}}, n_swa = {{:d}}, pos_next = {{:d}}, size = {{size:f}} MiB)",
            f"{words} ({_POS}, n_tokens = {{n:d}}, n_swa = {{:d}}, size = {{size:f}} MiB)",
            make=_checkpoint("erased", *_TOKENS_SIZE),
        ),
        *in_slot(f"{words} ({_POS}, n_swa = {{:d}}, size = {{size:f}} MiB)", make=_checkpoint("erased", "size_mib")),
        *in_slot(f"{words} ({{:rest}}", make=_checkpoint("erased")),
    )


MEMORY_LINES: tuple[LineClass, ...] = (
    LineClass(
        "checkpoint_created",
        "a context checkpoint was made",
        (
            *in_slot(
                f"created context checkpoint {{:d}} of {{:d}} {_SIZED}", make=_checkpoint("created", *_TOKENS_SIZE)
            ),
            *in_slot(
                f"created context checkpoint {{:d}} of {{:d}} {_SIZED_OLD}",
                f"SWA checkpoint create, {_POS}, size = {{size:f}} MiB, {{:rest}}",
                make=_checkpoint("created", "size_mib"),
            ),
        ),
    ),
    LineClass(
        "checkpoint_superseded",
        "a newer context checkpoint replaced an older one",
        in_slot("superseding context checkpoint at n_tokens = {n:d}", make=_checkpoint("superseded", "n_tokens")),
    ),
    LineClass(
        "checkpoint_checked",
        "a context checkpoint was looked at for reuse",
        in_slot(
            "checking checkpoint with [{:d}, {:d}] against {:d}...",
            "Checking checkpoint with [{:d}, {:d}] against {:d}...",
            make=_checkpoint("checked"),
        ),
    ),
    LineClass(
        "checkpoint_restored",
        "a context checkpoint was restored: prefill goes on from there",
        (
            *in_slot(
                f"restored context checkpoint ({_POS}, n_tokens = {{n:d}}, n_past = {{:d}}, size = {{size:f}} MiB)",
                f"restored context checkpoint {_SIZED}",
                make=_checkpoint("restored", *_TOKENS_SIZE),
            ),
            *in_slot(
                f"restored context checkpoint {_SIZED_OLD}",
                f"SWA checkpoint restore, {_POS}, size = {{size:f}} MiB",
                make=_checkpoint("restored", "size_mib"),
            ),
        ),
    ),
    LineClass(
        "checkpoint_erased",
        "a context checkpoint was erased",
        (
            *_erased("erasing old context checkpoint"),
            *_erased("erased invalidated context checkpoint"),
            *_erased("erasing context checkpoint too close to an earlier one"),
            *in_slot(f"SWA checkpoint erase, {_POS}, size = {{size:f}} MiB", make=_checkpoint("erased", "size_mib")),
        ),
        NOTICE,
        "Counted for every reason: the list was full (printed as a warning), the checkpoint no longer fits the prompt, "
        "or it lies too close to another. Normal when prompts diverge; many on one conversation mean that it is read "
        "from the start again and again: raise --ctx-checkpoints.",
    ),
    LineClass(
        "checkpoint_restore_failed",
        "a context checkpoint could not be restored",
        (
            *in_slot("failed to restore context checkpoint {:rest}"),
            *anywhere("failed to restore context checkpoint{:rest}"),
        ),
        ERROR,
        "The prompt is read again from an earlier place.",
    ),
    LineClass(
        "full_reprocess",
        "the whole prompt is read again",
        in_slot(
            "forcing full prompt re-processing due to lack of cache data {:rest}", make=_checkpoint("full_reprocess")
        ),
        NOTICE,
        "The model keeps a recurrent state or a sliding window, and no checkpoint lies before the place where the "
        "prompt diverged, so nothing of it could be reused. Normal for a new conversation on a busy slot.",
    ),
    LineClass(
        "speculative_checkpoint_created",
        "a checkpoint was made before drafting (verbosity 5)",
        in_slot(
            f"created speculative checkpoint ({_POS}, n_tokens = {{n:d}}, size = {{size:f}} MiB, draft = {{:f}} MiB)",
            f"created speculative checkpoint {_SIZED}",
            make=_checkpoint("created", *_TOKENS_SIZE, kind="speculative"),
        ),
    ),
    LineClass(
        "speculative_checkpoint_restored",
        "rejected draft tokens were undone by restoring a checkpoint (verbosity 5)",
        in_slot(
            f"restoring speculative checkpoint ({_POS}, size = {{size:d}})",
            make=_checkpoint("restored", "size_bytes", kind="speculative"),
        ),
    ),
    LineClass(
        "prompt_cache_state",
        "what the prompt cache holds",
        anywhere(
            "- cache state: {n:d} prompts, {size:f} MiB (limits: {limit:f} MiB, {tokens:d} tokens, {:d} est)",
            make=_cache_state,
        ),
    ),
    LineClass(
        "prompt_cache_saved",
        "a slot's prompt was saved to the prompt cache",
        anywhere(
            "- saving prompt with length {n:d}, total state size = {size:f} MiB (draft: {:f} MiB)",
            "- saving prompt with length {n:d}, total state size = {size:f} MiB",
            make=event("prompt_cache_saved", "tokens", "size_mib"),
        ),
    ),
    LineClass(
        "prompt_cache_hit",
        "the prompt cache held a better start for the prompt than the slot did",
        anywhere("- found better prompt {:rest}", make=event("prompt_cache_hit")),
    ),
    LineClass(
        "prompt_cache_updated",
        "the prompt cache was brought up to date",
        anywhere("prompt cache update took {ms:f} ms", make=event("prompt_cache_updated", "ms")),
    ),
    LineClass(
        "prompt_cache_detail",
        "details of the prompt cache",
        anywhere(
            "updating prompt cache",
            "- looking for better prompt, {:rest}",
            "- prompt {:x}: {:d} tokens, checkpoints: {:d}, {:f} MiB",
            "- prompt with length {:d}, {:rest}",
            "- removing obsolete cached prompt with length {:d}",
            "- prompt is already in the cache, skipping",
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
        NOTICE,
        "Normal once the cache is full. A conversation that comes back after its prompt was dropped is read from its "
        "start: raise --cache-ram if there is memory to spare.",
    ),
    LineClass(
        "prompt_cache_skipped",
        "a prompt was too large for the prompt cache",
        anywhere("- prompt state size {:f} MiB exceeds cache size limit {:f} MiB, skipping"),
        NOTICE,
        "It is not kept: a conversation that lost its slot is read again from its start. Raise --cache-ram.",
    ),
    LineClass(
        "prompt_cache_shrunk",
        "the prompt cache's limit was lowered because memory ran out",
        anywhere("- cache size limit reduced to {:f} MiB", "failed to allocate memory for prompt cache state: {:rest}"),
        WARNING,
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
        ERROR,
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
        WARNING,
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


DETAIL_LINES: tuple[LineClass, ...] = (
    LineClass(
        "queue",
        "requests in the server's queue (verbosity 5)",
        (
            *anywhere(
                "new task, id = {:d}, front = {:d}",
                "new task, id = {:d}/{:d}, front = {:d}",
                "processing task, id = {:d}",
                "defer task, id = {:d}",
                "task declined, id = {:d}",
                "pop deferred task, id_task = {:d}",
                "pop deferred task (use slot {:d}), id_task = {:d}",
                "no slot is available, defer task, id_task = {:d}",
                "requested slot is unavailable, defer task, id_task = {:d}",
                "not enough free slots for child tasks, n_free = {:d}, n_children = {:d}, defer task, id_task = {:d}",
                "decoding, decline task, id_task = {:d}",
                "launching slots for parent task id_task = {:d} with {:d} child tasks",
                "add task {:d} to waiting list. current waiting = {:d} (before add)",
                "remove task {:d} from waiting list. current waiting = {:d} (before remove)",
                "sending result for task id = {:d}",
                "task id = {:d} pushed to result queue",
                "queue result stop",
                "posting NEXT_RESPONSE",
                "processing new tasks",
                "waiting for new tasks",
                "update slots",
                "terminate",
                "done yielding to queue",
                "requesting to stop sleeping",
                "waiting until no sleep",
                "n_idle_slots = {:d}",
                "n_processing_slots = {:d}",
                "all tasks already finished, no need to cancel",
                "received error result, stopping further processing",
                "creating infill tasks, n_prompts = {:d}",
                "waiting for main loop exit",
                "main loop exited",
            ),
            *in_slot(
                "launching slot : {:rest}",
                "waiting for parent slot to complete",
                "- copying state to child {:d}",
                "- copying shared prompt ({:d} tokens) to child {:d}",
            ),
        ),
        continues=True,
    ),
    LineClass(
        "stop_reason",
        "why a slot stopped generating (verbosity 5)",
        in_slot(
            "stopped by EOS",
            "stopped by limit, n_gen = {:d}, n_predict = {:d}",
            "stopped by time limit, n_gen = {:d}, t_max_predict_ms = {:d} ms",
            "stopped by indentation limit, n_gen = {:d}, n_indent = {:d}",
            "empty prompt - releasing slot",
        ),
    ),
    LineClass(
        "debug",
        "debug output (level D), not interpreted",
        (
            *in_slot(
                "accepted {:d}/{:d} draft tokens, new n_tokens = {:d}",
                "add accepted tokens: sampled={:d}, ids.size={:d}, n_draft={:d}",
                "generate_draft: id={:d}, #tokens={:d}, #draft={:d}, pos_next={:d}",
                "max possible draft: {:d}",
                "main/do_checkpoint = {:s}, pos_min = {:d}, pos_max = {:d}",
                "slot decode token, id={:d}, n_ctx = {:d}, n_tokens = {:d}, truncated = {:d}",
                "n_gen = {:d}, n_remaining = {:d}, next token: {:rest}",
                "n_past = {:d}, slot.prompt.tokens.size() = {:d}, seq_id = {:d}, pos_min = {:d}",
                "clearing prompt with {:d} tokens",
                "trying to reuse chunks with size > {:d}, n_past = {:d}",
                "reusing chunk with size {:d}, shifting KV cache [{:d}, {:d}) -> [{:d}, {:d})",
                "after context reuse, new n_past = {:d}",
                "sending embeddings",
                "sending decision result",
                "sending rerank result, res.score = {:f}",
            ),
            *anywhere(
                "- seq_id {:d}, draft candidate {:rest}",
                "- draft candidate: token={:d}",
                "called impl {:s}, hist size = {:d}, call_count = {:d}, gen = {:d}",
                "truncating draft to {:d} tokens",
                "vocab_cmpt = {:d}",
                "vocab_type dft: {:d}",
                "vocab_type tgt: {:d}",
                "#tokens = {:d}: found matching pattern at pos {:d}, length {:d}, draft length {:d}",
                "begin, idx_last_draft={:d}, new begin={:d}, #keys={:d}",
                "refresh map: idx_last_draft={:d}, {:rest}",
                "key_idx = {:d}, key_offset = {:d}, {:rest}",
                "key_offset = {:d}, {:rest}",
                "n_accepted = {:d}, prev value_num = {:d}",
                "n_batch (effective) = {:d}, off = {:d}",
                "n_prefix_take = {:d}, n_suffix_take = {:d}, total = {:d}",
                "extra: n_ctx = {:d}, n_extra_take = {:d}, n_extra = {:d}",
                "converted request: {:rest}",
                "JSON schema: {:rest}",
                "Converted grammar: {:rest}",
                "Grammar ({:s}): {:rest}",
                "saved session before last token to {:rest}",
                "- reading model info",
                "- reading memory module",
                "- writing model info",
                "- writing memory module",
                "reading state",
                "writing state",
            ),
        ),
        continues=True,
    ),
    LineClass(
        "reasoning_budget",
        "the limit on reasoning tokens at work",
        anywhere(
            "activated, budget={:d} tokens",
            "re-activated on new start tag, budget={:d} tokens",
            "deactivated (natural end)",
            "budget={:d}, forcing immediately",
            "budget exhausted, forcing end sequence",
            "budget exhausted, waiting for UTF-8 completion",
            "UTF-8 complete, now forcing end sequence",
            "forced sequence complete, done",
            "forced into forcing state (manual transition)",
        ),
    ),
    LineClass(
        "stream",
        "clients of event streams come and go",
        anywhere(
            "new SSE client connected, assigned client_id={:d}",
            "SSE client disconnected, removing client_id={:d}",
            "notifying SSE clients about event {:rest}",
            "recv result for client_id={:d}: {:rest}",
            "DELETE /v{:d}/stream conv_id={:rest}",
            "http: streamed chunk: {:rest}",
            "all results received, terminating stream",
            "error received during streaming, terminating stream",
            "stopping streaming due to should_stop condition",
        ),
        continues=True,
    ),
    LineClass(
        "mcp",
        "tools of MCP servers",
        anywhere("MCP '{:s}' stderr: {:rest}", "MCP warmup: '{:s}' discovered {:d} tools", "Added {:d} MCP tools"),
    ),
    LineClass(
        "lora",
        "LoRA adapters in use",
        (
            *anywhere("set lora adapter idx={:d} scale={:f}", "re-enabling alora with scale {:f}"),
            *in_slot(
                "clearing cache for lora change. {:d} loras -> {:d} loras",
                "keeping cache for alora. {:d} target loras",
                "alora {:d} activated starting at {:d}",
                "only caching to alora invocation start (n_past = {:d}, alora_invocation_start = {:d})",
                "processing pre-alora tokens without the adapter (n_tokens = {:d}, alora_invocation_start = {:d})",
                "stop prompt batch filling at (n_tokens = {:d}, alora_invocation_start = {:d})",
            ),
        ),
    ),
    LineClass(
        "multimodal",
        "images and audio are set up, fetched or batched",
        (
            *anywhere(
                "loaded multimodal model, '{:s}'",
                "[mtmd] estimated worst-case memory usage of mmproj is {:f} MiB (took {:f} ms)",
                "[mtmd] adding {:f} MiB to fit_params_target for device {:rest}",
                "downloading image from '{:rest}",
                "downloaded {:d} bytes",
                "loading image from local file '{:rest}",
            ),
            *in_slot(
                "encoding mtmd batch from idx = {:d}, n_chunks = {:d}",
                "try adding media chunk idx = {:d} to batch, res = {:d}",
            ),
        ),
    ),
)
