"""`specdash bench soak`: a proxy under many turns of one session."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from specdash.cli.options import within
from specdash.core.errors import ExitCode, SpecdashError, UnreachableError, UsageError
from specdash.system.http import status_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from specdash.bench.report import Results, StepProgress
    from specdash.bench.soak import SoakReport, SoakTurn

DEFAULT_URL = "http://127.0.0.1:4000"
DEFAULT_TURNS = 10
DEFAULT_TIMEOUT_S = 600.0
PROBE_S = 5.0
START_S = 60.0
MOST_TURNS = 10_000_000
MOST_S = 30 * 86400.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", metavar="PROXY", help=f"the proxy's address (default: {DEFAULT_URL})")
    parser.add_argument("--demo", action="store_true", help="start the bundled backend and a proxy, and soak those")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--turns", type=int, metavar="N", help=f"default: {DEFAULT_TURNS}")
    length.add_argument("--for", dest="span", metavar="T", help="as many turns as fit into it, such as 90s, 20m or 2h")
    parser.add_argument(
        "--timeout", type=float, default=DEFAULT_TIMEOUT_S, metavar="S", help="longest silence, seconds"
    )
    parser.add_argument("--key-env", metavar="NAME", help="environment variable that holds the proxy's key")
    parser.add_argument(
        "--pid", type=int, action="append", default=[], metavar="PID", help="watch this process, too (repeatable)"
    )
    parser.add_argument("--out", metavar="DIR", help="folder for the results (default, with --for: one of its own)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from specdash.cli.signals import stopped_by_signals
    from specdash.core.target import normalise_url

    span = _span(args.span) if args.span is not None else None
    within("--turns", args.turns, None, 1, MOST_TURNS)
    within("--timeout", args.timeout, None, 0.1, 86400.0)
    if args.demo and args.url:
        raise UsageError("--demo starts its own proxy: leave --url out")
    _check_pids(args.pid)
    key = _key(args.key_env)
    with stopped_by_signals():
        if args.demo:
            with demo_proxy() as (url, env):
                return _soak(url, env, args, key, span)
        url = normalise_url(args.url or DEFAULT_URL)
        if status_of(url, "/health", PROBE_S) is None:
            raise UnreachableError(
                f"no proxy answers at {url}: start it with `specdash proxy run`, or name it with --url"
            )
        return _soak(url, os.environ, args, key, span)


@contextmanager
def demo_proxy() -> Iterator[tuple[str, dict[str, str]]]:
    """The bundled backend and a proxy in front of it: the proxy's address, and the environment of their records."""
    from specdash.backend.demo import DRAFT_TYPE
    from specdash.cli.demo import demo_environment, last_line, private_directory, start_backend, start_proxy
    from specdash.control.keeper import Keeper

    with private_directory() as directory, Keeper() as keeper:
        target = start_proxy(keeper, directory, start_backend(keeper, directory, (DRAFT_TYPE,), "auto"))
        if target.proxy_url is None:
            raise SpecdashError("the proxy's packages are not installed: `pip install '.[proxy]'`")
        deadline = time.monotonic() + START_S
        while status_of(target.proxy_url, "/health", PROBE_S) != 200:
            if time.monotonic() > deadline:
                raise SpecdashError(f"the demo's proxy did not start: {last_line(directory / 'proxy.out')}")
            time.sleep(0.1)
        yield target.proxy_url, demo_environment(directory)


def _span(text: str) -> float:
    from specdash.core.moments import parse_length

    seconds = parse_length(text)
    if not 1 <= seconds <= MOST_S:
        raise UsageError(f"--for {text}: must be 1s to 30d")
    return seconds


def _check_pids(pids: list[int]) -> None:
    from specdash.system.processes import began

    for pid in pids:
        if began(pid) is None:
            raise UsageError(f"--pid {pid}: no such process, or it may not be looked at")


def _soak(url: str, env: Mapping[str, str], args: argparse.Namespace, key: str | None, span: float | None) -> int:
    """Soak it, with an eye on its processes; Ctrl-C reports what there is."""
    from specdash.bench.report import Results, StepProgress
    from specdash.bench.soak import SoakReport, SoakWatch, processes_of, soak

    turns = args.turns or (DEFAULT_TURNS if span is None else MOST_TURNS)
    keeps = args.out is not None or span is not None
    results = Results.new("soak", args.out) if keeps else None
    progress = StepProgress(span or turns, quiet=args.json or span is None)
    on_turn = _TurnPrinter(progress, span, results, quiet=args.json)
    done: list[SoakTurn] = []
    interrupted = False
    with SoakWatch(lambda: {**processes_of(url, env), **{f"process {pid}": pid for pid in args.pid}}) as watch:
        try:
            until = None if span is None else time.monotonic() + span
            soak(url, turns, key=key, timeout=args.timeout, on_turn=on_turn, until=until, done=done)
        except KeyboardInterrupt:
            interrupted = True
    progress.end()
    report = SoakReport(tuple(done), watch.watched, interrupted)
    if results is not None:
        _leave(results, report)
        if results.trouble is not None:
            progress.say(str(results.trouble))
    _print(args, report, results)
    if interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if report.passed else ExitCode.FAILED


class _TurnPrinter:
    """Says of every turn what came of it; of a soak by the hour only what went wrong."""

    def __init__(self, progress: StepProgress, span: float | None, results: Results | None, *, quiet: bool) -> None:
        self._progress, self._span, self._results, self._quiet = progress, span, results, quiet
        self._began = time.monotonic()
        self._faults = 0

    def __call__(self, turn: SoakTurn) -> None:
        from specdash.bench.soak import turn_json

        if self._results is not None:
            kept = turn_json(turn)
            self._results.add({name: value for name, value in kept.items() if name not in ("text", "inputs")})
        if self._quiet:
            return
        seen = turn.seen
        self._faults += turn.fault is not None
        if self._span is None or turn.fault is not None:
            made = ", ".join(name for name, _ in seen.calls) or "no call"
            outcome = turn.fault or f"{seen.stop_reason}, {made}"
            self._progress.end()
            print(
                f"{turn.number + 1:>4}  {turn.kind:<6}  {seen.duration_s:7.2f} s  {outcome}",
                file=sys.stderr,
                flush=True,
            )
        if self._span is not None:
            spent = time.monotonic() - self._began
            words = f"turn {turn.number + 1}, {self._faults} at fault"
            self._progress.show(spent, words, max(0.0, self._span - spent))


def _leave(results: Results, report: SoakReport) -> None:
    from specdash.bench.report import REPORT_JSON, REPORT_MD
    from specdash.bench.soak import markdown

    results.write_json(REPORT_JSON, report.as_json())
    results.write(REPORT_MD, markdown(report))
    for process in report.watched:
        rows = "".join(
            f"{look.at:.1f},{look.memory},{'' if look.descriptors is None else look.descriptors},{look.threads}\n"
            for look in process.looks
        )
        results.write(f"{process.role.replace(' ', '-')}.csv", "at,memory_bytes,descriptors,threads\n" + rows)
    results.close()


def _print(args: argparse.Namespace, report: SoakReport, results: Results | None) -> None:
    from specdash.bench.soak import over_time, summary

    if args.json:
        print(json.dumps(report.as_json(), indent=1))
        return
    lines = over_time(report)
    print("\n".join([*lines, *([""] if lines else []), *summary(report)]))
    if results is not None:
        print(f"{'results':<20}{results.directory}")


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    value = os.environ.get(name)
    if not value:
        raise UsageError(f"--key-env {name}: no such environment variable, or it is empty")
    return value
