"""`specdash` and `specdash watch`: the dashboard on a running server."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from specdash.cli.options import (
    add_settings,
    as_named,
    bare_target,
    changed_rules,
    every_target,
    find_targets,
    resolved_settings,
    settings_for,
)
from specdash.cli.record.record import recorder_for
from specdash.cli.signals import stopped_by_signals
from specdash.cli.terminal_app import need_terminal, run_app
from specdash.collect.log_source import keep_standard_input
from specdash.core import paths
from specdash.core.config import (
    APPLY_SETTINGS,
    ARM_SETTINGS,
    RECORD_SETTINGS,
    RULE_SETTINGS,
    SCREEN_SETTINGS,
    SERVICE_SETTINGS,
    SETTINGS,
    TARGET_SETTINGS,
)
from specdash.core.errors import ExitCode, SpecdashError, UsageError
from specdash.core.log_places import STANDARD_INPUT

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from specdash.collect.hub import Hub
    from specdash.control.console import Console
    from specdash.control.deployment import Deployment
    from specdash.core.config import Resolved
    from specdash.core.log_facts import LogLine
    from specdash.core.readings import Reading
    from specdash.core.target import Target
    from specdash.export.status_notes import StatusNotes
    from specdash.history.recorder import Recorder
    from specdash.history.replay import ReplaySession
    from specdash.insight.charts import Metric
    from specdash.insight.picture import Picture
    from specdash.insight.state import TargetState
    from specdash.tune.run.console import TunerConsole


NOTED_S = 3.5
"""So old may a picture be of which the status note is left."""
ROLLBACK_S = 300.0
"""How long leaving waits for the rollback of an apply that was running."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(
        parser,
        (
            *TARGET_SETTINGS,
            *SCREEN_SETTINGS,
            *SERVICE_SETTINGS,
            *APPLY_SETTINGS,
            *ARM_SETTINGS,
            *RULE_SETTINGS,
            *RECORD_SETTINGS,
        ),
    )


def run(args: argparse.Namespace) -> int:
    """Open the dashboard; without a server, the page that says how to connect."""
    settings = resolved_settings(args)
    if settings["log"].value == STANDARD_INPUT:
        _read_keys_from_the_terminal()
    need_terminal("watch", "use `specdash snapshot` in scripts")
    with stopped_by_signals():
        return _watch(settings)


def _read_keys_from_the_terminal() -> None:
    if os.isatty(0):
        example = "`llama-server … 2>&1 | specdash --log -`"
        raise UsageError(f"--log - reads the server's log from standard input: pipe it in, as in {example}")
    with suppress(OSError):
        keep_standard_input()


def _watch(settings: Mapping[str, Resolved]) -> int:
    if settings["url"].value is not None:
        # What this machine knows of a named server takes time to find out; the screen is drawn meanwhile.
        return open_dashboard(bare_target(settings), settings, complete=lambda: find_targets(settings)[0])
    targets = find_targets(settings) or _wait_for_server(settings)
    target = targets[0] if len(targets) == 1 else _choose(targets, settings)
    return open_dashboard(target, settings) if target is not None else ExitCode.OK


def _choose(targets: Sequence[Target], settings: Mapping[str, Resolved]) -> Target | None:
    """Show the servers until the user takes one of them or quits; None of none."""
    from specdash.collect.targets import TargetLook, look_at
    from specdash.tui.action_table import read_keys
    from specdash.tui.screens.connect import ChooseApp

    if not targets:
        return None
    app = ChooseApp(
        [TargetLook(target, "looking…", answers=False) for target in targets],
        lambda: look_at(every_target(settings)),
        theme=settings["theme"].value,
        keys=read_keys(settings["keys"]),
    )
    taken = run_app(app)
    return as_named(taken, settings) if taken is not None else None


def _wait_for_server(settings: Mapping[str, Resolved]) -> Sequence[Target]:
    """Show how to connect until servers turn up; none when the user quit."""
    from specdash.tui.action_table import read_keys
    from specdash.tui.screens.connect import ConnectApp

    def look() -> Sequence[Target] | None:
        return find_targets(settings) or None

    tried = (
        (str(paths.run_records_dir()), "no `specdash backend run` is alive"),
        ("processes of this machine", "no llama-server among those this user may see"),
    )
    app: ConnectApp[Sequence[Target]] = ConnectApp(
        tried,
        look=look,
        theme=settings["theme"].value,
        keys=read_keys(settings["keys"]),
    )
    return run_app(app) or ()


