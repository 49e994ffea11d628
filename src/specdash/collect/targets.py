"""A first look at each server of this machine: whether it answers, what it runs, whether it wants a key."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.readings import Failure, FailureKind, HealthStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.target import Target

LOOK_S = 1.0
"""How long a server may take over each of the two answers."""


class TargetLook(Struct, frozen=True):
    """What one look showed; None where the server does not tell."""

    target: Target
    state: str
    """`ok`, `loading`, `unauthorized` (it refuses the key that is known, or wants one), or why there is no answer."""
    answers: bool
    engine: str | None = None
    model: str | None = None
    needs_key: bool | None = None
    key_known: bool = False
    """Whether the look had a key: that of the server's own env file, never one that was named for another."""

    @property
    def state_words(self) -> str:
        """The state for people."""
        if self.state == FailureKind.UNAUTHORIZED:
            return "refuses the key" if self.key_known else "wants a key"
        return self.state


def look_at(targets: Sequence[Target]) -> list[TargetLook]:
    """These servers, each looked at; takes at most about two times `LOOK_S`."""

    async def look_at_all() -> list[TargetLook]:
        return list(await asyncio.gather(*map(_look_at, targets)))

    return asyncio.run(look_at_all())


async def _look_at(target: Target) -> TargetLook:
    from specdash.llama.client import LlamaClient

    async with contextlib.aclosing(LlamaClient(target)) as client:
        health, props = await asyncio.gather(client.health(LOOK_S), client.props(LOOK_S))
    has_key = target.api_key is not None
    if not isinstance(props, Failure):
        engine = target.engine or (f"llama.cpp {props.build}" if props.build else None)
        return TargetLook(target, str(HealthStatus.OK), True, engine, props.name, has_key, has_key)
    refused = props.kind is FailureKind.UNAUTHORIZED
    state = props.kind if refused else health.kind if isinstance(health, Failure) else health.status
    answers = refused or (not isinstance(health, Failure) and health.status is not HealthStatus.ERROR)
    return TargetLook(target, str(state), answers, target.engine, None, refused or has_key or None, has_key)
