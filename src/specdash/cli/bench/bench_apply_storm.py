"""`specdash bench apply-storm`: applying changes under load."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from specdash.cli.options import within
from specdash.core.errors import ExitCode
from specdash.system.text import UNKNOWN

if TYPE_CHECKING:
    import argparse

DEFAULT_APPLIES = 50
DEFAULT_CLIENTS = 4


def configure(storm: argparse.ArgumentParser) -> None:
    storm.add_argument("--applies", type=int, default=DEFAULT_APPLIES, metavar="N", help=f"default: {DEFAULT_APPLIES}")
    storm.add_argument("--clients", type=int, default=DEFAULT_CLIENTS, metavar="N", help=f"default: {DEFAULT_CLIENTS}")
    storm.add_argument(
        "--manager", choices=["auto", "systemd", "supervisor"], default="auto", help="what runs the services"
    )
    storm.add_argument("--engine", choices=["auto", "llama-server", "xllamacpp"], default="auto")
    storm.add_argument("--seed", type=int, default=1, metavar="N", help="of the mix (default: 1)")
    storm.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
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
