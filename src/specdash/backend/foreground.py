"""Runs a planned server in the foreground, and swaps it for a newly planned one when SIGUSR1 asks for that."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from specdash.backend.child import Child
from specdash.backend.launch import check_port, plan_from_file
from specdash.backend.listening import clear_stale_socket
from specdash.backend.log_file import LogFile
from specdash.backend.session import Session
from specdash.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.backend.launch import Plan

_ANY_PORT = "a free port"
"""How a plan says that its port was chosen because the file says 0."""


def run(
    plan: Plan,
    *,
    engine: str | None = None,
    log: str | None = None,
    received: list[int] | None = None,
    check: Callable[[Plan], None] = lambda _: None,
) -> int:
    """Run the server until it ends or a signal stops it. Must be called from the main thread.

    SIGUSR1 reads the env file again and, when what it says can be run, puts a new server in the place of the old;
    `engine` and `log` go on overriding their keys then. `received` are signals that came before this call. `check`
    raises `SpecdashError` for a plan that must not be started, now or later.

    Returns 0 after SIGTERM or SIGHUP and when the server ends well by itself, 130 after Ctrl-C. Raises `SpecdashError`
    with the last errors of its log when it fails.
    """
    check_port(plan.settings)
    check(plan)
    clear_stale_socket(plan.settings)
    kept = LogFile(plan.log, plan.settings.log_max_mib)
    try:
        child = Child.start(plan.argv, plan.environment())
    except BaseException:
        kept.close()
        raise

    def next_plan(now: Plan) -> Plan:
        made = replan(now, engine, log)
        check(made)
        return made

    session = Session(plan, child, kept, next_plan, received if received is not None else [])
    try:
        return session.run()
    finally:
        session.close()


def replan(current: Plan, engine: str | None, log: str | None) -> Plan:
    """What the env file of `current` asks for now. A port of 0 keeps the port that `current` has.

    Raises `SpecdashError` when it cannot be run, or would listen on a port that somebody else has.
    """
    if current.env_file is None:
        raise InputError("the settings come from the environment; start with --env-file to have a file to read again")
    plan = plan_from_file(current.env_file, engine=engine, log=log)
    plan = _on_the_same_port(plan, current, log)
    if plan.settings.port != current.settings.port:
        check_port(plan.settings)
    return plan


def _on_the_same_port(plan: Plan, current: Plan, log: str | None) -> Plan:
    if not plan.settings.parameters["port"].source.endswith(_ANY_PORT):
        return plan
    settings = plan.settings.with_value("port", current.settings.port, "the port it has")
    # The default log is named after the port, and so goes on too.
    kept = plan.log if log or settings.log_file else current.log
    return dataclasses.replace(plan, settings=settings, log=kept)


def report_warnings(plan: Plan, say: Callable[[str], None]) -> None:
    """Say each warning of the plan on a line of its own."""
    for warning in plan.warnings:
        say(f"specdash: warning: {warning}")
