"""Looks into the files of the models that a server of this machine runs: their headers say what speculation needs.

A header is read once per file, on a daemon thread: a disk may take its time, and must hold up nobody.
"""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specdash.core.errors import SpecdashError
from specdash.core.readings import ModelOutline

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.core.readings import Props
    from specdash.core.target import Target

DRAFT_PARAMETER = "spec-draft-model"
THREAD = "specdash-model-file"
PATIENCE_S = 0.5
"""How long an answer of the server waits for what its files say; what comes later is told with the next answer."""
_NAME = re.compile(r"[\w.-]{1,40}")
_Key = tuple[str, int, int]


class ModelFiles:
    """Adds to what a server says of itself what its models' files say. `target` tells which server that is by now."""

    def __init__(self, target: Callable[[], Target]) -> None:
        self._target = target
        self._known: dict[_Key, ModelOutline | None] = {}
        """By path, time of change, and size."""
        self._reading: set[_Key] = set()

    @property
    def pending(self) -> bool:
        """Whether a file is still being read, so that the next answer will tell more."""
        return bool(self._reading)

    async def described(self, props: Props) -> Props:
        """The same with size and outline of the model's file, and the draft model's outline, where they can be seen."""
        if props.model_path is None:
            return props
        target = self._target()
        draft = dict(target.parameters).get(DRAFT_PARAMETER)
        model_key = _key(props.model_path, target.pid)
        draft_key = _key(draft, target.pid) if draft else None
        for key in (model_key, draft_key):
            if key is not None:
                await self._read(key)
        return replace(
            props,
            model_bytes=model_key[2] if model_key is not None else None,
            model=self._known.get(model_key) if model_key is not None else None,
            draft=self._known.get(draft_key) if draft_key is not None else None,
        )

    async def _read(self, key: _Key) -> None:
        if key in self._known or key in self._reading:
            return
        done, loop = asyncio.Event(), asyncio.get_running_loop()
        self._reading.add(key)

        def look() -> None:
            self._known[key] = outline_of(key[0])
            self._reading.discard(key)
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:
                # The loop has ended in the meantime, and with it whoever waited.
                return

        threading.Thread(target=look, name=THREAD, daemon=True).start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await done.wait()
        except TimeoutError:
            return


def outline_of(path: str) -> ModelOutline | None:
    """What the header of a GGUF file says; None for a file that cannot be read, or is none."""
    from specdash.llama.gguf import read_facts
    from specdash.llama.model_facts import STATE_ROLLBACK, shape_of

    try:
        facts = read_facts(path)
        shape, name = shape_of(facts), facts.architecture or ""
        return ModelOutline(
            architecture=name if _NAME.fullmatch(name) else None,
            memory=shape.memory if shape is not None else None,
            gives_states=facts.architecture in STATE_ROLLBACK,
            block_size=facts.number("block_size"),
        )
    except (SpecdashError, OSError, ValueError):
        return None


def _key(path: str, pid: int | None) -> _Key | None:
    """What tells one file from another, None for one that cannot be seen. A relative path is one of the process."""
    try:
        found = Path(path)
        if not found.is_absolute() and pid is not None:
            found = _directory(pid) / found
        status = found.stat()
    except (OSError, ValueError):
        return None
    return str(found), status.st_mtime_ns, status.st_size


def _directory(pid: int) -> Path:
    import psutil

    try:
        return Path(psutil.Process(pid).cwd())
    except (psutil.Error, OSError, ValueError):
        return Path()
