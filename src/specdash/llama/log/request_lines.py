"""What a slot prints about the requests it serves, what is printed of speculation, of checkpoints and prompt cache."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from specdash.core.log_facts import (
    AcceptancePerPosition,
    CheckpointEvent,
    DecodeProgress,
    DecodeTiming,
    PrefillProgress,
    PromptCacheState,
    PromptReused,
    PromptStarted,
    PromptTiming,
    RequestAcceptance,
    ServerEvent,
    SlotSelected,
    SpeculativeStatistics,
    TaskLaunched,
    TaskReleased,
    TotalTiming,
)
from specdash.llama.log.forms import NOTICE, LineClass, PrintedStep, TimingHeader
from specdash.llama.log.server_lines import event

if TYPE_CHECKING:
    from collections.abc import Callable


_BY_PREFIX = "slot| selected slot by {how:=LCP} similarity"


def _selected(slot: int, task: int, how: str, at_s: float | None, **shares: float) -> SlotSelected:  # noqa: ARG001
    return SlotSelected(slot, how.lower(), at_s=at_s, **shares)


def _released(truncated: int, **fields: Any) -> TaskReleased:
    return TaskReleased(truncated=truncated != 0, **fields)


def _timed(kind: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a fact that builds until 2026-05 print on lines of their own, below a header with slot and task."""
    return lambda **fields: kind(**{"slot": None, "task": None, **fields})


def _step(slot: int, task: int, accepted: int, generated: int, at_s: float | None, restored: str = "") -> PrintedStep:
    return PrintedStep(slot, task, accepted, generated, bool(restored), at_s)


def current_type(printed: str) -> str:
    """The name that current builds give to a speculative type, from the name that any build printed."""
    name = printed.replace("_", "-")
    return {"draft": "draft-simple", "mtp": "draft-mtp", "eagle3": "draft-eagle3"}.get(name, name)


def _statistics(type: str, at_s: float | None, **n: Any) -> SpeculativeStatistics:  # noqa: A002
    return SpeculativeStatistics(
        current_type(type),
        n["drafts"],
        n["accepted_drafts"],
        n["tokens"],
        n["accepted"],
        tuple(n[name] for name in ("begun", "generated", "judged") if name in n),
        n.get("mean"),
        n.get("rates"),
        tuple(n[name] for name in ("begin_ms", "generate_ms", "accept_ms") if name in n),
        at_s=at_s,
        printed_type=type,
    )


def _parameters(at_s: float | None, **fields: str) -> ServerEvent:
    """Of `value, key=value, …`, where the first value belongs to the key that the field is named after."""
    ((first, values),) = fields.items()
    parts = (part.partition("=") for part in f"{first}={values}".split(", "))
    return ServerEvent(
        "spec_parameters", tuple((key.strip(), value.strip()) for key, sign, value in parts if sign), at_s=at_s
    )


_ACTIONS = {"superseding": "superseded", "checking": "checked", "restoring": "restored"}


def _checkpoint(action: str, kind: str = "context", size_bytes: int | None = None, **fields: Any) -> CheckpointEvent:
    if size_bytes is not None:
        fields["size_mib"] = size_bytes / 2**20
    action = action.lower()
    return CheckpointEvent(_ACTIONS.get(action, action), kind, **fields)


_STEP = "slot| accepted {accepted:d}/{generated:d} draft tokens"
_ACCEPTED = "({accepted:d} accepted / {generated:d} generated)"
_COUNTS = (
    "#gen drafts = {drafts:d}, #acc drafts = {accepted_drafts:d}, #gen tokens = {tokens:d}, #acc tokens = {accepted:d}"
)
_THREE_CALLS = f"statistics {{type:w}}: #calls(b,g,a) = {{begun:d}} {{generated:d}} {{judged:d}}, {_COUNTS}"
_ONE_CALL = f"statistics {{type:w}}: #calls = {{begun:d}}, {_COUNTS}"
_MEAN = ", #mean acc len = {mean:f}, #acc rate/pos = ({rates:list})"
_DURATIONS = ", dur(b,g,a) = {begin_ms:f}, {generate_ms:f}, {accept_ms:f} ms"
_POS = "(pos_min = {:d}, pos_max = {:d}"


def _sized(words: str) -> tuple[str, ...]:
    """A line about a checkpoint, whose size comes after what else the build knows of it."""
    return (
        f"slot| {words} {_POS}, n_tokens = {{n_tokens:d}}, {{:rest}}size = {{size_mib:f}} MiB{{:rest}}",
        f"slot| {words} {_POS}, size = {{size_mib:f}} MiB)",
        f"slot| {words} ({{:rest}}",
    )


def _both(*patterns: str) -> tuple[str, ...]:
    """Patterns that stand after the slot prefix in current builds, and on a line of their own before 2026-05."""
    return (*(f"slot| {pattern}" for pattern in patterns), *(f"^{pattern}" for pattern in patterns))


