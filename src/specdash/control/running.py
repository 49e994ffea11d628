"""What runs for a service now, by the run records, and what its settings promise."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from specdash.backend import auto
from specdash.backend.launch import settings_of
from specdash.backend.settings import MACHINE_KEYS, ROUTER_KEYS
from specdash.backend.start_check import ServerPromise, promise_of
from specdash.collect.run_records import live_backends, live_proxies
from specdash.core.errors import SpecdashError
from specdash.llama.gguf import GgufError
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from specdash.control.deployment import Service
    from specdash.core.records import ProxyRecord
    from specdash.core.speculation import SpecType


_DEFAULT_URL = "http://127.0.0.1:8080"


def promise(values: Mapping[str, str], base: Mapping[str, str] = os.environ) -> ServerPromise:
    """What `values` promise. Never fails: what they do not tell is unknown."""
    machine = {key: base[key] for key in MACHINE_KEYS if base.get(key) and key not in values}
    router = any(values.get(key) for key in ROUTER_KEYS)
    try:
        settings = settings_of({**values, **machine}, base, _detect)
    except SpecdashError:
        host, port = values.get("LLAMA_HOST") or "127.0.0.1", values.get("LLAMA_PORT") or "8080"
        return ServerPromise(f"http://{host}:{port}" if port.isdigit() else _DEFAULT_URL, router=router)
    return promise_of(settings, base)


def _detect(path: str) -> SpecType | None:
    with contextlib.suppress(SpecdashError, GgufError):
        return auto.detect(path)
    return None


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """The process that serves, by its run record. `digest` is the version of the env file that it runs."""

    pid: int
    url: str
    digest: str | None = None
    log: str | None = None


def recorded_engine(service: Service, env: Mapping[str, str]) -> ServingEngine | None:
    """The most recently started live engine whose run record names this service's env file."""
    wanted = _real(service.env_file)
    found = [
        backend for backend in live_backends(env) if backend.env_file is not None and _real(backend.env_file) == wanted
    ]
    if not found:
        return None
    best = max(found, key=lambda run_record: run_record.pid_started)
    return ServingEngine(best.pid, best.url, best.env_digest, best.log)


def port_of(url: str) -> int | None:
    """The port in an address."""
    tail = url.rsplit(":", 1)[-1].strip("/")
    return int(tail) if tail.isdigit() else None


def recorded_proxy(service: Service, env: Mapping[str, str]) -> ProxyRecord | None:
    """The youngest live proxy that left a record naming this service's env file."""
    wanted = _real(service.env_file)
    found = [proxy for proxy in live_proxies(env) if proxy.env_file is not None and _real(proxy.env_file) == wanted]
    return max(found, key=lambda proxy_record: proxy_record.pid_started, default=None)


def _real(path: str | Path) -> str:
    return os.path.realpath(os.path.expanduser(path))  # noqa: PTH111 - one call, for paths and texts alike
