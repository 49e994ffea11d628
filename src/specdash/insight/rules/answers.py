"""What clients get, through the proxy: pure rules."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from specdash.core.proxy_events import Guardrail, GuardrailAction, RequestOutcome, RequestPhase, UpstreamStatus
from specdash.core.readings import FailureKind, ReadingStatus, Source
from specdash.core.records import AlertSeverity, Symptom
from specdash.insight.picture import BackendState, SlotPhase
from specdash.insight.rules.catalogue import rule
from specdash.insight.rules.known import acted, events_of, more_context, must_see, sessions_of, turns_of
from specdash.system.stats import median
from specdash.system.text import UNKNOWN, duration, number, ordinal, percent, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.core.proxy_events import RequestEvent, SessionView
    from specdash.insight.rules.catalogue import Limits
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
GONE = (FailureKind.REFUSED, FailureKind.UNREACHABLE, FailureKind.RESET)
SERVER_ERROR = 500
_GONE_STATES = (BackendState.DOWN, BackendState.STALE, BackendState.LOADING, BackendState.UNKNOWN)


@rule(
    "Empty answers",
    AlertSeverity.WARNING,
    clear_after_s=60,
    # One in twenty ends agents' work noticeably; what a retry mended only costs time, so it takes one in five.
    limits={"window_s": 300, "shown": 2, "shown_share": 0.05, "found": 5, "found_share": 0.2},
)
def empty_answers(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Clients get answers without text or tool call, or with reasoning alone. Agents stop on these, or ask again.

    - the proxy screen's guardrails: empty_response, reasoning_fallback
    - the chat template: does it close the reasoning block?
    - max_tokens of the clients: does reasoning use it up?

    Reasoning alone: switch thinking off for these turns or let the fallback show it. Nothing at all: another chat
    template, or a build without the fault.
    """
    window = limits["window_s"]
    turns = turns_of(scene, window)
    reasoning = acted(scene, Guardrail.REASONING_FALLBACK, GuardrailAction.APPLIED, window)
    found = acted(scene, Guardrail.EMPTY_RESPONSE, GuardrailAction.DETECTED, window)
    shown = max(
        reasoning,
        acted(scene, Guardrail.EMPTY_RESPONSE, GuardrailAction.EXHAUSTED, window),
        sum(_is_silent(request_event) for request_event in turns.ended),
    )
    evidence = (
        ("answers", f"{turns.total} in {duration(window)}"),
        ("empty to the client", str(shown)),
        ("of these reasoning alone", str(reasoning)),
        ("asked for again", str(acted(scene, Guardrail.EMPTY_RESPONSE, GuardrailAction.RETRIED, window))),
    )
    if shown >= limits["shown"] and turns.share(shown) >= limits["shown_share"]:
        what = "nothing but reasoning" if reasoning * 2 > shown else "nothing in them"
        fix = (("PROXY_STREAM_REASONING_FALLBACK", "sanitized"),) if reasoning else ()
        yield Symptom(f"{shown} of {turns.total} answers in {duration(window)} had {what}", evidence, fix=fix)
    elif found >= limits["found"] and turns.share(found) >= limits["found_share"]:
        words = f"{found} of {turns.total} answers in {duration(window)} came empty and were asked for again"
        yield Symptom(words, evidence, severity=AlertSeverity.NOTICE)


def _is_silent(event: RequestEvent) -> bool:
    """Whether no token came. The log of a UAP proxy tells it so, and it has no guardrail against it."""
    return event.outcome is RequestOutcome.OK and not event.tool_calls and event.completion_tokens == 0


