"""The row of a server among many: a few figures of its picture, the same that its dashboard shows. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.records import AlertSeverity
from specdash.insight.picture import BackendState, MeasuredFigure, SlotPhase
from specdash.insight.speedup.verdict import Verdict, VerdictKind, verdict
from specdash.system.stats import share

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.insight.picture import Picture


ELSEWHERE = "elsewhere"
"""The state of a machine that is not asked from here."""


class FleetRow(Struct, frozen=True):
    """One server, or one model of a router. Figures as in `Picture`; None is unknown."""

    name: str
    """As config.toml calls it, else its address; of a router's model with the model behind a slash."""
    url: str
    model: str | None
    state: str
    """A `BackendState`, or `ELSEWHERE`; of a model that is not looked at the router's word for it."""
    reason: str = ""
    verdict: Verdict | None = None
    """None of a model that is not looked at."""
    acceptance: MeasuredFigure = MeasuredFigure()
    """Of the window, else since the server's start."""
    decode: MeasuredFigure = MeasuredFigure()
    prefill: MeasuredFigure = MeasuredFigure()
    context_used: int | None = None
    """Tokens in the slot that is fullest."""
    context_size: int | None = None
    gpu: float | None = None
    """Of the busiest GPU, where the server is on this machine."""
    busy: int | None = None
    """Slots at work."""
    slots: int | None = None
    queue: float | None = None
    """Requests that wait for a slot."""
    critical: int = 0
    """Active alerts by severity."""
    warnings: int = 0
    notices: int = 0
    cause: str = ""
    """The likely cause of what is wrong."""
    vram_used: float | None = None
    """Bytes of the GPU whose memory is fullest."""
    vram_size: float | None = None
    group: str = ""
    """As config.toml calls it, or a label in Prometheus."""
    router_model: str | None = None
    """Of the row of a router's model that is not looked at: its name for the router."""

    @property
    def context(self) -> float | None:
        """The share of the context in use."""
        return share(self.context_used, self.context_size)

    @property
    def vram(self) -> float | None:
        """The share of GPU memory in use."""
        return share(self.vram_used, self.vram_size)

    @property
    def answers(self) -> bool:
        """Whether a server answers, even one that loads or wants a key."""
        return self.state not in (BackendState.DOWN, BackendState.UNKNOWN, ELSEWHERE)

    @property
    def alerts(self) -> int:
        """All that are active."""
        return self.critical + self.warnings + self.notices

    @property
    def is_away(self) -> bool:
        """Whether no server would answer requests."""
        return self.state in _AWAY

    @property
    def badness(self) -> int:
        """How much it wants to be looked at: 0 not at all; most where the server is not there."""
        kind = self.verdict.kind if self.verdict is not None else None
        reasons = (
            self.state in _BROUGHT_UP,
            bool(self.warnings),
            kind is VerdictKind.COSTS,
            bool(self.critical),
            self.is_away,
        )
        return max((level for level, holds in enumerate(reasons, 1) if holds), default=0)


_AWAY = frozenset({BackendState.DOWN, BackendState.UNKNOWN, BackendState.UNAUTHORIZED})
_BROUGHT_UP = frozenset({BackendState.LOADING, BackendState.RESTARTED, BackendState.STALE})


def rows_of(picture: Picture, name: str, group: str = "") -> list[FleetRow]:
    """The server's row and, of a router, one for each of its other models; `group` as in `FleetRow`."""
    models = picture.views.router.models
    watched = next((model.id for model in models if model.watched), None)
    own = _row(picture, f"{name}/{watched}" if watched is not None and len(models) > 1 else name, group)
    rows = [own]
    for model in models:
        if not model.watched:
            reason = model.failure or (model.words if model.words != model.status else "")
            known = (f"{name}/{model.id}", own.url, model.id, model.status, reason)
            rows.append(FleetRow(*known, group=own.group, router_model=model.id))
    return rows


def _row(picture: Picture, name: str, group: str) -> FleetRow:
    backend, accepted = picture.backend, picture.backend.speculation.acceptance
    slots = backend.slots or ()
    fullest = max(slots, key=lambda slot: slot.context_used or 0, default=None)
    severities = [alert.severity for alert in picture.alerts.active]
    vram_used, vram_size = fullest_memory((gpu.memory_used_bytes, gpu.memory_total_bytes) for gpu in picture.gpu.gpus)
    return FleetRow(
        name=name,
        url=backend.url,
        model=backend.model,
        state=str(backend.state),
        reason=backend.reason,
        verdict=verdict(picture),
        acceptance=accepted.window if accepted.window.value is not None else accepted.lifetime,
        decode=backend.decode,
        prefill=backend.prefill,
        context_used=fullest.context_used if fullest is not None else None,
        context_size=(fullest.n_ctx if fullest is not None else None) or backend.n_ctx,
        gpu=max((gpu.utilisation for gpu in picture.gpu.gpus if gpu.utilisation is not None), default=None),
        busy=sum(slot.phase is not SlotPhase.IDLE for slot in slots) if backend.slots is not None else None,
        slots=len(slots) if backend.slots is not None else None,
        queue=backend.requests_deferred,
        critical=severities.count(AlertSeverity.CRITICAL),
        warnings=severities.count(AlertSeverity.WARNING),
        notices=severities.count(AlertSeverity.NOTICE),
        cause=picture.alerts.cause,
        vram_used=vram_used,
        vram_size=vram_size,
        group=group,
    )


def fullest_memory(gpus: Iterable[tuple[float | None, float | None]]) -> tuple[float | None, float | None]:
    """Bytes used and there of the GPU with the greatest share in use: that one runs out first."""
    known = [(used, size) for used, size in gpus if used is not None and size]
    return max(known, key=lambda memory: memory[0] / memory[1], default=(None, None))


def worst_first(rows: Sequence[FleetRow]) -> list[FleetRow]:
    """In the order in which they want to be looked at."""
    return sorted(rows, key=lambda row: (-row.badness, row.name))
