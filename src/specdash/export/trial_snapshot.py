"""Settings on trial as JSON and text: whose restarts these are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdash.insight.picture import Picture


def trial_json(picture: Picture) -> dict[str, Any] | None:
    """Who tries settings on the server, and how far that is; None where nobody does."""
    trial = picture.trial
    if trial is None:
        return None
    return {
        "command": f"specdash {trial.what}",
        "service": trial.service,
        "since": trial.at,
        "alive": trial.alive,
        "boot": trial.boot,
        "planned": trial.planned,
        "words": trial.words,
    }


def trial_rows(picture: Picture) -> list[tuple[str, str]]:
    """One line for people, where there is something to say."""
    return [("trial", picture.trial.words)] if picture.trial is not None else []
