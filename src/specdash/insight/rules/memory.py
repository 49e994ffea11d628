"""KV cache, checkpoints, prompt caches and allocations: pure rules."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from specdash.core.records import AlertSeverity, Symptom
from specdash.insight.rules.catalogue import rule
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


@rule(
    "find_slot storm",
    AlertSeverity.WARNING,
    trial_s=inf,
    clear_after_s=60,
    chart="warnings",
    limits={"flood_per_minute": 6000, "text_per_minute": 6, "images_s": 900},
)
def find_slot_storm(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Recurrent and hybrid models print find_slot when token positions do not follow each other. Prompts with images do
    that by the thousand and mean nothing by it: then it is a notice from 6000 lines a minute on, about 1 MB, because
    the log grows. With text alone a state was restored wrongly, and answers may be wrong: 6 a minute are enough,
    because one batch alone prints several.

    - do clients send images?
    - the slots and tasks that it touched (docs/parse-log.md)
    - llama.cpp #28007, #28166, #21831
    - LLAMA_LOG_MAX_MIB: does the log rotate?

    With images: nothing, or a build in which the line is gone. With text: update llama.cpp; until then
    --ctx-checkpoints 0 (LLAMA_ARG_CTX_CHECKPOINTS) avoids the restores.
    """
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


@rule(
    "Rejected drafts are paid twice",
    AlertSeverity.WARNING,
    trial_s=inf,
    of_drafts=True,
    raise_after_s=5,
    clear_after_s=30,
    explains=("speculation_hurting",),
    chart="tokens_per_decode",
    limits={"window_s": 60, "steps": 50, "share": 0.5},
)
def replay_thrash(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """This model cannot drop rejected tokens from its memory (recurrent or hybrid): every step that rejects one
    restores a checkpoint and decodes what was accepted again. Told by the log of LLAMA_TRACE=1 (or verbosity 5). From
    half of the steps on drafts are too long for what is accepted; 50 steps, because it is a share.

    - tokens per decode against mean accepted length
    - acceptance by position: where does it fall?
    - a spec type with rollback (MTP, EAGLE-3) for this architecture

    Drafts no longer than what is accepted of them; no speculation where the speed-up says that it hurts.
    """
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


@rule(
    "Conversations are read from their start again and again",
    AlertSeverity.WARNING,
    trial_s=inf,
    clear_after_s=60,
    explains=("prompt_cache_lost",),
    chart="prefill",
    limits={"window_s": 300, "times": 3, "tokens": 256},
)
def checkpoint_thrash(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The model keeps a recurrent state or a sliding window, and no checkpoint lies before the place where the prompts
    go on, although their slots held them. Three times in five minutes: once is any conversation that was edited. 256
    tokens, because less is read in no time.

    - the log: forcing full prompt re-processing, erasing old context checkpoint
    - does the client change the beginning of its prompt from turn to turn?
    - --ctx-checkpoints and --checkpoint-min-step

    More checkpoints per slot, if there is memory; a client that leaves the start of its prompts alone.
    """
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


@rule(
    "KV cache is full",
    AlertSeverity.WARNING,
    clear_after_s=30,
    hold_back=False,
    explains=("prompt_cache_lost", "requests_waiting"),
    chart="warnings",
    limits={"per_minute": 1},
)
def kv_full(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The slots share one KV cache, and a batch found no room in it: the server tries again with smaller batches,
    empties idle slots, and fails requests when that does not help. With speculation some builds fail at once (llama.cpp
    #24840). One line is enough: a cache that suffices never prints it.

    - context used by slot in the slots panel
    - the sum of what clients may use against LLAMA_CTX_SIZE
    - host and GPU memory: is there room for more?

    More context, which the preflight checks against memory; or fewer slots, so that fewer conversations share it.
    """
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


@rule(
    "Contexts overflow and are cut",
    AlertSeverity.NOTICE,
    clear_after_s=30,
    chart="warnings",
    limits={"storm_per_minute": 6},
)
def context_shift(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The context of a slot was full, and --context-shift dropped its oldest half: the model forgets it, and that
    conversation's cache is lost. A notice, because that flag asks for it; a warning from 6 a minute on, when answers
    run on without end.

    - which slots and tasks (docs/parse-log.md)
    - do answers end, or do they run into the limit?
    - n_predict and max_tokens of the clients

    More context per slot; a limit on the length of answers.
    """
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


@rule(
    "Compute buffer could not be allocated",
    AlertSeverity.CRITICAL,
    trial_s=inf,
    hold_back=False,
    explains=("backend_down", "crash_loop", "out_of_memory"),
    limits={"window_s": 600},
)
def compute_buffer_failed(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Model and cache fitted into memory, the room to compute a batch in did not. At start the server exits and is
    started again for nothing; a longer prompt or an image may ask for more while it runs.

    - the log: failed to allocate compute buffers, and how much was asked for
    - nvidia-smi, free -m
    - specdash preflight

    A smaller physical batch needs less of it; else a shorter context, or fewer layers on the GPU.
    """
    for found in of_late(scene, ("compute_buffer_failed",), limits["window_s"], of_this_server=True):
        ubatch = flag(scene, "-ub", "--ubatch-size")
        size = int(ubatch) if ubatch is not None and ubatch.isdigit() else DEFAULT_UBATCH
        yield Symptom(
            "a compute buffer could not be allocated" + ("; nobody serves" if is_gone(scene) else ""),
            touched(found),
            fix=(("LLAMA_ARG_UBATCH", str(max(32, size // 2))),),
            severity=None if is_gone(scene) else AlertSeverity.WARNING,
        )


@rule(
    "Out of memory",
    AlertSeverity.CRITICAL,
    trial_s=inf,
    hold_back=False,
    explains=("backend_down", "crash_loop", "restarted"),
    limits={"window_s": 600},
)
def out_of_memory(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Memory could not be allocated, on the GPU or in the host, or the server was killed as the kernel does when memory
    is out. Shown for ten minutes, also when a server runs again: what was short then is short still. A warning while
    one serves.

    - the log's lines with sizes
    - dmesg | grep -i 'out of memory'
    - nvidia-smi, free -m: who has it?
    - specdash preflight, which adds up what the settings need

    A shorter context or a quantised KV cache (LLAMA_ARG_CACHE_TYPE_K, _V), a smaller draft model, fewer layers on the
    GPU; a smaller prompt cache (LLAMA_ARG_CACHE_RAM) for the host.
    """
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


@rule(
    "Prompt cache is lost",
    AlertSeverity.WARNING,
    trial_s=inf,
    clear_after_s=60,
    chart="prefill",
    # Three turns, and a third of those that could have used a cache: single ones are edits and compactions. Less than
    # 256 tokens are read in no time. Without sessions the log shows takeovers alone: nine of ten, twelve at least.
    limits={
        "window_s": 300,
        "times": 3,
        "share": 0.34,
        "tokens": 256,
        "takeovers": 12,
        "takeovers_share": 0.9,
    },
)
def prompt_cache_lost(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Turns read again what the turn before had left in the cache: time to first token grows with the whole
    conversation. Seen in the log (a slot picked for the start it held, and then not used) or in the proxy's events (a
    longer prompt of the same session, less than half of it cached). Or more conversations than slots take turns, and
    each throws out what another's slot held; from the log alone this is a notice, since its prompts may not be turns
    of conversations.

    - does the client change the start of its prompts: a date, a request's id, reordered tools?
    - sessions in the proxy panel against slots
    - LLAMA_ARG_CACHE_PROMPT, and cache_prompt in the requests
    - LLAMA_ARG_CACHE_RAM: prompt_cache_evicted and prompt_cache_skipped in the log
    - recurrent model or sliding window: checkpoint_thrash

    Keep the start of prompts the same; switch the prompt cache on; give it memory. Of more conversations than slots:
    a slot for each, and the context for it, since slots share LLAMA_CTX_SIZE; else fewer agents at a time.
    """
    window = limits["window_s"]
    slots = scene.picture.backend.slots or ()
    sessions = lost_by_sessions(scene, window, limits["tokens"], crowded=True)
    if sessions.requests >= limits["times"] and sessions.requests >= limits["share"] * sessions.of:
        yield Symptom(
            f"{sessions.conversations} conversations share {len(slots)} slots: {sessions.requests} of {sessions.of} "
            f"turns read again {sessions.tokens} tokens that others had evicted",
            (
                ("conversations", str(sessions.conversations)),
                ("slots", str(len(slots))),
                ("tokens read again", str(sessions.tokens)),
            ),
            fix=_slots_of_the_same_size(scene, max(len(slots) + 1, sessions.conversations)),
        )
        return
    alone = lost_by_sessions(scene, window, limits["tokens"], crowded=False)
    lost = max(lost_in_slots(scene, window, limits["tokens"]), alone, key=lambda lost_cache: lost_cache.tokens)
    if lost.requests >= limits["times"] and lost.requests >= limits["share"] * lost.of:
        off = flag(scene, "--no-cache-prompt") is not None
        yield Symptom(
            f"{lost.requests} of {lost.of} turns read again {lost.tokens} tokens that the turn before had cached",
            (
                ("turns", f"{lost.requests} of {lost.of}"),
                ("tokens read again", str(lost.tokens)),
                ("prompt cache", "off (--no-cache-prompt)" if off else "on"),
                ("seen in", lost.source),
            ),
            fix=(("LLAMA_ARG_CACHE_PROMPT", None),) if off else (),
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
