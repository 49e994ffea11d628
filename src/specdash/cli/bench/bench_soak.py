"""`specdash bench soak|apply-storm`: a proxy under many turns of one session, and services under applies and load."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from specdash.cli.options import within
from specdash.core.errors import ExitCode, UnreachableError, UsageError
from specdash.system.http import status_of
from specdash.system.text import UNKNOWN

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from specdash.bench.report import Results, StepProgress
    from specdash.bench.soak import SoakReport, SoakTurn

DEFAULT_URL = "http://127.0.0.1:4000"
DEFAULT_TURNS = 10
DEFAULT_TIMEOUT_S = 600.0
PROBE_S = 5.0
MOST_TURNS = 10_000_000
MOST_S = 30 * 86400.0


def add_soak(parser: argparse.ArgumentParser) -> None:
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


def soak(args: argparse.Namespace) -> int:
    from specdash.bench.apply_storm import storm_services
    from specdash.cli.demo import private_directory
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
            with private_directory() as directory, storm_services("supervisor", directory, "auto") as services:
                return _soak(services.proxy_url, services.env, args, key, span)
        url = normalise_url(args.url or DEFAULT_URL)
        if status_of(url, "/health", PROBE_S) is None:
            raise UnreachableError(
                f"no proxy answers at {url}: start it with `specdash proxy run`, or name it with --url"
            )
        return _soak(url, os.environ, args, key, span)


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
    """Soak it, with an eye on its processes; what there is after Ctrl-C is told, too."""
    from specdash.bench.report import Results, StepProgress
    from specdash.bench.soak import SoakReport, SoakWatch, processes_of, soak

    turns = args.turns or (DEFAULT_TURNS if span is None else MOST_TURNS)
    keeps = args.out is not None or span is not None
    results = Results.new("soak", args.out) if keeps else None
    progress = StepProgress(span or turns, quiet=args.json or span is None)
    told = _Told(progress, span, results, quiet=args.json)
    done: list[SoakTurn] = []
    interrupted = False
    with SoakWatch(lambda: {**processes_of(url, env), **{f"process {pid}": pid for pid in args.pid}}) as watch:
        try:
            until = None if span is None else time.monotonic() + span
            soak(url, turns, key=key, timeout=args.timeout, on_turn=told, until=until, done=done)
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
    return ExitCode.OK if report.passed and not report.leaks else ExitCode.FAILED


class _Told:
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
            said = turn.fault or f"{seen.stop_reason}, {made}"
            self._progress.end()
            print(
                f"{turn.number + 1:>4}  {turn.kind:<6}  {seen.duration_s:7.2f} s  {said}", file=sys.stderr, flush=True
            )
        if self._span is not None:
            spent = time.monotonic() - self._began
            words = f"turn {turn.number + 1}, {self._faults} at fault"
            self._progress.show(spent, words, max(0.0, self._span - spent))


def _leave(results: Results, report: SoakReport) -> None:
    from specdash.bench.report import REPORT_JSON, REPORT_MD
    from specdash.bench.soak import markdown, plots

    names = []
    for name, picture in plots(report):
        results.write(f"{name}.svg", picture)
        names.append(name)
    results.write_json(REPORT_JSON, report.as_json())
    results.write(REPORT_MD, markdown(report, names))
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


# `bench apply-storm`: applying changes under load.

DEFAULT_APPLIES = 50
DEFAULT_CLIENTS = 4


def add_apply_storm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--applies", type=int, default=DEFAULT_APPLIES, metavar="N", help=f"default: {DEFAULT_APPLIES}")
    parser.add_argument("--clients", type=int, default=DEFAULT_CLIENTS, metavar="N", help=f"default: {DEFAULT_CLIENTS}")
    parser.add_argument(
        "--manager", choices=["auto", "systemd", "supervisor"], default="auto", help="what runs the services"
    )
    parser.add_argument("--engine", choices=["auto", "llama-server", "xllamacpp"], default="auto")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the mix (default: 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def apply_storm(args: argparse.Namespace) -> int:
    import socket

    from specdash.backend.launch import plan_from_file
    from specdash.bench.apply_storm import HEALTH_TIMEOUT_S, Attempt, broken_binary, cases, storm, storm_services
    from specdash.cli.demo import private_directory
    from specdash.control.apply.apply import ApplyOptions
    from specdash.control.services.systemd import available
    from specdash.core.parameter_catalogue import ENGINE

    within("--applies", args.applies, None, 1, 10_000)
    within("--clients", args.clients, None, 1, 64)
    manager = args.manager
    if manager == "auto":
        manager = "supervisor" if available(os.environ) is not None else "systemd"

    def told(attempt: Attempt) -> None:
        down = "" if attempt.downtime_s is None else f"  down {attempt.downtime_s:.2f} s"
        said = attempt.fault or f"{attempt.outcome}{down}"
        print(
            f"{attempt.number:>4}  {attempt.name:<38}  {attempt.duration_s:6.2f} s  {said}", file=sys.stderr, flush=True
        )

    flags = [flag for parameter in ENGINE for flag in (*parameter.flags, *parameter.off_flags)]
    with private_directory() as directory, socket.create_server(("127.0.0.1", 0)) as foreign:
        mix = cases(args.seed, broken_binary(directory, [*flags, "--spec-type"]), foreign.getsockname()[1])
        with storm_services(manager, directory, args.engine) as services:
            backend = services.deployment.backend
            engine = plan_from_file(str(backend.env_file)).engine.words if backend is not None else ""
            options = ApplyOptions(health_timeout_s=HEALTH_TIMEOUT_S, settle_s=0)
            report = storm(
                services.deployment,
                services.proxy_url,
                mix,
                args.applies,
                args.clients,
                options,
                services.env,
                engine=engine,
                on_attempt=None if args.json else told,
            )
    print(json.dumps(report.as_json(), indent=1) if args.json else _text(report.as_json()))
    return ExitCode.OK if report.passed else ExitCode.FAILED


def _text(told: dict[str, Any]) -> str:
    def spread(name: str) -> str:
        values = told[name]
        return UNKNOWN if values["p50"] is None else f"{values['p50']:.3f} s / {values['max']:.3f} s"

    outcomes = ", ".join(f"{count} {name}" for name, count in told["outcomes"].items() if count)
    faults = [f"apply {attempt['number']}: {attempt['fault']}" for attempt in told["attempts"] if attempt["fault"]]
    rows = [
        ("services", f"{told['manager']}, {told['engine']}"),
        ("applies", f"{told['applies']}: {outcomes}"),
        ("requests", f"{told['requests']}, {len(told['errors'])} failed"),
        ("longest request", f"{told['longest_request_s'] or 0:.2f} s"),
        ("downtime p50 / max", spread("downtime_s")),
        ("engine's own load", spread("engine_load_s")),
        ("on top of it", spread("overhead_s")),
        *(("fault", text) for text in faults),
        *(("failed request", f"{error['way']}: {error['error']}") for error in told["errors"][:10]),
        ("verdict", "passed" if told["passed"] else "failed"),
    ]
    return "\n".join(f"{name:<20}{value}" for name, value in rows)
