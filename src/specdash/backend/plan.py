"""`plan(values)`: a backend's settings, its engine, the facts of its model files, and every finding about them.

The one judgement of settings: `backend run` raises its first error, `apply`, `preflight` and the screens show all.
"""

from __future__ import annotations

import os
from pathlib import Path  # noqa: TC003 - a field type
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from specdash.backend import auto
from specdash.backend.devices import UsedGpu, cuda_gpus, nvml_gpus, used_gpus
from specdash.backend.engines import Engine, find_engine
from specdash.backend.rules import error, in_order, warning
from specdash.backend.settings import DEFAULT, MACHINE_KEYS, BackendSettings, change, setting
from specdash.backend.settings import SOURCE as EXTRA_ARGS
from specdash.collect.run_records import live_backends, live_proxies
from specdash.core.changes import Role
from specdash.core.errors import InputError, Problem, ProblemKind, SpecdashError
from specdash.core.parameter_catalogue import BY_KEY, BY_NAME
from specdash.core.speculation import SpecType, spec_type
from specdash.core.structs import Masked
from specdash.llama.gguf import GgufError, GgufFacts, cached_facts
from specdash.llama.model_facts import refusal_of
from specdash.system.processes import family

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from specdash.core.errors import Finding
    from specdash.core.parameters import Scalar
    from specdash.core.readings import Gpus
    from specdash.core.records import ProxyRecord, RunRecord
    from specdash.llama.memory import SlotLayout

_PLACEHOLDER = "model.gguf"
_RULE_OF = {ProblemKind.REMOVED: "removed-key"}


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
    under_systemd: bool = False
    """Whether it is a unit of systemd."""
    back: bool = False
    """Whether the values are of a version from before, which may hold keys that are not known."""
    gpus: Callable[[], Gpus | None] = nvml_gpus
    """What NVML says of the GPUs; None where there are none."""
    cuda: Callable[[Mapping[str, str]], tuple[str, ...]] = cuda_gpus
    """The UUIDs of the GPUs in the order in which CUDA numbers them in an environment."""
    probe_engine: bool = True
    """Ask the engine's binary what it can do."""

    def records(self) -> Iterator[RunRecord | ProxyRecord]:
        """The notes of running backends and proxies."""
        yield from live_backends(self.base)
        yield from live_proxies(self.base)

    def own(self) -> frozenset[int]:
        """The processes of this service and their children; without a manager, what runs from the env file."""
        pids = self.own_pids
        if not pids and self.env_file is not None:
            wanted = str(self.env_file.absolute())
            pids = frozenset(record.pid for record in self.records() if record.env_file == wanted)
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
    dropped: frozenset[str] = frozenset()
    """Keys that were left out because their value is an error: nothing is measured against it then."""
    problems: tuple[Finding, ...] = ()
    """What was found while the plan was made; with an error among them nothing can be started."""
    failure: SpecdashError | None = None
    """Why there is no engine."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything to be known about the plan, errors first."""
        from specdash.backend.rules import machine, models, proxy, values

        out = [*self.problems, *(row for rule in values.ALWAYS for row in rule(self.values, self.circumstances))]
        if not self.unread:
            # In place of a value that was left out stands its default, whose size says nothing.
            sizes = () if self.dropped else values.RULES
            out += [row for rule in (*sizes, *models.RULES, *machine.RULES) for row in rule(self)]
            other = self.circumstances.other
            out += proxy.pair(self.settings, other, self.circumstances) if other is not None else ()
        return in_order(out, {**(self.circumstances.other or {}), **self.values})

    # How the settings are written, for messages.

    def source(self, name: str) -> str:
        """The key that sets an engine parameter, or its own key where it has its default."""
        assigned = self.settings.parameters.get(name)
        return BY_NAME[name].key if assigned is None or assigned.source == DEFAULT else assigned.source

    def named(self, name: str) -> str:
        """An engine parameter as it is set."""
        return setting(self.source(name), BY_NAME[name], self.settings.value(name))

    def change(self, name: str, value: Scalar) -> str:
        """An engine parameter with another value, written where it is set now: what a fix tells to set."""
        return change(self.source(name), BY_NAME[name], value)

    def place(self, name: str) -> str:
        """Where an engine parameter is set, for fixes that name no value: its key, or its flag in LLAMA_EXTRA_ARGS."""
        source = self.source(name)
        return f"{BY_NAME[name].flags[0]} in {source}" if source == EXTRA_ARGS else source

    def number(self, name: str) -> int:
        """The value of a parameter that is a whole number."""
        return int(self.settings.value(name) or 0)

    @property
    def spec_types(self) -> list[SpecType]:
        """The chain, of types that the catalogue knows."""
        return [found for name in self.settings.spec_types if (found := spec_type(name)) is not None]

    @property
    def spec_key(self) -> str:
        """The key that names the spec types."""
        source = self.settings.spec_source
        return source if source in self.values else "LLAMA_SPEC_TYPE"

    @property
    def slots(self) -> SlotLayout:
        """The slots and how they share the cache."""
        return auto.slots_asked(self.settings)

    @property
    def cells(self) -> int:
        """Length of one cache in tokens."""
        return auto.cells_asked(self.settings, self.model)


def judge(role: Role, values: Mapping[str, str], circumstances: Circumstances) -> tuple[Finding, ...]:
    """Everything to be known about the wanted settings of a service, errors first."""
    from specdash.backend.rules.proxy import proxy_findings

    return plan(values, circumstances).findings if role is Role.BACKEND else proxy_findings(values, circumstances)


def readable_settings(values: Mapping[str, str], circumstances: Circumstances) -> BackendSettings | None:
    """The settings that `values` give, without what cannot be meant; None where nothing can be read."""
    return _Reader(values, circumstances).settings()


