"""What clients get, through the proxy: pure rules."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from specdash.core.proxy_events import Guardrail, GuardrailAction, RequestOutcome, UpstreamStatus
from specdash.core.readings import FailureKind, ReadingStatus, Source
from specdash.core.records import AlertSeverity, Symptom
from specdash.insight.picture import SlotPhase
from specdash.insight.rules.catalogue import rule
from specdash.insight.rules.known import acted, flag, is_gone, must_see, touched, turns_of, warning
from specdash.system.stats import median
from specdash.system.text import UNKNOWN, counted, duration, number, percent, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.core.proxy_events import ProxyStatus, SessionView
    from specdash.insight.rules.catalogue import Limits
    from specdash.insight.rules.known import Fix
    from specdash.insight.rules.scene import RuleScene

BREAK_LOOPS_SOONER: tuple[tuple[str, str | None], ...] = (
    ("PROXY_LOOP_BREAKER", "on"),
    ("PROXY_LOOP_WINDOW", "6"),
    ("PROXY_LOOP_REPEAT_THRESHOLD", "8"),
    ("PROXY_FORCED_THRESHOLD", "14"),
    ("PROXY_NO_PROGRESS_THRESHOLD", "4"),
    ("PROXY_CONTEXT_RELEASE_THRESHOLD", "0.90"),
)
"""The profile `loop-incident`, with the breaker on."""
CHECK_TOOL_TURNS = (("PROXY_MALFORMED_TOOL_STREAM_STRICT", "on"), ("PROXY_MALFORMED_TOOL_RETRY_MAX", "3"))
SERVER_ERROR = 500
FAILED_FOR_ROOM = ("batch_index_error", "compute_error")
"""What becomes of requests for which the KV cache has no room."""


def _live(scene: RuleScene) -> ProxyStatus | None:
    """The proxy's status, unless it no longer answers."""
    proxy = scene.picture.proxy
    return proxy.live if proxy.status is ReadingStatus.KNOWN else None


def _seen_lately(scene: RuleScene, seconds: float) -> Sequence[SessionView]:
    """Sessions at work or seen in the last `seconds`."""
    live, since = _live(scene), scene.picture.wall - seconds
    return [session for session in live.sessions if session.active or session.last_seen >= since] if live else []


