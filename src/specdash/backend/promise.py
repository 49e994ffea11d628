"""What a backend env promises of the server it makes: where it answers, with which key, and whether it drafts."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend.settings import ROUTER_KEYS
from specdash.core.paths import state_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.settings import BackendSettings


@dataclass(frozen=True, slots=True)
class Promise:
    """What a backend env says of the server it makes. `speculates` is None where that cannot be told."""

    url: str
    key: str | None = field(repr=False, default=None)
    speculates: bool | None = None
    log: str | None = None
    no_probe: str | None = None
    """Why the server cannot be asked for a completion, None when it can."""
    router: bool = False
    types: tuple[str, ...] = ()
    """The chain of spec types, as the engine ranks them."""

    @property
    def headers(self) -> dict[str, str]:
        """What a question needs."""
        return {"authorization": f"Bearer {self.key}"} if self.key else {}


def promise_of(settings: BackendSettings, base: Mapping[str, str] = os.environ) -> Promise:
    """What settings promise."""
    router = any(key in settings.native for key in ROUTER_KEYS)
    router = router or any(argument.startswith("--models-") for argument in settings.extra_args)
    default_log = state_dir(base) / "logs" / f"backend-{settings.port}.log"
    return Promise(
        url=settings.url,
        key=_key(settings),
        speculates=bool(settings.spec_types),
        log=str(Path(settings.log_file or default_log).expanduser().absolute()),
        no_probe=_no_probe(settings, router=router),
        router=router,
        types=settings.spec_types,
    )


def _key(settings: BackendSettings) -> str | None:
    secret = settings.secrets.get("api-key")
    if secret is not None:
        return secret.get_secret_value().split(",")[0].strip() or None
    file = settings.text("api-key-file")
    if file is not None:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            lines = (line.strip() for line in Path(file).expanduser().read_text(encoding="utf-8").splitlines())
            return next((line for line in lines if line and not line.startswith("#")), None)
    return None


def _no_probe(settings: BackendSettings, *, router: bool) -> str | None:
    if router:
        return "a router serves models by name"
    if settings.value("embeddings"):
        return "it serves embeddings only"
    reranks = settings.native.get("LLAMA_ARG_RERANKING", "").lower() in ("1", "true", "on", "enabled")
    if reranks or "--reranking" in settings.extra_args or "--rerank" in settings.extra_args:
        return "it reranks only"
    return None
