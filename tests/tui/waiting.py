"""Waiting for what a dashboard does besides drawing."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from textual.worker import WorkerCancelled

if TYPE_CHECKING:
    from textual.app import App


async def answered(app: App[None]) -> None:
    """Wait until no thread's answer is out; one whose place a newer took does not count."""
    while asked := [worker for worker in app.workers if not worker.is_finished]:
        with suppress(WorkerCancelled):
            await app.workers.wait_for_complete(asked)
