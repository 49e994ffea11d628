"""On what a result depends beside the configuration: models, engine, machine, other settings, prompts and how they are
asked. Results of two fingerprints do not belong into one table."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.core.errors import RefusedError, SpecdashError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.bench.samples import Prompt
    from specdash.bench.schedule import Options

_MODELS = ("LLAMA_MODEL", "LLAMA_DRAFT_MODEL")
_NOT_SPEED = ("LLAMA_PORT", "LLAMA_HOST", "LLAMA_API_KEY", "LLAMA_API_KEY_FILE", "LLAMA_LOG_FILE", "LLAMA_ALIAS")
_HEAD = 1 << 20
_SHORT = 16


def fingerprint(
    values: Mapping[str, str],
    prompts: Sequence[Prompt],
    options: Options,
    *,
    engine: str | None = None,
    env: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """What to compare, by name; no secret is in it."""
    from specdash.bench.machine import cpu_name
    from specdash.control.preflight.gpus import nvml_gpus

    seen = nvml_gpus()
    gpus = ", ".join(sorted(gpu.name or "?" for gpu in seen.gpus)) if seen is not None else ""
    settings = {key: value for key, value in values.items() if key not in (*_NOT_SPEED, *_MODELS)}
    asked = [{"id": one.id, "kind": one.kind, "messages": one.messages, "tools": one.tools} for one in prompts]
    # Where a log lies, and how long silence may last, change no speed.
    how = {
        key: value for key, value in asdict(options).items() if key not in ("log", "silence_s", "limit_s", "give_up")
    }
    return {
        **{key: _file(values[key]) for key in _MODELS if values.get(key)},
        "engine": _engine(values, engine, env),
        "machine": f"{cpu_name() or 'CPU'}, {os.cpu_count()} threads",
        "gpus": gpus or "none",
        "settings": _digest(settings),
        "prompts": _digest(asked),
        "requests": _digest(how),
    }


def check_same(before: Mapping[str, str], now: Mapping[str, str], where: str) -> None:
    """Raise `RefusedError` naming what differs."""
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if changed:
        shown = "; ".join(
            f"{key} was {before.get(key, 'not there')}, is {now.get(key, 'not there')}" for key in changed
        )
        raise RefusedError(f"{where} was measured under other conditions ({shown}): begin anew, without --resume")


def _file(path: str) -> str:
    """Name, size and the digest of the first MiB, where a GGUF has all that tells it apart."""
    file = Path(path).expanduser()
    try:
        with file.open("rb") as data:
            head = hashlib.sha256(data.read(_HEAD)).hexdigest()[:_SHORT]
        return f"{file.name}, {file.stat().st_size} bytes, {head}"
    except OSError as error:
        return f"{file.name}, {error.strerror}"


def _engine(values: Mapping[str, str], engine: str | None, env: Mapping[str, str]) -> str:
    from specdash.backend.engines import find_engine
    from specdash.backend.launch import settings_of
    from specdash.backend.settings import MACHINE_KEYS

    machine = {key: env[key] for key in MACHINE_KEYS if env.get(key) and key not in values}
    chosen = {"LLAMA_ENGINE": engine} if engine else {}
    try:
        return find_engine(settings_of({**values, **machine, **chosen}, env), env).words
    except SpecdashError as error:
        return f"unknown ({error})"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:_SHORT]
