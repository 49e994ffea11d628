"""Every value by itself, keys nobody reads, and what the backend's own reading of its env refuses or warns about."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.backend import extra_args
from specdash.backend.auto import read_settings
from specdash.backend.room import used_devices
from specdash.backend.settings import MACHINE_KEYS, BackendSettings
from specdash.control.preflight.context import blamed, parted, unread
from specdash.control.preflight.engine import cached_engine
from specdash.control.preflight.models import cached_facts
from specdash.core.changes import Role
from specdash.core.errors import InputError, SpecdashError
from specdash.core.parameter_catalogue import BY_KEY, IGNORED_KEYS, REMOVED_KEYS
from specdash.core.passed_on_parameters import BY_KEY as PASSED_ON
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS
from specdash.core.speculation import KNOBS, SpecType, detected_type, spec_type
from specdash.llama.gguf import GgufError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.control.preflight.context import Findings, PreflightContext
    from specdash.core.parameters import Parameter
    from specdash.llama.gguf import GgufFacts

_PLACEHOLDER = "model.gguf"
_SAID_ELSEWHERE = re.compile(r"has no effect|is not a known key")
"""Warnings of the settings that rules of their own say better."""
_ALIKE = 0.85
_CORRECT = "correct the value"
_CHAIN_KEYS = (*BY_KEY["LLAMA_SPEC_TYPE"].keys, extra_args.SOURCE)


@dataclass(frozen=True, slots=True)
class Read:
    """The settings as far as they can be read. `dropped` are keys that were left out because their value is an error:
    a rule that depends on one of them says nothing."""

    settings: BackendSettings | None
    dropped: frozenset[str]


def read(values: Mapping[str, str], context: PreflightContext, out: Findings) -> Read:
    """Read the wanted values, adding a finding for each that cannot be meant."""
    env = {key: text for key, text in values.items() if text != ""}
    for key in MACHINE_KEYS:
        if key not in env and context.base.get(key):
            env[key] = context.base[key]
    say_empty(values, BY_KEY, out)
    dropped: set[str] = set()
    for key, instead in REMOVED_KEYS.items():
        if key in IGNORED_KEYS and key in env:
            said = f"{key}={env.pop(key)}: llama.cpp ignores it without a word"
            out.warning("removed-key", said, key=key, fix=f"use {instead}")
        elif key in env:
            out.error("removed-key", f"{key}={env.pop(key)}: llama.cpp removed it", key=key, fix=f"use {instead}")
            dropped.add(key)
    _unknown(env, out)
    for key in [key for key in env if key in BY_KEY]:
        parameter = BY_KEY[key]
        try:
            parameter.parse(env[key], key)
        except InputError as error:
            said, fix = parted(str(error))
            out.error("value", said, key=key, fix=fix or f"allowed: {parameter.allowed}")
            dropped.add(key)
            del env[key]
    return _settings(env, dropped, context, out)


def _settings(env: dict[str, str], dropped: set[str], context: PreflightContext, out: Findings) -> Read:
    """Read all together; for every refusal, leave the key to blame out and try again, to find the next one."""
    while True:
        try:
            settings = read_settings(env, detect=_detect, look=_look, on_gpu=lambda one: _on_gpu(one, context))
            break
        except InputError as error:
            said, fix = parted(str(error))
            if said.startswith("LLAMA_MODEL is not set"):
                key, env["LLAMA_MODEL"] = "LLAMA_MODEL", _PLACEHOLDER
                fix = "set LLAMA_MODEL to a .gguf file"
            else:
                key = blamed(said, env) or ""
                if key == extra_args.SOURCE and "No closing quotation" in said:
                    said = f"{key}: a quote is not closed"
                env.pop(key, None)
            if not _follows(said, dropped):
                out.error("settings", said, key=key or None, fix=fix or _CORRECT)
            if not key or key in dropped:
                return Read(None, frozenset(dropped))
            dropped.add(key)
    for warning in settings.warnings:
        if not _SAID_ELSEWHERE.search(warning):
            said, fix = parted(warning)
            out.warning("settings", said, key=blamed(said, env), fix=fix)
    return Read(settings, frozenset(dropped))


def _follows(said: str, dropped: set[str]) -> bool:
    """Whether a refusal only comes of a key that was left out for its own bad value."""
    if "would discard every draft" in said:
        return bool(dropped.intersection(KNOBS))
    return "is set but LLAMA_SPEC_TYPE is not" in said and bool(dropped.intersection(_CHAIN_KEYS))


def _detect(path: str) -> SpecType | None:
    try:
        facts = cached_facts(path)
    except GgufError:
        # The file has a finding of its own: that it names no type is not the trouble.
        return spec_type("draft-simple")
    return detected_type(facts.draft_architecture, facts.nextn_layers)


def _look(path: str) -> GgufFacts | None:
    try:
        return cached_facts(path)
    except GgufError:
        return None


def _on_gpu(settings: BackendSettings, context: PreflightContext) -> bool:
    """Whether the server would use a GPU, as `backend run` finds it; by NVML alone where no engine may be asked."""
    if not context.probe_engine:
        return settings.value("gpu-layers") != 0 and settings.value("device") != "none" and context.gpus() is not None
    try:
        return bool(used_devices(settings, cached_engine(settings), context.base))
    except (SpecdashError, ValueError, OSError):
        return False


def say_empty(values: Mapping[str, str], known: Mapping[str, Parameter], out: Findings) -> None:
    """A key without a value counts as not set, which is not what an empty field looks like."""
    for key in [key for key, text in values.items() if not text.strip() and key in known]:
        parameter = known[key]
        default = "nothing" if parameter.default in (None, "") else f"its default, {parameter.text(parameter.default)},"
        said = f"{key} is empty, which counts as not set: {default} is in force"
        out.warning("empty", said, key=key, fix=f"give it a value, or remove it (-{key})")


def _unknown(env: Mapping[str, str], out: Findings) -> None:
    known = [*BY_KEY, *PASSED_ON]
    negations = {key.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1) for key in known if key.startswith("LLAMA_ARG_")}
    for key in env:
        if key in BY_KEY or key in PASSED_ON or key in negations:
            continue
        if key in PROXY_KEYS:
            said = f"{key} is the proxy's: the backend does not read it"
            out.warning("unknown-key", said, key=key, fix=unread(Role.BACKEND, key))
            continue
        ours = key.startswith("LLAMA_")
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.75 if ours else _ALIKE)
        if close:
            fix = f"did you mean {close[0]}?"
            out.warning("unknown-key", f"{key} is not a known key and is passed on unread", key=key, fix=fix)
        elif ours:
            out.warning("unknown-key", f"{key} is not a known key and is passed on unread", key=key)
