"""Is the server there, and does it work: pure rules."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specdash.core.readings import OTHER_SERVERS, FailureKind, Source
from specdash.core.records import AlertSeverity, Symptom
from specdash.insight.derive import TOO_BUSY
from specdash.insight.picture import BackendState, SlotPhase
from specdash.insight.progress import Standstill, of_server, of_slot
from specdash.insight.rules.catalogue import UnjudgeableError, rule
from specdash.insight.rules.known import must_see
from specdash.insight.speedup.verdict import WITHOUT
from specdash.system.text import UNKNOWN, clock, duration, number, percent, plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.core.readings import ProcessTree
    from specdash.insight.rules.catalogue import Limits
    from specdash.insight.rules.known import Fix
    from specdash.insight.rules.scene import RuleScene

_FOREIGN = frozenset({FailureKind.GARBAGE, FailureKind.TOO_LARGE, FailureKind.NOT_FOUND})
"""Answers that no llama-server gives to these questions."""
_SILENT = frozenset({FailureKind.TIMEOUT, FailureKind.RESET, FailureKind.ERROR})
_ASKED = (Source.HEALTH, Source.METRICS, Source.SLOTS)
_UNREADABLE = frozenset({FailureKind.GARBAGE, FailureKind.TOO_LARGE, FailureKind.ERROR, FailureKind.RESET})
_LOST = {
    Source.METRICS: ("LLAMA_ARG_ENDPOINT_METRICS", "acceptance and totals"),
    Source.SLOTS: ("LLAMA_ARG_ENDPOINT_SLOTS", "running requests and the state of drafting"),
}
"""By endpoint: what switches it on, and what is not seen without it."""
_CLIENTS = ("upstream_unreachable", "proxy_errors", "requests_waiting")
"""What clients notice of a server that does not answer."""
APPLY_S = 60.0
"""A start within so long of an apply is the apply's."""


