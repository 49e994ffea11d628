"""What the settings of a backend promise, and where it answers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from specdash.backend.launch import settings_of
from specdash.backend.settings import MACHINE_KEYS, ROUTER_KEYS
from specdash.backend.start_check import ServerPromise, promise_of
from specdash.core.errors import SpecdashError

if TYPE_CHECKING:
    from collections.abc import Mapping


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


def port_of(url: str) -> int | None:
    """The port in an address."""
    tail = url.rsplit(":", 1)[-1].strip("/")
    return int(tail) if tail.isdigit() else None
