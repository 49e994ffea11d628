"""What a client of the running services needs: where they answer, with which model, and how Claude Code asks."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.backend.env_store import read_env
from specdash.control.deployment import Service
from specdash.core.changes import Role
from specdash.core.errors import InputError
from specdash.llama.client import BlockingClient
from specdash.llama.server_answers import mapping

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_ANSWER_S = 2.0


class ClientView(Struct, frozen=True):
    """The address to ask, its model (None: not known yet) and whether turns are answered now. `key` names the variable
    and the file that hold the key which clients need; `proxy` is whether the Anthropic API is there."""

    url: str
    model: str | None
    ready: bool
    proxy: bool
    key: tuple[str, Path] | None = None

    @property
    def line(self) -> str:
        """The same in one line, without a secret."""
        at = f"{'ready' if self.ready else 'not ready yet'}: {self.url}, model {self.model or '--'}"
        if not self.proxy:
            return f"{at}; Claude Code needs the proxy, too"
        variables = {"ANTHROPIC_BASE_URL": self.url, "ANTHROPIC_AUTH_TOKEN": "local", "ANTHROPIC_MODEL": self.model}
        words = " ".join(f"{name}={shlex.quote(text)}" for name, text in variables.items() if text)
        if self.key is not None:
            name, file = self.key
            return f"{at}; {words.replace('=local', f'=${name}')} claude ({name} is in {file})"
        return f"{at}; {words} claude"


def client_view(env_files: Mapping[Role, Path], env: Mapping[str, str] = os.environ) -> ClientView | None:
    """How clients reach the services of these env files; None while none of them runs."""
    records = {role: Service(role, file, env).record() for role, file in env_files.items()}
    proxy = records.get(Role.PROXY) is not None
    role, name = (Role.PROXY, "PROXY_API_KEY") if proxy else (Role.BACKEND, "LLAMA_API_KEY")
    if (record := records.get(role)) is None:
        return None
    try:
        key = read_env(env_files[role]).values.get(name, "").partition(",")[0] or None
    except InputError:
        key = None
    client = BlockingClient(record.url, key, timeout=_ANSWER_S, verified=False)
    try:
        health = mapping(client.get("/health").json).get("status")
        ready = health == "ok" and (proxy or Role.PROXY not in env_files)
        listed = mapping(client.get("/v1/models").json).get("data") if ready else None
    except OSError:
        ready, listed = False, None
    model = mapping(listed[0]).get("id") if isinstance(listed, list) and listed else None
    return ClientView(record.url, model, ready and model is not None, proxy, (name, env_files[role]) if key else None)
