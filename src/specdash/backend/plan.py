"""`plan(values)`: a backend's settings, its engine, the facts of its model files, and every finding about them.

The one judgement of settings: `backend run` raises its first error, `apply`, `preflight` and the screens show all.
"""

from __future__ import annotations

import os
from pathlib import Path  # noqa: TC003 - a field type
from typing import TYPE_CHECKING

from msgspec import Struct, field

from specdash.backend.auto import settings_of
from specdash.backend.binary import Engine  # noqa: TC001 - a field type
from specdash.backend.engines import UsedGpu, find_engine, used_gpus
from specdash.backend.rules import error, in_order, warning
from specdash.backend.settings import DEFAULT, MACHINE_KEYS, BackendSettings, setting
from specdash.collect.run_records import live_backends, live_proxies
from specdash.core.changes import Role
from specdash.core.errors import InputError, SpecdashError
from specdash.core.parameter_catalogue import BY_KEY, BY_NAME
from specdash.core.structs import Masked
from specdash.llama.gguf import GgufError, GgufFacts, read_facts
from specdash.llama.model_facts import refusal_of
from specdash.system.processes import family

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.core.errors import Finding
    from specdash.core.parameters import Scalar

_RULE_OF = {True: "removed-key", False: "settings"}


class Circumstances(Masked, Struct, frozen=True):
    """What a plan depends on beside the settings.

    `env_file` is where the settings are, or will be, written, if anywhere. `changed` are the keys that a change sets or
    removes; empty means that the settings are judged as they are. `own_pids` are the processes of this service now:
    what they hold (the port, memory) will be free again. `base` is the environment of specdash itself.
    """

    hidden = ("base", "other")

    env_file: Path | None
    changed: frozenset[str] = frozenset()
    own_pids: frozenset[int] = frozenset()
    base: Mapping[str, str] = field(default_factory=lambda: os.environ)
    other: Mapping[str, str] | None = None
    """The wanted settings of the other service, where they are known."""
    other_pids: frozenset[int] = frozenset()
    """The processes of the other service now."""
    keeps_socket: bool = False
    """Whether the service runs, so that its listening socket stays open."""
    back: bool = False
    """Whether the values are of a version from before, which may hold keys that are not known."""

    def own(self) -> frozenset[int]:
        """The processes of this service and their children; without a manager, what runs from the env file."""
        pids = self.own_pids
        if not pids and self.env_file is not None:
            wanted = str(self.env_file.absolute())
            pids = frozenset(record.pid for record in live_backends(self.base) if record.env_file == wanted)
            pids |= {record.pid for record in live_proxies(self.base) if record.env_file == wanted}
        return pids | {process.pid for pid in pids for process in family(pid)}


class Plan(Masked, Struct, frozen=True):
    """One backend. `model` and `draft` are None where there is no such file, or it has a finding already; `engine` is
    None where it was not asked or has a finding."""

    hidden = ("values",)

    values: Mapping[str, str]
    circumstances: Circumstances
    settings: BackendSettings
    unread: bool = False
    """Whether the settings cannot be read at all, so that there is nothing more to judge."""
    engine: Engine | None = None
    model: GgufFacts | None = None
    draft: GgufFacts | None = None
    gpus: tuple[UsedGpu, ...] = ()
    """The GPUs that the settings use, in the engine's order."""
    own: frozenset[int] = frozenset()
    """The processes of this service now."""
    problems: tuple[Finding, ...] = ()
    """What was found while the plan was made; with an error among them nothing can be started."""
    failure: SpecdashError | None = None
    """Why there is no engine."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything to be known about the plan, errors first."""
        from specdash.backend.rules import machine, models, proxy, values

        unknown = values.unknown_keys(Role.BACKEND, self.values, self.circumstances)
        out = [*self.problems, *values.env_lines(self.values, self.circumstances), *unknown]
        if not self.unread:
            out += [row for rule in (*values.RULES, *models.RULES, *machine.RULES) for row in rule(self)]
            other = self.circumstances.other
            out += proxy.pair(self.settings, other, self.circumstances) if other is not None else ()
        return in_order(out, {**(self.circumstances.other or {}), **self.values})

    # How the settings are written, for messages.

    def source(self, name: str) -> str:
        """The key that sets an engine parameter, or its own key where it has its default."""
        assigned = self.settings.parameters.get(name)
        return BY_NAME[name].key if assigned is None or assigned.source == DEFAULT else assigned.source

    def named(self, name: str, value: Scalar | None = None) -> str:
        """An engine parameter as it is set, or with another value in its place."""
        return setting(self.source(name), BY_NAME[name], self.settings.value(name) if value is None else value)


