"""KV cache, checkpoints, prompt caches and allocations: pure rules, described in memory.toml."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.records import AlertSeverity, Symptom
from specdash.insight.picture import SlotPhase
from specdash.insight.rules.known import (
    flag,
    is_gone,
    lost_by_sessions,
    lost_in_slots,
    more_context,
    of_late,
    parameter,
    per_minute,
    takeovers,
    touched,
    warning,
)
from specdash.insight.speedup.verdict import WITHOUT, advice
from specdash.system.text import percent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.insight.rules.catalogue import Limits
    from specdash.insight.rules.known import Fix
    from specdash.insight.rules.scene import RuleScene

FAILED_FOR_ROOM = ("batch_index_error", "compute_error", "decode_failed")
"""What becomes of requests for which no room was found."""
OUT_OF_MEMORY = ("alloc_failed", "gpu_out_of_memory", "killed")
DEFAULT_UBATCH = 512
DEFAULT_CHECKPOINTS = 32


def find_slot_storm(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The log is flooded with warnings of recurrent memory; without images it means more than a flood."""
    found = warning(scene, "find_slot_non_consecutive")
    if found is None:
        return
    images = scene.past.grown("live", "image_processing", limits["images_s"])
    projector = flag(scene, "--mmproj", "-mm") is not None
    knows_command = scene.picture.backend.process is not None and bool(scene.picture.backend.process.command)
    evidence = (*touched(found), ("image lines", f"{images:.0f}"), ("projector", "yes" if projector else "no"))
    if images or projector or not knows_command:
        if found.per_minute >= limits["flood_per_minute"]:
            yield Symptom(
                f"{found.per_minute:.0f} find_slot lines a minute, normal for prompts with images; the log grows",
                evidence,
                severity=AlertSeverity.NOTICE,
            )
    elif found.per_minute >= limits["text_per_minute"]:
        yield Symptom(
            f"{found.per_minute:.0f} find_slot lines a minute without any image: a state was restored wrongly",
            evidence,
        )