def open_dashboard(
    target: Target,
    settings: Mapping[str, Resolved],
    *,
    complete: Callable[[], Target] | None = None,
    demo: bool = False,
    seconds: float | None = None,
    deployment: Callable[[], Deployment] | None = None,
    tuner: TunerConsole | None = None,
    of_fleet: bool = False,
    env: Mapping[str, str] = os.environ,
) -> int:
    """Watch one server, and whichever the user takes instead, until the user quits, or for `seconds`.

    Collecting begins after the first paint; `complete` then finds out what else is known of the target. `deployment`
    finds the services that may be changed from here (default: those of this machine), `tuner` tunes them; `env` says
    where their state is. With `of_fleet` escape leaves it, too.
    """
    if not of_fleet:
        gc.disable()
    from specdash.collect.targets import look_at
    from specdash.control.console import SlotConsole
    from specdash.core.config import WINDOWS_S
    from specdash.tui.action_table import read_keys
    from specdash.tui.app import Dashboard
    from specdash.tui.arming import Arming
    from specdash.tui.spans import PALETTES
    from specdash.tune.run.console import TunerConsole

    theme = settings["theme"]
    if theme.value is not None and theme.value not in PALETTES:
        raise UsageError(f"theme {theme.value!r} ({theme.origin}): unknown; one of {', '.join(PALETTES)}")

    keys = read_keys(settings["keys"])

    def watched(target: Target, complete: Callable[[], Target] | None) -> Dashboard:
        """One dashboard, from its start to its end; the next begins with nothing of its charts, changes and arming."""
        own = settings_for(target, settings)
        collecting = Collecting(target, complete, own, env)

        def begin() -> None:
            # What a process makes until here stays. A later dashboard, or a fleet's, begins with garbage of others.
            if not gc.isenabled():
                gc.freeze()
                gc.enable()
            collecting.start()

        console = _console(own, deployment or (lambda: _services(own, collecting.target.url)), env)
        app = Dashboard(
            collecting,
            on_interval=collecting.set_interval,
            on_ready=begin,
            demo=demo,
            theme=settings["theme"].value,
            screenshots=paths.state_dir() / "screenshots",
            console=console,
            arming=Arming(
                settings["disarm_after"].value,
                settings["read_only"].value,
            ),
            incident=collecting.write_incident,
            recording=lambda: collecting.recording_trouble,
            record=collecting.open_record,
            slots=SlotConsole(lambda: collecting.target, env),
            tuner=tuner or TunerConsole(_for_children(own, env)),
            look_around=None if demo else lambda: look_at(every_target(settings, env)),
            of_fleet=of_fleet,
            keys=keys,
        )
        app.window_s = WINDOWS_S[settings["window"].value]
        app.interval_s = settings["refresh"].value
        collecting.on_news = lambda: app.call_later(app.refresh_view)
        try:
            run_app(app, seconds=seconds, tidy=lambda: console.close(ROLLBACK_S))
        finally:
            gc.enable()
            collecting.stop()
            _end_apply(console)
        return app

    from specdash.cli.memory import return_memory

    return_memory()
    app = watched(target, complete)
    while app.chosen_target is not None:
        app = watched(as_named(app.chosen_target, settings), None)
    return app.return_code or ExitCode.OK


def _console(settings: Mapping[str, Resolved], deployment: Callable[[], Deployment], env: Mapping[str, str]) -> Console:
    """What changes the services."""
    from specdash.control.console import Console

    return Console(
        deployment,
        env,
        drain_timeout_s=settings["drain_timeout"].value,
        health_timeout_s=settings["health_timeout"].value,
        settle_s=settings["settle_time"].value,
    )


