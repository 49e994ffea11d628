"""The note that a running proxy leaves of itself, so that dashboards and applies find it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from specdash.core.paths import proxy_records_dir
from specdash.core.run_record import ProxyRecord
from specdash.proxy.telemetry.events_file import events_path
from specdash.proxy.upstream import without_secrets

if TYPE_CHECKING:
    from pathlib import Path

    from specdash.proxy.configuration import Configuration


def record_of(configuration: Configuration, url: str) -> ProxyRecord:
    """The record of this process, which listens at `url`."""
    import psutil

    settings = configuration.settings
    pid = os.getpid()
    events = events_path(settings.events_file)
    return ProxyRecord(
        pid=pid,
        pid_started=psutil.Process(pid).create_time(),
        url=url,
        upstream=without_secrets(settings.upstream),
        events=str(events.absolute()) if events is not None else None,
        log=os.path.abspath(os.path.expanduser(settings.log_file)) if settings.log_file else None,  # noqa: PTH100, PTH111
        env_file=str(configuration.env_file) if configuration.env_file is not None else None,
        api_key_env="PROXY_API_KEY" if settings.api_key else None,
        env_digest=configuration.digest,
    )


def write_record(record: ProxyRecord) -> Path:
    """Write it, or write it anew: whole or not at all, mode 0600; returns its file."""
    directory = proxy_records_dir()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft, path = directory / f".{record.pid}.json.new", directory / f"{record.pid}.json"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(record.to_json())
    return draft.replace(path)
