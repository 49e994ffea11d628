"""`specdash incident`: what happened, as one file that may be handed on. Without secrets, prompts or answers."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.cli.options import add_settings, find_targets, resolved_settings
from specdash.core.config import RULE_SETTINGS, SERVICE_SETTINGS, TARGET_SETTINGS
from specdash.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from specdash.core.config import Resolved
    from specdash.core.target import Target
    from specdash.export.incident.parts import Parts, Span
    from specdash.insight.charts import Metric
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import Rule

    Columns = Callable[[Metric, float, float, int], list[float | None]]

LOOK_S = 2.0
"""How long the first answers of all endpoints may take; what has not answered by then is told as it is."""
NO_SERVER = "http://127.0.0.1:8080"
"""What is looked at where no server is known at all."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--last", metavar="LENGTH", help="how far back: 90s, 15m, 2h (default: 15m)")
    parser.add_argument("--since", metavar="MOMENT", help="from then on: 02:00, -3h, 2026-03-01T02:00")
    parser.add_argument("--until", metavar="MOMENT", help="up to then (default: now)")
    parser.add_argument("--output", metavar="FILE", help="write this file; - is standard output (default: a new file)")
    parser.add_argument("--anonymise", action="store_true", help="hide hosts, user names, directories and sessions too")
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON (docs/incident.md)")
    add_settings(parser, (*TARGET_SETTINGS, *SERVICE_SETTINGS, *RULE_SETTINGS))


def run(args: argparse.Namespace) -> int:
    """Write one bundle, whether or not anything of the server can be seen."""
    from specdash.core import paths
    from specdash.export.incident.bundle import assemble, store, store_as

    now = time.time()
    span = _span(args, now)
    output = args.output
    if output == "-" and (args.json or os.isatty(1)):
        raise UsageError("--output -: writes a .tar.gz to standard output; send it to a file, without --json")
    if output is not None and output != "-":
        _refuse(Path(output))
    settings = resolved_settings(args)
    parts = gather(target(settings, span.since), settings, span, anonymise=args.anonymise, up_to_now=args.until is None)
    bundle = assemble(parts)
    if output == "-":
        sys.stdout.buffer.write(bundle.data)
        sys.stdout.buffer.flush()
        return ExitCode.OK
    path = store_as(bundle, Path(output)) if output is not None else store(bundle, paths.incidents_dir())
    if args.json:
        print(json.dumps({"path": str(path), **bundle.manifest}, indent=1))
    else:
        print("\n".join(_told(path, bundle.manifest, len(bundle.data))))
    return ExitCode.OK


def _refuse(path: Path) -> None:
    """Say at once what would be said in the end."""
    from specdash.core.errors import NotWrittenError

    if path.exists():
        what = "is a directory; name a file in it" if path.is_dir() else "exists already; name another file"
        raise NotWrittenError(f"{path} {what}")
    if not path.absolute().parent.is_dir():
        raise NotWrittenError(f"{path}: there is no directory {path.parent}; make it, or name another one")


def _span(args: argparse.Namespace, now: float) -> Span:
    from specdash.core.moments import parse_length, parse_moment
    from specdash.export.incident.parts import DEFAULT_SPAN_S, LONGEST_SPAN_S, Span

    if args.last is not None and args.since is not None:
        raise UsageError("--last and --since: give one of them")
    until = parse_moment(args.until, now) if args.until is not None else now
    if args.since is not None:
        since = parse_moment(args.since, now)
    else:
        since = until - (parse_length(args.last) if args.last is not None else DEFAULT_SPAN_S)
    if until > now + 1:
        raise UsageError(f"--until {args.until}: is in the future")
    if not 1 <= until - since <= LONGEST_SPAN_S:
        raise UsageError(f"the time from --since to --until is {until - since:.0f} s; wants 1 second to 24 hours")
    return Span(since, until)


