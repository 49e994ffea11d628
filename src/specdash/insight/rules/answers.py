"""What clients get, through the proxy: pure rules, described in answers.toml."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from specdash.core.proxy_events import Guardrail, GuardrailAction, RequestOutcome, RequestPhase, UpstreamStatus
from specdash.core.readings import FailureKind, ReadingStatus
from specdash.core.records import AlertSeverity, Symptom
from specdash.insight.picture import BackendState
from specdash.insight.rules.known import acted, events_of, must_see, sessions_of, turns_of
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
GONE = (FailureKind.REFUSED, FailureKind.UNREACHABLE, FailureKind.RESET)
SERVER_ERROR = 500
_GONE_STATES = (BackendState.DOWN, BackendState.STALE, BackendState.LOADING, BackendState.UNKNOWN)


def empty_answers(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Answers with nothing in them, or with nothing but reasoning."""
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


def malformed_storm(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Many turns whose tool calls are malformed, mended by asking again."""
    window = limits["window_s"]
    events = events_of(scene, Guardrail.MALFORMED_TOOL, GuardrailAction.DETECTED, window)
    found = acted(scene, Guardrail.MALFORMED_TOOL, GuardrailAction.DETECTED, window)
    turns = turns_of(scene, window)
    if found < limits["found"] or turns.share(found) < limits["share"]:
        return
    kinds = Counter(str(event.facts["kind"]) for event in events if "kind" in event.facts)
    yield Symptom(
        f"{found} of {turns.total} turns in {duration(window)} had a malformed tool call, and each costs another turn",
        (
            ("malformed turns", f"{found} in {duration(window)}"),
            ("mended", str(acted(scene, Guardrail.MALFORMED_TOOL, GuardrailAction.RECOVERED, window))),
            ("sessions", str(sessions_of(events) or UNKNOWN)),
            ("faults", ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(3)) or UNKNOWN),
        ),
    )


def malformed_shown(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Malformed tool calls that no retry mended: the client gets an apology, or a call that it refuses."""
    window = limits["window_s"]
    shown = acted(scene, Guardrail.MALFORMED_TOOL, GuardrailAction.EXHAUSTED, window)
    if shown < limits["shown"]:
        return
    events = events_of(scene, Guardrail.MALFORMED_TOOL, GuardrailAction.EXHAUSTED, window)
    turns = turns_of(scene, window)
    yield Symptom(
        f"{shown} malformed tool calls in {duration(window)} reached the client, because no retry fixed them",
        (
            ("not fixed", f"{shown} of {turns.total} turns in {duration(window)}"),
            ("mended", str(acted(scene, Guardrail.MALFORMED_TOOL, GuardrailAction.RECOVERED, window))),
            ("sessions", str(sessions_of(events) or UNKNOWN)),
        ),
        fix=(("PROXY_MALFORMED_TOOL_STREAM_STRICT", "on"), ("PROXY_MALFORMED_TOOL_RETRY_MAX", "3")),
        severity=AlertSeverity.CRITICAL if turns.share(shown) >= limits["critical_share"] else None,
    )


def session_looping(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """A session repeats the same calls with the same results despite a warning."""
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


def loop_storm(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Most turns are those of loops."""
    window = limits["window_s"]
    looped = acted(scene, Guardrail.LOOP_BREAKER, GuardrailAction.APPLIED, window)
    turns = turns_of(scene, window)
    if looped < limits["told"] or turns.share(looped) < limits["share"]:
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


def contamination_storm(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Sessions are cut back after malformed turns again and again."""
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
        fix=(("PROXY_MALFORMED_TOOL_STREAM_STRICT", "on"), ("PROXY_MALFORMED_TOOL_RETRY_MAX", "3")),
    )


def prune_storm(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Histories are cut to fit the window at most turns."""
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


def context_nearly_full(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """A session at work uses nearly all of its context window."""
    full = [
        session_view
        for session_view in _seen_lately(scene, limits["seen_s"])
        if (session_view.utilisation or 0.0) >= limits["warning"]
    ]
    for session in sorted(full, key=lambda session_view: -(session_view.utilisation or 0.0))[: int(limits["sessions"])]:
        use = session.utilisation or 0.0
        left = session.turns_remaining
        yield Symptom(
            f"session {session.id} uses {percent(use)} of its context window of {session.context_window} tokens",
            (
                ("context", f"{session.context_tokens} of {session.context_window} tokens"),
                ("turns left at this rate", plain(left)),
                ("pruned", f"{session.prunes} times"),
                ("refused as too long", f"{session.overflows} times"),
            ),
            subject=session.id,
            severity=AlertSeverity.CRITICAL if use >= limits["critical"] else None,
        )


def context_overflow(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Prompts that do not fit the window are refused."""
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


def clients_leaving(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Clients go away before their answer is complete: by the proxy, or by the server's own log."""
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


def proxy_errors(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Clients get errors instead of answers."""
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


def proxy_down(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Nothing answers at the proxy's address."""
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


def upstream_unreachable(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The proxy is there, and what stands behind it is not.

    The proxy looks at its upstream when requests come. Of one that answers us, with no error since, it tells of old.
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


def proxy_held(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The proxy has been held for so long that it may have been forgotten."""
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


def requests_waiting(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Requests wait for a slot all the time, or one waits for long."""
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


def proxy_settings(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Settings of the proxy that could not be used."""
    proxy = scene.picture.proxy
    problems = proxy.live.problems if proxy.live is not None and proxy.status is ReadingStatus.KNOWN else ()
    if problems:
        words = f"{len(problems)} settings of the proxy" if len(problems) > 1 else "a setting of the proxy"
        yield Symptom(
            f"{words} cannot be used and {'are' if len(problems) > 1 else 'is'} not in force: {problems[0]}",
            tuple((f"problem {number}", text) for number, text in enumerate(problems, 1)),
        )
