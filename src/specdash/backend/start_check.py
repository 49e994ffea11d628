"""Did it really speculate? Looked at by the runner after every start and every swap, in a thread that nobody waits for.

The first verdict comes as soon as the server is ready, from its slots and from what it printed; the second after a
short completion. A server that sleeps is not woken, a router is asked nothing, and no user waits long for a probe.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specdash.backend.promise import promise_of
from specdash.core.start_check import SEE_LOG, Completion, Drafting, StartCheck, unexplained

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specdash.backend.launch import Plan
    from specdash.backend.local_http import Cancel
    from specdash.backend.output import Tail
    from specdash.backend.promise import Promise
    from specdash.backend.server_check import Probed
    from specdash.core.observations import Slots
    from specdash.llama.start_failures import StartFailure

PROBE_S = 8.0
"""A probe takes no longer: a user may wait behind it for the only slot."""
RETRY_AFTER_S = (5.0, 20.0)
"""A probe that was not answered in time is made again after so long: a model's first request reads it from the disk."""
PATIENCE_S = 2.0
"""Where the first completion of the probe took longer, there is no second."""
_POLL_S = 0.01
_SLOWEST_POLL_S = 0.25
_SLOWER = 1.2
_PIPE_S = 0.1
FAILED_COMPLETION = "completion_failed"
"""The cause of a server that fails every request for no reason that the log names."""
_REPEATS = "n-gram types draft only where text repeats"


@dataclass(frozen=True, slots=True)
class Look:
    """What the slots showed. `problem` says in words why nothing could be seen, "" when something was."""

    slots: int | None = None
    drafting: int | None = None
    busy: int = 0
    problem: str = ""
    asleep: bool = False
    """Looking would have woken it."""

    @property
    def is_full(self) -> bool:
        """Whether requests run in every slot."""
        return bool(self.slots) and self.busy == self.slots


def look_of(slots: Slots | str) -> Look:
    """The look that an answer of /slots is; a text says why there is none."""
    if isinstance(slots, str):
        return Look(problem=slots)
    told, busy = slots.drafting, sum(slot.is_processing for slot in slots.slots)
    if told is None:
        return Look(len(slots.slots), busy=busy, problem="this build's /slots does not tell")
    return Look(len(told), sum(told), busy)


def judge(
    promise: Promise, look: Look, failure: StartFailure | None, probed: Probed | None, checked: float
) -> StartCheck:
    """The verdict on a start. `failure` is what the log or the parameters say against it, `checked` the Unix time."""
    said = StartCheck(Drafting.UNKNOWN, checked, slots=look.slots, slots_drafting=look.drafting)
    if probed is not None:
        said = replace(
            said,
            probe_tokens=probed.tokens,
            probe_drafted=probed.drafted,
            probe_accepted=probed.accepted,
            probe_tasks=probed.tasks,
            probe_problem=probed.problem,
        )
    if promise.router:
        return replace(said, because="a router: each of its models has settings of its own")
    if promise.speculates is False:
        return _unasked(said, look, probed)
    if probed is not None and probed.drafted:
        share = f"{probed.accepted} of {probed.drafted} drafted tokens accepted"
        return replace(said, drafting=Drafting.YES, because=f"{_chain(promise)}, {share}")
    if probed is not None and probed.completion is Completion.FAILED:
        return _fails(said, probed, failure)
    if look.drafting is not None and look.slots is not None and look.drafting < look.slots:
        return _failed(said, look, failure)
    if look.drafting is None:
        if failure is not None:
            return _failed(said, look, failure)
        return replace(said, because=f"whether it speculates cannot be seen: {look.problem}")
    return replace(said, drafting=Drafting.READY, because=f"{_chain(promise)}: {_no_draft(promise, probed)}")


