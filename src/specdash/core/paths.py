"""Where files live: the XDG base directories, resolved from a given environment so that tests need no real home."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class PathIn(Protocol):
    """A place by the environment."""

    def __call__(self, env: Mapping[str, str] = ...) -> Path: ...


def _base(key: str, fallback: str) -> PathIn:
    def path(env: Mapping[str, str] = os.environ) -> Path:
        value = env.get(key, "")
        root = Path(value) if value.startswith("/") else Path(env.get("HOME") or Path.home()) / fallback
        return root / "specdash"

    return path


def _under(directory: PathIn, name: str) -> PathIn:
    return lambda env=os.environ: directory(env) / name


def runtime_dir(env: Mapping[str, str] = os.environ) -> Path | None:
    """Where control sockets are: `$XDG_RUNTIME_DIR/specdash`, None where that is not set."""
    base = env.get("XDG_RUNTIME_DIR")
    return Path(base) / "specdash" if base else None


config_dir = _base("XDG_CONFIG_HOME", ".config")
config_file = _under(config_dir, "config.toml")
rules_file = _under(config_dir, "rules.toml")
"""The user's own thresholds of alert rules."""
backend_env_file = _under(config_dir, "llama-server.env")
proxy_env_file = _under(config_dir, "proxy.env")
user_profiles_dir = _under(config_dir, "profiles")
"""The user's own profiles, an env file each."""

state_dir = _base("XDG_STATE_HOME", ".local/state")
run_records_dir = _under(state_dir, "run")
"""Where running backends leave a note of themselves (`core.records`)."""
ended_records_dir = _under(run_records_dir, "ended")
"""Where backends that have ended left their last note, one an address: what a bundle made after a crash needs."""
proxy_records_dir = _under(run_records_dir, "proxy")
"""Where running proxies leave a note of themselves (`core.records.ProxyRecord`)."""
status_notes_dir = _under(run_records_dir, "status")
"""Where dashboards and recorders leave what `specdash status` prints (`core.status.StatusNote`)."""
backups_dir = _under(state_dir, "backups")
"""Where every version of an env file is kept before it is replaced."""
applies_file = _under(state_dir, "applies.jsonl")
"""The records of all applies, one JSON object a line (`core.changes`)."""
apply_lock_file = _under(state_dir, "apply.lock")
"""Locked while an apply runs."""
apply_journal_file = _under(state_dir, "apply.journal")
"""What a running apply has done so far; left behind only by one that was killed."""
trial_file = _under(state_dir, "trial.json")
"""What a service ran before settings were tried on it; there while that lasts (`backend.trial`)."""
baselines_file = _under(state_dir, "baselines.jsonl")
"""Decode speeds without speculation, one JSON object a line (`core.records`)."""
history_file = _under(state_dir, "history.db")
"""The recorder's database."""
tune_runs_dir = _under(state_dir, "tune")
"""Where runs of `specdash tune` keep what they measure, a directory each (`tune.run.status`)."""
incidents_dir = _under(state_dir, "incidents")
