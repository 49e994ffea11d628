"""What a llama-server in router mode says of its models (`GET /models`), as data.

Source: llama.cpp b11434 (tools/server/server-models.cpp): one entry a model, `status.value` its state,
`status.args` the arguments of its child server.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ModelStatus(StrEnum):
    """State of one model behind a router."""

    LOADED = "loaded"
    SLEEPING = "sleeping"
    LOADING = "loading"
    UNLOADED = "unloaded"
    FAILED = "failed"
    UNKNOWN = "unknown"


ROUTER = "router"
"""The `role` that a router has in its /props."""
RESIDENT = (ModelStatus.LOADED, ModelStatus.SLEEPING)
"""States in which a model's child server runs, the better one first."""


@dataclass(frozen=True, slots=True)
class RouterModel:
    """One model behind a router."""

    id: str
    status: ModelStatus = ModelStatus.UNKNOWN
    aliases: tuple[str, ...] = ()
    last_used: float | None = None
    """Unix time of its last request; None when it is not told."""
    spec_types: tuple[str, ...] | None = None
    """With what its child server was or will be started, from its arguments; empty: no speculation."""
    draft_model: str | None = None
    port: int | None = None
    """Of its child server, while there is one: the log's lines of that child name it."""
    failure: str = ""
    """What the router says went wrong."""

    @property
    def resident(self) -> bool:
        """Whether it is in memory, asleep or awake."""
        return self.status in RESIDENT


@dataclass(frozen=True, slots=True)
class RouterModels:
    """GET /models of a router."""

    models: tuple[RouterModel, ...] = ()

    @property
    def holds_none(self) -> bool:
        """Whether this is a router, and none of its models is in memory."""
        return bool(self.models) and not any(one.resident for one in self.models)


def most_recent_resident(models: tuple[RouterModel, ...]) -> RouterModel | None:
    """What the model name `any` means: the resident model used last, one that is awake before one that sleeps; None
    when none is resident. Never one that would have to be loaded."""
    for status in RESIDENT:
        found = [one for one in models if one.status is status]
        if found:
            return max(found, key=lambda one: one.last_used or 0.0)
    return None
