"""The notes that running backends and proxies leave of themselves (`core.run_record`), and which of them still hold."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, TypeVar

from specdash.core import paths
from specdash.core.records import ProxyRecord, RunRecord
from specdash.system.files import file_digest
from specdash.system.processes import same_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

R = TypeVar("R", RunRecord, ProxyRecord)


def notes(directory: Path, kind: type[R]) -> Iterator[tuple[Path, R]]:
    """The records in a directory, the newest first; what is none is passed over."""
    try:
        files = sorted(directory.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    except OSError:
        return
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            if (record := kind.from_json(file.read_text(encoding="utf-8"))) is not None:
                yield file, record


def is_alive(record: RunRecord | ProxyRecord) -> bool:
    """Whether the process that left the record still runs, and is the same."""
    return same_process(record.pid, record.pid_started)


def live_backends(env: Mapping[str, str]) -> list[RunRecord]:
    """Every backend of this machine that left a record and still runs, the newest first.

    From then on the certificate that a record names is taken for that of its server.
    """
    alive = [record for _, record in notes(paths.run_records_dir(env), RunRecord) if is_alive(record)]
    for record in alive:
        if record.certificate is not None:
            from specdash.system.http import trust

            trust(record.url, record.certificate)
    return alive


def started_last(records: Iterable[R], env_file: str | Path) -> R | None:
    """The most recently started one of those whose note names this env file."""
    wanted = os.path.realpath(env_file)
    found = [record for record in records if record.env_file and os.path.realpath(record.env_file) == wanted]
    return max(found, key=lambda record: record.pid_started, default=None)


def refusal(record: RunRecord | ProxyRecord) -> str:
    """Why the env file of a process, as it was edited, is not what it runs; empty where it is."""
    if not record.refused or record.env_digest == file_digest(record.env_file):
        return ""
    return f"{record.env_file} as it was edited is not in force, the last good settings run: {record.refused}"


def live_proxies(env: Mapping[str, str]) -> list[ProxyRecord]:
    """Every proxy of this machine that left a record and still runs, the newest first."""
    return [record for _, record in notes(paths.proxy_records_dir(env), ProxyRecord) if is_alive(record)]
