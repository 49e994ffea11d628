"""Is the server there, and does it work: pure rules, described in availability.toml."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.alerts import Symptom
from specdash.insight.picture import BackendState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.insight.rules.catalogue import Limits
    from specdash.insight.rules.scene import Scene


def backend_down(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """Nothing answers at the server's address."""
    del limits
    backend = scene.picture.backend
    if backend.state is BackendState.DOWN:
        yield Symptom(f"nothing usable answers at {backend.url}: {backend.reason}", (("state", str(backend.state)),))
