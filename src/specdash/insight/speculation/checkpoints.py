"""Derives how rejected tokens are taken back, and what that costs. docs/views.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import asdict

from specdash.core.readings import Source
from specdash.core.speculation import MemoryKind, Rollback, rollback
from specdash.insight.log.counter_log import decoded
from specdash.insight.picture import CheckpointCounts, CheckpointsPicture, ReplayFigures
from specdash.insight.speculation import speculation
from specdash.system.text import percent

if TYPE_CHECKING:
    from specdash.core.readings import ModelOutline, Props
    from specdash.core.speculation import SpecType
    from specdash.insight.log.counter_log import Scrape
    from specdash.insight.request import DraftTally
    from specdash.insight.state import TargetState

_SENTENCES = {
    Rollback.CUT: "Rejected tokens are cut from the KV cache, which costs nothing.",
    Rollback.STATE: "Rejected tokens are taken back from kept states: nothing is decoded again.",
}


def derive(state: TargetState, now: float, window_s: float) -> CheckpointsPicture:
    """This part of the picture. The caller holds the state's lock."""
    log = state.log
    model = model_of(state)
    way, because = way_of(state)
    figures = _figures(state, way, log.step_totals.since(now - window_s), state.window(now, window_s))
    life = _figures(state, way, log.step_totals.total, state.counters.life)
    if log.since_wall is not None:
        # Only a part of its life was read.
        life = life if life.basis == "counters" else ReplayFigures()
    held = not figures.basis and bool(life.basis)
    shown = life if held else figures
    return CheckpointsPicture(
        memory=model.memory if model is not None else None,
        rollback=way,
        because=because,
        context=_counts(state, "context"),
        speculative=_counts(state, "speculative"),
        full_reprocessed=log.here["context full_reprocess"] if log.since_wall is None else 0,
        held=held,
        **asdict(shown),
        lifetime=life,
        verdict=_verdict(way, shown),
    )


def _counts(state: TargetState, kind: str) -> CheckpointCounts:
    """Those superseded by a newer one count as erased."""
    log = state.log
    if log.since_wall is not None:
        return CheckpointCounts()
    created, restored, erased, superseded = (
        log.here[f"{kind} {action}"] for action in ("created", "restored", "erased", "superseded")
    )
    return CheckpointCounts(created, restored, erased + superseded, log.checkpoint_mib.get(kind))


def model_of(state: TargetState) -> ModelOutline | None:
    """What the model's file says, None where it cannot be seen."""
    props: Props | None = state.value(Source.PROPS)
    return props.model if props is not None else None


def way_of(state: TargetState) -> tuple[Rollback | None, str]:
    """How rejected tokens are taken back, None where that is not known, and why, in one sentence."""
    if speculation.is_active(state) is False:
        return None, "it does not speculate"
    log, chain, model = state.log, speculation.chain_of(state), model_of(state)
    start_seen = "spec_checkpoints" in log.events
    done = log.step_totals.total.replays > 0 or log.here["speculative restored"] > 0
    if model is not None and model.memory is not None and chain:
        found, why = _of_model(model, model.memory, chain)
        # What the server does overrules what is known of its model's architecture.
        if found is Rollback.CHECKPOINT or not (start_seen or done):
            return found, why
    if start_seen:
        return Rollback.CHECKPOINT, "the server printed at its start that it uses checkpoints"
    return (Rollback.CHECKPOINT, "the log shows restores and replays") if done else (None, _unknown(state, model))


def _of_model(model: ModelOutline, memory: MemoryKind, chain: tuple[SpecType, ...]) -> tuple[Rollback, str]:
    """As the model's file has it: the dearest way of the chain."""
    name = model.architecture or "the model"
    if memory in (MemoryKind.ATTENTION, MemoryKind.WINDOW):
        return Rollback.CUT, f"{name} keeps a KV cache of every token"
    ways = {item.name: rollback(item, memory, gives_states=model.gives_states) for item in chain}
    kept = ", ".join(key for key, way in ways.items() if way is Rollback.STATE)
    again = ", ".join(key for key, way in ways.items() if way is Rollback.CHECKPOINT)
    if not again:
        return Rollback.STATE, f"{name} is {memory}, and keeps the states of the last tokens for {kept}"
    if kept:
        return Rollback.CHECKPOINT, f"{name} is {memory}: states are kept for {kept}, not for longer drafts of {again}"
    if model.gives_states:
        return Rollback.CHECKPOINT, f"{name} is {memory}, and for {again} no states are kept"
    return Rollback.CHECKPOINT, f"{name} is {memory}: its state cannot be cut back"


