"""Is the server there, and does it work: pure rules, described in availability.toml."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from specdash.core.readings import OTHER_SERVERS, FailureKind, ReadingStatus, Source
from specdash.core.records import AlertSeverity, Symptom
from specdash.insight.picture import BackendState, SlotPhase
from specdash.insight.rules.known import must_see
from specdash.insight.rules.scene import KEEP_S, increase
from specdash.system.text import UNKNOWN, clock, duration, plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.core.readings import ProcessTree
    from specdash.core.records import Alert
    from specdash.insight.picture import SlotPicture, SourcePicture
    from specdash.insight.rules.catalogue import Limits
    from specdash.insight.rules.scene import RuleScene, Start

_FOREIGN = frozenset({FailureKind.GARBAGE, FailureKind.TOO_LARGE, FailureKind.NOT_FOUND})
"""Answers that no llama-server gives to these questions."""
_ASKED = (Source.HEALTH, Source.METRICS, Source.SLOTS)
_UNREADABLE = {
    FailureKind.GARBAGE: "is not understood",
    FailureKind.TOO_LARGE: "is too large",
    FailureKind.ERROR: "answers an error",
    FailureKind.RESET: "breaks off",
}
_SERVING = (BackendState.LIVE, BackendState.BUSY, BackendState.RESTARTED)
_ALWAYS_COUNTED = "predicted_tokens"
APPLY_S = 60.0
"""A start within so long of an apply is the apply's."""


