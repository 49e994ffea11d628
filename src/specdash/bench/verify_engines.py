"""The two servers of a verification: engines of our own from an env file, or servers that run already."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.bench.baseline_engine import last_words, memory_problem, own_engine, without_speculation
from specdash.bench.verify_server import Server
from specdash.core.errors import RefusedError, SpecdashError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdash.backend.launch import Plan

_OUR_OWN = ("host", "port", "slots", "metrics", "parallel")


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs already, and is left as it is. `key` is its API key, the secret itself."""

    url: str
    key: str | None = field(default=None, repr=False)
    name: str = "the server"

    @property
    def words(self) -> str:
        """For people."""
        return self.url

    @property
    def steady(self) -> frozenset[str]:
        """Nothing is known of its settings."""
        return frozenset()

    @contextmanager
    def open(self, limit_s: float) -> Iterator[Server]:
        """Connect to it."""
        with Server(self.url, self.key, self.name, limit_s) as server:
            yield server


@dataclass(frozen=True, slots=True)
class Own:
    """An engine that is started for the verification alone. `values` are the env that it comes of, secrets included."""

    plan: Plan
    values: Mapping[str, str] = field(repr=False)
    name: str = "the server"

    @property
    def words(self) -> str:
        """For people: the engine, and how it speculates."""
        told = " ".join(f"{name}={value}" for name, value in self.plan.speculation if name != "spec-draft-model")
        draft = self.plan.settings.draft_model
        return f"{self.plan.engine.words}, {told or 'no speculation'}{f' with {Path(draft).name}' if draft else ''}"

    @property
    def synthetic(self) -> bool:
        """Whether acceptance is drawn, and not found out."""
        return any(name.startswith("spec-synth-") for name in self.plan.settings.parameters)

    @property
    def steady(self) -> frozenset[str]:
        """What of the settings makes answers reproducible: see `verify.advice`."""
        settings = self.plan.settings
        apart = "kv-unified" in settings.parameters and settings.value("kv-unified") is False
        plain = settings.value("flash-attn") in ("off", False)
        return frozenset(name for name, holds in (("kv-unified", apart), ("flash-attn", plain)) if holds)

    def check_memory(self) -> None:
        """Raise `RefusedError` when it does not fit into memory beside what runs now."""
        problem = memory_problem(self.plan, self.values)
        if problem is not None:
            raise RefusedError(
                f"{self.name} does not fit beside what runs now: {problem}; stop the service meanwhile, or say --force"
            )

    @contextmanager
    def open(self, limit_s: float) -> Iterator[Server]:
        """Start it, and stop it afterwards."""
        from specdash.backend.launch import free_port

        settings = self.plan.settings.with_value("port", free_port("127.0.0.1"), "verify, a free port")
        plan = replace(self.plan, settings=settings)
        with own_engine(plan, name=self.name) as place, Server(place.url, place.key, self.name, limit_s) as server:
            if server.speculates is False and plan.settings.spec_types:
                raise SpecdashError(
                    f"{self.name} runs without speculation although {','.join(plan.settings.spec_types)} was asked "
                    f"for, so there is nothing to compare: {last_words(plan.log)}"
                )
            yield server


def own_candidate(
    values: Mapping[str, str], env_file: str, *, engine: str | None, parallel: int | None, log: Path
) -> Own:
    """An engine of the env's settings. Raises `SpecdashError` for what the backend itself would refuse."""
    return Own(_placed(_plan(values, env_file, engine), parallel, log), values, "the candidate")


def own_baseline(
    values: Mapping[str, str], env_file: str, *, engine: str | None, parallel: int | None, log: Path
) -> Own:
    """An engine of the env's settings but for speculation."""
    plan = _plan(values, env_file, engine)
    plan = replace(plan, settings=without_speculation(plan.settings), lacks=())
    return Own(_placed(plan, parallel, log), {**values, "LLAMA_SPEC_TYPE": "none"}, "the baseline")


def _plan(values: Mapping[str, str], env_file: str, engine: str | None) -> Plan:
    from specdash.backend.launch import make_plan
    from specdash.backend.settings import MACHINE_KEYS

    machine = {key: os.environ[key] for key in MACHINE_KEYS if os.environ.get(key) and key not in values}
    plan = make_plan({**values, **machine, "LLAMA_PORT": "0"}, engine=engine)
    return replace(plan, env_file=env_file)


def _placed(plan: Plan, parallel: int | None, log: Path) -> Plan:
    """On this machine alone, telling what we need to know; its port is chosen when it starts."""
    settings = plan.settings.with_value("host", "127.0.0.1", "verify").with_value("slots", True, "verify")
    if parallel is not None:
        settings = settings.with_value("parallel", parallel, "--parallel")
    return replace(plan, settings=settings, log=str(log))


def unlike(baseline: Own, candidate: Own) -> list[str]:
    """In what the two differ beside speculation: one line a parameter."""
    plain = without_speculation(candidate.plan.settings)
    before, after = baseline.plan.settings, plain
    names = [name for name in {**before.parameters, **after.parameters} if name not in _OUR_OWN]
    return [
        f"{name} is {before.value(name)} in the baseline and {after.value(name)} in the candidate"
        for name in names
        if before.value(name) != after.value(name)
    ]
