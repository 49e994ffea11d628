"""The notes a running backend and a running proxy leave of themselves, so that a dashboard finds them.

`specdash backend run` writes one JSON file per process under `paths.run_records_dir`, `specdash proxy run` one under
`paths.proxy_records_dir`, mode 0600, and removes it at exit. What a backend leaves at its end, under
`paths.ended_records_dir`, is its last note: where its log and its env file are.
A record whose process is gone is void; readers check the pid and its start time.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from specdash.core.start_check import Drafting, StartCheck


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One running backend. `parameters` are the speculation flags it was started with; no secrets are ever stored."""

    pid: int
    pid_started: float
    """Unix time the process started, to tell a reused pid."""
    url: str
    engine: str
    log: str | None = None
    env_file: str | None = None
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key, never the key."""
    parameters: tuple[tuple[str, str], ...] = ()
    runner_pid: int | None = None
    """The `specdash backend run` around it."""
    env_digest: str | None = None
    """SHA-256 of the env file's bytes that it was started from: tells which version of the file is in force."""
    start_check: StartCheck | None = None
    """Whether it really speculates, as was seen after its start; None until that was looked at."""
    ended: float | None = None
    """Unix time when its engine ended; None while it runs, and where its runner was killed with it."""
    end: str | None = None
    """How it ended, in words: `signal SIGKILL`."""
    crashed: bool = False
    """It ended by itself, and nobody had asked for it."""

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> RunRecord | None:
        """The record, or None when the text is not one (half-written, or from another version)."""
        try:
            data: Any = json.loads(text)
            return cls(
                pid=int(data["pid"]),
                pid_started=float(data["pid_started"]),
                url=str(data["url"]),
                engine=str(data["engine"]),
                log=_text(data.get("log")),
                env_file=_text(data.get("env_file")),
                api_key_env=_text(data.get("api_key_env")),
                parameters=tuple((str(key), str(value)) for key, value in data.get("parameters", ())),
                runner_pid=_number(data.get("runner_pid")),
                env_digest=_text(data.get("env_digest")),
                start_check=_start_check(data.get("start_check")),
                ended=float(data["ended"]) if data.get("ended") is not None else None,
                end=_text(data.get("end")),
                crashed=data.get("crashed") is True,
            )
        except (ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class ProxyRecord:
    """One running proxy. No secrets are ever stored; URLs are without user and password."""

    pid: int
    pid_started: float
    """Unix time the process started, to tell a reused pid."""
    url: str
    upstream: str
    """Root URL of the llama.cpp server behind it."""
    events: str | None = None
    """The file its events go to; None when they are switched off."""
    log: str | None = None
    env_file: str | None = None
    api_key_env: str | None = None
    """Name of the variable, in the environment or in `env_file`, that holds the key clients need; None: none asked."""
    env_digest: str | None = None
    """SHA-256 of the env file's bytes that its settings come from: tells which version of the file is in force."""

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ProxyRecord | None:
        """The record, or None when the text is not one (half-written, or from another version)."""
        try:
            data: Any = json.loads(text)
            return cls(
                pid=int(data["pid"]),
                pid_started=float(data["pid_started"]),
                url=str(data["url"]),
                upstream=str(data["upstream"]),
                events=_text(data.get("events")),
                log=_text(data.get("log")),
                env_file=_text(data.get("env_file")),
                api_key_env=_text(data.get("api_key_env")),
                env_digest=_text(data.get("env_digest")),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def _start_check(data: Any) -> StartCheck | None:
    """The check, None when there was none, or one of another version."""
    try:
        tasks = tuple(int(one) for one in data.get("probe_tasks", ()))
        return StartCheck(**{**data, "drafting": Drafting(data["drafting"]), "probe_tasks": tasks})
    except (TypeError, ValueError, KeyError, AttributeError):
        return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
