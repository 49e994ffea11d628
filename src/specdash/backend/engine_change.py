"""The engine of a runner while its settings change: swapped, verified, and brought back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from specdash.backend.launch import check_port
from specdash.backend.start_check import busy, check_start, first_completion, health, healthy
from specdash.backend.steps import StepFailedError
from specdash.core.errors import PortInUseError, SpecdashError
from specdash.core.masking import without_secrets
from specdash.core.readings import HealthStatus
from specdash.core.records import Drafting
from specdash.system.processes import family, listening_pid

if TYPE_CHECKING:
    from specdash.backend.journal import Edit
    from specdash.backend.launch import LaunchPlan
    from specdash.backend.proxies import ProxyChange
    from specdash.backend.session import BackendSession
    from specdash.backend.settings import BackendSettings
    from specdash.backend.transaction import Transaction
    from specdash.core.records import StartCheck

LOOK_S = 0.012
"""Time between two looks at a starting engine: what passes between its health and our seeing it is downtime."""
ENGINE_LOAD = "engine load"
"""Key in `ApplyRecord.step_seconds` of the engine's own load time."""
_ASKED = 3
"""How often an engine is asked for its health before it counts as unhealthy: a busy machine lets it answer late."""
_DIRECT_S = 5.0
"""How long requests that did not come through a held proxy are waited for: nothing keeps new ones away."""
_POLL_S = 0.05
_SAY_S = 0.2
_PROBE_S = 120.0
_RUNNER_S = 12.0
"""The longest wait for the runner's own probe, which bounds itself."""
_PATIENCE_S = 120.0
"""How long the old settings may take at least: the patience with the new ones may have been short on purpose."""
_SICK_BEFORE_S = 20.0
"""How long an engine is waited for that was not healthy before the change either."""
_LAST_WORDS_S = 1.0
"""How long the end of an engine's output is waited for, when its answer has just broken off."""
_DRAFTING_LOOK_S = 2.0
_DEAF_S = 20.0
"""How long a process that lives may leave /health unanswered: a starved machine is no dead server."""


