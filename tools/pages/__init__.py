"""The generated files of docs/ and contrib/: each is a function that returns the whole text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pages import export, keys, rules, settings, spec_types

if TYPE_CHECKING:
    from collections.abc import Callable

PAGES: dict[str, Callable[[], str]] = {
    "../contrib/grafana/specdash.json": export.dashboard,
    "../contrib/prometheus/rules.yml": export.alerting_rules,
    "export.md": export.page,
    "keys.md": keys.page,
    "rules.md": rules.page,
    "settings.md": settings.page,
    "spec-types.md": spec_types.page,
}