def judge(role: Role, values: Mapping[str, str], circumstances: Circumstances) -> tuple[Finding, ...]:
    """Everything to be known about the wanted settings of a service, errors first."""
    from specdash.backend.rules.proxy import proxy_findings

    return plan(values, circumstances).findings if role is Role.BACKEND else proxy_findings(values, circumstances)


def plan(values: Mapping[str, str], circumstances: Circumstances) -> Plan:
    """Plan the backend that `values` describe. Never raises for what they are. Safe from any thread."""
    settings, problems = read(values, circumstances)
    if settings is None:
        nothing = BackendSettings(parameters={})
        return Plan(values, circumstances, nothing, unread=True, problems=tuple(problems))
    engine: Engine | None = None
    failure: SpecdashError | None = None
    try:
        engine = find_engine(settings, circumstances.base)
    except (SpecdashError, ValueError, OSError) as raised:
        failure = raised if isinstance(raised, SpecdashError) else InputError(str(raised))
        problems.append(error("engine", failure.problem.what, failure.problem.key, failure.problem.fix))
    facts: dict[str, GgufFacts] = {}
    for name in ("model", "spec-draft-model", "mmproj"):
        path = settings.text(name)
        if path is None:
            continue
        key = settings.parameters[name].source
        try:
            found = read_facts(os.path.expanduser(path))  # noqa: PTH111 - the path stays as the user spelled it
        except GgufError as raised:
            fix = raised.problem.fix or f"correct the path in {key}"
            problems.append(error("file", f"{key}: {raised.path}: {raised.problem.what}", key, fix))
            continue
        if (other := refusal_of(found, name)) is None:
            facts[name] = found
        else:
            problems.append(error("file-kind", f"{key}={path}: {other.what}", key, other.fix))
    gpus = used_gpus(settings, engine, circumstances.base)
    return Plan(
        values, circumstances, settings, engine=engine, model=facts.get("model"), draft=facts.get("spec-draft-model"),
        gpus=gpus, own=circumstances.own(), problems=tuple(problems), failure=failure,
    )  # fmt: skip


def read(values: Mapping[str, str], around: Circumstances) -> tuple[BackendSettings | None, list[Finding]]:
    """The settings and what is to be known about them; None, and the reasons, where something cannot be meant."""
    env = {key: text for key, text in values.items() if text != ""}
    env |= {key: around.base[key] for key in MACHINE_KEYS if key not in env and around.base.get(key)}
    problems: list[Finding] = []
    for key in [key for key in env if key in BY_KEY]:
        try:
            BY_KEY[key].parse(env[key], key)
        except InputError as raised:
            fix = raised.problem.fix or f"allowed: {BY_KEY[key].allowed}"
            if BY_KEY[key].name == "ctx-size" and env[key].strip().lower() == "auto":
                fix = f"set a number; `specdash preflight {key}=0` names the largest that fits where not all does"
            problems.append(error("value", raised.problem.what, key, fix))
    if problems:
        return None, problems

    try:
        settings = settings_of(values, around.base)
    except InputError as raised:
        problem = raised.problem
        rule = _RULE_OF[problem.is_removed]
        return None, [error(rule, problem.what, problem.key, problem.fix or "correct the value")]
    return settings, [
        warning(_RULE_OF[remark.is_removed], remark.what, remark.key, remark.fix) for remark in settings.remarks
    ]