class EngineChange:
    """The engine of one change. `child` is the process that runs, or ran last."""

    def __init__(self, change: Transaction, runner: BackendSession, edit: Edit) -> None:
        """Raises `SpecdashError` where the new version of the env file would not run."""
        self._change = change
        self._steps = change.steps
        self._runner = runner
        self._edit = edit
        self.child = runner.engine
        self.last_good = runner.engine.plan
        self.planned = runner.replan(runner.engine.plan, edit.new)
        self.down_s: float | None = None
        """Seconds without a healthy engine, in all; None as long as there were none."""
        self._down_since: float | None = None
        self._before: StartCheck | None = None
        """What it drafted before the change; None where it was not healthy."""
        self._well_at = self._next_look = 0.0

    @property
    def urls(self) -> set[str]:
        """Where the proxies in front of it ask, before and after the change."""
        return {self.planned.settings.url, self.last_good.settings.url}

    @property
    def settings(self) -> BackendSettings:
        """Those of the engine that runs."""
        return self.child.plan.settings

    def look(self) -> None:
        """See how the engine is before anything is touched; a warning where its env file was edited since its start."""
        if self.child.ended is not None:
            return
        if self.last_good.env_digest not in (None, self._edit.old_digest):
            self._change.warn(
                f"{self._edit.env_file} was edited since the engine was started: those edits come into force too"
            )
        self._before = self._drafting() if any(healthy(self.settings.url) for _ in range(_ASKED)) else None

    def drain_direct(self, limit_s: float) -> None:
        """Wait for requests that did not come through a held proxy; a warning says how many are cut off."""
        # The runner's own look at the engine would delay the change with its requests.
        self._runner.quiet()
        deadline = time.monotonic() + min(_DIRECT_S, limit_s)
        while left := busy(self.settings) or 0:
            if time.monotonic() >= deadline:
                self._change.warn(f"{left} requests that did not come through a held proxy were cut off")
                return
            self._steps.say(f"{left} requests sent straight to the backend")
            self._steps.wait(_POLL_S)

    def swap(self, plan: LaunchPlan) -> None:
        """Stop the engine and start that of `plan`."""
        self._steps.say("stopping the engine and starting the next")
        old, ran = self.child, self.child.ended is None
        self.child = self._runner.swap(plan)
        if ran and self._down_since is None:
            self._down_since = old.stopped_at

    def until_healthy(self, limit_s: float, proxies: ProxyChange) -> None:
        """Wait for the first healthy answer. Raises `StepFailedError` as soon as it cannot come."""
        settings = self.settings
        deadline = time.monotonic() + limit_s
        next_say = 0.0
        while True:
            found = health(settings.url)
            now = time.monotonic()
            if self.child.ended is not None:
                try:
                    check_port(settings)
                except PortInUseError as error:
                    raise self._failed(str(error)) from None
                raise self._failed(
                    ": ".join((f"the engine ended with {self.child.ended}", *self.child.tail.errors()[-1:]))
                )
            if found is None:
                state = "no answer yet"
            elif found.status is HealthStatus.OK:
                owner = listening_pid(settings.port)
                if owner is None or any(process.pid == owner for process in family(self.child.pid)):
                    break
                state = "answered by another process"
            else:
                state = "loading" if found.status is HealthStatus.LOADING else found.detail or "unhealthy"
            if now > deadline:
                raise self._failed(f"not healthy within {limit_s:g} s ({state})")
            if now >= next_say:
                next_say = now + _SAY_S
                held = f"{count} clients wait" if (count := proxies.total("waiting")) else ""
                words = [state, held, *map(without_secrets, self.child.tail.texts()[-1:])]
                self._steps.say(": ".join(filter(None, words))[:160], found.progress if found is not None else None)
            self._steps.wait(LOOK_S)
        if self._down_since is not None:
            self._steps.seconds[ENGINE_LOAD] = round(now - self.child.began, 4)
            self.down_s = (self.down_s or 0.0) + max(0.0, now - self._down_since)
            self._down_since = None
        self._steps.say(f"healthy, process {self.child.pid}")

    def check_speculation(self) -> None:
        """Raises `StepFailedError` where it does not draft, or not, as the settings ask."""
        found = self._drafting()
        if found.drafting is Drafting.FAILED:
            raise self._failed(f"it is healthy and does not speculate: {found.because}; {found.fix}")
        if not self.settings.spec_types and found.drafting is not Drafting.OFF:
            raise self._failed(found.because)
        if found.drafting is Drafting.UNKNOWN:
            self._change.warn(f"not known whether it speculates: {found.because}")
        self._steps.say(f"{found.slots_drafting} slots draft" if found.slots_drafting else found.because)

    def _drafting(self) -> StartCheck:
        """What its slots show, and its log says, of drafting."""
        return check_start(self.settings, self.child.tail.texts, probe=False)

    def probe(self) -> None:
        """One completion; what the runner's own probe of this start has shown is not asked again. Raises
        `StepFailedError` where there is none."""
        settings = self.settings
        if settings.no_probe is not None:
            self._steps.say(f"skipped: {settings.no_probe}")
            return
        limit = min(_PROBE_S, self._change.journal.health_timeout_s)
        deadline = time.monotonic() + min(limit, _RUNNER_S)
        while (known := self.child.check) is not None and known.pending and time.monotonic() < deadline:
            # Repeated: a clock runs, and a trial whose client is gone ends with it.
            self._steps.say("waiting for its first completion")
            self._steps.wait(LOOK_S)
        if known is None or known.pending or known.probe_problem or not known.probe_tokens:
            known = first_completion(settings, limit)
        problem = known.probe_problem
        if not problem and not healthy(settings.url):
            problem = "it generated, and is not healthy any more"
        if problem:
            self.child.read_up(_LAST_WORDS_S)
        if problem or self.child.ended is not None:
            raise self._failed(problem or "it generated, and then its process ended")
        self._steps.say(f"{known.probe_tokens} tokens in {known.probe_s or 0.0:.1f} s")

    def stands(self, *, at_last: bool) -> bool:
        """Whether it answers, now that it was verified. Raises `StepFailedError` where it ended, has not answered for
        long, or drafts no more although its settings ask for it, which is seen `at_last` and now and then before."""
        settings = self.settings
        if self.child.ended is not None:
            self._down_since = time.monotonic()
            raise self._failed(f"the engine ended with {self.child.ended} after everything had been verified")
        well, now = healthy(settings.url), time.monotonic()
        if not self._well_at:
            self._well_at, self._next_look = now, now + _DRAFTING_LOOK_S
        if not well and now - self._well_at > _DEAF_S:
            raise self._failed(f"it runs, and did not answer /health for {_DEAF_S:g} s")
        if well and (at_last or now >= self._next_look):
            found = self._drafting() if settings.spec_types else None
            if found is not None and found.slots_drafting is not None and found.drafting is Drafting.FAILED:
                raise self._failed("it does not speculate any more")
            self._next_look = now + _DRAFTING_LOOK_S
        self._well_at = now if well else self._well_at
        return well

    def _failed(self, reason: str) -> StepFailedError:
        return StepFailedError(reason, self.child.tail.errors())

    def back(self, proxies: ProxyChange) -> None:
        """The last good plan runs again. Raises `StepFailedError` where it does not as before."""
        limit = max(self._change.journal.health_timeout_s, _PATIENCE_S)
        limit = limit if self._before is not None else min(limit, _SICK_BEFORE_S)
        try:
            # The second time where a port was not free yet, or memory that the driver had not given back.
            for last in (self._before is None, True):
                try:
                    self.swap(self.last_good)
                    self.until_healthy(limit, proxies)
                    break
                except StepFailedError:
                    if last:
                        raise
        except SpecdashError as error:
            if self._before is None:
                self._change.warn(f"the backend was not healthy before, and is not now: {error}")
                return
            raise StepFailedError(
                f"the old settings are back in {self._edit.env_file}, but the backend does not come back with them: "
                f"{error}; see its log, and mend the cause"
            ) from None
        before = self._before.slots_drafting if self._before is not None else None
        now = self._drafting().slots_drafting
        if None not in (before, now) and before != now:
            raise StepFailedError(
                f"the old settings are back and the backend is healthy, but {now} of its slots draft, and {before} did "
                "before; see its log"
            )
