"""KV cache, checkpoints, prompt caches and allocations: pure rules."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from specdash.core.records import AlertSeverity, Symptom
from specdash.insight.proxy.read_again import OF_CLIENT, Reason, read_again, summed
from specdash.insight.rules.catalogue import rule
from specdash.insight.rules.known import flag, is_gone, of_late, touched, warning
from specdash.system.text import UNKNOWN, percent, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.insight.proxy.read_again import ReadAgain
    from specdash.insight.rules.catalogue import Limits
    from specdash.insight.rules.known import Fix
    from specdash.insight.rules.scene import RuleScene

OUT_OF_MEMORY = ("alloc_failed", "gpu_out_of_memory", "killed")
DEFAULT_UBATCH = 512
DEFAULT_CHECKPOINTS = 32


@rule(
    "find_slot storm",
    AlertSeverity.WARNING,
    in_trials=False,
    clear_after_s=60,
    chart="warnings",
    # 6000 lines are about 1 MB. One batch alone prints several.
    limits={"flood_per_minute": 6000, "text_per_minute": 6, "images_s": 900},
)
def find_slot_storm(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Recurrent and hybrid models print find_slot when token positions do not follow each other. Prompts with images do
    so by the thousand, which is normal: a notice, because the log grows. With text alone a state was restored wrongly,
    and answers may be wrong.

    - do clients send images?
    - the slots and tasks that it touched (docs/parse-log.md)
    - llama.cpp #28007, #28166, #21831

    With images: nothing, or a build in which the line is gone. With text: update llama.cpp; until then
    --ctx-checkpoints 0 (LLAMA_ARG_CTX_CHECKPOINTS) avoids the restores.
    """
    found = warning(scene, "find_slot_non_consecutive")
    if found is None:
        return
    images = scene.logged("image_processing", limits["images_s"])
    projector, process = flag(scene, "--mmproj", "-mm") is not None, scene.picture.backend.process
    may_see = bool(images) or projector or process is None or not process.command
    if found.per_minute >= limits["flood_per_minute" if may_see else "text_per_minute"]:
        what = ", normal for prompts with images; the log grows"
        yield Symptom(
            f"{found.per_minute:.0f} find_slot lines a minute"
            f"{what if may_see else ' without any image: a state was restored wrongly'}",
            (*touched(found), ("image lines", f"{images:.0f}"), ("projector", "yes" if projector else "no")),
            severity=AlertSeverity.NOTICE if may_see else None,
        )


