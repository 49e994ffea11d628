"""Questions to a server, asked without specdash."""

import json
import urllib.request
from http.client import HTTPException
from typing import Any


def read(url: str, body: Any = None, *, key: str | None = None, timeout: float = 60.0) -> bytes:
    """What an address answers; to a POST of JSON where there is a body. Raises OSError, also where the answer breaks
    off."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=timeout) as answer:
            found: bytes = answer.read()
    except HTTPException as error:
        raise ConnectionError(str(error)) from error
    return found


def ask(url: str, body: Any = None, *, key: str | None = None, timeout: float = 60.0) -> Any:
    """The JSON of it."""
    return json.loads(read(url, body, key=key, timeout=timeout))


def complete(url: str, prompt: Any, tokens: int, **more: Any) -> Any:
    """One greedy completion; its answer, with `timings`."""
    return ask(f"{url}/completion", {"prompt": prompt, "n_predict": tokens, "temperature": 0, **more})


def healthy(url: str) -> bool:
    """Whether /health answers so."""
    try:
        return bool(read(f"{url}/health", timeout=2.0))
    except OSError:
        return False