REQUEST_LINES: tuple[LineClass, ...] = (
    LineClass(
        "slot_selected",
        patterns=(
            "slot| selected slot by {how:=LCP} similarity, {:w} = {similarity:f} (> {:f} thold), f_keep = {kept:f}",
            "slot| selected slot by {how:=LRU}, t_last = {:d}",
            "slot| selected slot by {how:=id} ({:d})",
        ),
        make=_selected,
        detail=True,
    ),
    LineClass(
        "task_launched", patterns=("slot| processing task, is_child = {:d}", "slot| processing task"), make=TaskLaunched
    ),
    LineClass(
        "task_released",
        patterns=(
            "slot| stop processing: n_tokens = {n_tokens:d}, truncated = {truncated:d}",
            "slot| stop processing: n_past = {n_tokens:d}, truncated = {truncated:d}",
        ),
        make=_released,
    ),
    LineClass(
        "prompt_started",
        patterns=("slot| new prompt, n_ctx_slot = {n_ctx_slot:d}, n_keep = {:d}, {:w} = {prompt_tokens:d}",),
        make=PromptStarted,
        detail=True,
    ),
    LineClass(
        "prompt_reused",
        patterns=(
            "slot| cached n_tokens = {cached_tokens:d}, memory_seq_rm [{:d}, end)",
            "slot| n_tokens = {cached_tokens:d}, memory_seq_rm [{:d}, end)",
            "slot| kv cache rm [{cached_tokens:d}, end)",
        ),
        make=PromptReused,
        detail=True,
    ),
    LineClass(
        "prefill_progress",
        patterns=(
            (
                "slot| prompt processing, n_tokens = {n_tokens:d}, progress = {progress:f}, "
                "t = {seconds:f} s / {tokens_per_second:f} tokens per second"
            ),
            "slot| prompt processing progress, {:w} = {n_tokens:d}, {:w} = {:d}, progress = {progress:f}",
            "slot| prompt processing done, n_tokens = {n_tokens:d}, batch.n_tokens = {:d}",
            "slot| prompt done, {:w} = {n_tokens:d}, {:w} = {:d}",
        ),
        make=lambda **fields: PrefillProgress(**{"progress": 1.0, **fields}),
        detail=True,
    ),
    LineClass(
        "decode_progress",
        patterns=(
            "slot| {:w} = {n_decoded:d}, tg = {tokens_per_second:f} t/s, {:rest}",
            "slot| {:w} = {n_decoded:d}, tg = {tokens_per_second:f} t/s",
        ),
        make=DecodeProgress,
        detail=True,
    ),
    # Above the timings of builds until 2026-05.
    LineClass("timing_header", patterns=("slot| ",), make=TimingHeader, detail=True),
    LineClass(
        "prompt_timing",
        patterns=_both("prompt eval time = {ms:f} ms / {tokens:d} tokens ({:rest}"),
        make=_timed(PromptTiming),
        detail=True,
    ),
    LineClass(
        "decode_timing",
        patterns=_both("eval time = {ms:f} ms / {tokens:d} tokens ({:rest}"),
        make=_timed(DecodeTiming),
    ),
    LineClass(
        "total_timing",
        patterns=_both("total time = {ms:f} ms / {tokens:d} tokens"),
        make=_timed(TotalTiming),
        detail=True,
    ),
    event(
        "image_processing",
        "slot| encoding mtmd batch from idx = {:d}, n_chunks = {:d}",
        "processing mtmd chunk{:rest}",
        "encoding {:w} slice...",
        "image slice encoded in {:d} ms",
        "decoding image batch {:d}/{:d}, n_tokens_batch = {:d}",
        "image decoded (batch {:d}/{:d}) in {:d} ms",
        "audio slice encoded in {:d} ms",
        detail=True,
    ),
)

