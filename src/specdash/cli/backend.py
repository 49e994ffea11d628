"""`specdash backend run|show`: the bundled llama.cpp backend, from an env file."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Any

from specdash.cli.options import add_actions, print_answer
from specdash.core.errors import ExitCode
from specdash.core.structs import json_of

if TYPE_CHECKING:
    import argparse

    from specdash.backend.launch import LaunchPlan

ENGINES = ("auto", "llama-server", "xllamacpp")


def configure(parser: argparse.ArgumentParser) -> None:
    parsers = add_actions(parser, {"run": "run the server in the foreground", "show": "print what would run, and why"})
    for argument_parser in parsers.values():
        argument_parser.add_argument(
            "--env-file",
            metavar="F",
            help="backend env in systemd's EnvironmentFile dialect (default: ~/.config/specdash/llama-server.env)",
        )
        argument_parser.add_argument("--engine", choices=ENGINES, help="engine to use; overrides LLAMA_ENGINE")
        argument_parser.add_argument(
            "--log-file", metavar="L", help="file for the server's output; overrides LLAMA_LOG_FILE"
        )
    parsers["run"].add_argument(
        "--no-preflight", action="store_true", help="start it even if `specdash preflight` would refuse the settings"
    )
    parsers["show"].add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run or show; see `configure`."""
    received: list[int] = []
    if args.action == "run":
        # A user may ask for a swap as soon as we are there: that must not end us, and not be lost.
        signal.signal(signal.SIGUSR1, lambda number, _frame: received.append(number))
    from specdash.backend.launch import plan_from_file

    def planned(data: bytes | None) -> LaunchPlan:
        return plan_from_file(args.env_file, data=data, engine=args.engine, log=args.log_file)

    def judged(data: bytes | None) -> LaunchPlan:
        plan = planned(data)
        if not args.no_preflight:
            _refuse(plan)
        return plan

    if args.action == "show":
        plan = planned(None)
        print_answer(_as_json(plan), _as_text(plan), as_json=args.json)
        return ExitCode.OK
    from specdash.backend import session
    from specdash.backend.trial import repair
    from specdash.core.paths import backend_env_file

    env_file = args.env_file or str(backend_env_file())
    # What a runner that was killed left half-done goes back before the env file is read.
    lines, held = repair(env_file)
    for line in lines:
        print(f"specdash: {line}", file=sys.stderr, flush=True)
    plan = session.first_plan(env_file, judged, planned)
    # A full disk behind standard error keeps no server down.
    with contextlib.suppress(OSError):
        for warning in plan.warnings:
            print(f"specdash: warning: {warning}", file=sys.stderr, flush=True)
    return session.run(plan, judged, received, held)


def _refuse(plan: LaunchPlan) -> None:
    """Raise `InputError` for the first error of the settings that no restart would mend.

    An error of the moment is left to the engine: given up for it, a service would stay down.
    """
    from specdash.backend.rules.machine import OF_THE_MOMENT
    from specdash.core.errors import InputError, errors

    for finding in errors(plan.findings):
        if finding.rule not in OF_THE_MOMENT:
            raise InputError(finding.line, key=finding.key)


def _as_json(plan: LaunchPlan) -> dict[str, Any]:
    choice = plan.settings.choice
    return {
        "engine": json_of(plan.engine, "kind path version reason"),
        **json_of(plan, "log env_file argv rendered"),
        "url": plan.settings.url,
        "environment": plan.shown_environment,
        "parameters": plan.reasons,
        "speculation": dict(plan.speculation),
        "decided": [] if choice is None else [{"name": "spec-type", "value": choice.chain, "because": choice.because}],
        "warnings": list(plan.warnings),
    }


def _as_text(plan: LaunchPlan) -> str:
    lines = [
        f"engine  {plan.engine.words} ({plan.engine.reason})",
        f"url     {plan.settings.url}",
        f"log     {plan.log}",
        "",
        "would run",
        f"  {shlex.join(plan.argv)}",
    ]
    if plan.engine.kind == "xllamacpp":
        lines += [f"    params.{text}" for text in plan.rendered]
    lines += ["", "with the environment"]
    lines += [f"  {key}={shlex.quote(value)}" for key, value in plan.shown_environment.items()]
    if (choice := plan.settings.choice) is not None:
        lines += ["", "decided by specdash (auto)", f"  spec-type = {choice.chain}: {choice.because}"]
    width = max(len(f"{row['name']} = {row['value']}") for row in plan.reasons)
    lines += ["", "because"]
    for row in plan.reasons:
        setting = f"{row['name']} = {row['value']}"
        lines.append(f"  {setting:<{min(width, 60)}}  {row['source']}: {row['meaning']}")
    if plan.warnings:
        lines += ["", "warnings", *(f"  {warning}" for warning in plan.warnings)]
    return "\n".join(lines)