@rule(
    "Empty answers",
    AlertSeverity.WARNING,
    clear_after_s=60,
    # One in twenty ends agents' work noticeably; what a retry mended only costs time.
    limits={"window_s": 300, "shown": 2, "shown_share": 0.05},
)
def empty_answers(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Clients get answers without text or tool call, or with reasoning alone. Agents stop on these, or ask again.

    - the proxy screen's guardrails: empty_response, reasoning_fallback
    - the chat template: does it close the reasoning block?
    - max_tokens of the clients: does reasoning use it up?

    Reasoning alone: switch thinking off for these turns or let the fallback show it. Nothing at all: another chat
    template, or a build without the fault.
    """
    window, span = limits["window_s"], duration(limits["window_s"])
    turns = turns_of(scene, window)
    reasoning = acted(scene, Guardrail.REASONING_FALLBACK, GuardrailAction.APPLIED, window).count
    retried, exhausted = (
        acted(scene, Guardrail.EMPTY_RESPONSE, action, window).count
        for action in (GuardrailAction.RETRIED, GuardrailAction.EXHAUSTED)
    )
    # A UAP proxy has no guardrail against them; its log has the number of tokens.
    silent = sum(
        event.outcome is RequestOutcome.OK and not event.tool_calls and event.completion_tokens == 0
        for event in turns.ended
    )
    shown = max(reasoning, exhausted, silent)
    evidence = (("of these reasoning alone", str(reasoning)), ("asked for again", str(retried)))
    if shown >= limits["shown"] and turns.share(shown) >= limits["shown_share"]:
        what = "nothing but reasoning" if reasoning * 2 > shown else "nothing in them"
        fix = (("PROXY_STREAM_REASONING_FALLBACK", "sanitized"),) if reasoning else ()
        yield Symptom(f"{shown} of {turns.total} answers in {span} had {what}", evidence, fix=fix)


@rule(
    "Malformed tool calls",
    AlertSeverity.WARNING,
    clear_after_s=60,
    # Every such turn is made twice: one in five costs a fifth of the server. One that reaches the client happens; two
    # in five minutes end two turns. A cut follows three malformed turns of a session in a row.
    limits={"window_s": 300, "found": 5, "share": 0.2, "shown": 2, "critical_share": 0.5, "cut": 3},
)
def malformed_storm(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The model writes its tool calls wrong, and the proxy asks again: every such turn costs twice. Where no retry
    gives a good call, agents end their turn on it. Sessions with many of them are cut back to their recent turns, which
    loses context and the prompt cache.

    - the chat template and --jinja: does the server parse this model's calls?
    - the quantisation of weights and KV cache (q4 KV breaks calls first)

    A template that fits the model, a less quantised KV cache, a lower temperature; fewer tools
    (PROXY_TOOL_NARROWING). The fix holds tool turns back until they are checked, and asks up to three times.
    """
    window, span = limits["window_s"], duration(limits["window_s"])
    found, exhausted, mended = (
        acted(scene, Guardrail.MALFORMED_TOOL, action, window)
        for action in (GuardrailAction.DETECTED, GuardrailAction.EXHAUSTED, GuardrailAction.RECOVERED)
    )
    cut, shown = acted(scene, Guardrail.CONTAMINATION, GuardrailAction.APPLIED, window).count, exhausted.count
    turns = turns_of(scene, window)
    kinds = Counter(str(event.facts["kind"]) for event in found.events if "kind" in event.facts)
    evidence = (
        ("malformed turns", f"{found.count} of {turns.total}"),
        ("mended", str(mended.count)),
        ("not fixed", str(shown)),
        ("sessions", found.sessions),
        ("sessions cut back", f"{cut} times"),
        ("faults", ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(3)) or UNKNOWN),
    )
    if shown >= limits["shown"]:
        severity = AlertSeverity.CRITICAL if turns.share(shown) >= limits["critical_share"] else None
        summary = f"{shown} malformed tool calls in {span} reached the client, because no retry fixed them"
        yield Symptom(summary, evidence, fix=CHECK_TOOL_TURNS, severity=severity)
    elif cut >= limits["cut"]:
        summary = f"sessions were cut back {cut} times in {span} after malformed tool calls in a row"
        yield Symptom(summary, evidence, fix=CHECK_TOOL_TURNS)
    elif found.count >= limits["found"] and turns.share(found.count) >= limits["share"]:
        summary = f"{found.count} of {turns.total} turns in {span} had a malformed tool call; each costs another turn"
        yield Symptom(summary, evidence)