def _unasked(said: StartCheck, look: Look, probed: Probed | None) -> StartCheck:
    if look.drafting or (probed is not None and probed.drafted):
        drafting = Drafting.YES if probed is not None and probed.drafted else Drafting.READY
        return replace(said, drafting=drafting, because="it drafts although the settings ask for none")
    if look.drafting is None and look.problem:
        return replace(said, drafting=Drafting.OFF, because=f"no speculation was asked for ({look.problem})")
    return replace(said, drafting=Drafting.OFF, because="no speculation was asked for")


def _failed(said: StartCheck, look: Look, failure: StartFailure | None) -> StartCheck:
    if failure is not None:
        return replace(said, drafting=Drafting.FAILED, because=failure.because, fix=failure.fix, cause=failure.id)
    why = unexplained(look.drafting or 0, look.slots or 0)
    return replace(said, drafting=Drafting.FAILED, because=why, fix=SEE_LOG)


def _fails(said: StartCheck, probed: Probed, failure: StartFailure | None) -> StartCheck:
    """Slots that can draft are worth nothing on a server that fails what it is asked."""
    if failure is not None:
        return replace(said, drafting=Drafting.FAILED, because=failure.because, fix=failure.fix, cause=failure.id)
    return replace(said, drafting=Drafting.FAILED, because=probed.problem, fix=SEE_LOG, cause=FAILED_COMPLETION)


def _no_draft(promise: Promise, probed: Probed | None) -> str:
    if probed is None:
        return "its slots can draft, and none was seen yet"
    if probed.problem:
        return f"its slots can draft, but {probed.problem}"
    why = f" ({_REPEATS})" if promise.types and all(one.startswith("ngram") for one in promise.types) else ""
    return f"its slots can draft, and made no draft in {probed.tokens} tokens{why}"


def _chain(promise: Promise) -> str:
    return ",".join(promise.types) or "the type that it detected itself"


def pending() -> StartCheck:
    """The verdict before anything was seen."""
    return StartCheck(Drafting.UNKNOWN, time.time(), because="it is being looked at", pending=True)


def line(check: StartCheck) -> str:
    """The verdict as the runner says it."""
    if check.drafting is Drafting.YES:
        return f"speculating: {check.because}"
    if check.drafting is Drafting.READY:
        return f"ready to speculate: {check.because}"
    if check.cause == FAILED_COMPLETION:
        return f"it runs, and fails what it is asked: {check.because}; {check.fix}"
    if check.drafting is Drafting.FAILED:
        return f"running without speculation because {check.because}; {check.fix}"
    if check.drafting is Drafting.OFF:
        return f"running without speculation: {check.because}"
    return f"not known whether it speculates: {check.because}"


def check_start(
    promise: Promise,
    lines: Callable[[], Sequence[str]],
    *,
    parameters: Mapping[str, str],
    probe: bool = True,
    cancel: Cancel | None = None,
    publish: Callable[[StartCheck], None] = lambda _: None,
) -> StartCheck:
    """Look at a server that is ready, and ask it one short completion. Never raises for what the server does.

    `lines` are what it printed since its start. `publish` gets the verdict before the probe, too. Whoever sets `cancel`
    gets the verdict as far as it is known.
    """
    from specdash.backend import server_check

    look = _look(promise, cancel)
    failure = _cause(promise, look, lines, parameters)
    first = judge(promise, look, failure, None, time.time())
    reason = _unprobed(promise, look, probe=probe)
    if reason is not None or (cancel is not None and cancel.cancelled):
        return replace(first, probe_problem=reason or "cancelled")
    publish(replace(first, pending=True))
    probed = server_check.probe(promise.url, promise, PROBE_S, patience=PATIENCE_S, cancel=cancel)
    for pause in RETRY_AFTER_S:
        if probed.completion is not Completion.LATE:
            break
        # Whoever waits for the verdict gets it now; a slow first request says nothing of the ones after it.
        publish(judge(promise, look, failure, probed, time.time()))
        if _paused(pause, cancel) or _unprobed(promise, look := _look(promise, cancel), probe=probe) is not None:
            break
        probed = server_check.probe(promise.url, promise, PROBE_S, patience=PATIENCE_S, cancel=cancel)
    if cancel is not None and cancel.cancelled:
        return replace(first, probe_problem="cancelled")
    if probed.completion is Completion.FAILED:
        failure = _cause(promise, look, lines, parameters)
    return judge(promise, look, failure, probed, time.time())


