"""`specdash bench soak|apply-storm`: trials of a running proxy, and of applying changes under load."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from specdash.core.errors import ExitCode, SpecdashError, UnreachableError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from specdash.bench.soak import Report, Turn

DEFAULT_URL = "http://127.0.0.1:4000"
DEFAULT_TURNS = 10
DEFAULT_APPLIES = 50
DEFAULT_CLIENTS = 4
DEFAULT_TIMEOUT_S = 600.0
PROXY = "proxy"
START_DEADLINE_S = 30.0
PROBE_S = 5.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="{soak,apply-storm}")
    _configure_storm(actions)
    soak = actions.add_parser(
        "soak",
        help="alternate turns that provoke malformed tool calls with normal tool turns, in one session",
        description="Exit code 0: no error, nothing malformed visible, every normal turn a usable tool call; else 1.",
        allow_abbrev=False,
    )
    soak.add_argument("--url", metavar="PROXY", help=f"the proxy's address (default: {DEFAULT_URL})")
    soak.add_argument("--demo", action="store_true", help="start the bundled backend and a proxy, and soak those")
    soak.add_argument("--turns", type=int, default=DEFAULT_TURNS, metavar="N", help=f"default: {DEFAULT_TURNS}")
    soak.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT_S, metavar="S", help="longest silence, seconds")
    soak.add_argument("--key-env", metavar="NAME", help="environment variable that holds the proxy's key")
    soak.add_argument("--json", action="store_true", help="print one JSON object")


def _configure_storm(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    storm = actions.add_parser(
        "apply-storm",
        help="apply good, bad and crashing settings in a row while clients never stop asking",
        description="Starts a backend on the bundled models and a proxy of its own. Exit code 0: no client saw an "
        "error, every apply ended as it must, and the env files are those of the last good one; else 1.",
        allow_abbrev=False,
    )
    storm.add_argument("--applies", type=int, default=DEFAULT_APPLIES, metavar="N", help=f"default: {DEFAULT_APPLIES}")
    storm.add_argument("--clients", type=int, default=DEFAULT_CLIENTS, metavar="N", help=f"default: {DEFAULT_CLIENTS}")
    storm.add_argument(
        "--manager", choices=["auto", "systemd", "supervisor"], default="auto", help="what runs the services"
    )
    storm.add_argument("--engine", choices=["auto", "llama-server", "xllamacpp"], default="auto")
    storm.add_argument("--seed", type=int, default=1, metavar="N", help="of the mix (default: 1)")
    storm.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Soak or storm; see `configure`."""
    return _run_storm(args) if args.action == "apply-storm" else _run_soak(args)


def _run_storm(args: argparse.Namespace) -> int:
    import socket

    from specdash.backend.launch import plan_from_file
    from specdash.bench.apply_storm import Attempt, storm
    from specdash.bench.storm_cases import HEALTH_TIMEOUT_S, broken_binary, cases
    from specdash.bench.storm_services import storm_services
    from specdash.cli.demo import private_directory
    from specdash.control.apply import ApplyOptions
    from specdash.control.systemd import available
    from specdash.core.parameter_catalogue import ENGINE

    for name, value, most in (("--applies", args.applies, 10_000), ("--clients", args.clients, 64)):
        if not 1 <= value <= most:
            raise UsageError(f"{name} {value}: wants 1 to {most}")
    manager = args.manager
    if manager == "auto":
        manager = "supervisor" if available(os.environ) is not None else "systemd"

    def told(one: Attempt) -> None:
        down = "" if one.downtime_s is None else f"  down {one.downtime_s:.2f} s"
        said = one.fault or f"{one.outcome}{down}"
        print(f"{one.number:>4}  {one.name:<38}  {one.duration_s:6.2f} s  {said}", file=sys.stderr, flush=True)

    flags = [flag for one in ENGINE for flag in (*one.flags, *one.off_flags)]
    with private_directory() as directory, socket.create_server(("127.0.0.1", 0)) as foreign:
        mix = cases(args.seed, broken_binary(directory, [*flags, "--spec-type"]), foreign.getsockname()[1])
        with storm_services(manager, directory, args.engine) as services:
            backend = services.deployment.backend
            engine = plan_from_file(str(backend.env_file)).engine.words if backend is not None else ""
            options = ApplyOptions(health_timeout_s=HEALTH_TIMEOUT_S)
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
    print(json.dumps(report.as_json(), indent=1) if args.json else _storm_text(report.as_json()))
    return ExitCode.OK if report.passed else ExitCode.FAILED