def replay_thrash(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Most verification steps reject something, and every rejection costs a restore and a decode again."""
    window = limits["window_s"]
    steps = scene.past.grown("live", "steps", window)
    replays = max(scene.past.grown("live", "replays", window), scene.past.grown("live", "speculative restored", window))
    if not steps or steps < limits["steps"] or replays / steps < limits["share"]:
        return
    accepted = scene.past.grown("live", "accepted", window)
    yield Symptom(
        f"{percent(replays / steps)} of verification steps restored a checkpoint and decoded again "
        f"({replays:.0f} of {steps:.0f})",
        (
            ("steps", f"{steps:.0f}"),
            ("replays", f"{replays:.0f}"),
            ("accepted a step", f"{accepted / steps:.1f} draft tokens"),
            ("tokens per decode", f"{(accepted + steps + replays) / (steps + replays):.2f}"),
        ),
        fix=_drafts_that_fit(scene, accepted / steps),
    )


def checkpoint_thrash(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Conversations that the slot held are read from their start, because no checkpoint lies where they go on."""
    window = limits["window_s"]
    again = scene.past.grown("live", "context full_reprocess", window)
    lost = lost_in_slots(scene, window, limits["tokens"])
    if again < limits["times"] or lost.requests < limits["times"]:
        return
    erased = scene.past.grown("live", "context erased", window)
    yield Symptom(
        f"{again:.0f} prompts read from their start because no checkpoint was available, "
        f"{lost.tokens} tokens that the slots held",
        (
            ("full re-processing", f"{again:.0f}"),
            ("checkpoints erased", f"{erased:.0f}"),
            ("tokens read again", str(lost.tokens)),
        ),
        fix=_more_checkpoints(scene),
    )


def kv_full(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """No room for a batch in the KV cache."""
    found = warning(scene, "kv_no_free_space")
    lines, purged = per_minute(scene, "kv_no_free_space"), per_minute(scene, "slot_purged")
    if found is None or lines < limits["per_minute"]:
        return
    failed = per_minute(scene, *FAILED_FOR_ROOM)
    what = (
        "requests fail for it" if failed else "slots are emptied for it" if purged else "batches are cut smaller for it"
    )
    yield Symptom(
        f"no room for a batch in the KV cache, {lines:.0f} lines in the last minute; {what}",
        (*touched(found), ("slots emptied a minute", f"{purged:.0f}"), ("errors a minute", f"{failed:.0f}")),
        fix=more_context(scene),
        severity=AlertSeverity.CRITICAL if failed else None,
    )


def context_shift(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The oldest part of a context is dropped while it is used."""
    found = warning(scene, "context_shift")
    if found is None or not found.per_minute:
        return
    many = found.per_minute >= limits["storm_per_minute"]
    yield Symptom(
        f"the context was full {found.per_minute:.0f} times in the last minute, and its oldest tokens were dropped",
        touched(found),
        fix=more_context(scene),
        severity=AlertSeverity.WARNING if many else None,
    )


def slot_nearly_full(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """A slot at work has little context left."""
    for slot in scene.picture.backend.slots or ():
        if slot.phase is SlotPhase.IDLE or not slot.n_ctx or slot.context_used is None:
            continue
        share = slot.context_used / slot.n_ctx
        if share >= limits["share"]:
            yield Symptom(
                f"slot {slot.id} has used {percent(share)} of its context, {slot.context_used} of {slot.n_ctx} tokens",
                (
                    ("used", str(slot.context_used)),
                    ("context", str(slot.n_ctx)),
                    ("left", str(slot.n_ctx - slot.context_used)),
                ),
                subject=f"slot {slot.id}",
                fix=more_context(scene),
            )


def compute_buffer_failed(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The room to compute a batch in could not be had."""
    for found in of_late(scene, ("compute_buffer_failed",), limits["window_s"], of_this_server=True):
        ubatch = flag(scene, "-ub", "--ubatch-size")
        size = int(ubatch) if ubatch is not None and ubatch.isdigit() else DEFAULT_UBATCH
        yield Symptom(
            "a compute buffer could not be allocated" + ("; nobody serves" if is_gone(scene) else ""),
            touched(found),
            fix=(("LLAMA_ARG_UBATCH", str(max(32, size // 2))),),
            severity=None if is_gone(scene) else AlertSeverity.WARNING,
        )


def out_of_memory(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Memory could not be allocated, or the kernel ended the server for it."""
    found = of_late(scene, OUT_OF_MEMORY, limits["window_s"], of_this_server=False)
    if not found:
        return
    newest = min(found, key=lambda picture: picture.last_age_s)
    where = "the GPU's memory" if newest.warning == "gpu_out_of_memory" or "cuda" in newest.sample.lower() else "memory"
    what = (
        "the server was killed, as the kernel does when memory is out"
        if newest.warning == "killed"
        else (f"{where} could not be allocated")
    )
    yield Symptom(
        what if is_gone(scene) else f"{what}; a server runs again or still",
        tuple((picture.title, picture.sample) for picture in found),
        severity=None if is_gone(scene) else AlertSeverity.WARNING,
    )


def prompt_cache_lost(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Turns whose start had been read in the turn before read it again."""
    window = limits["window_s"]
    slots = lost_in_slots(scene, window, limits["tokens"])
    sessions = lost_by_sessions(scene, window, limits["tokens"], crowded=False)
    lost = max(slots, sessions, key=lambda lost_cache: lost_cache.tokens)
    if lost.requests < limits["times"] or lost.requests < limits["share"] * lost.of:
        return
    off = flag(scene, "--no-cache-prompt") is not None
    yield Symptom(
        f"{lost.requests} of {lost.of} turns read again {lost.tokens} tokens that the turn before had cached",
        (
            ("turns", f"{lost.requests} of {lost.of}"),
            ("tokens read again", str(lost.tokens)),
            ("prompt cache", "off (--no-cache-prompt)" if off else "on"),
            ("told by", lost.source),
        ),
        fix=(("LLAMA_ARG_CACHE_PROMPT", None),) if off else (),
    )


def slot_thrash(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """More conversations than slots: each one's turn throws out another's cache."""
    window = limits["window_s"]
    slots = scene.picture.backend.slots or ()
    sessions = lost_by_sessions(scene, window, limits["tokens"], crowded=True)
    fix = _slots_of_the_same_size(scene, max(len(slots) + 1, sessions.conversations))
    if sessions.requests >= limits["times"] and sessions.requests >= limits["share"] * sessions.of:
        yield Symptom(
            f"{sessions.conversations} conversations share {len(slots)} slots: {sessions.requests} of {sessions.of} "
            f"turns read again {sessions.tokens} tokens that others had evicted",
            (
                ("conversations", str(sessions.conversations)),
                ("slots", str(len(slots))),
                ("tokens read again", str(sessions.tokens)),
            ),
            fix=fix,
        )
        return
    taken = takeovers(scene, window, limits["tokens"])
    if taken.requests >= limits["takeovers"] and taken.requests >= limits["takeovers_share"] * taken.of:
        yield Symptom(
            f"{taken.requests} of {taken.of} prompts took the slot unused longest and were read from their start, "
            f"{taken.tokens} tokens; if these are turns of conversations, there are more of them than slots",
            (("prompts", f"{taken.requests} of {taken.of}"), ("tokens", str(taken.tokens)), ("slots", str(len(slots)))),
            severity=AlertSeverity.NOTICE,
        )


def _slots_of_the_same_size(scene: RuleScene, count: int) -> Fix:
    """So many slots, and the context that they need; nothing where its size is not known: slots share the context, so
    that more of them alone make each smaller."""
    sizes = [slot.n_ctx for slot in scene.picture.backend.slots or ()]
    if not sizes or None in sizes:
        return ()
    parallel: Fix = (("LLAMA_PARALLEL", str(count)),)
    if flag(scene, "-kvu", "--kv-unified") is not None:
        return parallel
    return (*parallel, ("LLAMA_CTX_SIZE", str(count * max(size or 0 for size in sizes))))


def _drafts_that_fit(scene: RuleScene, accepted: float) -> Fix:
    """What the verdict names; where it knows no best length, drafts as long as what is accepted of them, so that fewer
    steps reject any."""
    _, _, fix = advice(scene.picture.speedup, scene.picture.views.drafter)
    if fix or scene.picture.views.drafter.best_length is not None:
        return fix
    longest, wanted = parameter(scene, "spec-draft-n-max"), max(1, round(accepted))
    if longest is not None and longest.isdigit() and wanted < int(longest):
        return (("LLAMA_DRAFT_MAX", str(wanted)),)
    return WITHOUT


def _more_checkpoints(scene: RuleScene) -> Fix:
    given = flag(scene, "-ctxcp", "--ctx-checkpoints", "--swa-checkpoints")
    if given is not None and given.isdigit() and int(given) < DEFAULT_CHECKPOINTS:
        return (("LLAMA_ARG_CTX_CHECKPOINTS", None),)
    return (("LLAMA_ARG_CTX_CHECKPOINTS", str(2 * DEFAULT_CHECKPOINTS)),)
