"""What the engine at hand lists in its own help, and what it lacks of what settings ask."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from specdash.backend import binary, embedded
from specdash.backend.engines import PACKAGE, find_engine
from specdash.backend.settings import engine_settings, negated, settings_from_env
from specdash.core.changes import Role
from specdash.core.env_edit import listed_values, parameter_of, takes_several
from specdash.core.errors import InputError, Severity, SpecdashError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.binary import Capabilities
    from specdash.backend.settings import BackendSettings
    from specdash.core.errors import Finding


def listed_names(env: Mapping[str, str], base: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The spec types and `LLAMA_ARG_*` variables in the help of the engine that a backend env chooses; none where it
    cannot be asked."""
    try:
        can = find_engine(engine_settings(env, base), base).can
    except (SpecdashError, ValueError, OSError):
        return frozenset()
    return can.variables | frozenset(can.spec_types) | frozenset(map(negated, can.variables))


def lacking(settings: BackendSettings, can: Capabilities) -> tuple[Finding, ...]:
    """What the settings ask and the engine has not: what is refused, and what is left out with a warning."""
    return tuple((embedded.fit if can.kind == PACKAGE else binary.fit)(settings, can).lacks)


def missing_values(key: str, values: Mapping[str, str], base: Mapping[str, str]) -> dict[str, str]:
    """The values listed for an env key (`core.env_edit.listed_values`) that the engine of `values` has not, with why:
    those refused beside the other values, and those that llama-server's help leaves out where it names two or more;
    none where nothing is known of the engine."""
    from specdash.backend.auto import without

    declared = parameter_of(Role.BACKEND, key)
    try:
        can = find_engine(without(settings_from_env(values)), base).can
    except (SpecdashError, ValueError, OSError):
        return {}
    if declared is None:
        return {}
    text = next((can.texts[flag] for flag in declared.flags if flag in can.texts), "")
    unnamed = [word for word in declared.choices if not re.search(rf"(?<![\w+-]){re.escape(word)}(?![\w+-])", text)]
    missing = unnamed if len(declared.choices) - len(unnamed) > 1 else []
    # Types that need a draft model are refused without one, whatever the engine.
    values = {"LLAMA_DRAFT_MODEL": "draft.gguf", **values} if takes_several(Role.BACKEND, key) else values
    for value in listed_values(Role.BACKEND, key, values.get(key, "")):
        with suppress(InputError):
            lacks = lacking(without(settings_from_env({**values, key: value})), can)
            missing += [value for lack in lacks if lack.key == key and lack.severity is Severity.ERROR]
    return dict.fromkeys(missing, f"not in {can.words}")
