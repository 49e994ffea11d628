"""The alerts of one target: the rules judged at every look at the server, and their part of the picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.insight.alerts_picture import AlertsPicture
from specdash.insight.rules.scene import Past, Scene, sample_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.core.alerts import Alert, AlertEvent
    from specdash.insight.picture import Picture
    from specdash.insight.rules.book import AlertBook
    from specdash.insight.rules.catalogue import Rule
    from specdash.insight.samples import Samples

JUDGED_WINDOW_S = 60.0
"""The window of the pictures that rules see, whatever window the screen shows."""


class Alerts:
    """Judges every picture it is given. The rules and their texts are loaded at the first."""

    def __init__(self, rules: Sequence[Rule] | None) -> None:
        self.past = Past()
        self._rules = rules
        self._book: AlertBook | None = None

    def judge(self, picture: Picture, samples: Samples) -> tuple[AlertEvent, ...]:
        """What became of the alerts."""
        book = self._kept()
        self.past.add(sample_of(picture))
        return book.judge(Scene(picture, self.past, samples))

    def remember(self, past: Iterable[Alert], active: Iterable[Alert], now: float) -> None:
        """Begin with recorded alerts (see `AlertBook.remember`)."""
        self._kept().remember(past, active, now)

    def _kept(self) -> AlertBook:
        if self._book is None:
            from specdash.insight.rules.book import AlertBook
            from specdash.insight.rules.catalogue import shipped

            self._book = AlertBook(self._rules if self._rules is not None else shipped())
        return self._book

    def picture(self) -> AlertsPicture:
        """Active and past alerts, and the likely cause."""
        book = self._book
        if book is None:
            return AlertsPicture()
        from specdash.insight.rules.cause import likely_cause

        active = book.active
        first = likely_cause(active, book.rules)
        skipped = {one.rule for one in book.unjudged}
        return AlertsPicture(
            active=active,
            past=tuple(book.past),
            cause=f"{first.title}: {first.summary}" if first is not None else "",
            cause_key=first.key if first is not None else None,
            unjudged=tuple((one.rule, one.why) for one in book.unjudged),
            judged=tuple(rule.spec.id for rule in book.rules if rule.spec.id not in skipped),
        )