def _unknown(state: TargetState, model: ModelOutline | None) -> str:
    if model is not None and model.memory is not None:
        return "the type of speculation is not known"
    if Source.PROPS not in state.last_known:
        return "nothing is known of the model yet"
    return "the model's file cannot be seen from here, and the log does not tell (verbosity 4 does)"


def _figures(
    state: TargetState, way: Rollback | None, steps: DraftTally, counted: tuple[Scrape, Scrape] | None
) -> ReplayFigures:
    drafts_each_step = all(item.reads_draft_model for item in speculation.chain_of(state))
    totals = decoded(*counted) if counted is not None else None
    if totals is not None and not 0 < (totals[2].steps or 0) <= totals[0] - totals[2].accepted:
        totals = None
    if not steps.calls:
        again = False if way in (Rollback.CUT, Rollback.STATE) else True if way and drafts_each_step else None
        return _of_counters(*totals, replays=again) if totals is not None else ReplayFigures()
    decode_s, effective = steps.decode_s, steps.tokens / steps.calls
    share: float | None = steps.replays / steps.calls
    lost_s = totals[1] * steps.replays / steps.calls if totals is not None else None
    if decode_s is not None:
        lost_s = min(steps.replay_s, decode_s)
        share = lost_s / decode_s if decode_s > 0 else None
    if totals is not None and not drafts_each_step:
        # An n-gram type drafts now and then, and steps without a draft leave no trace.
        effective = min(effective, _of_counters(*totals, replays=False).effective_length or 1.0)
    return ReplayFigures(
        basis="trace",
        steps=round(steps.steps or 0),
        replays=steps.replays,
        replayed_tokens=steps.replayed,
        lost_s=lost_s,
        lost_share=share,
        mean_accepted_length=steps.mean_accepted_length,
        effective_length=effective,
    )


def _of_counters(tokens: float, seconds: float, drafts: DraftTally, *, replays: bool | None) -> ReplayFigures:
    """Every decode call brings one token beside those accepted, so tokens less accepted ones are the decode calls.

    Those that are no step are replays, or steps without a draft; a type that drafts with a model has few of these.
    `replays` says whether there are any, None where that is unknown.
    """
    steps, calls = drafts.steps or 0, tokens - drafts.accepted
    again = round(min(steps, calls - steps)) if replays else 0
    share = again / calls if replays is not None else None
    return ReplayFigures(
        basis="counters",
        steps=round(steps),
        replays=again,
        replayed_tokens=0 if replays is False else None,
        lost_s=seconds * share if share is not None else None,
        lost_share=share,
        mean_accepted_length=drafts.mean_accepted_length,
        effective_length=tokens / calls,
    )


def _verdict(way: Rollback | None, figures: ReplayFigures) -> str:
    if way is None:
        return ""
    if way is not Rollback.CHECKPOINT:
        return _SENTENCES[way]
    if figures.effective_length is None:
        return "Every rejection restores a checkpoint and decodes again; no step was seen yet."
    length = f"{figures.effective_length:.1f} tokens a decode call"
    if figures.mean_accepted_length is not None and figures.mean_accepted_length - figures.effective_length >= 0.05:
        length += f", not the {figures.mean_accepted_length:.1f} that the server prints"
    if figures.basis != "trace":
        most = f"at most {percent(figures.lost_share)} of decode time goes into replays" if figures.lost_share else ""
        return f"{_capital(length)}{'; ' if most else ''}{most} (LLAMA_TRACE=1 shows what replays take)."
    if not figures.replays:
        return f"{_capital(length)}; no draft was rejected."
    if figures.lost_share is None:
        return f"{_capital(length)}; {figures.replays} replays."
    return f"{percent(figures.lost_share)} of decode time goes into replays: {length}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