@rule(
    "Server is down",
    AlertSeverity.CRITICAL,
    in_trials=False,
    clear_after_s=0,
    hold_back=False,
    chart="decode",
    explains=(*_CLIENTS, "slot_hung", "empty_answers"),
    # While the process that owned the port lives, an apply may be swapping its engine.
    limits={"swap_s": 0.9},
)
def backend_down(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Nothing answers at the address: the process has ended, has not started, or the machine cannot be reached. Every
    client gets errors.

    - specdash services logs backend    (an assertion, a CUDA error, out of memory?)
    - dmesg | grep -i -e 'killed process' -e segfault

    Start the service: specdash services start backend. When it ended by itself, its log's last lines or the kernel's
    (out of memory) say why; fix that first, or it ends again.
    """
    backend, failure, owner = scene.picture.backend, scene.source(Source.HEALTH).failure, scene.past.starts.owner
    if backend.state is not BackendState.DOWN or failure is FailureKind.TIMEOUT:
        return
    if failure is FailureKind.UNREACHABLE:
        must_see(scene)
    if _process(scene) is not None and (scene.past.lasting(BackendState.DOWN) or 0.0) < limits["swap_s"]:
        return
    why = scene.source(Source.HEALTH).reason or backend.reason
    reason, _, others = why.partition(OTHER_SERVERS)
    evidence, remedy = [("/health", why)], ""
    summary = f"nothing answers: {reason}"
    if owner is not None:
        gone = of_server(backend.signs, limits) is Standstill.DEAD
        evidence.append(("process", f"{owner} has ended" if gone else f"{owner}"))
        summary = f"process {owner} has ended and nothing listens" if gone else summary
    elif not scene.past.starts.was_up:
        remedy = (
            f"Nothing was ever seen alive at this address. Servers of this machine: {others}; name one with --url."
            if others
            else "Nothing was ever seen alive at this address: is it right? --url names another one. "
            "A server that has not been started yet: specdash services start backend."
        )
    yield Symptom(f"{summary} at {backend.url}", tuple(evidence), remedy=remedy)


@rule(
    "Server hangs, or is busy for long",
    AlertSeverity.CRITICAL,
    in_trials=False,
    clear_after_s=3,
    hold_back=False,
    chart="decode",
    explains=(*_CLIENTS, "slot_hung"),
    # A server that gets no CPU answers late, and one that answers late does not hang.
    limits={"silent_s": 5, "starved_s": 30, "busy_s": 60},
)
def server_hung(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The port takes connections but nothing answers, not even /health: the process was stopped by a signal (SIGSTOP, a
    debugger), is stuck in the kernel (swap, a dead disk or driver), or all its HTTP threads are taken. A warning where
    only /metrics or /slots do not answer: a long prompt blocks them in builds before b10420; from b10420 on, where they
    hang for 30 s without a log line, the inference loop is stuck for good.

    - ps -o pid,stat,wchan:32,cmd -p {pid}    (T: stopped; D: waits for disk or driver)
    - nvidia-smi, when it hangs too the driver is the cause

    Stopped: kill -CONT {pid}. Otherwise restart it: specdash services restart backend; a process in state D survives
    kill -9 until its device answers, and may need a reboot.
    """
    backend, process = scene.picture.backend, _process(scene)
    # Not /slots: of an idle server they are what they were, without being asked for.
    ages = (scene.source(source).age_s for source in (Source.HEALTH, Source.METRICS))
    silent = min((age for age in ages if age is not None), default=None)
    unheard = silent if silent is not None else scene.now - scene.past.since(0.0)[0].at
    signs = replace(backend.signs, unheard_s=unheard)
    found = of_server(signs, limits)
    late = [one for one in backend.sources if one.failure is FailureKind.TIMEOUT and one.source in _LOST]
    names = " and ".join(f"/{one.source}" for one in late) or "/metrics"
    last = [(f"/{one.source}", f"last answer {_ago(one.age_s)}") for one in late]
    if found is Standstill.STARVED:
        raise UnjudgeableError(TOO_BUSY)
    if found is Standstill.STOPPED and process is not None:
        pids = ", ".join(map(str, process.stopped))
        yield Symptom(
            f"process {pids} was stopped by a signal: it keeps its port and answers nothing",
            (("process", f"{pids} stopped (kill -CONT resumes it)"),),
        )
    elif found is Standstill.SILENT:
        for_long = f"for {duration(silent)}" if silent is not None else "since specdash looks"
        yield Symptom(
            f"{backend.url} takes connections and has answered nothing {for_long}",
            (
                ("process", f"{process.pid} ({process.name or '?'})" if process is not None else UNKNOWN),
                ("CPU", number(process.cpu_cores if process is not None else None, 1, "cores")),
            ),
        )
    elif found is Standstill.WEDGED:
        used = scene.past.last.gpu_utilisation if scene.past.last is not None else None
        tasks = [f"slot {one.id}, task {one.task}" for one in backend.slots or () if one.phase is not SlotPhase.IDLE]
        yield Symptom(
            f"the inference loop is stuck: /health answers, {names} not for {duration(signs.hang_s or 0.0)}, and "
            f"{backend.engine or 'this build'} never waits there",
            (
                *last,
                ("open request", "; ".join(tasks) or UNKNOWN),
                ("last log line", _ago(signs.log_silent_s) if signs.log_silent_s is not None else "not read"),
                ("GPU", percent(used) if used is not None else UNKNOWN),
            ),
            remedy="Restart it: specdash services restart backend, which kills it when it ignores SIGTERM. Its open "
            "requests are lost either way. When it happens again, report it with the log's last lines: specdash "
            "incident.",
        )
    elif found is Standstill.LATE:
        yield Symptom(
            f"/health answers, {names} not in time for {duration(signs.late_s or 0.0)}",
            tuple(last),
            severity=AlertSeverity.WARNING,
            remedy="Builds before b10420 answer these only between two batches: a smaller batch (LLAMA_ARG_BATCH), or "
            "a newer build. When no prompt moves in the log either: specdash services restart backend.",
        )


def _ago(seconds: float | None) -> str:
    return f"{duration(seconds)} ago" if seconds is not None else "never"


@rule(
    "Slot gets no token",
    AlertSeverity.CRITICAL,
    clear_after_s=0,
    needs=(Source.SLOTS,),
    while_idle=False,
    chart="decode",
    explains=("requests_waiting", "zero_acceptance"),
    limits={"no_token_s": 30, "while_others_s": 180, "prefill_s": 180, "cores": 0.8, "gpu_share": 0.2},
)
def slot_hung(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """A slot is at work and no token comes, while the server answers everything else. The GPU or the inference thread
    is stuck, or one batch takes very long; or the server decodes and repeats one verification step, for hours: a tie
    between two tokens that a batch and a single step decide differently, as with ngram-mod at temperature 0.

    - nvidia-smi    (100 % and no progress: a kernel hangs; 0 %: the process waits)
    - the server's log: the last lines of that slot and task
    - LLAMA_TRACE=1: a step that repeats is the same `accepted 20/21 draft tokens (restore checkpoint)`

    A warning where a prompt is read and the server keeps CPUs or GPU busy: wait, or raise limits.prefill_s. Otherwise
    restart the server: specdash services restart backend. When it happens only with speculation, it is worth a ticket:
    specdash incident.
    """
    must_see(scene)
    # They rest between two batches.
    samples = scene.lately(30.0)
    cores = [one.process.cpu_cores or 0.0 for one in samples if one.process is not None]
    gpu = [one.gpu_utilisation for one in samples if one.gpu_utilisation is not None]
    works = any(used and fmean(used) >= limits[least] for used, least in ((cores, "cores"), (gpu, "gpu_share")))
    for slot in scene.picture.backend.slots or ():
        if slot.signs is None or slot.phase is SlotPhase.IDLE:
            continue
        signs = replace(slot.signs, works=works)
        found = of_slot(signs, limits)
        reads = found is Standstill.PREFILL and signs.unmoved_s >= limits["prefill_s"]
        if found not in (Standstill.STUCK, Standstill.REPEATS) and not reads:
            continue
        running, types = scene.picture.proxy.running, scene.picture.backend.speculation.types or ()
        what = "processed no prompt token" if signs.prefill else "generated no token"
        summary = f"slot {slot.id} is busy and has {what} for {duration(signs.unmoved_s)}"
        fix: Fix = ()
        remedy = ""
        if reads:
            summary += ": it reads a long prompt, and the server works"
            remedy = "Wait; a smaller batch (LLAMA_ARG_BATCH) shows its progress. Always so: raise limits.prefill_s."
        elif found is Standstill.REPEATS:
            remedy = (
                "Close that one request at its client; the proxy then closes it at the server, and the slot is free. "
                "The same request does it again: give it a temperature above 0, or take the n-gram type out of "
                "LLAMA_SPEC_TYPE."
            )
            summary = (
                f"slot {slot.id} repeats one verification step: no token for {duration(signs.unmoved_s)}, and the "
                "server decodes all the time"
            )
            kept = [kind for kind in types if not kind.startswith("ngram")]
            if len(kept) < len(types):
                fix = (("LLAMA_SPEC_TYPE", ",".join(kept)),) if kept else WITHOUT
        yield Symptom(
            summary,
            (
                ("task", plain(slot.task)),
                ("generated", str(slot.decoded or 0)),
                ("prompt processed", plain(slot.prompt_processed)),
                ("decode calls meanwhile", number(signs.calls, 0)),
                ("steps that went back to a checkpoint", str(signs.restored) if signs.restored else UNKNOWN),
                ("CPU", number(cores[-1] if cores else None, 1, "cores")),
                ("GPU", percent(gpu[-1]) if gpu else UNKNOWN),
                ("request", f"session {running[0].session}, {running[0].request_id}" if len(running) == 1 else UNKNOWN),
            ),
            f"slot {slot.id}",
            fix=fix,
            severity=AlertSeverity.WARNING if reads else None,
            remedy=remedy,
        )


@rule(
    "Model is taking too long to load",
    AlertSeverity.WARNING,
    clear_after_s=0,
    hold_back=False,
    explains=_CLIENTS,
    # What names no model never has one.
    limits={"seconds": 300, "critical_s": 900, "nothing_s": 30},
)
def loading_too_long(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The server still loads its model, and every request gets 503. A big model from a slow or remote disk takes
    minutes; longer than usual means that the disk is slow, memory is short, or it is stuck.

    - specdash services logs backend
    - vmstat 2: does the disk read? does it swap?
    - specdash preflight: does the model fit?

    Wait while the disk reads. A model that does not fit into memory swaps forever: less context, fewer layers, or a
    smaller quantisation. Raise limits.seconds for a model that takes so long by nature.
    """
    for model in scene.picture.views.router.models:
        loading, nothing = model.loading_s or 0.0, model.has_source is False
        if loading < limits["nothing_s" if nothing else "seconds"]:
            continue
        why = ": its preset names no model, so that its server became another router" if nothing else ""
        yield Symptom(
            f"model {model.id} has been loading for {duration(loading)}{why}",
            subject=model.id,
            severity=AlertSeverity.CRITICAL if loading >= limits["critical_s"] else None,
            remedy="Name its file or repository in the preset (model = FILE, or hf-repo = OWNER/NAME), then load it "
            "again."
            if nothing
            else "",
        )
    seen, process = scene.past.lasting(BackendState.LOADING), _process(scene)
    if seen is None:
        return
    # A server that has counted nothing yet has been loading all its life.
    loading = seen if scene.picture.backend.counters else max(seen, scene.picture.backend.uptime_s or 0.0)
    if loading >= limits["seconds"]:
        yield Symptom(
            f"the model has been loading for {duration(loading)}",
            (("CPU", number(process.cpu_cores if process is not None else None, 1, "cores")),),
            severity=AlertSeverity.CRITICAL if loading >= limits["critical_s"] else None,
        )


@rule(
    "Server starts again and again",
    AlertSeverity.CRITICAL,
    clear_after_s=30,
    hold_back=False,
    in_trials=False,
    explains=(*_CLIENTS, "backend_down", "loading_too_long"),
    limits={"starts": 3, "window_s": 600},
)
def crash_loop(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The server has started several times within minutes and ended each time by itself: it crashes while loading or at
    a certain request, and its manager starts it again. Starts that an apply made do not count.

    - specdash services logs backend    (before each start: an assertion, CUDA error, a missing file?)
    - dmesg | grep -i -e 'killed process' -e segfault -e xid
    - specdash applies: what was changed before the first crash?

    Stop it while you look: specdash services stop backend. After a change of settings: specdash rollback. Out of
    memory: less context or a smaller batch. One request that kills it: specdash incident, for a ticket.
    """
    applied = [mark.wall for mark in scene.picture.applies]
    starts = [
        start
        for start in scene.past.starts.seen
        if start.at >= scene.now - limits["window_s"] and all(abs(wall - start.wall) > APPLY_S for wall in applied)
    ]
    if len(starts) < limits["starts"]:
        return
    yield Symptom(
        f"it started {len(starts)} times within {duration(limits['window_s'])}",
        (("the last", ", ".join(clock(start.wall) for start in starts[-5:])),),
    )


@rule(
    "Something else answers at the server's address",
    AlertSeverity.CRITICAL,
    clear_after_s=0,
    hold_back=False,
    explains=(*_CLIENTS, "backend_down", "server_hung"),
)
def port_taken(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The port is open, and what answers is not a llama-server: its process has ended and another program has the port,
    a reverse proxy answers for it, or the address is wrong. A server that is started now cannot bind its port.

    - ss -ltnp | grep :{port}
    - curl -i {url}/health

    End the other program, or give the server another port (LLAMA_PORT); then specdash services start backend. Where
    a wrong address comes from: specdash config show.
    """
    backend, failure = scene.picture.backend, scene.source(Source.HEALTH).failure
    foreign = [source for source in backend.sources if source.source in _ASKED and source.failure in _FOREIGN]
    process, owner = _process(scene), scene.past.starts.owner
    other = process if process is not None and owner is not None and process.pid != owner else None
    if other and failure is FailureKind.TIMEOUT:
        must_see(scene)
    silent = backend.state in (BackendState.STALE, BackendState.DOWN) and failure in _SILENT
    if not (backend.state is BackendState.UNKNOWN and foreign) and not (other and silent):
        return
    evidence = [(f"/{source.source}", source.reason) for source in foreign[:2]]
    who = f"process {other.pid} ({other.name or '?'})" if other else ""
    if owner is not None and (other or scene.source(Source.PROCESS).failure is not None):
        evidence.append(("the server was", f"process {owner}" + ("" if other else ", which has ended")))
    yield Symptom(f"what answers at {backend.url} is not a llama-server{f': {who}' if who else ''}", tuple(evidence))


@rule("Edited env file is not in force", AlertSeverity.WARNING, clear_after_s=0, hold_back=False)
def edit_refused(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The env file was edited by hand and does not start, so that the last settings that served run on. Nothing that
    the file says is in force, and every start of the backend tries it again first.

    - specdash preflight
    - specdash env history

    Mend the file; then bring it into force: specdash services restart backend.
    """
    if refused := scene.picture.backend.refused:
        yield Symptom(f"mend it, then `specdash services restart backend`: {refused}")


@rule(
    "An endpoint cannot be used",
    AlertSeverity.WARNING,
    raise_after_s=3,
    clear_after_s=3,
    hold_back=False,
)
def endpoint_unusable(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """What the server answers to /health, /metrics or /slots cannot be used: it is switched off, wants an API key, is
    an error, or not understood. The figures are those of before, dimmed and with their age, and rules that need them
    are not judged.

    - curl -i {url}/health {url}/metrics {url}/slots
    - does a reverse proxy, a cache or another program answer at these paths?
    - specdash doctor --url {url}

    Off: start the server with --metrics (LLAMA_ARG_ENDPOINT_METRICS=1) and without --no-slots; what `specdash backend
    run` starts has both. Not understood: watch the server itself and not what stands in front of it; when it answers so
    itself, restart it: specdash services restart backend.
    """
    backend = scene.picture.backend
    is_foreign = any(scene.source(source).failure in _FOREIGN for source in _ASKED)
    if backend.state is BackendState.UNKNOWN and not is_foreign and scene.is_fresh(Source.HEALTH):
        yield Symptom(backend.reason, subject="/health")
    if backend.state is BackendState.UNAUTHORIZED:
        refused = [f"/{one.source}" for one in backend.sources if one.failure is FailureKind.UNAUTHORIZED]
        yield Symptom(
            f"{backend.url} refuses the API key; nothing but its health can be seen",
            (("refused", ", ".join(refused) or "all"),),
            "API key",
            remedy="Name the key: --api-key-env NAME or --api-key-file FILE, or api_key_env in config.toml. A proxy "
            "with the same wrong key fails every request.",
        )
    if backend.state not in (BackendState.LIVE, BackendState.BUSY, BackendState.RESTARTED):
        return
    for source, (key, lost) in _LOST.items():
        found = scene.source(source)
        if found.failure in (FailureKind.DISABLED, FailureKind.NOT_FOUND):
            summary = f"the server does not serve /{source}: {lost} cannot be seen"
            yield Symptom(summary, subject=f"/{source}", fix=((key, "1"),))
        elif found.failure in _UNREADABLE:
            summary = f"the answer of /{source} cannot be used ({found.reason}): {lost} are those of before"
            yield Symptom(summary, (("last understood", _ago(found.age_s)),), f"/{source}")
    counters = dict(backend.counters)
    if scene.is_fresh(Source.METRICS) and "predicted_tokens" not in counters:
        summary = "/metrics lacks predicted_tokens, which every llama-server counts"
        yield Symptom(summary, (("metrics understood", ", ".join(counters) or "none"),), "/metrics")


def _process(scene: RuleScene) -> ProcessTree | None:
    """The process at the port, unless the last look found none."""
    return scene.picture.backend.process if scene.source(Source.PROCESS).failure is None else None
