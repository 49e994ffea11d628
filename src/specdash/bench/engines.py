"""An engine to measure on, beside the service."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specdash.bench.load.samples import EngineAddress
from specdash.core.errors import RefusedError, SpecdashError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdash.backend.child import Child
    from specdash.backend.launch import LaunchPlan
    from specdash.backend.settings import BackendSettings

SPEC_TYPE = "LLAMA_SPEC_TYPE"
OFF = "none"
START_S = 600.0
_STOP_S = 5.0
_ENDING_S = 1.0
_POLL_S = 0.05
_ABOUT_DRAFTS = ("spec-", "lookup-cache-")
_NATIVE = ("LLAMA_ARG_SPEC_", "LLAMA_ARG_LOOKUP_")
_KEYS = ("LLAMA_DRAFT_", "LLAMA_SPEC_", *_NATIVE)


def with_machine_keys(values: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """An env's values, and those of this machine's engines (`backend.settings.MACHINE_KEYS`) that they leave open."""
    from specdash.backend.settings import MACHINE_KEYS

    return {**{key: env[key] for key in MACHINE_KEYS if env.get(key)}, **values}


def plan_beside(
    values: Mapping[str, str],
    env_file: str,
    log: Path,
    who: str,
    *,
    engine: str | None = None,
    speculates: bool = True,
    env: Mapping[str, str] = os.environ,
    **parameters: bool | float | str,
) -> LaunchPlan:
    """A server of an env's values on a free port of this machine, for the command `who` alone, with some `parameters`
    set otherwise, and without speculation where that is not wanted.

    Raises `SpecdashError` for what the backend itself would refuse.
    """
    from specdash.backend.launch import make_plan

    plan = make_plan({**with_machine_keys(values, env), "LLAMA_PORT": "0"}, engine=engine, base=env)
    settings = plan.settings if speculates else without_speculation(plan.settings)
    for name, value in {"host": "127.0.0.1", "slots": True, **parameters}.items():
        settings = settings.with_value(name.replace("_", "-"), value, who)
    return on_free_port(replace(plan, settings=settings, log=str(log), env_file=env_file), who)


def on_free_port(plan: LaunchPlan, who: str) -> LaunchPlan:
    """The plan on a port that no one has now."""
    from specdash.backend.launch import free_port

    return replace(plan, settings=plan.settings.with_value("port", free_port("127.0.0.1"), who, ", a free port"))


def without_speculation(settings: BackendSettings) -> BackendSettings:
    """The settings without anything about drafts: a draft model alone would be loaded, and might be used."""
    parameters = {
        name: parameter for name, parameter in settings.parameters.items() if not name.startswith(_ABOUT_DRAFTS)
    }
    native = {name: value for name, value in settings.native.items() if not name.startswith(_NATIVE)}
    return replace(settings, parameters=parameters, native=native, spec_types=(), spec_source="baseline")


def check_memory(values: Mapping[str, str], env: Mapping[str, str] = os.environ) -> None:
    """Raise `RefusedError` when a second server does not fit into memory beside what runs now."""
    wanted = {key: value for key, value in values.items() if not key.startswith(_KEYS)} | {SPEC_TYPE: OFF}
    problem = memory_problem(wanted, env)
    if problem is not None:
        raise RefusedError(
            f"no second server fits beside the one that runs: {problem}; use --url URL, which measures on the running "
            "server by completions of two tokens, or --force"
        )


def memory_problem(values: Mapping[str, str], env: Mapping[str, str] = os.environ) -> str | None:
    """Why a server of these settings does not fit into memory beside what runs now; None when it does."""
    from specdash.backend.plan import Circumstances, plan
    from specdash.backend.rules.machine import MEMORY_RULES
    from specdash.core.errors import Severity

    for finding in plan(values, Circumstances(None, frozenset({SPEC_TYPE}), base=env)).findings:
        if finding.rule in MEMORY_RULES and finding.severity is not Severity.INFO:
            return finding.message
    return None


@contextmanager
def own_engine(
    plan: LaunchPlan, *, start_s: float = START_S, name: str = "the server without speculation"
) -> Iterator[EngineAddress]:
    """Run the planned server; it is gone afterwards, also when we are killed. Raises `SpecdashError` if it fails.

    When it ends by itself meanwhile, an error that comes of it says so, with the last of its log.
    """
    from specdash.backend.child import Child
    from specdash.backend.launch import check_port
    from specdash.backend.start_check import server_key
    from specdash.system.http import trust

    check_port(plan.settings)
    settings = plan.settings
    if settings.certificate is not None:
        trust(settings.url, settings.certificate)
    with open(plan.log, "wb") as log:  # noqa: PTH123
        child = Child(plan.argv, plan.environment(), output=log)
        try:
            _wait_healthy(child, plan, start_s, name)
            try:
                yield EngineAddress(settings.url, server_key(settings), log=plan.log)
            except SpecdashError as error:
                if not child.exited(_ENDING_S):
                    raise
                raise SpecdashError(f"{error}; {_ended(child, name, plan)}") from None
        finally:
            child.stop(_STOP_S)


def _ended(child: Child, name: str, plan: LaunchPlan) -> str:
    from specdash.backend.child import describe_exit

    code = child.finish()
    return f"{name} ended with {describe_exit(code)}: {last_words(plan.log, code)}"


def _wait_healthy(child: Child, plan: LaunchPlan, start_s: float, name: str) -> None:
    from specdash.backend.start_check import healthy

    deadline = time.monotonic() + start_s
    while not healthy(plan.settings.url):
        if child.exited():
            raise SpecdashError(_ended(child, name, plan))
        if time.monotonic() > deadline:
            raise SpecdashError(f"{name} was not ready within {start_s:.0f} s")
        time.sleep(_POLL_S)


def last_words(log: str, exit_code: int | None = None) -> str:
    """Why an engine ended, or runs without speculation, from its log: the known cause, else its last line."""
    from specdash.llama.start_failures import explain

    lines = [line for line in Path(log).read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    cause = explain(lines, exit_code)
    if cause is not None:
        return f"{cause.because}; {cause.fix}"
    errors = [line for line in lines if " E " in line or "error" in line.lower()]
    return "; ".join((errors or lines)[-2:]) or "it printed nothing"


def last_said(log: str | None) -> str:
    """What the log says of an engine that went away, to be added to a sentence; empty where nothing can be read."""
    try:
        return f"; {last_words(log)}" if log is not None else ""
    except OSError:
        return ""