@rule(
    "Malformed tool calls",
    AlertSeverity.WARNING,
    clear_after_s=60,
    explains=("contamination_storm",),
    # Every such turn is made twice: one in five costs a fifth of the server. One that reaches the client happens; two
    # in five minutes end two turns. The demo has none.
    limits={"window_s": 300, "found": 5, "share": 0.2, "shown": 2, "critical_share": 0.5},
)
def malformed_storm(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The model writes its tool calls wrong again and again, and the proxy asks again: every such turn costs twice.
    Where no retry gives a good call, the client gets an apology or a call that it refuses, and agents end their turn
    on it.

    - the chat template and --jinja: does the server parse this model's calls?
    - the quantisation of weights and KV cache (q4 KV breaks calls first)
    - which tools: the proxy screen's guardrail actions

    A template that fits the model, a less quantised KV cache, a lower temperature; fewer tools
    (PROXY_TOOL_NARROWING). The fix, where calls reach the client, holds tool turns back until they are checked and
    asks up to three times.
    """
    window = limits["window_s"]
    found, shown, mended = (
        acted(scene, Guardrail.MALFORMED_TOOL, action, window)
        for action in (GuardrailAction.DETECTED, GuardrailAction.EXHAUSTED, GuardrailAction.RECOVERED)
    )
    turns, span = turns_of(scene, window), duration(window)
    many = found >= limits["found"] and turns.share(found) >= limits["share"]
    if not many and shown < limits["shown"]:
        return
    events = events_of(scene, Guardrail.MALFORMED_TOOL, GuardrailAction.DETECTED, window)
    kinds = Counter(str(event.facts["kind"]) for event in events if "kind" in event.facts)
    evidence = (
        ("malformed turns", f"{found} of {turns.total} in {span}"),
        ("mended", str(mended)),
        ("not fixed", str(shown)),
        ("sessions", str(sessions_of(events) or UNKNOWN)),
        ("faults", ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(3)) or UNKNOWN),
    )
    if shown >= limits["shown"]:
        severity = AlertSeverity.CRITICAL if turns.share(shown) >= limits["critical_share"] else None
        summary = f"{shown} malformed tool calls in {span} reached the client, because no retry fixed them"
        yield Symptom(summary, evidence, fix=CHECK_TOOL_TURNS, severity=severity)
    else:
        summary = f"{found} of {turns.total} turns in {span} had a malformed tool call, and each costs another turn"
        yield Symptom(summary, evidence)


@rule(
    "Sessions loop",
    AlertSeverity.WARNING,
    clear_after_s=30,
    explains=("prune_storm",),
    # The breaker speaks up at 8 turns and takes the tools away at 16: what is there then went on despite it. The demo's
    # stuck agent reaches 13 and makes 15 to 20 % of all turns.
    limits={"repeats": 16, "seen_s": 120, "window_s": 300, "looped": 20, "share": 0.5},
)
def session_looping(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """An agent makes the same tool calls with the same results again and again, and the loop breaker did not help: it
    steps in at 8 turns by default, and takes the tools away for a turn at 16. Or a large part of all turns repeats such
    calls, and takes the slots from those that work.

    - the proxy screen's sessions: which tools, which loop?
    - the agent itself: what does it want that it cannot have?
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
            f"session {session.id} repeats the same tool calls with the same results for the "
            f"{ordinal(session.loop_repeats)} turn ({history})",
            (
                ("tool turns in the loop", str(session.loop_repeats)),
                ("cycle", f"{session.loop_period} turns" if session.loop_period > 1 else "every turn the same"),
                ("turns without anything new", str(session.no_progress)),
                ("requests of the session", str(session.requests)),
            ),
            subject=session.id,
            fix=BREAK_LOOPS_SOONER,
        )
    window = limits["window_s"]
    looped = acted(scene, Guardrail.LOOP_BREAKER, GuardrailAction.APPLIED, window)
    turns = turns_of(scene, window)
    if looped < limits["looped"] or turns.share(looped) < limits["share"]:
        return
    sessions = sessions_of(events_of(scene, Guardrail.LOOP_BREAKER, GuardrailAction.APPLIED, window))
    yield Symptom(
        f"{looped} of {turns.total} turns in {duration(window)} repeated a loop of tool calls",
        (
            ("turns in loops", f"{looped} of {turns.total} in {duration(window)}"),
            ("sessions", str(sessions or UNKNOWN)),
        ),
        fix=BREAK_LOOPS_SOONER,
    )


