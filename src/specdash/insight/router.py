"""Derives a router's models: which are in memory, which was used last, and what the name `any` means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.readings import ROUTER, RouterModels, Source, most_recent_resident

if TYPE_CHECKING:
    from specdash.core.readings import Props, RouterModel
    from specdash.insight.state import TargetState

_APART_S = 1e-6
"""Keeps requests in order that the log cannot date, because they ended before it was read."""


class RouterModelPicture(Struct, frozen=True):
    """One model behind a router."""

    id: str
    status: str
    last_used_age_s: float | None = None
    spec_types: tuple[str, ...] | None = None
    watched: bool = False
    """The one that this picture is of."""
    failure: str = ""
    loading_s: float | None = None
    """For how long it has been loading."""
    has_source: bool | None = None
    """Its preset names a file or a repository; one that names none starts another router and loads for ever."""
    words: str = ""
    """The status in full: of a model that is not in memory, whether it ever was, or how its server ended."""


class RouterPicture(Struct, frozen=True):
    """The models of a router; empty for a server that is none."""

    models: tuple[RouterModelPicture, ...] = ()
    any_means: str | None = None
    """What the model name `any` means now; None when no model is resident."""
    reason: str = ""
    """Why the models are not known."""


def derive(state: TargetState, now: float, wall: float) -> RouterPicture:
    """The models in the router's order. The caller holds the state's lock."""
    latest, value = state.latest.get(Source.ROUTER), state.value(Source.ROUTER)
    reason = latest.failure.detail or str(latest.failure.kind) if latest is not None and latest.failure else ""
    if not isinstance(value, RouterModels):
        return RouterPicture(reason=reason)
    offset = wall - now
    models = [_with_use(model, state, offset) for model in value.models]
    props: Props | None = state.value(Source.PROPS)
    watched = state.target.model or (props.model_alias if props is not None and props.role != ROUTER else None)
    means = most_recent_resident(tuple(models))
    return RouterPicture(
        models=tuple(
            RouterModelPicture(
                id=model.id,
                status=str(model.status),
                last_used_age_s=max(0.0, wall - model.last_used) if model.last_used is not None else None,
                spec_types=model.spec_types,
                watched=model.id == watched or (watched is not None and watched in model.aliases),
                failure=model.failure,
                words=model.words,
                loading_s=now - state.loading_since[model.id] if model.id in state.loading_since else None,
                has_source=model.has_source,
            )
            for model in models
        ),
        any_means=means.id if means is not None else None,
        reason=reason,
    )


def _with_use(model: RouterModel, state: TargetState, offset: float) -> RouterModel:
    """With the moment of its last request by the log, whose lines name the child's port; b11434's router keeps that for
    itself. A port goes to one child only as long as it runs."""
    if model.port is None:
        return model
    newest_first = enumerate(state.log.recent)
    seen = next(
        (at - _APART_S * index for index, (at, logged_request) in newest_first if logged_request.origin == model.port),
        None,
    )
    if seen is None:
        return model
    return replace(model, last_used=max(seen + offset, model.last_used or 0.0))
