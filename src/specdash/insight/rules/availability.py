"""Is the server there, and does it work: pure rules, described in availability.toml."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from specdash.core.alerts import AlertSeverity, Symptom
from specdash.core.readings import FailureKind, Source, Status
from specdash.insight.picture import BackendState, SlotPhase
from specdash.insight.rules.known import must_see
from specdash.insight.rules.scene import KEEP_S
from specdash.insight.rules.wording import clock, duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.core.alerts import Alert
    from specdash.core.observations import ProcessTree
    from specdash.insight.picture import SlotPicture, SourcePicture
    from specdash.insight.rules.catalogue import Limits
    from specdash.insight.rules.scene import Scene
    from specdash.insight.rules.starts import Start

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


def backend_down(scene: Scene, limits: Limits) -> Iterable[Symptom]:
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
    if owner is not None:
        evidence.append(("process", f"{owner} has ended" if gone else f"{owner}"))
    summary = f"process {owner} has ended and nothing listens" if gone else f"nothing answers: {why}"
    yield Symptom(f"{summary} at {backend.url}", tuple(evidence))


def server_hung(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """The port takes connections and nobody answers; or the process was stopped by a signal."""
    backend = scene.picture.backend
    process = _process(scene)
    if process is not None and process.stopped:
        pids = ", ".join(map(str, process.stopped))
        yield Symptom(
            f"process {pids} was stopped by a signal: it keeps its port and answers nothing",
            (("process", f"{pids} stopped (kill -CONT lets it go on)"), ("address", backend.url)),
        )
        return
    if _failure(scene, Source.HEALTH) is not FailureKind.TIMEOUT:
        return
    must_see(scene)
    # Not /slots: of an idle server they are what they were, without being asked for.
    answering = (Source.HEALTH, Source.METRICS)
    ages = [one.age_s for one in backend.sources if one.source in answering and one.age_s is not None]
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


def server_hung_refuted(scene: Scene, limits: Limits, alert: Alert) -> str:
    """It answers again, the same process, and it had no CPU, or was silent for a moment only."""
    lasted = scene.picture.wall - alert.since
    samples = scene.past.since(scene.now - lasted - limits["silent_s"])
    again = [one for one in scene.past.starts.within(scene.now, lasted + limits["silent_s"]) if one.again]
    health = _source(scene, Source.HEALTH)
    if health is None or health.status is not Status.KNOWN or again or any(one.stopped for one in samples):
        return ""
    if any(one.starved for one in samples):
        return "specdash itself got no CPU meanwhile, and the server answers"
    if any((one.cpu_wait or 0.0) >= limits["cpu_wait"] for one in samples):
        return "the same process answers again: it did not hang, it got no CPU"
    if lasted < limits["passing_s"]:
        return f"the same process answered again after {duration(lasted)}: it was slow and did not hang"
    return ""


def _is_server_starved(scene: Scene, limits: Limits, seconds: float) -> bool:
    """Whether the server waited for a CPU for much of this time."""
    samples = scene.past.since(scene.now - seconds - limits["silent_s"])
    return any((one.cpu_wait or 0.0) >= limits["cpu_wait"] for one in samples)


def slot_hung(scene: Scene, limits: Limits) -> Iterable[Symptom]:
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
            ("task", str(slot.task) if slot.task is not None else "--"),
            ("generated", str(slot.decoded or 0)),
            ("prompt processed", str(slot.prompt_processed) if slot.prompt_processed is not None else "--"),
            ("unmoved for", duration(unmoved)),
        )
        yield Symptom(f"slot {slot.id} is busy and has {what} for {duration(unmoved)}", evidence, f"slot {slot.id}")


def loading_too_long(scene: Scene, limits: Limits) -> Iterable[Symptom]:
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


def crash_loop(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """The server starts again and again."""
    lately = scene.past.starts.within(scene.now, limits["seconds"])
    starts = [one for one in lately if not (one.on_trial or _by_apply(scene, one))]
    if len(starts) < limits["starts"]:
        return
    between = sorted(later.at - earlier.at for earlier, later in pairwise(starts))
    evidence = [("starts", str(len(starts))), ("the last", ", ".join(clock(one.wall) for one in starts[-5:]))]
    if between:
        evidence.append(("between two", duration(between[len(between) // 2])))
    yield Symptom(f"it started {len(starts)} times within {duration(limits['seconds'])}", tuple(evidence))


def restarted(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """Another process serves than a moment ago."""
    starts = [one for one in scene.past.starts.within(scene.now, limits["shown_s"]) if one.again and not one.on_trial]
    if not starts:
        return
    last = starts[-1]
    by = "an apply restarted it" if _by_apply(scene, last) else "it was restarted"
    yield Symptom(f"{by} at {clock(last.wall)}: {last.why}", (("when", clock(last.wall)), ("sign", last.why)))


def busy_too_long(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """It is alive, but metrics or slots have not come for long."""
    must_see(scene)
    lasting = scene.past.lasting((BackendState.BUSY,))
    if lasting is None or lasting < limits["seconds"]:
        return
    late = [
        one
        for one in scene.picture.backend.sources
        if one.source in (Source.METRICS, Source.SLOTS) and one.failure is FailureKind.TIMEOUT
    ]
    evidence = [
        (f"/{one.source}", f"last answer {duration(one.age_s)} ago" if one.age_s is not None else "no answer yet")
        for one in late
    ]
    names = " and ".join(f"/{one.source}" for one in late) or "/metrics"
    yield Symptom(f"/health answers, {names} not in time for {duration(lasting)}", tuple(evidence))


def port_taken(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """Something else answers at the address."""
    del limits
    backend = scene.picture.backend
    foreign = [one for one in backend.sources if one.source in _ASKED and one.failure in _FOREIGN]
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
    evidence += [(f"/{one.source}", one.reason) for one in foreign[:2]]
    who = ""
    if other and process is not None:
        who = f": process {process.pid} ({process.name or '?'})"
        evidence += [("port's process", f"{process.pid} ({process.name or '?'})"), ("the server was", str(owner))]
    elif owner is not None and _has_ended(scene):
        evidence.append(("the server was", f"process {owner}, which has ended"))
    yield Symptom(f"what answers at {backend.url} is no llama-server{who}", tuple(evidence))


def port_closed(scene: Scene, limits: Limits) -> Iterable[Symptom]:
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


def unauthorized(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """The server wants another API key than the one it is given."""
    del limits
    backend = scene.picture.backend
    if backend.state is not BackendState.UNAUTHORIZED:
        return
    refused = [one for one in backend.sources if one.failure is FailureKind.UNAUTHORIZED]
    names = ", ".join(f"/{one.source}" for one in refused)
    yield Symptom(
        f"{backend.url} refuses the API key; nothing but its health can be seen",
        (("refused", names or "all"), ("address", backend.url)),
    )


def health_error(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """It answers, and what it answers is an error."""
    del limits
    backend = scene.picture.backend
    health = _source(scene, Source.HEALTH)
    if backend.state is not BackendState.UNKNOWN or health is None or health.status is not Status.KNOWN:
        return
    if not any(one.source in _ASKED and one.failure in _FOREIGN for one in backend.sources):
        yield Symptom(backend.reason, (("address", backend.url),))


def metrics_disabled(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """The server has no /metrics."""
    del limits
    yield from _disabled(scene, Source.METRICS, "LLAMA_ARG_ENDPOINT_METRICS", "acceptance and totals are unknown")


def metrics_unreadable(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """The server answers /metrics with what cannot be its metrics."""
    del limits
    yield from _unreadable(scene, Source.METRICS, "acceptance and totals are those of before")
    counters = dict(scene.picture.backend.counters)
    if scene.is_fresh(Source.METRICS) and _ALWAYS_COUNTED not in counters:
        yield Symptom(
            f"/metrics lacks {_ALWAYS_COUNTED}, which every llama-server counts",
            (("metrics understood", ", ".join(counters) or "none"),),
        )


def slots_unreadable(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """The server answers /slots with what cannot be its slots."""
    del limits
    yield from _unreadable(scene, Source.SLOTS, "running requests are those of before")


def slots_disabled(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """The server has no /slots."""
    del limits
    yield from _disabled(
        scene, Source.SLOTS, "LLAMA_ARG_ENDPOINT_SLOTS", "running requests cannot be seen, nor whether it speculates"
    )


def counters_reset(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """Totals went back, and the process is the same."""
    del limits
    backend, process = scene.picture.backend, _process(scene)
    # Where a runner has the server as a child, another child may have taken its place.
    if backend.state is not BackendState.RESTARTED or process is None or process.processes > 1:
        return
    if process.pid != scene.past.starts.owner or scene.past.starts.within(scene.now, APPLY_S):
        return
    evidence = (("process", f"{process.pid}, running for {duration(backend.uptime_s)}"), ("sign", backend.reason))
    yield Symptom(f"the server's totals began anew while process {process.pid} went on", evidence)


def clock_jumped(scene: Scene, limits: Limits) -> Iterable[Symptom]:
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


def _disabled(scene: Scene, source: Source, key: str, lost: str) -> Iterable[Symptom]:
    backend = scene.picture.backend
    one = _source(scene, source)
    if one is None or backend.state not in (BackendState.LIVE, BackendState.BUSY):
        return
    if one.failure in (FailureKind.DISABLED, FailureKind.NOT_FOUND):
        yield Symptom(f"the server does not serve /{source}: {lost}", ((f"/{source}", one.reason),), fix=((key, "1"),))


def _unreadable(scene: Scene, source: Source, lost: str) -> Iterable[Symptom]:
    one = _source(scene, source)
    what = _UNREADABLE.get(one.failure) if one is not None and one.failure is not None else None
    if one is None or what is None or scene.picture.backend.state not in _SERVING:
        return
    last = f"{duration(one.age_s)} ago" if one.age_s is not None else "never"
    yield Symptom(f"/{source} {what}: {lost}", ((f"/{source}", one.reason), ("last understood", last)))


def _source(scene: Scene, source: Source) -> SourcePicture | None:
    return next((one for one in scene.picture.backend.sources if one.source is source), None)


def _failure(scene: Scene, source: Source) -> FailureKind | None:
    one = _source(scene, source)
    return one.failure if one is not None else None


def _process(scene: Scene) -> ProcessTree | None:
    """The process at the port, unless the last look found none."""
    return scene.picture.backend.process if _failure(scene, Source.PROCESS) is None else None


def _has_ended(scene: Scene) -> bool:
    return _failure(scene, Source.PROCESS) is not None


def _unmoved(scene: Scene, slot: SlotPicture) -> float:
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


def _by_apply(scene: Scene, start: Start) -> bool:
    return any(abs(mark.wall - start.wall) <= APPLY_S for mark in scene.picture.applies)