def target(settings: Mapping[str, Resolved], since: float = inf) -> Target:
    """The server that is meant. Where none is named, one that crashed since `since` (Unix time); where none runs, the
    one that ran last, or was recorded last."""
    from specdash.cli.incident_parts import recorded_target, with_last_run
    from specdash.collect.discover import ended_run
    from specdash.core.target import Target

    found, last = find_targets(settings), ended_run()
    is_named = settings["url"].value is not None
    crashed = last is not None and last.crashed and (last.ended or 0.0) >= since
    if found and (is_named or not crashed):
        return with_last_run(found[0], os.environ)
    recorded = recorded_target(os.environ)
    if last is not None and (recorded is None or last.ended is not None):
        origin = f"the server that ran last, which ended with {last.end or 'its runner'}"
        return with_last_run(Target(last.url, origin=origin), os.environ)
    return recorded or Target(NO_SERVER, origin="no server was found on this machine")


def gather(
    target: Target,
    settings: Mapping[str, Resolved],
    span: Span,
    *,
    picture: Picture | None = None,
    columns: Columns | None = None,
    anonymise: bool = False,
    up_to_now: bool = False,
    env: Mapping[str, str] = os.environ,
) -> Parts:
    """Everything that a bundle about `span` is made of. Takes seconds, and never fails: what is missing is told in it.

    Without a `picture`, the server is looked at now. `columns` (see `TargetState.columns`) give the charts where there
    is no record. `up_to_now` lets the span end with the look at the server, so that what that finds is in it. To be
    called in a thread of its own where somebody waits for the screen.
    """
    from specdash.cli.incident_parts import Gathering

    gathering = Gathering(target, settings, span, env, anonymise=anonymise)
    if picture is None:
        picture = gathering.attempt("snapshot.json", lambda: look(target, gathering.rules(), env))
    if up_to_now and picture is not None:
        gathering.span = replace(span, until=max(span.until, picture.wall))
    return gathering.parts(picture, columns)


def write(parts: Parts, env: Mapping[str, str] = os.environ) -> Path:
    """Write the bundle to the usual place; where it is. Raises `NotWrittenError`."""
    from specdash.core import paths
    from specdash.export.incident.bundle import write_bundle

    return write_bundle(parts, paths.incidents_dir(env))


def recent(seconds: float | None = None) -> Span:
    """The span of the last `seconds` (default: those of `specdash incident`)."""
    from specdash.export.incident.parts import DEFAULT_SPAN_S, Span

    now = time.time()
    return Span(now - (seconds if seconds is not None else DEFAULT_SPAN_S), now)


def look(target: Target, rules: Sequence[Rule], env: Mapping[str, str]) -> Picture:
    """Look at the server, its log and this machine, for `LOOK_S` at most."""
    from specdash.collect.hub import Hub
    from specdash.core.config import WINDOWS_S
    from specdash.core.readings import Source
    from specdash.insight.state import TargetState

    state = TargetState(target, rules=rules)
    awaited = {Source.HEALTH, Source.PROPS, Source.METRICS, Source.SLOTS, Source.HOST, Source.GPU, Source.APPLIES}
    awaited |= {Source.LOG} if target.log is not None else set()
    awaited |= {Source.PROXY} if target.proxy_url is not None else set()
    deadline = time.monotonic() + LOOK_S
    with Hub(target, [state.apply], on_target=state.retarget, env=env):
        while not awaited <= state.latest.keys() and time.monotonic() < deadline:
            time.sleep(0.01)
        return state.picture(time.monotonic(), time.time(), WINDOWS_S["15m"])


def _told(path: Path, manifest: Mapping[str, object], size: int) -> list[str]:
    lines = [f"{path}  {size / 1024:,.0f} KiB", f"state    {manifest['state']}"]
    if manifest["cause"]:
        lines.append(f"cause    {manifest['cause']}")
    members = manifest["members"]
    missing = manifest["missing"]
    assert isinstance(members, list)  # noqa: S101 - for the type checker
    assert isinstance(missing, list)  # noqa: S101 - for the type checker
    lines.append(f"inside   {', '.join(str(one['name']) for one in members)}")
    lines += [f"missing  {one['part']}: {one['why']}" for one in missing]
    lines.append("next     tar -xzf it, and paste summary.md into the ticket; `specdash replay` opens history.db")
    return lines