@rule(
    "Out of memory",
    AlertSeverity.CRITICAL,
    in_trials=False,
    hold_back=False,
    explains=("backend_down", "crash_loop"),
    limits={"window_s": 600},
)
def out_of_memory(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Memory could not be allocated, on the GPU or in the host, or the server was killed as the kernel does when memory
    is out. Where model and cache fitted and the room to compute a batch in did not, the server exits at its start and
    is started again for nothing; a longer prompt or an image may ask for more while it runs. Shown for ten minutes, as
    a warning where a server runs again: what was short then is short still.

    - dmesg | grep -i 'out of memory'
    - nvidia-smi, free -m: who has it?
    - the log: failed to allocate compute buffers, and how much was asked for
    - specdash preflight, which adds up what the settings need

    A shorter context or a quantised KV cache (LLAMA_ARG_CACHE_TYPE_K, _V), a smaller draft model, fewer layers on the
    GPU; a smaller prompt cache (LLAMA_ARG_CACHE_RAM) for the host; a smaller physical batch for a compute buffer.
    """
    # A smaller batch mends a compute buffer: one of a server before this one says nothing.
    buffer = of_late(scene, ("compute_buffer_failed",), limits["window_s"], of_this_server=True)
    found = [*of_late(scene, OUT_OF_MEMORY, limits["window_s"], of_this_server=False), *buffer]
    if not found:
        return
    newest = min(found, key=lambda picture: picture.last_age_s)
    where = "the GPU's memory" if newest.warning == "gpu_out_of_memory" or "cuda" in newest.sample.lower() else "memory"
    what = f"{where} could not be allocated"
    fix: Fix = ()
    if buffer:
        ubatch = flag(scene, "-ub", "--ubatch-size")
        size = int(ubatch) if ubatch is not None and ubatch.isdigit() else DEFAULT_UBATCH
        what, fix = "a compute buffer could not be allocated", (("LLAMA_ARG_UBATCH", str(max(32, size // 2))),)
    elif newest.warning == "killed":
        what = "the server was killed, as the kernel does when memory is out"
    yield Symptom(
        what if is_gone(scene) else f"{what}; a server runs again or still",
        tuple((picture.title, picture.sample) for picture in found),
        fix=fix,
        severity=None if is_gone(scene) else AlertSeverity.WARNING,
    )


@rule(
    "Prompts are read again and again",
    AlertSeverity.WARNING,
    in_trials=False,
    clear_after_s=60,
    chart="prefill",
    # Single ones are edits and compactions. Less than 256 tokens are read in no time.
    limits={"window_s": 300, "times": 3, "share": 0.34, "tokens": 256},
)
def prompt_cache_lost(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Turns read again what had been read before: time to first token grows with the whole conversation. The proxy's
    events and the log give the reason: a client that changes the start of its prompts, more conversations than slots,
    a prompt cache that is off or full, or no checkpoint to go back to (recurrent models, sliding windows).

    - why was it read again? (a request's detail, the speculation screen)
    - LLAMA_ARG_CACHE_PROMPT, and cache_prompt in the requests
    - LLAMA_ARG_CACHE_RAM: prompt_cache_evicted and prompt_cache_skipped in the log

    Keep the start of prompts the same; switch the prompt cache on; give it memory; a slot for each conversation.
    """
    # Of this server, oldest first.
    uptime, requests = scene.picture.backend.uptime_s, scene.picture.views.prefix_cache.requests
    within = limits["window_s"] if uptime is None else min(limits["window_s"], uptime)
    turns = [request for request in reversed(requests) if request.ended_age_s <= within]
    dropped = bool(warning(scene, "prompt_cache_evicted") or warning(scene, "prompt_cache_skipped"))
    found: defaultdict[str, list[ReadAgain]] = defaultdict(list)
    begun: set[str | None] = {None}
    for turn in turns:
        # What a session's first turn had in the cache may have gone with the server before.
        again = read_again(turn, dropped=dropped) if turn.session in begun else None
        begun.add(turn.session)
        if again is not None and again.tokens >= limits["tokens"]:
            found[(turn.session or "") if again.reason in OF_CLIENT else ""].append(again)
    for session, ones in found.items():
        of = sum(not session or turn.session == session for turn in turns)
        if len(ones) >= limits["times"] and len(ones) >= limits["share"] * of:
            yield _read_again(scene, session, ones, of, len(begun) - 1)


def _read_again(scene: RuleScene, session: str, ones: Sequence[ReadAgain], of: int, sessions: int) -> Symptom:
    """What one client, or the server, made necessary again and again; named by the reason that cost most."""
    worst, tokens = summed(ones)[0], sum(one.tokens for one in ones)
    known = [one.seconds for one in ones if one.seconds is not None]
    slots = scene.picture.backend.slots or ()
    fix: Fix = ()
    remedy = why = ""
    if session:
        remedy = (
            "Keep that part the same from turn to turn: no date or id in the system prompt, the same tools in the same "
            "order, new messages at the end alone. Or put what changes at the end."
        )
    elif worst.reason is Reason.CHECKPOINT:
        given = flag(scene, "-ctxcp", "--ctx-checkpoints", "--swa-checkpoints") or ""
        too_few = given.isdigit() and int(given) < DEFAULT_CHECKPOINTS
        fix = (("LLAMA_ARG_CTX_CHECKPOINTS", None if too_few else str(2 * DEFAULT_CHECKPOINTS)),)
        remedy = "More checkpoints per slot, if there is memory."
    elif flag(scene, "--no-cache-prompt") is not None:
        why, fix, remedy = " (--no-cache-prompt)", (("LLAMA_ARG_CACHE_PROMPT", None),), "Switch the prompt cache on."
    elif 0 < len(slots) < sessions:
        sizes = [slot.n_ctx or 0 for slot in slots]
        unified = flag(scene, "-kvu", "--kv-unified") is not None
        context: Fix = (("LLAMA_CTX_SIZE", str(sessions * max(sizes))),)
        why = f"; {sessions} conversations share {len(slots)} slots"
        # Slots share the context: more of them alone make each smaller.
        fix = (("LLAMA_PARALLEL", str(sessions)), *(() if unified else context)) if all(sizes) else ()
        remedy = (
            "A slot for each conversation, and the context for it, since slots share LLAMA_CTX_SIZE; else fewer agents "
            "at a time."
        )
    who = f"session {session} had {tokens} tokens read again" if session else f"{tokens} tokens were read again"
    return Symptom(
        f"{who} in {len(ones)} of {of} turns: {worst.reason}{why}",
        (
            ("it cost", seconds(sum(known)) if known else UNKNOWN),
            ("changed at", ", ".join(sorted({percent(one.at) for one in ones if one.at is not None})) or UNKNOWN),
            ("conversations, slots", f"{sessions or UNKNOWN}, {len(slots) or UNKNOWN}"),
        ),
        subject=session,
        fix=fix,
        remedy=remedy,
    )