def _storm_text(told: dict[str, Any]) -> str:
    def spread(name: str) -> str:
        values = told[name]
        return "--" if values["p50"] is None else f"{values['p50']:.3f} s / {values['max']:.3f} s"

    outcomes = ", ".join(f"{count} {name}" for name, count in told["outcomes"].items() if count)
    faults = [f"apply {one['number']}: {one['fault']}" for one in told["attempts"] if one["fault"]]
    rows = [
        ("services", f"{told['manager']}, {told['engine']}"),
        ("applies", f"{told['applies']}: {outcomes}"),
        ("requests", f"{told['requests']}, {len(told['errors'])} failed"),
        ("longest request", f"{told['longest_request_s'] or 0:.2f} s"),
        ("downtime p50 / max", spread("downtime_s")),
        ("engine's own load", spread("engine_load_s")),
        ("on top of it", spread("overhead_s")),
        *(("fault", text) for text in faults),
        *(("failed request", f"{one['way']}: {one['error']}") for one in told["errors"][:10]),
        ("verdict", "passed" if told["passed"] else "failed"),
    ]
    return "\n".join(f"{name:<20}{value}" for name, value in rows)


def _run_soak(args: argparse.Namespace) -> int:
    from specdash.llama.address import normalise_url

    if not 1 <= args.turns <= 100_000:
        raise UsageError(f"--turns {args.turns}: wants 1 to 100000")
    if not 0 < args.timeout <= 86400:
        raise UsageError(f"--timeout {args.timeout:g}: wants a number of seconds above 0, at most 86400")
    if args.demo and args.url:
        raise UsageError("--demo starts its own proxy: leave --url out")
    key = _key(args.key_env)
    if args.demo:
        with demo_proxy() as url:
            report = _soak(url, args, key)
    else:
        url = normalise_url(args.url or DEFAULT_URL)
        if not _answers(url):
            raise UnreachableError(
                f"no proxy answers at {url}: start it with `specdash proxy run`, or name it with --url"
            )
        report = _soak(url, args, key)
    print(json.dumps(report.as_json(), indent=1) if args.json else _as_text(report))
    return ExitCode.OK if report.passed else ExitCode.FAILED


def _soak(url: str, args: argparse.Namespace, key: str | None) -> Report:
    from specdash.bench.soak import soak

    def told(turn: Turn) -> None:
        seen = turn.seen
        made = ", ".join(name for name, _ in seen.calls) or "no call"
        said = turn.fault or f"{seen.stop_reason}, {made}"
        print(f"{turn.number + 1:>4}  {turn.kind:<6}  {seen.duration_s:7.2f} s  {said}", file=sys.stderr, flush=True)

    return soak(url, args.turns, key=key, timeout=args.timeout, on_turn=None if args.json else told)


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    value = os.environ.get(name)
    if not value:
        raise UsageError(f"--key-env {name}: no such environment variable, or it is empty")
    return value


def _as_text(report: Report) -> str:
    reasons = ", ".join(f"{name} {count}" for name, count in report.stop_reasons.items())
    rows = (
        ("turns", str(len(report.turns))),
        ("error rate", _percent(report.error_rate)),
        ("malformed visible", _percent(report.malformed_visible_rate)),
        ("normal tool calls", _percent(report.tool_success_rate)),
        ("duration p50 / p95", f"{report.duration(0.5):.2f} s / {report.duration(0.95):.2f} s"),
        ("stop reasons", reasons),
        ("verdict", "passed" if report.passed else "failed"),
    )
    return "\n".join(f"{name:<20}{value}" for name, value in rows)


def _percent(share: float | None) -> str:
    return "--" if share is None else f"{share * 100:.1f} %"


@contextmanager
def demo_proxy() -> Iterator[str]:
    """The URL of a proxy in front of the bundled backend, both ended afterwards; raises `SpecdashError`."""
    from specdash.backend.demo import DRAFT_TYPE
    from specdash.backend.launch import free_port
    from specdash.cli.demo import private_directory, start_backend
    from specdash.control.supervisor import Service, Supervisor

    with private_directory() as directory, Supervisor() as supervisor:
        target = start_backend(supervisor, directory, (DRAFT_TYPE,), "auto")
        port = free_port("127.0.0.1")
        env_file = directory / "proxy.env"
        env_file.write_text(
            f"LLAMA_CPP_BASE={target.url}/v1\nPROXY_PORT={port}\nPROXY_EVENTS_FILE=off\n", encoding="utf-8"
        )
        argv = (sys.executable, "-m", "specdash", "proxy", "run", "--env-file", str(env_file))
        env = {**os.environ, "XDG_STATE_HOME": str(directory)}
        url = f"http://127.0.0.1:{port}"
        supervisor.add(Service(PROXY, argv, env, log=str(directory / "proxy.out"), ready=lambda: _answers(url)))
        supervisor.start(PROXY)
        status = supervisor.wait_ready(PROXY, START_DEADLINE_S)
        if status.state != "ready":
            raise SpecdashError(f"the proxy did not start: {status.detail or status.state}")
        yield url


def _answers(url: str) -> bool:
    import httpx

    try:
        httpx.get(f"{url}/health", timeout=PROBE_S, trust_env=False)
    except httpx.HTTPError:
        return False
    return True
