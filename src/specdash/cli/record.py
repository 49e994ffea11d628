"""`specdash record`: keeps the record of a server without a screen, as a service (docs/history.md).

Waits for a server where none is named, tells on standard error whenever recording stops and goes on, and ends with 0 on
SIGTERM, SIGINT and SIGHUP.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from specdash.cli.options import add_settings, find_targets, resolved_settings
from specdash.cli.recording import own_rules, recorder_for
from specdash.core.config import RECORD_SETTINGS, RULE_SETTINGS, TARGET_SETTINGS
from specdash.core.errors import ExitCode, UsageError
from specdash.core.flag import Flag

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from specdash.core.config import Resolved
    from specdash.core.target import Target
    from specdash.history.recorder import Recorder

LOOK_S = 5.0
"""Seconds between two looks for a server."""
WATCH_S = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    settings = [name for name in RECORD_SETTINGS if name != "record"]
    add_settings(parser, (*TARGET_SETTINGS, "refresh", *settings, *RULE_SETTINGS))
    parser.add_argument("--for", dest="length", metavar="TIME", help="end after so long (90s, 15m, 1h30m)")


def run(args: argparse.Namespace) -> int:
    """Record until a signal, or for as long as was asked."""
    from specdash.core.config import Resolved
    from specdash.core.moments import parse_length

    settings = resolved_settings(args)
    settings["record"] = Resolved(True, "record")
    ends = time.monotonic() + parse_length(args.length) if args.length is not None else None
    if ends is not None and ends <= time.monotonic():
        raise UsageError(f"--for {args.length}: wants more than nothing")
    stop = Flag()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in _SIGNALS}
    try:
        target = _target(settings, stop, ends)
        if target is None:
            return ExitCode.OK
        return _record(target, settings, stop, ends)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _target(settings: Mapping[str, Resolved], stop: Flag, ends: float | None) -> Target | None:
    """The server to record; waits until there is one. None when it is time to end."""
    told = False
    while True:
        found = find_targets(settings)
        if found:
            return found[0]
        if not told:
            _say("no llama-server found yet; waiting for one (or name it with --url http://HOST:PORT)")
            told = True
        if stop.wait(LOOK_S if ends is None else max(0.0, min(LOOK_S, ends - time.monotonic()))) or _is_over(ends):
            return None


def _record(target: Target, settings: Mapping[str, Resolved], stop: Flag, ends: float | None) -> ExitCode:
    from specdash.collect.hub import Hub
    from specdash.insight.state import TargetState

    recorder = recorder_for(target, settings, os.environ)
    if recorder is None:
        return ExitCode.FAILED
    state = TargetState(target, rules=own_rules(settings), observer=recorder)
    hub = Hub(
        target, [state.apply, recorder.on_reading], interval_s=settings["refresh"].value, on_target=state.retarget
    )
    recorder.start()
    try:
        with hub:
            _watch(target, recorder, stop, ends)
    finally:
        recorder.close()
    if recorder.problem:
        _say(f"ended, and not everything was recorded: {recorder.problem}")
        return ExitCode.NOT_WRITTEN
    return ExitCode.OK


def _watch(target: Target, recorder: Recorder, stop: Flag, ends: float | None) -> None:
    """Say what becomes of the recording until it is time to end."""
    told = ""
    lost = 0
    while not stop.wait(WATCH_S) and not _is_over(ends):
        now = recorder.trouble
        if not now:
            now = (
                f"recording {target.url} in {recorder.path}"
                if recorder.is_recording
                else f"another specdash records {target.url}; waiting to take over"
            )
        if now != told:
            _say(now)
            told = now
        if recorder.lost and not recorder.problem and recorder.lost != lost:
            lost = recorder.lost
            _say(f"{lost} readings could not be recorded so far")


def _is_over(ends: float | None) -> bool:
    return ends is not None and time.monotonic() >= ends


def _say(text: str) -> None:
    print(f"specdash record: {text}", file=sys.stderr, flush=True)