def backend_down(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Nothing serves the address."""
    backend = scene.picture.backend
    if backend.state is not BackendState.DOWN or _failure(scene, Source.HEALTH) is FailureKind.TIMEOUT:
        return
    if _failure(scene, Source.HEALTH) is FailureKind.UNREACHABLE:
        must_see(scene)
    lasted = scene.past.lasting({BackendState.DOWN}) or 0.0
    if _process(scene) is not None and lasted < limits["swap_s"]:
        return
    health = _source(scene, Source.HEALTH)
    why = health.reason if health is not None and health.reason else backend.reason
    evidence = [("address", backend.url), ("/health", why)]
    owner = scene.past.starts.owner
    gone = owner is not None and _has_ended(scene)
    remedy = ""
    if owner is None and not any(sample.state in _SERVING for sample in scene.past.backwards()):
        others = why.partition(OTHER_SERVERS)[2]
        evidence.append(("seen alive", "never since specdash looks"))
        remedy = (
            f"Nothing was ever seen alive at this address. Servers of this machine: {others}; name one with --url."
            if others
            else "Nothing was ever seen alive at this address: is it right? --url names another one. "
            "A server that has not been started yet: specdash services start backend."
        )
    if owner is not None:
        evidence.append(("process", f"{owner} has ended" if gone else f"{owner}"))
    said, _, others = why.partition(OTHER_SERVERS)
    summary = f"process {owner} has ended and nothing listens" if gone else f"nothing answers: {said}"
    yield Symptom(f"{summary} at {backend.url}", tuple(evidence), remedy=remedy)


def server_hung(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The port takes connections and no answer comes; or the process was stopped by a signal."""
    backend = scene.picture.backend
    process = _process(scene)
    if process is not None and process.stopped:
        pids = ", ".join(map(str, process.stopped))
        yield Symptom(
            f"process {pids} was stopped by a signal: it keeps its port and answers nothing",
            (("process", f"{pids} stopped (kill -CONT resumes it)"), ("address", backend.url)),
        )
        return
    if _failure(scene, Source.HEALTH) is not FailureKind.TIMEOUT:
        return
    must_see(scene)
    # Not /slots: of an idle server they are what they were, without being asked for.
    answering = (Source.HEALTH, Source.METRICS)
    ages = [source.age_s for source in backend.sources if source.source in answering and source.age_s is not None]
    silent = min(ages, default=None)
    first = scene.past.first_within(KEEP_S)
    unheard = silent if silent is not None else scene.now - first.at if first is not None else 0.0
    if unheard < limits["starved_s" if _is_server_starved(scene, limits, unheard) else "silent_s"]:
        return
    evidence = [("address", backend.url), ("last answer", f"{duration(silent)} ago" if silent is not None else "never")]
    if process is not None:
        cores = f"{process.cpu_cores:.1f} cores busy" if process.cpu_cores is not None else "alive"
        evidence.append(("process", f"{process.pid} ({process.name or '?'}), {cores}"))
    since = f"for {duration(silent)}" if silent is not None else "since specdash looks"
    yield Symptom(f"{backend.url} takes connections and has answered nothing {since}", tuple(evidence))


def server_hung_refuted(scene: RuleScene, limits: Limits, alert: Alert) -> str:
    """It answers again, the same process, and it had no CPU, or was silent for a moment only."""
    lasted = scene.picture.wall - alert.since
    samples = scene.past.since(scene.now - lasted - limits["silent_s"])
    again = [start for start in scene.past.starts.within(scene.now, lasted + limits["silent_s"]) if start.again]
    health = _source(scene, Source.HEALTH)
    if health is None or health.status is not ReadingStatus.KNOWN or again or any(sample.stopped for sample in samples):
        return ""
    if any(sample.starved for sample in samples):
        return "specdash itself got no CPU meanwhile, and the server answers"
    if any((sample.cpu_wait or 0.0) >= limits["cpu_wait"] for sample in samples):
        return "the same process answers again: it did not hang, it got no CPU"
    if lasted < limits["passing_s"]:
        return f"the same process answered again after {duration(lasted)}: it was slow and did not hang"
    return ""


def _is_server_starved(scene: RuleScene, limits: Limits, seconds: float) -> bool:
    """Whether the server waited for a CPU for much of this time."""
    samples = scene.past.since(scene.now - seconds - limits["silent_s"])
    return any((sample.cpu_wait or 0.0) >= limits["cpu_wait"] for sample in samples)


def slot_hung(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """A slot is at work and nothing comes of it."""
    must_see(scene)
    slots = scene.picture.backend.slots or ()
    for slot in slots:
        if slot.phase is SlotPhase.IDLE:
            continue
        unmoved = _unmoved(scene, slot)
        if slot.phase is SlotPhase.PREFILL:
            limit, what = limits["prefill_s"], "processed no prompt token"
        else:
            moving = bool(scene.past.growth("decode_calls", limits["no_token_s"]))
            limit = limits["while_others_s"] if moving else limits["no_token_s"]
            what = "generated no token"
        if unmoved < limit:
            continue
        evidence = (
            ("slot", str(slot.id)),
            ("task", plain(slot.task)),
            ("generated", str(slot.decoded or 0)),
            ("prompt processed", plain(slot.prompt_processed)),
            ("unmoved for", duration(unmoved)),
        )
        yield Symptom(f"slot {slot.id} is busy and has {what} for {duration(unmoved)}", evidence, f"slot {slot.id}")


def loading_too_long(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The model has been loading for longer than it should take."""
    seen = scene.past.lasting((BackendState.LOADING,))
    if seen is None:
        return
    backend = scene.picture.backend
    process = _process(scene)
    # A process that was never seen to serve has been loading all its life.
    alive = backend.uptime_s if process is not None and scene.past.starts.served != process.pid else None
    loading = max(seen, alive or 0.0)
    if loading < limits["seconds"]:
        return
    severity = AlertSeverity.CRITICAL if loading >= limits["critical_s"] else None
    evidence = [("loading for", duration(loading))]
    if process is not None:
        evidence += [("process", str(process.pid)), ("CPU", f"{process.cpu_cores or 0.0:.1f} cores")]
    yield Symptom(f"the model has been loading for {duration(loading)}", tuple(evidence), severity=severity)


def crash_loop(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The server starts again and again."""
    lately = scene.past.starts.within(scene.now, limits["seconds"])
    starts = [start for start in lately if not (start.on_trial or _by_apply(scene, start))]
    if len(starts) < limits["starts"]:
        return
    between = sorted(later.at - earlier.at for earlier, later in pairwise(starts))
    evidence = [("starts", str(len(starts))), ("the last", ", ".join(clock(start.wall) for start in starts[-5:]))]
    if between:
        evidence.append(("between two", duration(between[len(between) // 2])))
    yield Symptom(f"it started {len(starts)} times within {duration(limits['seconds'])}", tuple(evidence))


def restarted(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Another process serves than a moment ago."""
    starts = [
        start for start in scene.past.starts.within(scene.now, limits["shown_s"]) if start.again and not start.on_trial
    ]
    if not starts:
        return
    last = starts[-1]
    by = "an apply restarted it" if _by_apply(scene, last) else "it was restarted"
    yield Symptom(f"{by} at {clock(last.wall)}: {last.why}", (("when", clock(last.wall)), ("sign", last.why)))


def busy_too_long(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """It is alive, but metrics or slots have not come for long."""
    must_see(scene)
    lasting = scene.past.lasting((BackendState.BUSY,))
    if lasting is None or lasting < limits["seconds"]:
        return
    late = [
        source
        for source in scene.picture.backend.sources
        if source.source in (Source.METRICS, Source.SLOTS) and source.failure is FailureKind.TIMEOUT
    ]
    evidence = [
        (
            f"/{source_picture.source}",
            f"last answer {duration(source_picture.age_s)} ago"
            if source_picture.age_s is not None
            else "no answer yet",
        )
        for source_picture in late
    ]
    names = " and ".join(f"/{source_picture.source}" for source_picture in late) or "/metrics"
    yield Symptom(f"/health answers, {names} not in time for {duration(lasting)}", tuple(evidence))


def port_taken(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Something else answers at the address."""
    backend = scene.picture.backend
    foreign = [source for source in backend.sources if source.source in _ASKED and source.failure in _FOREIGN]
    process, owner = _process(scene), scene.past.starts.owner
    other = process is not None and owner is not None and process.pid != owner
    if other and _failure(scene, Source.HEALTH) is FailureKind.TIMEOUT:
        must_see(scene)
    silent = backend.state in (BackendState.STALE, BackendState.DOWN) and _failure(scene, Source.HEALTH) in (
        FailureKind.TIMEOUT,
        FailureKind.RESET,
        FailureKind.ERROR,
    )
    if not (backend.state is BackendState.UNKNOWN and foreign) and not (other and silent):
        return
    evidence = [("address", backend.url)]
    evidence += [(f"/{source_picture.source}", source_picture.reason) for source_picture in foreign[:2]]
    who = ""
    if other and process is not None:
        who = f": process {process.pid} ({process.name or '?'})"
        evidence += [("port's process", f"{process.pid} ({process.name or '?'})"), ("the server was", str(owner))]
    elif owner is not None and _has_ended(scene):
        evidence.append(("the server was", f"process {owner}, which has ended"))
    yield Symptom(f"what answers at {backend.url} is no llama-server{who}", tuple(evidence))


def port_closed(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The process lives and its port takes no connection."""
    process = _process(scene)
    if process is None or _failure(scene, Source.HEALTH) is not FailureKind.REFUSED:
        return
    served = scene.past.starts.served == process.pid
    backend = scene.picture.backend
    if not served and (backend.uptime_s is None or backend.uptime_s < limits["starting_s"]):
        return
    had = "no longer listens" if served else "does not listen"
    evidence = (("process", f"{process.pid} ({process.name or '?'})"), ("running for", duration(backend.uptime_s)))
    yield Symptom(f"process {process.pid} is alive and {had} at {backend.url}", (*evidence, ("address", backend.url)))


def unauthorized(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The server wants another API key than the one it is given."""
    backend = scene.picture.backend
    if backend.state is not BackendState.UNAUTHORIZED:
        return
    refused = [source for source in backend.sources if source.failure is FailureKind.UNAUTHORIZED]
    names = ", ".join(f"/{source_picture.source}" for source_picture in refused)
    yield Symptom(
        f"{backend.url} refuses the API key; nothing but its health can be seen",
        (("refused", names or "all"), ("address", backend.url)),
    )


def health_error(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """It answers, and what it answers is an error."""
    backend = scene.picture.backend
    health = _source(scene, Source.HEALTH)
    if backend.state is not BackendState.UNKNOWN or health is None or health.status is not ReadingStatus.KNOWN:
        return
    if not any(source.source in _ASKED and source.failure in _FOREIGN for source in backend.sources):
        yield Symptom(backend.reason, (("address", backend.url),))


def metrics_disabled(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The server has no /metrics."""
    yield from _disabled(scene, Source.METRICS, "LLAMA_ARG_ENDPOINT_METRICS", "acceptance and totals are unknown")


def metrics_unreadable(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The server answers /metrics with what cannot be its metrics."""
    yield from _unreadable(scene, Source.METRICS, "acceptance and totals are those of before")
    counters = dict(scene.picture.backend.counters)
    if scene.is_fresh(Source.METRICS) and _ALWAYS_COUNTED not in counters:
        yield Symptom(
            f"/metrics lacks {_ALWAYS_COUNTED}, which every llama-server counts",
            (("metrics understood", ", ".join(counters) or "none"),),
        )


def slots_unreadable(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The server answers /slots with what cannot be its slots."""
    yield from _unreadable(scene, Source.SLOTS, "running requests are those of before")


def slots_disabled(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The server has no /slots."""
    yield from _disabled(
        scene, Source.SLOTS, "LLAMA_ARG_ENDPOINT_SLOTS", "running requests cannot be seen, nor whether it speculates"
    )


def counters_reset(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Totals went back, and the process is the same."""
    backend, process = scene.picture.backend, _process(scene)
    # Where a runner has the server as a child, another child may have taken its place.
    if backend.state is not BackendState.RESTARTED or process is None or process.processes > 1:
        return
    if process.pid != scene.past.starts.owner or scene.past.starts.within(scene.now, APPLY_S):
        return
    evidence = (("process", f"{process.pid}, running for {duration(backend.uptime_s)}"), ("sign", backend.reason))
    yield Symptom(f"the server's totals were reset while process {process.pid} went on", evidence)


def log_silent(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Requests end, and the log has no line of them, although it had of those before."""
    must_see(scene)
    log = scene.picture.log
    if log.silent_s is None:
        return
    # What /metrics answers late may be of the requests that the last lines tell of.
    since = scene.past.since(scene.now - log.silent_s + limits["late_s"])
    running = (sample for sample in since if sample.state in (BackendState.LIVE, BackendState.RESTARTED))
    tokens = increase([sample.totals.get(_ALWAYS_COUNTED) for sample in running]) or 0.0
    if tokens < limits["tokens"]:
        return
    yield Symptom(
        f"no line for {duration(log.silent_s)}, and {tokens:.0f} tokens were generated meanwhile",
        (
            ("log", log.path or UNKNOWN),
            ("last line", f"{duration(log.silent_s)} ago"),
            ("/metrics since", f"{tokens:.0f} tokens"),
        ),
    )


def clock_jumped(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The wall clock was set, or the machine slept."""
    samples = scene.past.since(scene.now - limits["shown_s"])
    for before, after in pairwise(samples):
        jump = (after.wall - after.at) - (before.wall - before.at)
        if abs(jump) >= limits["seconds"]:
            way = "forward" if jump > 0 else "back"
            yield Symptom(
                f"the wall clock jumped {way} by {duration(abs(jump))}",
                (("before", clock(before.wall)), ("after", clock(after.wall))),
            )
            return


def _disabled(scene: RuleScene, source: Source, key: str, lost: str) -> Iterable[Symptom]:
    backend = scene.picture.backend
    source_picture = _source(scene, source)
    if source_picture is None or backend.state not in (BackendState.LIVE, BackendState.BUSY):
        return
    if source_picture.failure in (FailureKind.DISABLED, FailureKind.NOT_FOUND):
        yield Symptom(
            f"the server does not serve /{source}: {lost}", ((f"/{source}", source_picture.reason),), fix=((key, "1"),)
        )


def _unreadable(scene: RuleScene, source: Source, lost: str) -> Iterable[Symptom]:
    source_picture = _source(scene, source)
    what = (
        _UNREADABLE.get(source_picture.failure)
        if source_picture is not None and source_picture.failure is not None
        else None
    )
    if source_picture is None or what is None or scene.picture.backend.state not in _SERVING:
        return
    last = f"{duration(source_picture.age_s)} ago" if source_picture.age_s is not None else "never"
    yield Symptom(f"/{source} {what}: {lost}", ((f"/{source}", source_picture.reason), ("last understood", last)))


def _source(scene: RuleScene, source: Source) -> SourcePicture | None:
    return next(
        (source_picture for source_picture in scene.picture.backend.sources if source_picture.source is source), None
    )


def _failure(scene: RuleScene, source: Source) -> FailureKind | None:
    source_picture = _source(scene, source)
    return source_picture.failure if source_picture is not None else None


def _process(scene: RuleScene) -> ProcessTree | None:
    """The process at the port, unless the last look found none."""
    return scene.picture.backend.process if _failure(scene, Source.PROCESS) is None else None


def _has_ended(scene: RuleScene) -> bool:
    return _failure(scene, Source.PROCESS) is not None


def _unmoved(scene: RuleScene, slot: SlotPicture) -> float:
    """For how many seconds the slot has come no further with its task."""
    since = scene.now
    now = (slot.task, slot.decoded, slot.prompt_processed)
    for sample in scene.past.backwards():
        if sample.work is None:
            continue
        if sample.work.get(slot.id) != now:
            break
        since = sample.at
    return scene.now - since


def _by_apply(scene: RuleScene, start: Start) -> bool:
    return any(abs(mark.wall - start.wall) <= APPLY_S for mark in scene.picture.applies)
