"""Where files live: the XDG base directories, resolved from a given environment so that tests need no real home."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def _base(env: Mapping[str, str], key: str, fallback: str) -> Path:
    value = env.get(key, "")
    root = Path(value) if value.startswith("/") else Path(env.get("HOME") or Path.home()) / fallback
    return root / "specdash"


def config_dir(env: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CONFIG_HOME/specdash`: config.toml and the env files of the services."""
    return _base(env, "XDG_CONFIG_HOME", ".config")


def state_dir(env: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_STATE_HOME/specdash`: logs, history, backups, run records."""
    return _base(env, "XDG_STATE_HOME", ".local/state")


def run_records_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Where running backends leave a note of themselves (see `core.records`)."""
    return state_dir(env) / "run"


def runtime_dir(env: Mapping[str, str] = os.environ) -> Path | None:
    """Where control sockets are: `$XDG_RUNTIME_DIR/specdash`, None where that is not set."""
    base = env.get("XDG_RUNTIME_DIR")
    return Path(base) / "specdash" if base else None


def ended_records_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Where backends that have ended left their last note, one an address: what a bundle made after a crash needs."""
    return run_records_dir(env) / "ended"


def config_file(env: Mapping[str, str] = os.environ) -> Path:
    """The user's configuration file."""
    return config_dir(env) / "config.toml"


def backend_env_file(env: Mapping[str, str] = os.environ) -> Path:
    """The bundled backend's environment file."""
    return config_dir(env) / "llama-server.env"


def proxy_env_file(env: Mapping[str, str] = os.environ) -> Path:
    """The bundled proxy's environment file."""
    return config_dir(env) / "proxy.env"


def proxy_records_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Where running proxies leave a note of themselves (see `core.records.ProxyRecord`)."""
    return run_records_dir(env) / "proxy"


def status_notes_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Where dashboards and recorders leave what `specdash status` prints (see `core.status.StatusNote`)."""
    return run_records_dir(env) / "status"


def backups_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Where every version of an env file is kept before it is replaced."""
    return state_dir(env) / "backups"


def applies_file(env: Mapping[str, str] = os.environ) -> Path:
    """The records of all applies, one JSON object a line (see `core.changes`)."""
    return state_dir(env) / "applies.jsonl"


def apply_lock_file(env: Mapping[str, str] = os.environ) -> Path:
    """Locked while an apply runs."""
    return state_dir(env) / "apply.lock"


def apply_journal_file(env: Mapping[str, str] = os.environ) -> Path:
    """What a running apply has done so far; left behind only by one that was killed."""
    return state_dir(env) / "apply.journal"


def trial_file(env: Mapping[str, str] = os.environ) -> Path:
    """What a service ran before settings were tried on it; there while that lasts (see `backend.trial`)."""
    return state_dir(env) / "trial.json"


def user_profiles_dir(env: Mapping[str, str] = os.environ) -> Path:
    """The user's own profiles, an env file each."""
    return config_dir(env) / "profiles"


def baselines_file(env: Mapping[str, str] = os.environ) -> Path:
    """Decode speeds without speculation, one JSON object a line (see `core.records`)."""
    return state_dir(env) / "baselines.jsonl"


def history_file(env: Mapping[str, str] = os.environ) -> Path:
    """The recorder's database."""
    return state_dir(env) / "history.db"


def tune_runs_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Where runs of `specdash tune` keep what they measure, a directory each (see `tune.run.status`)."""
    return state_dir(env) / "tune"


def incidents_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Where incident bundles are written."""
    return state_dir(env) / "incidents"


def rules_file(env: Mapping[str, str] = os.environ) -> Path:
    """The user's own thresholds of alert rules."""
    return config_dir(env) / "rules.toml"