def plan(values: Mapping[str, str], circumstances: Circumstances) -> Plan:
    """Plan the backend that `values` describe. Never raises for what they are. Safe from any thread."""
    from specdash.backend.rules.machine import room

    reader = _Reader(values, circumstances)
    settings = reader.settings()
    if settings is None:
        found = Plan(values, circumstances, BackendSettings(parameters={}), unread=True)
        return replace(found, dropped=frozenset(reader.dropped), problems=tuple(reader.problems))
    engine, failure = reader.engine(settings)
    model, draft, _ = (reader.gguf(settings, name) for name in ("model", "spec-draft-model", "mmproj"))
    gpus, own = reader.gpus(settings, engine), circumstances.own()
    found = Plan(
        values, circumstances, settings, engine=engine, model=model, draft=draft, gpus=gpus, own=own,
        dropped=frozenset(reader.dropped),
    )  # fmt: skip
    if auto.wanted(settings):
        # Where no context fits, and where the model's file has a finding of its own, the engine would choose it.
        chosen = auto.without(settings)
        try:
            if model is not None or settings.model is None:
                chosen = auto.fitted(settings, model, draft, room(found))
        except InputError as raised:
            problem = raised.problem
            reader.problems.append(error("context", problem.what, found.source("ctx-size"), problem.fix))
        found = replace(found, settings=chosen)
    return replace(found, failure=failure, problems=tuple(reader.problems))


class _Reader:
    """Reads the values one part after the other, and goes on where one of them cannot be meant."""

    def __init__(self, values: Mapping[str, str], circumstances: Circumstances) -> None:
        base = circumstances.base
        self.values, self.circumstances = values, circumstances
        self.env = {key: text for key, text in values.items() if text != ""}
        self.env |= {key: base[key] for key in MACHINE_KEYS if key not in self.env and base.get(key)}
        self.dropped: set[str] = set()
        self.problems: list[Finding] = []

    def settings(self) -> BackendSettings | None:
        """The settings without what is in their way; None where a problem is of no key that could be left out."""
        for key in [key for key in self.env if key in BY_KEY]:
            parameter = BY_KEY[key]
            try:
                parameter.parse(self.env[key], key)
            except InputError as problem:
                what = problem.problem
                fix = what.fix or f"allowed: {parameter.allowed}"
                self.problems.append(error("value", what.what, key, fix))
                self.dropped.add(key)
                del self.env[key]
        seen: list[str | None] = []
        while True:
            try:
                settings = auto.read_settings(self.env, self._on_gpu)
                break
            except InputError as raised:
                if not self._left_out(raised.problem, seen):
                    return None
        self.problems += [
            warning(_RULE_OF.get(remark.kind, "settings"), remark.what, remark.key, remark.fix)
            for remark in settings.remarks
        ]
        return settings

    def _left_out(self, problem: Problem, seen: list[str | None]) -> bool:
        """Whether the settings can be read without the key of this problem."""
        if not problem.follows & self.dropped:
            rule = _RULE_OF.get(problem.kind, "settings")
            self.problems.append(error(rule, problem.what, problem.key, problem.fix or "correct the value"))
        key = problem.key
        if key is None or key in seen:
            return False
        seen.append(key)
        self.dropped.add(key)
        if key == "LLAMA_MODEL" and key not in self.env:
            self.env[key] = _PLACEHOLDER
            return True
        return self.env.pop(key, None) is not None

    def _on_gpu(self, settings: BackendSettings) -> bool:
        """Whether the model itself would run on a GPU."""
        if settings.value("gpu-layers") == 0:
            return False
        try:
            found = find_engine(settings, self.circumstances.base) if self.circumstances.probe_engine else None
            return bool(self.gpus(settings, found, ask=True))
        except (SpecdashError, ValueError, OSError):
            return False

    def gpus(self, settings: BackendSettings, engine: Engine | None, *, ask: bool = False) -> tuple[UsedGpu, ...]:
        """The GPUs that the settings use; the engine itself is asked only where something hangs on it."""
        around = self.circumstances
        ask = ask or bool(settings.decisions) or auto.wanted(settings)
        return used_gpus(settings, engine, around.base, around.gpus, around.cuda, ask=ask)

    def engine(self, settings: BackendSettings) -> tuple[Engine | None, SpecdashError | None]:
        """The engine, and what it can do; or why there is none."""
        if not self.circumstances.probe_engine:
            return None, None
        base = self.circumstances.base
        try:
            return find_engine(settings, base), None
        except (SpecdashError, ValueError, OSError) as raised:
            failure = raised if isinstance(raised, SpecdashError) else InputError(str(raised))
            problem = failure.problem
            self.problems.append(error("engine", problem.what, problem.key, problem.fix))
            return None, failure

    def gguf(self, settings: BackendSettings, name: str) -> GgufFacts | None:
        """The facts of a model file of the settings."""
        path, assigned = settings.text(name), settings.parameters.get(name)
        if path is None or assigned is None:
            return None
        key = BY_NAME[name].key if assigned.source == DEFAULT else assigned.source
        if key in self.dropped:
            return None
        try:
            facts = cached_facts(os.path.expanduser(path))  # noqa: PTH111 - the path stays as the user spelled it
        except GgufError as problem:
            fix = problem.problem.fix or f"correct the path in {key}"
            self.problems.append(error("file", f"{key}: {problem.path}: {problem.problem.what}", key, fix))
            return None
        refused = refusal_of(facts, name)
        if refused is None:
            return facts
        self.problems.append(error("file-kind", f"{key}={path}: {refused.what}", key, refused.fix))
        return None