def _paused(seconds: float, cancel: Cancel | None) -> bool:
    """Wait; whether it was cancelled meanwhile."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if cancel is not None and cancel.cancelled:
            return True
        time.sleep(_SLOWEST_POLL_S)
    return False


def _cause(
    promise: Promise, look: Look, lines: Callable[[], Sequence[str]], parameters: Mapping[str, str]
) -> StartFailure | None:
    """What the log, else the parameters, say against it."""
    from specdash.llama.start_failures import explain, unspoken

    found = explain(lines(), None)
    if found is None and promise.speculates and look.drafting == 0:
        # What it printed before it was ready may still be on its way through the pipe.
        time.sleep(_PIPE_S)
        found = explain(lines(), None)
    return found or unspoken(parameters)


def _look(promise: Promise, cancel: Cancel | None) -> Look:
    from specdash.backend import server_check

    if promise.router:
        return Look(problem="a router's slots are those of its models")
    if server_check.sleeps(promise.url, promise, cancel):
        return Look(problem="it sleeps, and looking at its slots would wake it", asleep=True)
    return look_of(server_check.slots_of(promise.url, promise, cancel))


def _unprobed(promise: Promise, look: Look, *, probe: bool) -> str | None:
    """Why no completion is asked for; None when one is."""
    if not probe:
        return "LLAMA_START_PROBE=0"
    if promise.no_probe is not None:
        return promise.no_probe
    if promise.speculates is False:
        return "no speculation was asked for"
    if look.drafting == 0:
        return "its slots do not draft"
    if look.asleep:
        return "it sleeps"
    return "requests run in all slots" if look.is_full else None


def watch_start(plan: Plan, tail: Tail) -> StartWatch:
    """Begin to watch the start of the engine of `plan`, whose output `tail` keeps."""
    settings = plan.settings
    return StartWatch(promise_of(settings), tail.early, dict(plan.speculation), probe=settings.start_probe)


class StartWatch:
    """Waits in a thread until a server is ready, then checks its start; `take` gives each verdict once."""

    def __init__(self, promise: Promise, lines: Sequence[bytes], parameters: Mapping[str, str], *, probe: bool) -> None:
        """`lines` may grow while it waits."""
        from specdash.backend.local_http import Cancel

        self._promise = promise
        self._lines = lines
        self._parameters = parameters
        self._probe = probe
        self._cancel = Cancel()
        self._verdicts: deque[StartCheck] = deque()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="start-check", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether no verdict is left, and none will come."""
        return not self._verdicts and not self._thread.is_alive()

    def take(self) -> StartCheck | None:
        """The next verdict, None while there is none."""
        return self._verdicts.popleft() if self._verdicts else None

    def cancel(self) -> None:
        """End it, at once and with its connection: a server that is told to end waits for its clients."""
        self._stopped.set()
        self._cancel()

    def _work(self) -> None:
        from specdash.backend import server_check

        wait = _POLL_S
        while not server_check.healthy(self._promise.url, self._cancel):
            if self._stopped.wait(wait):
                return
            wait = min(_SLOWEST_POLL_S, wait * _SLOWER)
        found = check_start(
            self._promise,
            lambda: [line.decode("utf-8", "replace") for line in list(self._lines)],
            parameters=self._parameters,
            probe=self._probe,
            cancel=self._cancel,
            publish=self._verdicts.append,
        )
        if not self._stopped.is_set():
            self._verdicts.append(found)