def _for_children(settings: Mapping[str, Resolved], env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a `specdash` that works on the same services as this one."""
    given = (setting for setting in SETTINGS if setting.name in (*SERVICE_SETTINGS, *APPLY_SETTINGS))
    values = {setting.variable: settings[setting.name].value for setting in given}
    return {**env, **{name: str(value) for name, value in values.items() if value is not None}}


def _services(settings: Mapping[str, Resolved], url: str) -> Deployment:
    from specdash.control.deployment import find_deployment

    return find_deployment(settings, url=url)


def _end_apply(console: Console) -> None:
    """An apply that still runs is rolled back before the program ends; the waiting terminal prints why."""
    if console.busy:
        print("specdash: an apply was running; it is rolled back", file=sys.stderr, flush=True)
        if not console.close(ROLLBACK_S):
            print(
                "specdash: the rollback goes on in the backend; `specdash applies` lists its end",
                file=sys.stderr,
                flush=True,
            )


class Collecting:
    """The collectors of one dashboard and the state they fill.

    Both are imported and started in a thread, after the first paint; until then nothing is known, and says so.
    """

    def __init__(
        self,
        target: Target,
        complete: Callable[[], Target] | None,
        settings: Mapping[str, Resolved],
        env: Mapping[str, str] = os.environ,
    ) -> None:
        """Raises `InputError` for rules that cannot be meant."""
        self._target = target
        self._env = env
        self._complete = complete
        self._settings = settings
        self._interval_s: float = settings["refresh"].value
        self._rules = changed_rules(settings)
        self._state: TargetState | None = None
        self._hub: Hub | None = None
        self._recorder: Recorder | None = None
        self._notes: StatusNotes | None = None
        self._ended = False
        self._lock = threading.Lock()
        self._headline: object = None
        self._shown: Picture | None = None
        self.on_news: Callable[[], object] = lambda: None
        """Called, on a collector's thread, for what must not wait for the next refresh (`TargetState.headline`)."""

    def picture(self, now: float, wall: float, window_s: float = 300.0) -> Picture:
        """See `TargetState.picture`."""
        if self._state is not None:
            self._shown = self._state.picture(now, wall, window_s)
            return self._shown
        from specdash.insight.picture import BackendPicture, Picture

        return Picture(now, wall, window_s, BackendPicture(self._target.url, reason="no answer yet"))

    def columns(self, metric: Metric, now: float, window_s: float, count: int) -> list[float | None]:
        """See `TargetState.columns`."""
        return self._state.columns(metric, now, window_s, count) if self._state is not None else [None] * count

    def log_lines(self, after: int = 0, limit: int = 1000) -> tuple[int, tuple[LogLine, ...]]:
        """See `TargetState.log_lines`."""
        return self._state.log_lines(after, limit) if self._state is not None else (0, ())

    @property
    def target(self) -> Target:
        """The server that is watched, as far as it is known."""
        return self._state.target if self._state is not None else self._target

    @property
    def recording_trouble(self) -> str:
        """What is wrong with the recording, "" when nothing is."""
        return self._recorder.trouble if self._recorder is not None else ""

    def write_incident(self) -> Path:
        """Write an incident bundle about the last minutes, and say where it is. Takes seconds; raises
        `NotWrittenError`."""
        from specdash.cli.record import incident

        state, span = self._state, incident.recent()
        parts = incident.gather(
            self.target,
            self._settings,
            span,
            picture=state.picture(time.monotonic(), time.time(), span.seconds) if state is not None else None,
            columns=state.columns if state is not None else None,
            env=self._env,
        )
        # It is wanted after the demo too, whose own directory ends with it.
        return incident.write(parts)

    def open_record(self, wall: float | None) -> ReplaySession:
        """What was recorded of the target, at a moment or at its end; raises `InputError`."""
        from specdash.history.replay import open_session

        return open_session(paths.history_file(self._env), self.target, rules=self._rules, at=wall)

    def start(self) -> None:
        """Begin, without waiting."""
        threading.Thread(target=self._begin, name="specdash-start", daemon=True).start()

    def set_interval(self, interval_s: float) -> None:
        """Follow the screen's refresh interval."""
        with self._lock:
            self._interval_s = interval_s
            if self._hub is not None:
                self._hub.set_interval(interval_s)

    def stop(self) -> None:
        """End, within a second; within three where the disk is slow."""
        with self._lock:
            self._ended = True
            hub, self._hub = self._hub, None
        if hub is not None:
            hub.stop()
            if self._notes is not None:
                self._notes.close()
            if self._recorder is not None:
                self._recorder.close()

    def _noted(self, now: float, wall: float, window_s: float) -> Picture:
        """The picture for the status note: the one that the screen just drew does, where it is of the same window."""
        assert self._state is not None  # noqa: S101 - for the type checker
        shown = self._shown
        if shown is not None and shown.window_s == window_s and 0 <= now - shown.at <= NOTED_S:
            return shown
        return self._state.picture(now, wall, window_s)

    def _look_for_news(self, _: Reading[Any]) -> None:
        headline = self._state.headline if self._state is not None else None
        if headline != self._headline:
            self._headline, self._shown = headline, None
            self.on_news()

    def _begin(self) -> None:
        from specdash.collect.hub import Hub
        from specdash.export.status_notes import StatusNotes
        from specdash.history.warm_up import warm_up
        from specdash.insight.state import TargetState

        if self._complete is not None:
            # The address alone is enough to watch; the rest is a convenience.
            with suppress(SpecdashError, OSError):
                self._target = self._complete()
        memory = warm_up(paths.history_file(self._env), self._target)
        with self._lock:
            if not self._ended:
                recorder = recorder_for(self._target, self._settings, self._env)
                self._recorder = recorder
                state = TargetState(self._target, rules=self._rules, observer=recorder)
                if memory is not None:
                    state.remember(memory)
                self._state = state
                # Beside the demo, too, whose directory no other program reads.
                notes = self._notes = StatusNotes(self._noted)
                self._hub = Hub(
                    self._target,
                    [
                        state.apply,
                        self._look_for_news,
                        notes.on_reading,
                        *([recorder.on_reading] if recorder is not None else []),
                    ],
                    interval_s=self._interval_s,
                    on_target=state.retarget,
                    env=self._env,
                )
                if recorder is not None:
                    recorder.start()
                self._hub.start()
