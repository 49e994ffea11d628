"""What the engine at hand can do, asked of itself once and remembered, and what it lacks of what the settings ask.

llama-server tells it by `--help`; the version number would not do, because distributions and forks cut their own.
xllamacpp tells it by the attributes of its `CommonParams`. Answers are kept by `probe_cache`, so that a plan costs no
process as long as the engine's file is the same. A failed probe is never kept.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from specdash.backend import binary, embedded, engines
from specdash.backend.binary import Capabilities, HelpEntry, from_help, parse_help, type_names
from specdash.backend.engines import KEY, PACKAGE, Engine, ask, binary_key, find_engine, probe_environment
from specdash.backend.settings import MACHINE_KEYS, settings_from_env
from specdash.core.changes import Role
from specdash.core.env_edit import listed_values, parameter_of, takes_several
from specdash.core.errors import EngineMissingError, InputError, Severity, SpecdashError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.settings import BackendSettings
    from specdash.core.errors import Finding

__all__ = ["Capabilities", "lacking", "listed_names", "missing_values", "probe"]

_TIMEOUT_S = 20.0
_TYPE_PREFIX = "COMMON_SPECULATIVE_TYPE_"
_FEWEST_FLAGS = 10
"""A text with fewer is no help of llama-server."""


def probe(engine: Engine, env: Mapping[str, str] = os.environ) -> Capabilities:
    """What `engine` can do; from the cache in `paths.cache_dir(env)` when the same file was asked before.

    Raises `EngineMissingError` with the reason when it does not say.
    """
    return _probe_package(engine, env) if engine.kind == PACKAGE else _probe_binary(engine, env)


def listed_names(env: Mapping[str, str], base: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The spec types and `LLAMA_ARG_*` variables in the help of the engine that a backend env chooses; none where it
    cannot be asked."""
    chosen = {key: base[key] for key in MACHINE_KEYS if base.get(key)}
    chosen |= {key: text for key, text in env.items() if key in MACHINE_KEYS or not key.startswith("LLAMA_")}
    try:
        can = probe(find_engine(settings_from_env({**chosen, "LLAMA_MODEL": "model.gguf"}), base), base)
    except (SpecdashError, ValueError, OSError):
        return frozenset()
    return can.variables | frozenset(can.spec_types) | frozenset(_negated(name) for name in can.variables)


def _negated(variable: str) -> str:
    return variable.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1)


def lacking(settings: BackendSettings, capabilities: Capabilities) -> tuple[Finding, ...]:
    """What the settings ask and the engine has not: what is refused, and what is left out with a warning."""
    fitted = embedded.fit if capabilities.kind == PACKAGE else binary.fit
    return tuple(fitted(settings, capabilities).lacks)


def missing_values(key: str, values: Mapping[str, str], capabilities: Capabilities) -> dict[str, str]:
    """The values listed for an env key (`core.env_edit.listed_values`) that the engine has not, with why: those refused
    beside the other `values` of the env, and those that llama-server's help leaves out where it names two or more."""
    from specdash.backend.auto import without

    declared = parameter_of(Role.BACKEND, key)
    if declared is None:
        return {}
    text = next((capabilities.texts[flag] for flag in declared.flags if flag in capabilities.texts), "")
    unnamed = [word for word in declared.choices if not re.search(rf"(?<![\w+-]){re.escape(word)}(?![\w+-])", text)]
    missing = unnamed if len(declared.choices) - len(unnamed) > 1 else []
    # Types that need a draft model are refused without one, whatever the engine.
    values = {"LLAMA_DRAFT_MODEL": "draft.gguf", **values} if takes_several(Role.BACKEND, key) else values
    for value in listed_values(Role.BACKEND, key, values.get(key, "")):
        with suppress(InputError):
            lacks = lacking(without(settings_from_env({**values, key: value})), capabilities)
            missing += [value for lack in lacks if lack.key == key and lack.severity is Severity.ERROR]
    return dict.fromkeys(missing, f"not in {capabilities.words}")


def _probe_binary(engine: Engine, env: Mapping[str, str]) -> Capabilities:
    key = binary_key(engine.path, engine.loader)
    kept = engines.recall(key, env).get("help") if key is not None else None
    entries = _entries(kept)
    if entries is None:
        entries = _ask_help(engine, env)
        if key is not None:
            plain = [[entry.names, entry.value, entry.text] for entry in entries]
            engines.remember(key, {"help": plain, "version": engine.version}, env)
    return from_help(engine.version, entries)


def _ask_help(engine: Engine, env: Mapping[str, str]) -> tuple[HelpEntry, ...]:
    answer = ask([engine.path, "--help"], probe_environment(engine.loader, env), _TIMEOUT_S)
    if answer.problem is not None:
        raise EngineMissingError(f"{engine.path} --help: {answer.problem}; {_UNKNOWN}", _MEND, key=KEY)
    entries = parse_help(answer.text)
    if sum(len(entry.names) for entry in entries) < _FEWEST_FLAGS:
        what = f"{engine.path} --help lists no arguments ({answer.first_line[:200]}); {_UNKNOWN}"
        raise EngineMissingError(what, _MEND, key=KEY)
    return entries


_UNKNOWN, _MEND = "what it can do is unknown", "set LLAMA_BIN to a working llama-server"


def _entries(kept: Any) -> tuple[HelpEntry, ...] | None:
    try:
        found = tuple(HelpEntry(tuple(map(str, names)), str(value), str(text)) for names, value, text in kept)
    except (TypeError, ValueError):
        return None
    return found or None


def _probe_package(engine: Engine, env: Mapping[str, str]) -> Capabilities:
    spec = importlib.util.find_spec(PACKAGE)
    key = engines.identity(spec.origin, engine.version) if spec is not None and spec.origin else None
    facts = engines.recall(key, env) if key is not None else {}
    found = _package_facts(engine, facts)
    if found is not None:
        return found
    answer = ask([sys.executable, "-m", "specdash.backend.embedded_facts"], env, _TIMEOUT_S)
    try:
        facts = json.loads(answer.text) if answer.problem is None and answer.code == 0 else {}
    except ValueError:
        facts = {}
    found = _package_facts(engine, facts)
    if found is None:
        reason = answer.problem or answer.first_line[:200]
        what = f"the {PACKAGE} package does not work ({reason})"
        raise EngineMissingError(what, "install it again, or set LLAMA_BIN", key=KEY)
    if key is not None:
        engines.remember(key, facts, env)
    return found


def _package_facts(engine: Engine, facts: Any) -> Capabilities | None:
    try:
        attributes, members = facts["attributes"], facts["spec_types"]
        paths = frozenset(map(str, attributes))
        types = type_names(map(str, members), _TYPE_PREFIX)
    except (KeyError, TypeError):
        return None
    if not paths or isinstance(attributes, str) or isinstance(members, str):
        return None
    return Capabilities(kind=PACKAGE, version=engine.version, flags=paths, spec_types=types)
