"""Looks into the files of the models that a server of this machine runs: their headers say what speculation needs.

A header is read once per file, in another thread: a disk may take its time.
"""

from __future__ import annotations

import asyncio
import re
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
PATIENCE_S = 0.5
"""How long an answer of the server waits for what its files say; what comes later is in the next answer."""
_NAME = re.compile(r"[\w.-]{1,40}")
_Key = tuple[str, int, int]


class ModelFiles:
    """Adds to what a server says of itself what its models' files say. `target` gives the server of now."""

    def __init__(self, target: Callable[[], Target]) -> None:
        self._target = target
        self._outlines: dict[_Key, asyncio.Future[ModelOutline | None]] = {}
        """By path, time of change, and size."""

    @property
    def pending(self) -> bool:
        """Whether a file is still being read, so that the next answer will tell more."""
        return not all(outline.done() for outline in self._outlines.values())

    async def described(self, props: Props) -> Props:
        """The same with size and outline of the model's file, and the draft model's outline, where they can be seen."""
        if props.model_path is None:
            return props
        target = self._target()
        keys = [_key(path, target.pid) for path in (props.model_path, dict(target.parameters).get(DRAFT_PARAMETER))]
        for key in keys:
            if key is not None and key not in self._outlines:
                self._outlines[key] = asyncio.get_running_loop().run_in_executor(None, outline_of, key[0])
        if self.pending:
            await asyncio.wait(self._outlines.values(), timeout=PATIENCE_S)
        known = {key: outline.result() for key, outline in self._outlines.items() if outline.done()}
        model, draft = (known.get(key) if key is not None else None for key in keys)
        return replace(props, model_bytes=keys[0][2] if keys[0] is not None else None, model=model, draft=draft)


def outline_of(path: str) -> ModelOutline | None:
    """What the header of a GGUF file says; None for a file that cannot be read, or is none."""
    from specdash.llama.architectures import STATE_ROLLBACK
    from specdash.llama.gguf import read_facts
    from specdash.llama.model_shape import shape_of

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


def _key(path: str | None, pid: int | None) -> _Key | None:
    """What distinguishes files, None for one that cannot be seen. A relative path is one of the process."""
    import psutil

    try:
        found = Path(path or "")
        if not found.is_absolute() and pid is not None:
            found = Path(psutil.Process(pid).cwd()) / found
        status = found.stat()
    except (psutil.Error, OSError, ValueError):
        return None
    return (str(found), status.st_mtime_ns, status.st_size) if path else None
