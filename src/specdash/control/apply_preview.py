"""A plan as an operator wants to see it before saying yes: the diff, the engine's arguments, what will be done."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.backend.launch import make_plan
from specdash.control.apply_engine import recorded_engine
from specdash.control.service_command import Program, started
from specdash.control.services import ServiceState
from specdash.core.changes import Role, shown_value
from specdash.core.env_edit import masked_diff
from specdash.core.errors import SpecdashError
from specdash.core.key_help import key_help
from specdash.core.masking import without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.control.apply_plan import ApplyPlan, Edit


@dataclass(frozen=True, slots=True)
class EditPreview:
    """One service's part of a plan. All texts are without secrets.

    `arguments` are the engine's arguments that go (`-`) and come (`+`), or why there are none (`!`); `readers` say per
    changed key which spec types read it.
    """

    role: Role
    service: str
    env_file: str
    diff: tuple[str, ...]
    action: str
    arguments: tuple[str, ...] = ()
    readers: tuple[tuple[str, str], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For `specdash apply --dry-run --json`."""
        return {
            "service": self.service,
            "role": str(self.role),
            "env_file": self.env_file,
            "diff": list(self.diff),
            "action": self.action,
            "arguments": list(self.arguments),
            "readers": dict(self.readers),
        }


def preview(plan: ApplyPlan, env: Mapping[str, str] = os.environ) -> tuple[EditPreview, ...]:
    """What the plan will do to each service. Asks the managers how the services stand; touches nothing."""
    return tuple(_edit(edit, env) for edit in plan.edits)


def _edit(edit: Edit, env: Mapping[str, str]) -> EditPreview:
    before, after = (data.decode("utf-8", "replace") for data in (edit.snapshot.data, edit.data))
    backend = edit.role is Role.BACKEND
    return EditPreview(
        role=edit.role,
        service=edit.service.name,
        env_file=str(edit.service.env_file),
        diff=tuple(masked_diff(before, after, str(edit.service.env_file))),
        action=_action(edit, env),
        arguments=_arguments(edit, env) if backend else (),
        readers=tuple((change.key, _readers(change.key)) for change in edit.changes) if backend else (),
    )


def _action(edit: Edit, env: Mapping[str, str]) -> str:
    try:
        status = edit.service.status()
    except SpecdashError as error:
        return f"cannot be told: {error}"
    if not status.alive:
        return f"start {edit.service.name}, which does not run now"
    if edit.role is Role.PROXY:
        if not edit.needs_restart:
            return f"reload {edit.service.name}, without dropping a stream"
        kept = "; its listening socket stays open" if edit.service.socket else ""
        return f"restart {edit.service.name}{kept}"
    engine = recorded_engine(edit.service, env, status.pid)
    if edit.service.reloads and status.state is ServiceState.RUNNING and engine is not None and engine.digest:
        return f"swap the engine of {edit.service.name}, while the proxies hold their clients"
    return f"restart {edit.service.name}, while the proxies hold their clients"


def _of_the_unit(edit: Edit) -> tuple[str, ...]:
    """What changes in the command line and the environment of a unit that is not ours."""
    command = edit.service.command
    assert command is not None  # noqa: S101 - asked before
    before, after = (
        {key: shown_value(key, value) or "" for key, value in command.variables(edit.service.env_file, values).items()}
        for values in (edit.snapshot.file.values, edit.values)
    )
    sides = [
        [*_lines(command.argv(one)), *(f"environment {key}={one[key]}" for key in changed if key in one)]
        for changed in [[one.key for one in edit.changes]]
        for one in (before, after)
    ]
    lines = [line for line in difflib.ndiff(sides[0], sides[1]) if line.startswith(("- ", "+ "))]
    argv = command.argv(after)
    program = started(argv)
    if not lines:
        lines.append(f"! nothing changes in what {edit.service.name} runs: {' '.join(argv)}")
    elif program.program is not Program.SERVER:
        lines.append(f"! {program.path} decides what its server gets of it: that is seen after the restart")
    return tuple(without_secrets(line) for line in lines)


def _arguments(edit: Edit, env: Mapping[str, str]) -> tuple[str, ...]:
    if edit.service.command is not None:
        return _of_the_unit(edit)
    try:
        after = _rendered(edit, edit.values, env)
    except SpecdashError as error:
        return (without_secrets(f"! {error}"),)
    try:
        before = _rendered(edit, edit.snapshot.file.values, env)
    except SpecdashError as error:
        before = [f"({error})"]
    lines = difflib.ndiff(before, after)
    return tuple(without_secrets(line) for line in lines if line.startswith(("- ", "+ ")))


def _rendered(edit: Edit, values: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    """The engine's arguments one a line. Raises SpecdashError where there are none."""
    plan = make_plan(values, base=env, env_file=str(edit.service.env_file))
    if plan.engine.kind == "xllamacpp":
        return [f"{plan.engine.kind} {plan.engine.version}", *plan.rendered]
    return [f"{plan.engine.path} {plan.engine.version}", *_lines(plan.rendered)]


def _lines(words: Sequence[str]) -> list[str]:
    """Arguments one a line, each flag with its values."""
    lines: list[str] = []
    for word in words:
        if word.startswith("-") or not lines:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return lines


def _readers(key: str) -> str:
    found = key_help(key)
    if found is None:
        return "no key that specdash knows"
    if found.readers:
        return f"read by {', '.join(found.readers)}"
    return f"becomes {found.flags[0]}" if found.flags else found.meaning