@rule(
    "Sessions loop",
    AlertSeverity.WARNING,
    clear_after_s=30,
    explains=("context_overflow",),
    # The breaker speaks up at 8 turns and takes the tools away at 16: what is there then went on despite it. The demo's
    # stuck agent reaches 13.
    limits={"repeats": 16, "seen_s": 120},
)
def session_looping(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """An agent makes the same tool calls with the same results again and again, and the loop breaker did not help: it
    takes a slot from those that work.

    - the proxy screen's sessions: which tools, which loop?
    - a tool that fails the same way for all of them (a missing file, no network)?

    Stop the agent, give it another instruction, or fix the tool that fails. The fix is the profile loop-incident, meant
    for a while: specdash apply --profile loop-incident.
    """
    for session in _seen_lately(scene, limits["seen_s"]):
        if not session.is_looping or session.loop_repeats < limits["repeats"]:
            continue
        warned = session.loop_warnings
        history = f"warned {warned} times" if warned else "never warned: is the loop breaker off?"
        yield Symptom(
            f"session {session.id} repeats the same tool calls with the same results for "
            f"{counted(session.loop_repeats, 'turn')} ({history})",
            (
                ("cycle", f"{session.loop_period} turns" if session.loop_period > 1 else "every turn the same"),
                ("turns without anything new", str(session.no_progress)),
            ),
            subject=session.id,
            fix=BREAK_LOOPS_SOONER,
        )


@rule(
    "Context is full, or nearly",
    AlertSeverity.WARNING,
    clear_after_s=30,
    hold_back=False,
    explains=("prompt_cache_lost", "requests_waiting"),
    # The proxy's levels HIGH and CRITICAL; ELEVATED (0.75) is where pruning begins, and agents compact at 80 to 90 %. A
    # refused prompt is a turn that the client lost. --context-shift asks for shifts; six a minute are answers without
    # end.
    limits={
        "warning": 0.85,
        "critical": 0.95,
        "seen_s": 300,
        "sessions": 5,
        "slot": 0.92,
        "window_s": 300,
        "refused": 1,
        "shifts_per_minute": 6,
        "no_room_per_minute": 1,
    },
)
def context_overflow(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Conversations fill the context, or are longer: a session or a slot at work is about to use all of it, the server
    refuses prompts, --context-shift drops the oldest half of a slot, or slots that share one KV cache find no room for
    a batch in it. The model forgets, turns fail, and the prompt cache is lost where a cut moves.

    - the agent's own limit: CLAUDE_CODE_AUTO_COMPACT_WINDOW for Claude Code
    - specdash proxy show: the context window; is PROXY_CONTEXT_PRUNE_THRESHOLD below 1?
    - n_ctx per slot: LLAMA_CTX_SIZE over LLAMA_PARALLEL; the sum of what clients may use against it
    - shifts: do answers end, or do they run into the limit (n_predict, max_tokens)?

    Give the agent the real window so that it compacts in time, or give each slot more context (LLAMA_CTX_SIZE up or
    LLAMA_PARALLEL down), which the preflight checks against memory.
    """
    window, span = limits["window_s"], duration(limits["window_s"])
    sessions = sorted(_seen_lately(scene, limits["seen_s"]), key=lambda session: -(session.utilisation or 0.0))
    full = [session for session in sessions if (session.utilisation or 0.0) >= limits["warning"]]
    for session in full[: int(limits["sessions"])]:
        use = session.utilisation or 0.0
        yield Symptom(
            f"session {session.id} uses {percent(use)} of its context window of {session.context_window} tokens",
            (
                ("turns left at this rate", plain(session.turns_remaining)),
                ("pruned, refused as too long", f"{session.prunes}, {session.overflows} times"),
            ),
            subject=session.id,
            severity=AlertSeverity.CRITICAL if use >= limits["critical"] else None,
        )
    for slot in () if full else scene.picture.backend.slots or ():
        used, size = slot.context_used, slot.n_ctx
        if slot.phase is not SlotPhase.IDLE and size and used is not None and used / size >= limits["slot"]:
            yield Symptom(
                f"slot {slot.id} has used {percent(used / size)} of its context, {used} of {size} tokens",
                (("left", str(size - used)),),
                subject=f"slot {slot.id}",
                fix=_more_context(scene),
            )
    refused = acted(scene, Guardrail.CONTEXT_PRUNE, GuardrailAction.DETECTED, window)
    shifted, no_room = warning(scene, "context_shift"), warning(scene, "kv_no_free_space")
    if refused.count >= limits["refused"]:
        sizes = [int(event.facts["prompt"]) for event in refused.events if "prompt" in event.facts]
        yield Symptom(
            f"{refused.count} prompts in {span} were longer than the context window and refused",
            (("longest prompt", f"{max(sizes)} tokens" if sizes else UNKNOWN), ("sessions", refused.sessions)),
            fix=(("PROXY_CONTEXT_PRUNE_THRESHOLD", "0.75"),),
        )
    elif shifted is not None and shifted.per_minute:
        many = shifted.per_minute >= limits["shifts_per_minute"]
        yield Symptom(
            f"the context was full {shifted.per_minute:.0f} times in the last minute, and its oldest tokens were "
            "dropped",
            touched(shifted),
            fix=_more_context(scene),
            severity=None if many else AlertSeverity.NOTICE,
            remedy="More context per slot; a limit on the length of answers.",
        )
    if no_room is not None and no_room.per_minute >= limits["no_room_per_minute"]:
        lines = Counter({picture.warning: picture.per_minute for picture in scene.picture.log.warnings})
        failed = any(lines[name] for name in FAILED_FOR_ROOM)
        what = "requests fail" if failed else "slots are emptied" if lines["slot_purged"] else "batches are cut smaller"
        yield Symptom(
            f"no room for a batch in the KV cache, {no_room.per_minute:.0f} lines in the last minute; {what}",
            touched(no_room),
            "KV cache",
            fix=_more_context(scene),
            severity=AlertSeverity.CRITICAL if failed else None,
        )


def _more_context(scene: RuleScene) -> Fix:
    """Twice the context; nothing where its size is not known."""
    sizes = [slot.n_ctx for slot in scene.picture.backend.slots or () if slot.n_ctx]
    given = flag(scene, "-c", "--ctx-size") or ""
    unified = flag(scene, "-kvu", "--kv-unified") is not None
    total = int(given) if given.isdigit() else 0
    total = total or (max(sizes, default=0) if unified else sum(sizes))
    return (("LLAMA_CTX_SIZE", str(2 * total)),) if total else ()


@rule(
    "Clients get errors, or leave",
    AlertSeverity.WARNING,
    clear_after_s=30,
    # Five, so that one agent's retries of one bad request are no incident. People stop agents now and then; every third
    # client is a timeout.
    limits={"window_s": 300, "errors": 5, "share": 0.1, "critical_share": 0.5, "left": 5, "left_share": 0.3},
)
def proxy_errors(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Many requests end with an error instead of an answer. Statuses from 500 on are the server's or the proxy's doing;
    the others are requests that cannot be served as they are, and then this is a notice. Or clients close the
    connection while their answer is made: after the same time again and again it is a timeout of the client, early a
    person who stops the agent.

    - the proxy screen's finished requests, for status and error type
    - specdash services logs proxy
    - compare the median wait with the client's timeout (API_TIMEOUT_MS of Claude Code)

    529 and 504 follow from a server that is down, loading or too slow; 400 from prompts that are too long or malformed;
    401 from a key. Clients that leave: raise their timeout, or shorten the wait (a smaller prompt, a prompt cache that
    hits, fewer requests at a time).
    """
    turns, span = turns_of(scene, limits["window_s"]), duration(limits["window_s"])
    rate = turns.share(turns.errors)
    if turns.errors >= limits["errors"] and rate >= limits["share"]:
        failed = [event for event in turns.ended if event.outcome is RequestOutcome.ERROR]
        kinds = Counter(f"{event.status or 'no status'} {event.error_type or ''}".strip() for event in failed)
        refused = sum(event.status is not None and event.status < SERVER_ERROR for event in failed)
        severity = AlertSeverity.CRITICAL if rate >= limits["critical_share"] else None
        yield Symptom(
            f"{turns.errors} of {turns.total} requests in {span} ended with an error, most with "
            f"{kinds.most_common(1)[0][0] if kinds else 'an unknown kind'}",
            (
                ("errors", ", ".join(f"{kind}: {count}" for kind, count in kinds.most_common(3)) or str(turns.errors)),
                ("refused as the client's fault", str(refused) if failed else UNKNOWN),
            ),
            severity=AlertSeverity.NOTICE if refused * 2 > len(failed) else severity,
        )
    elif turns.left >= limits["left"] and turns.share(turns.left) >= limits["left_share"]:
        gone = [event for event in turns.ended if event.outcome is RequestOutcome.CLIENT_LEFT]
        waited = [event.duration_s for event in gone if event.duration_s is not None]
        after = f", after {number(median(waited), 1)} s (median)" if waited else ""
        yield Symptom(
            f"{turns.left} of {turns.total} clients in {span} left before their answer was complete{after}",
            (
                ("before the first token", str(sum(event.ttft_s is None for event in gone)) if gone else UNKNOWN),
                ("waited, longest", number(max(waited, default=None), 1, "s")),
            ),
        )


@rule(
    "Proxy is down",
    AlertSeverity.CRITICAL,
    hold_back=False,
    clear_after_s=0,
    explains=("upstream_unreachable", "proxy_errors"),
    # A proxy that starts or reloads answers within 5 s; a closed port needs no patience.
    limits={"silent_s": 6},
)
def proxy_down(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Nothing answers at the proxy's address: its process has ended, or it hangs. Agents get no answer at all.

    - specdash services status
    - specdash services logs proxy
    - specdash doctor --url {url}

    Start the proxy's service; when it ended by itself, its log's last lines say why.
    """
    proxy = scene.picture.proxy
    if proxy.url is None or proxy.failure is None:
        return
    silent = proxy.age_s if proxy.age_s is not None else scene.now - scene.lately(limits["silent_s"])[0].at
    hangs = proxy.failure is FailureKind.TIMEOUT and silent >= limits["silent_s"]
    if hangs or proxy.failure is FailureKind.UNREACHABLE:
        must_see(scene)
    if hangs or proxy.failure in (FailureKind.REFUSED, FailureKind.UNREACHABLE, FailureKind.RESET):
        yield Symptom(
            f"the proxy at {proxy.url} {'hangs' if hangs else 'is gone'}: {proxy.reason}",
            (("last answer", f"{duration(proxy.age_s)} ago" if proxy.age_s is not None else "never"),),
        )


@rule(
    "Proxy cannot reach its upstream",
    AlertSeverity.CRITICAL,
    in_trials=False,
    hold_back=False,
    clear_after_s=0,
    needs=(Source.PROXY,),
    explains=("proxy_errors", "requests_waiting"),
    # The proxy looks at its upstream at least once in 60 s while requests come.
    limits={"errors_s": 60},
)
def upstream_unreachable(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The proxy answers, and the server that LLAMA_CPP_BASE names does not: every turn ends with an error.

    - specdash proxy show
    - curl -s {upstream}/health
    - specdash services status

    When the watched server is up, LLAMA_CPP_BASE names another one: correct it. Else bring the server back.
    """
    live, backend = _live(scene), scene.picture.backend
    if live is None or live.held or live.upstream is not UpstreamStatus.UNREACHABLE:
        return
    is_same = live.upstream_url.rstrip("/").removesuffix("/v1") == backend.url
    if is_same and not is_gone(scene) and not turns_of(scene, limits["errors_s"]).errors:
        return
    yield Symptom(
        f"the proxy cannot reach its upstream {live.upstream_url}",
        (("watched server", f"{backend.url}, {backend.state}"), ("the same address", "yes" if is_same else "no")),
        names=(("upstream", live.upstream_url),),
    )


@rule(
    "Requests wait",
    AlertSeverity.WARNING,
    in_trials=False,
    clear_after_s=20,
    chart="requests",
    explains=("proxy_errors",),
    # The demo queues for up to 11 s at a time, and for 20 % of the time, on a machine with a load of 10. An apply holds
    # the proxy for seconds, with a large model for a minute; a hold ends by itself after 120 s by default.
    limits={"window_s": 60, "share": 0.9, "held_s": 60, "critical_s": 120},
)
def requests_waiting(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """More requests come than there are slots, so that users wait before their prompt is even looked at; or the proxy
    is held, by hand or by an apply, and a hold that is renewed lasts.

    - the slots panel: are all slots at work, and with what?
    - specdash proxy state

    More slots (LLAMA_PARALLEL), where memory and context per slot allow it; else fewer agents at a time. A hold that is
    no longer needed: specdash proxy resume.
    """
    window, live, slots = limits["window_s"], _live(scene), scene.picture.backend.slots or ()
    held = scene.picture.wall - live.held_since if live and live.held and live.held_since is not None else 0.0
    known = [(one.at, one.deferred) for one in scene.lately(window) if one.deferred is not None]
    share = sum(queued > 0 for _, queued in known) / len(known) if known else 0.0
    covered = bool(known) and scene.now - known[0][0] >= window * limits["share"]
    if live is not None and live.waiting and held >= limits["held_s"]:
        yield Symptom(
            f"the proxy has been held for {duration(held)} ({live.hold_reason or 'no reason given'}), and "
            f"{counted(live.waiting, 'request waits', 'requests wait')}",
            severity=AlertSeverity.CRITICAL if held >= limits["critical_s"] else None,
            remedy="When the hold is no longer needed (is an apply running? specdash applies): specdash proxy resume.",
        )
    elif covered and known[-1][1] > 0 and share >= limits["share"]:
        reading = [slot for slot in slots if slot.phase is SlotPhase.PREFILL]
        long = f" behind a long prompt: {reading[0].prompt_processed or 0} tokens of it are read" if reading else ""
        remedy = (
            "A prompt of this length takes that long. Let its client compact, or give short requests a slot of their "
            "own (LLAMA_PARALLEL)."
        )
        yield Symptom(
            f"{counted(int(known[-1][1]), 'request waits', 'requests wait')} for a slot{long}, and some did for "
            f"{percent(share)} of the last {duration(window)}",
            (
                ("waiting, mean", f"{sum(queued for _, queued in known) / len(known):.1f}"),
                ("slots", str(len(slots) or UNKNOWN)),
            ),
            remedy=remedy if slots and len(reading) == len(slots) else "",
        )
