"""Finds the proxy in front of a server: by the run records that proxies of this machine leave."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specdash.collect.discover import is_alive, place, recorded_key
from specdash.core import paths
from specdash.core.errors import SpecdashError
from specdash.core.run_record import ProxyRecord
from specdash.llama.address import normalise_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdash.core.target import Target

_NOTHING: dict[str, Any] = {"proxy_url": None, "proxy_key": None, "proxy_log": None, "proxy_origin": ""}


def with_proxy(target: Target, env: Mapping[str, str]) -> Target:
    """The target with the youngest proxy whose upstream it is, where there is one; its events before its log.

    What the target says of its proxy already stays, and with an address that is everything.
    """
    record = _record(target, env) if target.proxy_url is None else None
    return _joined(target, record, env) if record is not None else target


class ProxySearch:
    """Looks for the proxy of a target again and again. Costs a directory listing while nothing changes."""

    def __init__(self, target: Target, env: Mapping[str, str]) -> None:
        """The target names no proxy, or has one from `with_proxy`."""
        self._env = env
        self._told = target
        self._bare = replace(target, proxy_found=(), **{name: _NOTHING[name] for name in target.proxy_found})
        self._record: ProxyRecord | None = None
        self._listing: frozenset[tuple[str, int, int]] | None = None

    def look(self) -> Target | None:
        """The target with the proxy found for it, when that is another than before."""
        if self._record is not None and is_alive(self._record):
            return None
        listing = _listing(self._env)
        if self._record is None and listing == self._listing:
            return None
        self._listing = listing
        self._record = _record(self._bare, self._env)
        if self._record is None:
            return None
        found = _joined(self._bare, self._record, self._env)
        before, self._told = self._told, found
        return found if found != before else None


def _joined(target: Target, record: ProxyRecord, env: Mapping[str, str]) -> Target:
    recorded: dict[str, Any] = {
        "proxy_url": record.url,
        "proxy_key": recorded_key(record, env),
        "proxy_log": record.events or record.log,
        "proxy_origin": f"run record of process {record.pid}",
    }
    taken = {name: value for name, value in recorded.items() if value and not getattr(target, name)}
    return replace(target, proxy_found=tuple(taken), **taken)


def _record(target: Target, env: Mapping[str, str]) -> ProxyRecord | None:
    return next((record for record in running_proxies(env) if place(record.upstream) == place(target.url)), None)


def _listing(env: Mapping[str, str]) -> frozenset[tuple[str, int, int]]:
    """The records there are, by name, time of change and size: equal listings hold the same records."""
    seen: set[tuple[str, int, int]] = set()
    try:
        with os.scandir(paths.proxy_records_dir(env)) as entries:
            for entry in entries:
                if entry.name.endswith(".json"):
                    status = entry.stat()
                    seen.add((entry.name, status.st_mtime_ns, status.st_size))
    except OSError:
        # What vanished in between makes another listing the next time.
        pass
    return frozenset(seen)


def running_proxies(env: Mapping[str, str]) -> Iterator[ProxyRecord]:
    """The proxies of this machine that run and left a record, the youngest first."""
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
