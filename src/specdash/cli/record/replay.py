"""`specdash replay`: the dashboard on the record (docs/history.md)."""

from __future__ import annotations

import sqlite3
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.cli.options import MOMENTS_AGO, accept_as_value, add_settings, changed_rules, resolved_settings
from specdash.cli.signals import stopped_by_signals
from specdash.cli.terminal_app import need_terminal, run_app
from specdash.core import paths
from specdash.core.config import RULE_SETTINGS, SCREEN_SETTINGS, WINDOWS_S
from specdash.core.errors import ExitCode, InputError, UsageError
from specdash.core.moments import parse_moment
from specdash.system.text import timestamp

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from specdash.core.config import Resolved
    from specdash.core.target import Target
    from specdash.history.replay import ReplaySession
    from specdash.history.store import Store

BEFORE_END_S = 900.0
"""Without a moment, a replay begins so long before the record's end."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="a record (default: this user's)",
    )
    parser.add_argument("--since", metavar="TIME", help="start at this moment: 02:00, -3h, 2026-03-01T02:00")
    parser.add_argument("--until", metavar="TIME", help="stop at this moment")
    parser.add_argument("--speed", type=float, metavar="N", help="start playing at N times real speed")
    parser.add_argument("--target", metavar="URL", help="which server, if several are recorded")
    parser.add_argument(
        "--headless", action="store_true", help="print a snapshot of that moment instead of opening the dashboard"
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON (implies --headless)")
    accept_as_value(parser, MOMENTS_AGO)
    add_settings(parser, (*SCREEN_SETTINGS, *RULE_SETTINGS))


def run(args: argparse.Namespace) -> int:
    """Open the record, and show it until the user quits; or print one moment of it."""
    headless = args.headless or args.json
    settings = resolved_settings(args)
    if args.speed is not None and not 0 < args.speed <= 1000:
        raise UsageError(f"--speed {args.speed:g}: must be more than 0, up to 1000")
    if not headless:
        need_terminal("replay", "use `specdash replay --json` in scripts")
    with stopped_by_signals(), ExitStack() as stack:
        path = _record_of(args.file)
        session, until = _opened(path, args, settings)
        stack.callback(session.close)
        if headless:
            from specdash.cli.picture.snapshot import print_snapshot

            session.deepen()
            print_snapshot(session.picture(window_s=WINDOWS_S[settings["window"].value]), as_json=args.json)
            return ExitCode.OK
        return _dashboard(session, until, args.speed, settings)


def _record_of(file: Path | None) -> Path:
    """The database to read: the user's own, or the file itself."""
    if file is None:
        return paths.history_file()
    try:
        with file.open("rb") as opened:
            start = opened.read(16)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from None
    if start != b"SQLite format 3\0":
        bundle = start[:2] == b"\x1f\x8b"
        fix = "unpack it and name the history.db in it, which bundles of 0.1 have" if bundle else "name a history.db"
        raise InputError(f"{file}: is not a specdash record; {fix}")
    return file


def _opened(
    path: Path, args: argparse.Namespace, settings: Mapping[str, Resolved]
) -> tuple[ReplaySession, float | None]:
    """The session at the moment that is asked for, and where playing stops."""
    from specdash.history.replay import open_session
    from specdash.history.store import Store, target_name

    try:
        with Store(path) as store:
            target = _target(store, args.target)
            span = store.span(target_name(target))
    except sqlite3.Error as error:
        raise InputError(f"{path}: is not a readable record: {error}") from error
    if span is None:
        raise InputError(f"{path}: nothing is recorded about {target_name(target)}")
    # A time of day in a bundle from elsewhere is one of its own day.
    now = time.time() if args.file is None else span[1]
    since = parse_moment(args.since, now) if args.since is not None else max(span[0], span[1] - BEFORE_END_S)
    until = parse_moment(args.until, now) if args.until is not None else None
    if args.since is not None and not span[0] - 1 <= since <= span[1] + 1:
        what = f"the record is from {timestamp(span[0])} to {timestamp(span[1])}"
        raise UsageError(f"--since {args.since}: {timestamp(since)} is not recorded; {what}")
    if until is not None and until <= since:
        raise UsageError(f"--until {args.until}: not after the beginning, {timestamp(since)}")
    return open_session(path, target, rules=changed_rules(settings), at=since), until


def _target(store: Store, url: str | None) -> Target:
    from specdash.core.target import normalise_url
    from specdash.history.replay import recorded_target

    names = store.targets()
    if not names:
        raise InputError(f"{store.path}: nothing is recorded in it")
    if url is None:
        return recorded_target(names[0])
    wanted = url if url in names else normalise_url(url.partition(" ")[0])
    found = [name for name in names if name == wanted or name.partition(" ")[0] == wanted]
    if not found:
        raise UsageError(f"--target {url}: not in the record; it has {', '.join(names)}")
    return recorded_target(found[0])


def _dashboard(
    session: ReplaySession, until: float | None, speed: float | None, settings: Mapping[str, Resolved]
) -> int:
    from specdash.history.player import Player
    from specdash.tui.action_table import read_keys
    from specdash.tui.app import Dashboard

    player = Player(session, until=until)
    if speed is not None:
        player.speed = speed
        player.toggle()
    app = Dashboard(
        session,
        theme=settings["theme"].value,
        screenshots=paths.state_dir() / "screenshots",
        replay=player,
        keys=read_keys(settings["keys"]),
    )
    app.window_s = WINDOWS_S[settings["window"].value]
    app.interval_s = settings["refresh"].value
    try:
        run_app(app)
    finally:
        player.close()
        player.join(1.0)
    return app.return_code or ExitCode.OK
