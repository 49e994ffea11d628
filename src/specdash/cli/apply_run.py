"""What apply and rollback do alike: an unfinished one first, then plan, show, ask, run, report."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from specdash.cli.apply_view import StepPrinter, confirm, exit_code, plan_json, plan_lines, recovered_code, report
from specdash.cli.options import add_settings, resolved_settings
from specdash.cli.signals import cancelled_by_signals, undisturbed
from specdash.control.apply import Apply, ApplyOptions
from specdash.control.deployment import find_deployment
from specdash.control.recover import recover, unfinished
from specdash.control.trial import abandoned
from specdash.control.trial_end import restore_abandoned
from specdash.core.config import APPLY_SETTINGS, SERVICE_SETTINGS
from specdash.core.errors import ExitCode, UnfinishedApplyError

if TYPE_CHECKING:
    import argparse

    from specdash.control.apply import ApplyPlan
    from specdash.control.services import Deployment
    from specdash.core.applies import ApplyRecord


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that apply and rollback share."""
    parser.add_argument("--dry-run", action="store_true", help="show the plan and end; exit 7 when it is refused")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    parser.add_argument("--force", action="store_true", help="cut requests off that do not end in the drain's time")
    parser.add_argument("--json", action="store_true", help="print the record of it as one JSON object")
    add_settings(parser, (*APPLY_SETTINGS, *SERVICE_SETTINGS))


def deployment_of(args: argparse.Namespace) -> tuple[Deployment, ApplyOptions]:
    """The services that the settings name or that are found, and how patient to be with them."""
    settings = resolved_settings(args)
    options = ApplyOptions(
        drain_timeout_s=settings["drain_timeout"].value,
        health_timeout_s=settings["health_timeout"].value,
        settle_s=settings["settle_time"].value,
        force=bool(getattr(args, "force", False)),
    )
    return find_deployment(settings), options


def settle_unfinished(deployment: Deployment, *, allowed: bool, printer: StepPrinter) -> ApplyRecord | None:
    """Roll an apply back that was cut short, and put back what was left on trial, saying so; None when there is none.

    Raises `UnfinishedApplyError` where that is not `allowed`, and when it cannot be undone. Signals do not cut it
    short: KeyboardInterrupt comes afterwards.
    """
    with undisturbed() as asked:
        record = _settled(deployment, allowed=allowed, printer=printer)
    if asked.is_set():
        raise KeyboardInterrupt
    return record


def bring_up(deployment: Deployment) -> None:
    """Make sure that whoever runs the services can be asked, before something is done with them."""
    for service in (deployment.backend, deployment.proxy):
        if service is not None:
            service.manager.bring_up()


def _settled(deployment: Deployment, *, allowed: bool, printer: StepPrinter) -> ApplyRecord | None:
    bring_up(deployment)
    record = _settle_apply(deployment, allowed=allowed, printer=printer)
    trial = abandoned(os.environ)
    if trial is None:
        return record
    if not allowed:
        raise UnfinishedApplyError(f"{trial.words}; `specdash recover` puts its settings from before back")
    printer.say(f"specdash: {trial.words}: putting its settings from before back first")
    return restore_abandoned(trial, deployment, ApplyOptions(), printer, os.environ) or record


def _settle_apply(deployment: Deployment, *, allowed: bool, printer: StepPrinter) -> ApplyRecord | None:
    journal = unfinished(os.environ)
    if journal is None:
        return None
    if not allowed:
        raise UnfinishedApplyError(
            f"{journal.words}; `specdash recover` rolls it back, `specdash recover --finish` completes it"
        )
    printer.say(f"specdash: {journal.words}: rolling it back first")
    record = recover(deployment, journal, finish=False, on_progress=printer, env=os.environ)
    if recovered_code(record, finish=False) is not ExitCode.OK:
        raise UnfinishedApplyError(f"it could not be rolled back: {record.reason}")
    return record


def carry_out(args: argparse.Namespace, plan: ApplyPlan, options: ApplyOptions, printer: StepPrinter) -> int:
    """Show the plan, ask, do it, and say how it ended; the exit code."""
    if plan.empty:
        print(
            json.dumps({"outcome": "unchanged"}) if args.json else "nothing to change: everything is as wanted already"
        )
        return ExitCode.OK
    _show(plan, args)
    if args.dry_run:
        return ExitCode.REFUSED if plan.refused else ExitCode.OK
    if not plan.refused and not confirm("Apply this?", args.yes, "apply"):
        printer.say("nothing was changed")
        return ExitCode.OK
    apply = Apply(plan, options, printer, os.environ)
    with cancelled_by_signals(apply):
        record = apply.run()
        report(record, as_json=args.json)
    return exit_code(record, apply.error, changed=apply.changed)


def _show(plan: ApplyPlan, args: argparse.Namespace) -> None:
    """Print the plan: on stdout, or on stderr where stdout is for the record."""
    if args.json and args.dry_run:
        print(json.dumps(plan_json(plan, os.environ), indent=1))
    else:
        print("\n".join(plan_lines(plan, os.environ)), file=sys.stderr if args.json else sys.stdout, flush=True)
