"""`specdash record`: keeps the record of a server, or of all, without a screen, as a service (docs/history.md).

Waits for a server where none is named, says on standard error when recording stops and goes on, and ends with 0 on
SIGTERM, SIGINT and SIGHUP.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from specdash.cli.options import add_settings, changed_rules, check_all_alone, find_targets, resolved_settings
from specdash.cli.signals import ended_by_signals
from specdash.core.config import RECORD_SETTINGS, RULE_SETTINGS, TARGET_SETTINGS
from specdash.core.errors import ExitCode, UsageError
from specdash.core.target import local_port

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from specdash.collect.hub import Hub
    from specdash.core.config import Resolved
    from specdash.core.flag import Flag
    from specdash.core.target import Target
    from specdash.history.recorder import Recorder

LOOK_S = 5.0
"""Seconds between two looks for a server."""
WATCH_S = 0.5


def configure(parser: argparse.ArgumentParser) -> None:
    settings = [name for name in RECORD_SETTINGS if name != "record"]
    add_settings(parser, (*TARGET_SETTINGS, "refresh", *settings, *RULE_SETTINGS))
    parser.add_argument("--for", dest="length", metavar="TIME", help="stop after this long (90s, 15m, 1h30m)")
    parser.add_argument(
        "--all", action="store_true", help="every server found here or in config.toml, including those that start later"
    )


def run(args: argparse.Namespace) -> int:
    """Record until a signal, or for as long as was asked."""
    from specdash.core.moments import parse_length

    settings = resolved_settings(args)
    if args.all:
        check_all_alone(settings)
    ends = time.monotonic() + parse_length(args.length) if args.length is not None else None
    if ends is not None and ends <= time.monotonic():
        raise UsageError(f"--for {args.length}: must be longer than 0")
    with ended_by_signals() as stop:
        targets = _targets(settings, stop, ends)
        if not targets:
            return ExitCode.OK
        return _record(targets if args.all else targets[:1], settings, stop, ends, every=args.all)


def _targets(settings: Mapping[str, Resolved], stop: Flag, ends: float | None) -> list[Target]:
    """The servers that may be recorded; waits until there is one. None of them when it is time to end."""
    warned = False
    while True:
        found = find_targets(settings)
        if found:
            return found
        if not warned:
            _say("no llama-server found yet; waiting for one (or name it with --url http://HOST:PORT)")
            warned = True
        if stop.wait(LOOK_S if ends is None else max(0.0, min(LOOK_S, ends - time.monotonic()))) or _is_over(ends):
            return []


def _record(
    targets: Sequence[Target], settings: Mapping[str, Resolved], stop: Flag, ends: float | None, *, every: bool
) -> ExitCode:
    from specdash.collect.fleet import FleetHub

    recordings: dict[str, ServerRecording] = {}
    with ExitStack() as stack:

        def add(some: Sequence[Target]) -> list[ServerRecording]:
            added = [ServerRecording(target, settings, named=every) for target in some]
            for recording in added:
                recordings[recording.target.url] = recording
                stack.callback(recording.close)
                recording.recorder.start()
            return added

        def add_here(some: Sequence[Target]) -> None:
            for recording in add(some):
                stack.enter_context(recording.hub(settings))

        # One that is watched alone is looked at in full; of many those elsewhere share a loop, and only those here come
        # and go while this runs.
        far = [target for target in targets if every and local_port(target.url) is None]
        watched = [(recording.target, recording.take) for recording in add(far)]
        if watched:
            stack.enter_context(FleetHub(watched, interval_s=settings["refresh"].value))
        add_here([target for target in targets if target not in far])
        look_at = time.monotonic() + LOOK_S
        while not stop.wait(WATCH_S) and not _is_over(ends):
            if every and time.monotonic() >= look_at:
                add_here([target for target in find_targets(settings) if target.url not in recordings])
                look_at = time.monotonic() + LOOK_S
            for recording in recordings.values():
                recording.tell()
    codes = [recording.ended() for recording in recordings.values()]
    return max(codes, default=ExitCode.OK)


def recorder_for(
    target: Target, settings: Mapping[str, Resolved], env: Mapping[str, str] = os.environ
) -> Recorder | None:
    """A recorder that was not started yet; None when the settings want none."""
    if not settings["record"].value:
        return None
    from specdash.history.recorder import Recorder

    return Recorder(target, days=settings["history_days"].value, megabytes=settings["history_mb"].value, env=env)


class ServerRecording:
    """One server that is recorded, and its messages."""

    def __init__(self, target: Target, settings: Mapping[str, Resolved], *, named: bool) -> None:
        """`named`: messages about the server begin with its name."""
        from specdash.collect.hub import Bus
        from specdash.export.status_notes import StatusNotes
        from specdash.history.recorder import Recorder
        from specdash.insight.state import TargetState

        self.target = target
        self.recorder = Recorder(target, days=settings["history_days"].value, megabytes=settings["history_mb"].value)
        self.state = TargetState(target, rules=changed_rules(settings), observer=self.recorder)
        self._notes = StatusNotes(self.state.picture)
        self._prefix = f"{target.label}: " if named else ""
        self._told = ""
        self._lost = 0
        self.take = Bus((self.state.apply, self._notes.on_reading, self.recorder.on_reading)).publish

    def hub(self, settings: Mapping[str, Resolved]) -> Hub:
        """What watches it in full; not begun."""
        from specdash.collect.hub import Hub

        return Hub(self.target, [self.take], interval_s=settings["refresh"].value, on_target=self.state.retarget)

    def tell(self) -> None:
        """Say what becomes of the recording, where that is new."""
        recorder, url = self.recorder, self.target.url
        now = recorder.trouble
        if not now and recorder.is_recording:
            now = f"recording {url} in {recorder.path}"
        elif not now and recorder.is_waiting:
            now = f"another specdash records {url}; waiting to take over"
        if now and now != self._told:
            self._say(now)
            self._told = now
        if recorder.lost and not recorder.problem and recorder.lost != self._lost:
            self._lost = recorder.lost
            self._say(f"{recorder.lost} readings could not be recorded so far")

    def close(self) -> None:
        """Write what is left."""
        self._notes.close()
        self.recorder.close()

    def ended(self) -> ExitCode:
        """The last line."""
        if not self.recorder.problem:
            return ExitCode.OK
        self._say(f"stopped, but not everything was recorded: {self.recorder.problem}")
        return ExitCode.NOT_WRITTEN

    def _say(self, words: str) -> None:
        _say(f"{self._prefix}{words}")


def _is_over(ends: float | None) -> bool:
    return ends is not None and time.monotonic() >= ends


def _say(text: str) -> None:
    print(f"specdash record: {text}", file=sys.stderr, flush=True)