SPECULATION_LINES: tuple[LineClass, ...] = (
    LineClass(
        "draft_acceptance",
        patterns=_both(
            f"draft acceptance = {{:f}} {_ACCEPTED}, mean len = {{mean_accepted_length:f}}",
            f"draft acceptance = {{:f}} {_ACCEPTED}, mean acceptance length = {{mean_accepted_length:f}}, "
            "acceptance rate per position = ({per_position:list})",
            f"draft acceptance = {{:f}} {_ACCEPTED}",
            f"draft acceptance rate = {{:f}} {_ACCEPTED}",
        ),
        make=_timed(RequestAcceptance),
    ),
    LineClass(
        "acceptance_per_position",
        patterns=_both("acc per pos = ({rates:list})"),
        make=_timed(AcceptancePerPosition),
        detail=True,
    ),
    # The line of LLAMA_TRACE=1 counts; that of debugging prints the same step once more.
    LineClass(
        "verification_step",
        patterns=(_STEP, f"{_STEP} ({{restored:=restore checkpoint}})"),
        make=_step,
        detail=True,
    ),
    LineClass("step_detail", patterns=("slot| accepted {:d}/{:d} draft tokens, new n_tokens = {:d}",), detail=True),
    LineClass(
        "statistics",
        patterns=(
            f"{_THREE_CALLS}{_MEAN}{_DURATIONS}",
            f"{_THREE_CALLS}{_DURATIONS}",
            _THREE_CALLS,
            f"{_ONE_CALL}{_DURATIONS}",
            _ONE_CALL,
        ),
        make=_statistics,
        detail=True,
    ),
    event("spec_implementation", "adding speculative implementation '{type:s}'"),
    LineClass(
        "spec_parameters",
        patterns=tuple(
            f"- {name}={{{name}:rest}}"
            for name in ("n_max", "n_match", "size_n", "size_key", "n_draft", "block_size", "gpu_layers")
        ),
        make=_parameters,
    ),
    event("spec_autodetected", "auto-detected speculative type '{type:s}' from the draft model metadata"),
    event(
        "spec_synthetic",
        "synthetic acceptance: n_max = {n_max:d}, mean length = {mean_length:f}, rates = [{rates:list}]",
    ),
    event("spec_ready", "speculative decoding context initialized{:rest}"),
    event("spec_none", "no implementations specified for speculative decoding"),
    event("spec_checkpoints", "speculative decoding will use checkpoints"),
    event(
        "draft_loading",
        "loading draft model '{path:s}'",
        "creating MTP draft context against the target model '{path:s}'",
    ),
)

MEMORY_LINES: tuple[LineClass, ...] = (
    LineClass(
        "checkpoint",
        patterns=(
            *_sized("{action:=created} {kind:=context} checkpoint {:d} of {:d}"),
            *_sized("{action:=restored} {kind:=context} checkpoint"),
            *_sized("{action:=created} {kind:=speculative} checkpoint"),
            f"slot| {{action:=restoring}} {{kind:=speculative}} checkpoint {_POS}, size = {{size_bytes:d}})",
            "slot| {action:=superseding} context checkpoint at n_tokens = {n_tokens:d}",
            "slot| {action:=checking} checkpoint with [{:d}, {:d}] against {:d}...",
            "slot| {action:=Checking} checkpoint with [{:d}, {:d}] against {:d}...",
        ),
        make=_checkpoint,
        detail=True,
    ),
    LineClass(
        "checkpoint_erased",
        "a context checkpoint was erased",
        (
            *_sized("erasing old context checkpoint"),
            *_sized("erased invalidated context checkpoint"),
            *_sized("erasing context checkpoint too close to an earlier one"),
        ),
        make=partial(_checkpoint, action="erased"),
        severity=NOTICE,
        note="Counted for every reason: the list was full (printed as a warning), the checkpoint no longer fits the "
        "prompt, or it lies too close to another. Normal when prompts diverge; many on one conversation mean that it "
        "is read from the start again and again: raise --ctx-checkpoints.",
    ),
    LineClass(
        "full_reprocess",
        "the whole prompt is read again",
        ("slot| forcing full prompt re-processing due to lack of cache data {:rest}",),
        make=partial(_checkpoint, action="full_reprocess"),
        severity=NOTICE,
        note="The model keeps a recurrent state or a sliding window, and no checkpoint lies before the place where the "
        "prompt diverged, so nothing of it could be reused. Normal for a new conversation on a busy slot.",
    ),
    LineClass(
        "prompt_cache_state",
        patterns=(
            (
                "- cache state: {prompts:d} prompts, {size_mib:f} MiB "
                "(limits: {limit_mib:f} MiB, {limit_tokens:d} tokens, {:d} est)"
            ),
        ),
        make=PromptCacheState,
        detail=True,
    ),
    event(
        "prompt_cache_saved",
        "- saving prompt with length {tokens:d}, total state size = {size_mib:f} MiB (draft: {:f} MiB)",
        "- saving prompt with length {tokens:d}, total state size = {size_mib:f} MiB",
        detail=True,
    ),
    event("prompt_cache_hit", "- found better prompt {:rest}", detail=True),
    event("prompt_cache_updated", "prompt cache update took {ms:f} ms", detail=True),
    LineClass(
        "prompt_cache_evicted",
        "the prompt cache dropped its oldest prompt to make room",
        (
            "- making room for prompt cache entry, removing oldest entry (size = {:f} MiB)",
            "- cache size limit reached, removing oldest entry {:rest}",
            "- cache token limit {:rest}",
        ),
        severity=NOTICE,
        note="Normal once the cache is full. A conversation that comes back after its prompt was dropped is read from "
        "its start: raise --cache-ram if there is memory to spare.",
    ),
    LineClass(
        "prompt_cache_skipped",
        "a prompt was too large for the prompt cache",
        ("- prompt state size {:f} MiB exceeds cache size limit {:f} MiB, skipping",),
        severity=NOTICE,
        note="It is not kept: a conversation that lost its slot is read again from its start. Raise --cache-ram.",
    ),
)
