"""What the engine at hand can do, asked of itself once and remembered, and what it lacks of what the settings ask.

llama-server tells it by `--help`; the version number would not do, because distributions and forks cut their own.
xllamacpp tells it by the attributes of its `CommonParams`. Answers are kept by `probe_cache`, so that a plan costs no
process as long as the engine's file is the same. A failed probe is never kept.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from specdash.backend import binary, embedded, probe_cache
from specdash.backend.ask import ask
from specdash.backend.engine_facts import Capabilities, HelpEntry, Lack, from_help, parse_help, type_names
from specdash.backend.engines import PACKAGE, Engine, binary_key, probe_environment
from specdash.core.errors import EngineMissingError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.settings import BackendSettings

__all__ = ["Capabilities", "Lack", "check", "lacking", "probe"]

_TIMEOUT_S = 20.0
_TYPE_PREFIX = "COMMON_SPECULATIVE_TYPE_"
_FEWEST_FLAGS = 10
"""A text with fewer is no help of llama-server."""


def probe(engine: Engine, env: Mapping[str, str] = os.environ) -> Capabilities:
    """What `engine` can do; from the cache in `paths.cache_dir(env)` when the same file was asked before.

    Raises `EngineMissingError` with the reason when it does not say.
    """
    return _probe_package(engine, env) if engine.kind == PACKAGE else _probe_binary(engine, env)


def lacking(settings: BackendSettings, capabilities: Capabilities) -> tuple[Lack, ...]:
    """What the settings ask and the engine has not: what is refused, and what is left out with a warning."""
    fitted = embedded.fit if capabilities.kind == PACKAGE else binary.fit
    return tuple(fitted(settings, capabilities).lacks)


def check(settings: BackendSettings, capabilities: Capabilities, others: tuple[Lack, ...] = ()) -> tuple[Lack, ...]:
    """What is left out, each worth a warning. Raises `InputError` when something is refused, naming the first.

    `others` are lacks that were found elsewhere.
    """
    lacks = (*lacking(settings, capabilities), *others)
    refused = [one for one in lacks if one.refused]
    if refused:
        more = f" (and {len(refused) - 1} more: {', '.join(one.name for one in refused[1:])})" if refused[1:] else ""
        raise InputError(f"{refused[0].line}{more}")
    return lacks


def _probe_binary(engine: Engine, env: Mapping[str, str]) -> Capabilities:
    key = binary_key(engine.path, engine.loader)
    kept = probe_cache.recall(key, env).get("help") if key is not None else None
    entries = _entries(kept)
    if entries is None:
        entries = _ask_help(engine, env)
        if key is not None:
            plain = [[one.names, one.value, one.text] for one in entries]
            probe_cache.remember(key, {"help": plain, "version": engine.version}, env)
    return from_help(engine.path, engine.version, entries)


def _ask_help(engine: Engine, env: Mapping[str, str]) -> tuple[HelpEntry, ...]:
    answer = ask([engine.path, "--help"], probe_environment(engine.loader, env), _TIMEOUT_S)
    if answer.problem is not None:
        raise EngineMissingError(f"{engine.path} --help: {answer.problem}; {_MEND}")
    entries = parse_help(answer.text)
    if sum(len(one.names) for one in entries) < _FEWEST_FLAGS:
        raise EngineMissingError(f"{engine.path} --help lists no arguments ({answer.first_line[:200]}); {_MEND}")
    return entries


_MEND = "what it can do is unknown; set LLAMA_BIN to a working llama-server"


def _entries(kept: Any) -> tuple[HelpEntry, ...] | None:
    """The entries of a remembered help; None for anything else that lies there."""
    try:
        found = tuple(HelpEntry(tuple(map(str, names)), str(value), str(text)) for names, value, text in kept)
    except (TypeError, ValueError):
        return None
    return found or None


def _probe_package(engine: Engine, env: Mapping[str, str]) -> Capabilities:
    spec = importlib.util.find_spec(PACKAGE)
    key = probe_cache.identity(spec.origin, engine.version) if spec is not None and spec.origin else None
    facts = probe_cache.recall(key, env) if key is not None else {}
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
        raise EngineMissingError(f"the {PACKAGE} package does not work ({reason}); install it again, or set LLAMA_BIN")
    if key is not None:
        probe_cache.remember(key, facts, env)
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
    return Capabilities(kind=PACKAGE, path=engine.path, version=engine.version, flags=paths, spec_types=types)
