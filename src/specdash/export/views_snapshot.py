"""The views of the speculation screen as JSON and as rows of text."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdash.insight.drafter_picture import SpeculationViews


def views_json(views: SpeculationViews) -> dict[str, Any]:
    """One key a view; field names are those of `insight.drafter_picture`."""
    return asdict(views)
