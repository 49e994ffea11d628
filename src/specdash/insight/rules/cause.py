"""Which of several alerts is the likely cause of the others: what each rule explains is data, in its TOML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.alerts import AlertSeverity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.core.alerts import Alert
    from specdash.insight.rules.catalogue import Rule

LATER_S = 120.0
"""A cause may be seen so much later than what follows from it, since rules need different times to tell."""


def likely_cause(active: Sequence[Alert], rules: Iterable[Rule]) -> Alert | None:
    """The alert that explains best what is wrong; None when nothing is, notices alone being nothing wrong, and neither
    being alerts that were refuted.

    One that another active alert explains is a consequence. Among the rest, that wins which stands for the worst alert,
    itself or one that follows from it; then that which explains more, is worse itself, and began first.
    """
    active = [one for one in active if not one.refuted]
    if all(one.severity is AlertSeverity.NOTICE for one in active):
        return None
    follows = _consequences(active, {rule.spec.id: rule.spec.explains for rule in rules})
    explained = {key for one in active for key in follows[one.key] if one.key not in follows.get(key, ())}
    first = [one for one in active if one.key not in explained] or list(active)
    by_key = {one.key: one for one in active}

    def rank(one: Alert) -> tuple[int, int, int, float, tuple[str, str]]:
        worst = max(by_key[key].severity.rank for key in (one.key, *follows[one.key]))
        return -worst, -len(follows[one.key]), -one.severity.rank, one.since, one.key

    return min(first, key=rank)


def _consequences(
    active: Sequence[Alert], explains: Mapping[str, Sequence[str]]
) -> dict[tuple[str, str], set[tuple[str, str]]]:
    """By alert, the active ones that follow from it, also over others."""
    direct = {
        one.key: {
            other.key
            for other in active
            if other.rule != one.rule
            and other.rule in explains.get(one.rule, ())
            and one.since <= other.since + LATER_S
        }
        for one in active
    }
    return {key: _reached(key, direct) for key in direct}


def _reached(key: tuple[str, str], direct: Mapping[tuple[str, str], set[tuple[str, str]]]) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    open_keys = list(direct[key])
    while open_keys:
        one = open_keys.pop()
        if one not in found and one != key:
            found.add(one)
            open_keys += direct[one]
    return found
