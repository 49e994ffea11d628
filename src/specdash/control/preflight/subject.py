"""What the rules about a backend look at: its settings, and the facts of its model files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.backend.extra_args import SOURCE as EXTRA_ARGS
from specdash.backend.extra_args import change, setting
from specdash.backend.loads import cells_asked, slots_asked
from specdash.backend.settings import DEFAULT
from specdash.core.parameter_catalogue import BY_NAME
from specdash.core.speculation import SpecType, spec_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.settings import BackendSettings
    from specdash.control.preflight.context import PreflightContext
    from specdash.core.parameters import Scalar
    from specdash.llama.gguf import GgufFacts
    from specdash.llama.memory import Slots


@dataclass(frozen=True, slots=True)
class Subject:
    """One backend. `model` and `draft` are None where there is no such file, or it has a finding already."""

    values: Mapping[str, str]
    context: PreflightContext
    settings: BackendSettings
    dropped: frozenset[str]
    model: GgufFacts | None = None
    draft: GgufFacts | None = None

    def source(self, name: str) -> str:
        """The key that sets an engine parameter, or its own key where it has its default."""
        assigned = self.settings.parameters.get(name)
        if assigned is None or assigned.source.startswith(DEFAULT):
            return BY_NAME[name].key
        return assigned.source

    def named(self, name: str) -> str:
        """An engine parameter as it is set, for messages."""
        return setting(self.source(name), BY_NAME[name], self.settings.value(name))

    def change(self, name: str, value: Scalar) -> str:
        """An engine parameter with another value, written where it is set now: what a fix tells to set."""
        return change(self.source(name), BY_NAME[name], value)

    def place(self, name: str) -> str:
        """Where an engine parameter is set, for fixes that name no value: its key, or its flag in LLAMA_EXTRA_ARGS."""
        source = self.source(name)
        return f"{BY_NAME[name].flags[0]} in {source}" if source == EXTRA_ARGS else source

    def spec_change(self, chain: str) -> str:
        """The same for the spec types."""
        return self.settings.spec_change(chain)

    def number(self, name: str) -> int:
        """The value of a parameter that is a whole number."""
        return int(self.settings.value(name) or 0)

    def readable(self, *names: str) -> bool:
        """Whether nothing that sets these parameters was left out for its bad value."""
        parameters = [BY_NAME[name] for name in names]
        if self.dropped.intersection(key for one in parameters for key in one.keys):
            return False
        lost = self.values.get(EXTRA_ARGS, "") if EXTRA_ARGS in self.dropped else ""
        words = lost.replace("=", " ").split()
        return not any(flag in words for one in parameters for flag in (*one.flags, *one.off_flags))

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
    def slots(self) -> Slots:
        """The slots and how they share the cache."""
        return slots_asked(self.settings)

    @property
    def cells(self) -> int:
        """Length of one cache in tokens."""
        return cells_asked(self.settings, self.model)
