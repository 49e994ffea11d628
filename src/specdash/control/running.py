"""What runs for a service now, by the run records, and what its settings promise."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from specdash.backend.launch import settings_of
from specdash.backend.settings import MACHINE_KEYS, ROUTER_KEYS
from specdash.backend.start_check import ServerPromise, promise_of
from specdash.collect.run_records import live_backends, live_proxies, started_last
from specdash.core.errors import SpecdashError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.control.deployment import Service
    from specdash.core.records import ProxyRecord, RunRecord


_DEFAULT_URL = "http://127.0.0.1:8080"


def promise(values: Mapping[str, str], base: Mapping[str, str] = os.environ) -> ServerPromise:
    """What `values` promise. Never fails: what they do not tell is unknown."""
    machine = {key: base[key] for key in MACHINE_KEYS if base.get(key) and key not in values}
    router = any(values.get(key) for key in ROUTER_KEYS)
    try:
        settings = settings_of({**values, **machine}, base)
    except SpecdashError:
        host, port = values.get("LLAMA_HOST") or "127.0.0.1", values.get("LLAMA_PORT") or "8080"
        return ServerPromise(f"http://{host}:{port}" if port.isdigit() else _DEFAULT_URL, router=router)
    return promise_of(settings, base)


def recorded_engine(service: Service, env: Mapping[str, str]) -> RunRecord | None:
    """The most recently started live engine whose run record names this service's env file."""
    return started_last(live_backends(env), service.env_file)


def port_of(url: str) -> int | None:
    """The port in an address."""
    tail = url.rsplit(":", 1)[-1].strip("/")
    return int(tail) if tail.isdigit() else None


def recorded_proxy(service: Service, env: Mapping[str, str]) -> ProxyRecord | None:
    """The most recently started live proxy whose record names this service's env file."""
    return started_last(live_proxies(env), service.env_file)
