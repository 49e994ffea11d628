"""Finds the proxy in front of a server: by the run records that proxies of this machine leave."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from specdash.collect.discover import is_alive, place, recorded_key
from specdash.core import paths
from specdash.core.errors import SpecdashError
from specdash.core.run_record import ProxyRecord
from specdash.llama.address import normalise_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdash.core.target import Target


def with_proxy(target: Target, env: Mapping[str, str]) -> Target:
    """The target with the youngest proxy whose upstream it is, where there is one; its events before its log."""
    for record in _records(env):
        if place(record.upstream) == place(target.url):
            return replace(
                target,
                proxy_url=record.url,
                proxy_key=recorded_key(record, env),
                proxy_log=record.events or record.log,
                proxy_origin=f"run record of process {record.pid}",
            )
    return target


def _records(env: Mapping[str, str]) -> Iterator[ProxyRecord]:
    try:
        files = sorted(paths.proxy_records_dir(env).glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    except OSError:
        return
    for file in files:
        try:
            record = ProxyRecord.from_json(file.read_text(encoding="utf-8"))
            if record is not None and is_alive(record):
                yield replace(record, url=normalise_url(record.url), upstream=normalise_url(record.upstream))
        except (OSError, ValueError, SpecdashError):
            continue
