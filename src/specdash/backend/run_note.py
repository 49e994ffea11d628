"""The note that a running server leaves of itself, so that dashboards and applies find it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from specdash.core.paths import ended_records_dir, run_records_dir
from specdash.core.run_record import RunRecord

if TYPE_CHECKING:
    from specdash.backend.launch import Plan
    from specdash.core.start_check import StartCheck

ENDED_KEPT = 16
"""Notes of backends that have ended."""


def write_run_record(plan: Plan, pid: int, start_check: StartCheck | None = None) -> Path:
    """Leave a note that the server `pid` runs `plan`; returns the file. Written whole or not at all, mode 0600.

    Written again, with the `start_check`, it takes the place of the note before.
    """
    directory = run_records_dir()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory.chmod(0o700)
    record = RunRecord(
        pid=pid,
        pid_started=psutil.Process(pid).create_time(),
        url=plan.settings.url,
        engine=plan.engine.words,
        log=plan.log,
        env_file=plan.env_file,
        api_key_env="LLAMA_API_KEY" if "api-key" in plan.settings.secrets else None,
        parameters=plan.speculation,
        runner_pid=os.getpid(),
        env_digest=plan.env_digest,
        start_check=start_check,
    )
    path = directory / f"{pid}.json"
    _write(path, record)
    return path


def end_run_record(path: Path, how: str, *, crashed: bool) -> None:
    """Take the note back and keep it as that of a backend that has ended, in place of the last one of its address."""
    with contextlib.suppress(OSError):
        record = RunRecord.from_json(path.read_text(encoding="utf-8"))
        if record is not None:
            directory = ended_records_dir()
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            name = re.sub(r"[^\w.-]+", "_", record.url)
            _write(directory / f"{name}.json", replace(record, ended=time.time(), end=how, crashed=crashed))
            newest_first = sorted(directory.glob("*.json"), key=lambda file: -file.stat().st_mtime)
            for file in newest_first[ENDED_KEPT:]:
                file.unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _write(path: Path, record: RunRecord) -> None:
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(record.to_json())
    draft.replace(path)


def file_digest(path: str | None) -> str | None:
    """SHA-256 of a file's bytes in hex, None when it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path is not None else None
    except OSError:
        return None
