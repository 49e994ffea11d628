"""`specdash record`: keeps the record of a server without a screen, as a service (docs/history.md).

Waits for a server where none is named, says on standard error whenever recording stops and goes on, and ends with 0 on
SIGTERM, SIGINT and SIGHUP.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from specdash.cli.options import add_settings, changed_rules, find_targets, resolved_settings
from specdash.cli.signals import ended_by_signals
from specdash.core.config import RECORD_SETTINGS, RULE_SETTINGS, TARGET_SETTINGS
from specdash.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

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


def run(args: argparse.Namespace) -> int:
    """Record until a signal, or for as long as was asked."""
    from specdash.core.moments import parse_length

    settings = resolved_settings(args)
    ends = time.monotonic() + parse_length(args.length) if args.length is not None else None
    if ends is not None and ends <= time.monotonic():
        raise UsageError(f"--for {args.length}: must be longer than 0")
    with ended_by_signals() as stop:
        target = _target(settings, stop, ends)
        return _record(target, settings, stop, ends) if target is not None else ExitCode.OK


def _target(settings: Mapping[str, Resolved], stop: Flag, ends: float | None) -> Target | None:
    """The server that is recorded; waits until there is one. None when it is time to end."""
    warned = False
    while not (found := find_targets(settings)):
        if not warned:
            _say("no llama-server found yet; waiting for one (or name it with --url http://HOST:PORT)")
            warned = True
        if stop.wait(LOOK_S if ends is None else max(0.0, min(LOOK_S, ends - time.monotonic()))) or _is_over(ends):
            return None
    return found[0]


def _record(target: Target, settings: Mapping[str, Resolved], stop: Flag, ends: float | None) -> ExitCode:
    from specdash.collect.hub import Hub
    from specdash.export.status_notes import StatusNotes
    from specdash.history.recorder import Recorder
    from specdash.insight.state import TargetState

    recorder = Recorder(target, days=settings["history_days"].value, megabytes=settings["history_mb"].value)
    state = TargetState(target, rules=changed_rules(settings), observer=recorder)
    notes = StatusNotes(state.picture)
    watching = [state.apply, notes.on_reading, recorder.on_reading]
    shown, lost = "", 0
    recorder.start()
    try:
        with Hub(target, watching, interval_s=settings["refresh"].value, on_target=state.retarget):
            while not stop.wait(WATCH_S) and not _is_over(ends):
                now = recorder.trouble
                if not now and recorder.is_recording:
                    now = f"recording {target.url} in {recorder.path}"
                elif not now and recorder.is_waiting:
                    now = f"another specdash records {target.url}; waiting to take over"
                if now and now != shown:
                    _say(now)
                    shown = now
                if recorder.lost and not recorder.problem and recorder.lost != lost:
                    lost = recorder.lost
                    _say(f"{lost} readings could not be recorded so far")
    finally:
        notes.close()
        recorder.close()
    if not recorder.problem:
        return ExitCode.OK
    _say(f"stopped, but not everything was recorded: {recorder.problem}")
    return ExitCode.NOT_WRITTEN


def recorder_for(
    target: Target, settings: Mapping[str, Resolved], env: Mapping[str, str] = os.environ
) -> Recorder | None:
    """A recorder that was not started yet; None when the settings want none."""
    if not settings["record"].value:
        return None
    from specdash.history.recorder import Recorder

    return Recorder(target, days=settings["history_days"].value, megabytes=settings["history_mb"].value, env=env)


def _is_over(ends: float | None) -> bool:
    return ends is not None and time.monotonic() >= ends


def _say(text: str) -> None:
    print(f"specdash record: {text}", file=sys.stderr, flush=True)