@rule(
    "Sessions are cut back again and again",
    AlertSeverity.WARNING,
    clear_after_s=60,
    # Each cut follows three malformed turns in a row.
    limits={"window_s": 600, "cut": 3},
)
def contamination_storm(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Sessions are cut back to their recent turns, because malformed calls in their history made the model write more
    of them. Each cut loses context and the prompt cache.

    - malformed tool calls: what is wrong with them?
    - the proxy screen's sessions: which are affected?

    Fix the malformed calls; a session that is affected again and again is better started over.
    """
    window = limits["window_s"]
    cut = acted(scene, Guardrail.CONTAMINATION, GuardrailAction.APPLIED, window)
    if cut < limits["cut"]:
        return
    sessions = sessions_of(events_of(scene, Guardrail.CONTAMINATION, GuardrailAction.APPLIED, window))
    yield Symptom(
        f"sessions were cut back {cut} times in {duration(window)} after malformed tool calls in a row",
        (
            ("cut back", f"{cut} times in {duration(window)}"),
            ("sessions", str(sessions or UNKNOWN)),
            ("malformed turns", str(acted(scene, Guardrail.MALFORMED_TOOL, GuardrailAction.DETECTED, window))),
        ),
        fix=CHECK_TOOL_TURNS,
    )


@rule(
    "Histories do not fit the window",
    AlertSeverity.WARNING,
    clear_after_s=60,
    explains=("prompt_cache_lost",),
    # A session above the threshold is cut at each of its turns; half of all turns means that most sessions are.
    # The demo: 4 to 7 %.
    limits={"window_s": 300, "cut": 8, "share": 0.5},
)
def prune_storm(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Most turns have old messages removed to fit the context window. The model forgets, and where the cut moves the
    prompt cache is lost.

    - the proxy screen's sessions: context in use
    - n_ctx per slot: LLAMA_CTX_SIZE over LLAMA_PARALLEL

    A larger context per slot (LLAMA_CTX_SIZE up or LLAMA_PARALLEL down), or agents that compact earlier. The fix cuts
    deeper and so less often.
    """
    window = limits["window_s"]
    cut = acted(scene, Guardrail.CONTEXT_PRUNE, GuardrailAction.APPLIED, window)
    turns = turns_of(scene, window)
    if cut < limits["cut"] or turns.share(cut) < limits["share"]:
        return
    events = events_of(scene, Guardrail.CONTEXT_PRUNE, GuardrailAction.APPLIED, window)
    removed = [event.facts["removed_tokens"] for event in events if "removed_tokens" in event.facts]
    size = scene.picture.proxy.live.context_window if scene.picture.proxy.live is not None else None
    yield Symptom(
        f"{cut} of {turns.total} turns in {duration(window)} were cut to fit a window of {size or 'unknown'} tokens",
        (
            ("turns cut", f"{cut} of {turns.total} in {duration(window)}"),
            ("sessions", str(sessions_of(events) or UNKNOWN)),
            ("removed per turn, median", number(median(removed), 0, "tokens")),
            ("context window", str(size or UNKNOWN)),
        ),
        fix=(("PROXY_CONTEXT_PRUNE_TARGET_FRACTION", "0.5"),),
    )


@rule(
    "Context nearly full",
    AlertSeverity.WARNING,
    clear_after_s=0,
    explains=("prune_storm", "context_overflow", "context_shift", "kv_full"),
    # The proxy's levels HIGH and CRITICAL. ELEVATED (0.75) is where pruning begins, and agents compact at 80 to 90 %.
    limits={"warning": 0.85, "critical": 0.95, "seen_s": 300, "sessions": 5, "slot": 0.92},
)
def context_nearly_full(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """A session is about to fill its context window, by the proxy, or a slot at work has used nearly all of its
    context: soon turns are pruned, an answer is cut or its oldest part dropped, or prompts are refused.

    - which session is it, and how many turns are left? (slots panel, proxy screen)
    - n_ctx per slot: LLAMA_CTX_SIZE over LLAMA_PARALLEL
    - does the client know the window? (specdash proxy show: context window)

    Let the agent compact or start over; give each slot more context where memory allows it, or have fewer slots.
    """
    full = [
        session_view
        for session_view in _seen_lately(scene, limits["seen_s"])
        if (session_view.utilisation or 0.0) >= limits["warning"]
    ]
    for session in sorted(full, key=lambda session_view: -(session_view.utilisation or 0.0))[: int(limits["sessions"])]:
        use = session.utilisation or 0.0
        yield Symptom(
            f"session {session.id} uses {percent(use)} of its context window of {session.context_window} tokens",
            (
                ("context", f"{session.context_tokens} of {session.context_window} tokens"),
                ("turns left at this rate", plain(session.turns_remaining)),
                ("pruned", f"{session.prunes} times"),
                ("refused as too long", f"{session.overflows} times"),
            ),
            subject=session.id,
            severity=AlertSeverity.CRITICAL if use >= limits["critical"] else None,
        )
    slots = () if full else scene.picture.backend.slots or ()
    for slot in slots:
        used, size = slot.context_used, slot.n_ctx
        if slot.phase is not SlotPhase.IDLE and size and used is not None and used / size >= limits["slot"]:
            yield Symptom(
                f"slot {slot.id} has used {percent(used / size)} of its context, {used} of {size} tokens",
                (("used", str(used)), ("context", str(size)), ("left", str(size - used))),
                subject=f"slot {slot.id}",
                fix=more_context(scene),
            )


@rule(
    "Prompts do not fit the context",
    AlertSeverity.WARNING,
    clear_after_s=60,
    # Each one is a turn that the client lost.
    limits={"window_s": 300, "refused": 1},
)
def context_overflow(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The server refused prompts that are longer than its context, and the proxy could not make them fit.

    - the agent's own limit: CLAUDE_CODE_AUTO_COMPACT_WINDOW for Claude Code
    - n_ctx per slot: LLAMA_CTX_SIZE over LLAMA_PARALLEL
    - specdash proxy show: is PROXY_CONTEXT_PRUNE_THRESHOLD below 1?

    Tell the agent the real window so that it compacts in time, or give each slot more context.
    """
    window = limits["window_s"]
    refused = acted(scene, Guardrail.CONTEXT_PRUNE, GuardrailAction.DETECTED, window)
    if refused < limits["refused"]:
        return
    events = events_of(scene, Guardrail.CONTEXT_PRUNE, GuardrailAction.DETECTED, window)
    sizes = [int(event.facts["prompt"]) for event in events if "prompt" in event.facts]
    most = f"{max(sizes)} tokens" if sizes else UNKNOWN
    yield Symptom(
        f"{refused} prompts in {duration(window)} were longer than the context window and refused",
        (
            ("refused", f"{refused} in {duration(window)}"),
            ("longest prompt", most),
            ("sessions", str(sessions_of(events) or UNKNOWN)),
        ),
        fix=(("PROXY_CONTEXT_PRUNE_THRESHOLD", "0.75"),),
    )


def _seen_lately(scene: RuleScene, seconds: float) -> Sequence[SessionView]:
    """Sessions at work or seen in the last `seconds`; none where the proxy no longer answers."""
    proxy = scene.picture.proxy
    if proxy.live is None or proxy.status is not ReadingStatus.KNOWN:
        return ()
    since = scene.picture.wall - seconds
    return [session for session in proxy.live.sessions if session.active or session.last_seen >= since]


@rule(
    "Clients leave before their answer",
    AlertSeverity.WARNING,
    clear_after_s=30,
    # People stop agents now and then; every third client and five in five minutes is no person.
    limits={"window_s": 300, "left": 5, "share": 0.3},
)
def clients_leaving(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Clients close the connection while their answer is made, as the proxy tells, or the server's own log (cancel
    task). Leaving after the same time again and again is a timeout of the client; leaving early is a person who stops
    the agent.

    - compare the median wait with the client's timeout (API_TIMEOUT_MS of Claude Code)
    - prefill speed and queue: is the first token late?
    - the proxy screen's finished requests

    Raise the client's timeout, or shorten the wait: a smaller prompt, a prompt cache that hits, fewer requests at a
    time.
    """
    window = limits["window_s"]
    turns = turns_of(scene, window)
    if turns.left < limits["left"] or turns.share(turns.left) < limits["share"]:
        yield from _cancelled(scene, limits)
        return
    gone = [request_event for request_event in turns.ended if request_event.outcome is RequestOutcome.CLIENT_LEFT]
    waited = [request_event.duration_s for request_event in gone if request_event.duration_s is not None]
    unanswered = sum(request_event.ttft_s is None for request_event in gone)
    after = f", after {number(median(waited), 1)} s (median)" if waited else ""
    yield Symptom(
        f"{turns.left} of {turns.total} clients in {duration(window)} left before their answer was complete{after}",
        (
            ("left", f"{turns.left} of {turns.total} in {duration(window)}"),
            ("before the first token", str(unanswered) if gone else UNKNOWN),
            ("waited, longest", number(max(waited, default=None), 1, "s")),
        ),
    )


def _cancelled(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Cancelled requests in the server's log, with or without a proxy."""
    window = limits["window_s"]
    since = scene.picture.wall - window
    left = [at for at in scene.samples.left if at >= since]
    if len(left) < limits["left"]:
        return
    total = len(left) + sum(request_sample.ended >= since for request_sample in scene.samples.logged)
    if len(left) < limits["share"] * total:
        return
    proxy = scene.picture.proxy
    spent = max(left) - min(left)
    evidence = [
        ("cancelled", f"{len(left)} of {total} in {duration(window)}"),
        ("first to last", duration(spent)),
        ("told by", "the server's log (cancel task)"),
    ]
    if proxy.live is not None:
        evidence.append(("the proxy's clients", "stayed: these are others, or the proxy gave up"))
    yield Symptom(
        f"{len(left)} of {total} requests in {duration(window)} were cancelled before they were done", tuple(evidence)
    )


@rule(
    "Clients get errors",
    AlertSeverity.WARNING,
    clear_after_s=30,
    explains=("clients_leaving",),
    # Five, so that one agent's retries of one bad request are no incident. The demo has none.
    limits={"window_s": 300, "errors": 5, "share": 0.1, "critical_share": 0.5},
)
def proxy_errors(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Many requests end with an error instead of an answer. Statuses from 500 on are the server's or the proxy's doing;
    the others are requests that cannot be served as they are, and then this is a notice.

    - the proxy screen's finished requests, for status and error type
    - specdash services logs proxy
    - the server's log around the errors

    529 and 504 follow from a server that is down, loading or too slow; 400 from prompts that are too long or malformed;
    401 from a key.
    """
    window = limits["window_s"]
    turns = turns_of(scene, window)
    rate = turns.share(turns.errors)
    if turns.errors < limits["errors"] or rate < limits["share"]:
        return
    failed = [request_event for request_event in turns.ended if request_event.outcome is RequestOutcome.ERROR]
    kinds = Counter(
        f"{request_event.status or 'no status'} {request_event.error_type or ''}".strip() for request_event in failed
    )
    refused = sum(request_event.status is not None and request_event.status < SERVER_ERROR for request_event in failed)
    most = kinds.most_common(1)[0][0] if kinds else "of unknown kind"
    severity = AlertSeverity.CRITICAL if rate >= limits["critical_share"] else None
    if refused * 2 > len(failed):
        severity = AlertSeverity.NOTICE
    yield Symptom(
        f"{turns.errors} of {turns.total} requests in {duration(window)} ended with an error, most with {most}",
        (
            ("error rate", percent(rate)),
            ("errors", ", ".join(f"{kind}: {count}" for kind, count in kinds.most_common(3)) or str(turns.errors)),
            ("refused as the client's fault", str(refused) if failed else UNKNOWN),
        ),
        severity=severity,
    )


@rule(
    "Proxy is down",
    AlertSeverity.CRITICAL,
    hold_back=False,
    clear_after_s=0,
    explains=("upstream_unreachable", "proxy_errors", "clients_leaving"),
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
    first = scene.past.first_within(limits["silent_s"])
    silent = proxy.age_s if proxy.age_s is not None else scene.now - first.at if first is not None else 0.0
    hangs = proxy.failure is FailureKind.TIMEOUT and silent >= limits["silent_s"]
    if hangs or proxy.failure is FailureKind.UNREACHABLE:
        must_see(scene)
    if proxy.failure in GONE or hangs:
        yield Symptom(
            f"the proxy at {proxy.url} {'hangs' if hangs else 'is gone'}: {proxy.reason}",
            (("last answer", f"{duration(proxy.age_s)} ago" if proxy.age_s is not None else "never"),),
        )


@rule(
    "Proxy cannot reach its upstream",
    AlertSeverity.CRITICAL,
    trial_s=120,
    hold_back=False,
    clear_after_s=0,
    needs=(Source.PROXY,),
    explains=("proxy_errors", "clients_leaving", "requests_waiting"),
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
    proxy, backend = scene.picture.proxy, scene.picture.backend
    live = proxy.live
    if (
        live is None
        or proxy.status is not ReadingStatus.KNOWN
        or live.held
        or live.upstream is not UpstreamStatus.UNREACHABLE
    ):
        return
    is_same = live.upstream_url.rstrip("/").removesuffix("/v1") == backend.url
    if is_same and backend.state not in _GONE_STATES and not turns_of(scene, limits["errors_s"]).errors:
        return
    yield Symptom(
        f"the proxy cannot reach its upstream {live.upstream_url}",
        (
            ("upstream", live.upstream_url),
            ("watched server", f"{backend.url}, {backend.state}"),
            ("the same address", "yes" if is_same else "no"),
        ),
        names=(("upstream", live.upstream_url),),
    )


@rule(
    "Proxy is held",
    AlertSeverity.WARNING,
    trial_s=300,
    hold_back=False,
    clear_after_s=0,
    needs=(Source.PROXY,),
    explains=("clients_leaving", "proxy_errors"),
    # An apply holds for seconds, with a large model for a minute; a hold ends by itself after 120 s by default.
    limits={"held_s": 60, "critical_s": 120},
)
def proxy_held(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """New requests wait at the proxy, because someone or an apply holds it. A hold ends by itself, but a hold that is
    renewed lasts.

    - specdash proxy state
    - specdash applies
    - the tune screen: is an apply running?

    When the hold is no longer needed: specdash proxy resume.
    """
    proxy = scene.picture.proxy
    live = proxy.live
    if live is None or proxy.status is not ReadingStatus.KNOWN or not live.held or live.held_since is None:
        return
    held = scene.picture.wall - live.held_since
    if held < limits["held_s"]:
        return
    why = live.hold_reason or "no reason given"
    yield Symptom(
        f"the proxy has been held for {duration(held)} ({why}), and {live.waiting} requests wait",
        (("held", duration(held)), ("reason", why), ("requests that wait", str(live.waiting))),
        severity=AlertSeverity.CRITICAL if live.waiting and held >= limits["critical_s"] else None,
    )


@rule(
    "Requests wait for a slot",
    AlertSeverity.WARNING,
    clear_after_s=20,
    chart="requests",
    explains=("clients_leaving",),
    # The demo queues for up to 11 s at a time, and for 20 % of the time, on a machine with a load of 10.
    limits={"window_s": 60, "share": 0.9, "longest_s": 120},
)
def requests_waiting(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """More requests come than there are slots, so that users wait before their prompt is even looked at; or one request
    is stuck before its prefill.

    - the slots panel: are all slots at work, and with what?
    - the proxy screen: which sessions send in parallel?

    More slots (LLAMA_PARALLEL), where memory and context per slot allow it; else fewer agents at a time. A request
    stuck with free slots points to a hung server.
    """
    window = limits["window_s"]
    known = [
        picture_sample for picture_sample in scene.past.since(scene.now - window) if picture_sample.deferred is not None
    ]
    queued = [picture_sample.deferred or 0.0 for picture_sample in known]
    if known and scene.now - known[0].at >= window * limits["share"] and queued[-1] > 0:
        share = sum(count > 0 for count in queued) / len(queued)
        if share >= limits["share"]:
            slots = scene.picture.backend.slots
            yield Symptom(
                f"{queued[-1]:.0f} requests wait for a slot, and some did for {percent(share)} of the last "
                f"{duration(window)}",
                (
                    ("waiting, mean", f"{sum(queued) / len(queued):.1f}"),
                    ("slots", str(len(slots)) if slots else UNKNOWN),
                ),
            )
            return
    proxy = scene.picture.proxy
    if proxy.live is None or proxy.live.held:
        return
    stuck = [active_view for active_view in proxy.running if active_view.phase is RequestPhase.WAITING]
    longest = max((scene.picture.wall - active_view.started for active_view in stuck), default=0.0)
    if longest >= limits["longest_s"]:
        yield Symptom(
            f"a request has waited {duration(longest)} without a token of its prompt processed",
            (("waiting upstream", str(len(stuck))), ("longest", duration(longest))),
        )
