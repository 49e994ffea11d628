"""Which alerts are raised now and which were: hysteresis, and holding back while a server settles.

A symptom raises an alert when it was seen at every judgement for `raise_after_s`, and the alert is over when it was not
for `clear_after_s`, when the contrary is seen, or when the server whose drafts it is about is gone. What cannot be
judged (its sources are silent, the server settles or idles) stays as it is, until it is forgotten.
"""

from __future__ import annotations

import logging
from collections import deque
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.records import Alert, AlertEvent, AlertSeverity, Drafting, Transition
from specdash.insight.rules.catalogue import OverError, UnjudgeableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.core.records import Symptom
    from specdash.insight.rules.catalogue import Rule
    from specdash.insight.rules.scene import RuleScene

LATER_S = 120.0
"""A cause may be seen so much later than what follows from it, since rules need different times."""
SETTLE_S = 10.0
"""After loading or a restart, so long is nothing judged that says of itself to be held back."""
PAST_KEPT = 200
FORGOTTEN_AFTER_S = 600.0
"""An alert that could not be judged for so long is over."""
INTERRUPTED_S = 10.0
"""A symptom that has not lasted long enough yet survives so long without being judged, as at a look that failed."""
TRIAL_ENDS_S = 10.0
"""So long after a trial may the restart be seen that ended it."""
SUBJECTS = 40
"""One rule has at most so many symptoms at a time."""

_log = logging.getLogger(__name__)


def likely_cause(active: Sequence[Alert], rules: Iterable[Rule]) -> Alert | None:
    """The alert that explains best what is wrong; None when nothing is, notices alone being nothing wrong.

    One that another active alert explains is a consequence. Among the rest, that wins which stands for the worst alert,
    itself or one that follows from it; then that which explains more, is worse itself, and began first.
    """
    active = [alert for alert in active if not alert.refuted]
    if all(alert.severity is AlertSeverity.NOTICE for alert in active):
        return None
    explains = {rule.id: rule.explains for rule in rules}

    def following(alert: Alert) -> dict[tuple[str, str], Alert]:
        found: dict[tuple[str, str], Alert] = {}
        for other in active:
            if other.rule in explains.get(alert.rule, ()) and alert.since <= other.since + LATER_S:
                found |= {other.key: other, **following(other)}
        return found

    follows = {alert.key: following(alert) for alert in active}

    def rank(alert: Alert) -> tuple[int, int, int, float, tuple[str, str]]:
        worst = max(one.severity.rank for one in (alert, *follows[alert.key].values()))
        return -worst, -len(follows[alert.key]), -alert.severity.rank, alert.since, alert.key

    return min((one for one in active if not any(one.key in others for others in follows.values())), key=rank)


class _Seen(Struct):
    """One symptom: since when, when last and when last as bad as its alert says (monotonic), and that alert."""

    since: float
    last: float
    alert: Alert | None = None
    as_bad: float = 0.0


class AlertBook:
    """Judges the rules at every scene. Bounded; one book per server."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rule for rule in rules if rule.enabled)
        self.past: deque[Alert] = deque(maxlen=PAST_KEPT)
        """Alerts that are over, newest first."""
        self.unjudged: tuple[tuple[str, str], ...] = ()
        """Rules that could not be judged, and why."""
        self._seen: dict[str, dict[str, _Seen]] = {rule.id: {} for rule in self.rules}
        """By rule and subject."""
        self._settled_at = -inf

    @property
    def active(self) -> tuple[Alert, ...]:
        """Raised and not over: worst first, then the newest."""
        raised = [seen.alert for mine in self._seen.values() for seen in mine.values() if seen.alert is not None]
        return tuple(sorted(raised, key=lambda alert: (-alert.severity.rank, -alert.raised, alert.rule, alert.subject)))

    def remember(self, past: Iterable[Alert], active: Iterable[Alert], now: float) -> None:
        """Begin with the alerts of a record that ends at monotonic `now`: those that were over, in any order, and those
        that were not: what is judged next goes on with them, or ends them."""
        self.past.extend(sorted(past, key=lambda alert: -(alert.ended or alert.last))[:PAST_KEPT])
        for alert in active:
            if alert.rule in self._seen:
                seen = _Seen(now - max(0.0, alert.last - alert.since), now, alert)
                self._seen[alert.rule][alert.subject] = seen

    def judge(self, scene: RuleScene) -> tuple[AlertEvent, ...]:
        """Judge all rules; what became of their alerts."""
        events: list[AlertEvent] = []
        unjudged: list[tuple[str, str]] = []
        is_off = scene.picture.views.drafting.state is Drafting.OFF
        began = max((start.at for start in scene.past.starts.seen), default=-inf)
        for rule in self.rules:
            mine, now = self._seen[rule.id], scene.now
            # What was wrong with drafts is over with the server that made them, and when speculation is switched off.
            gone = [subject for subject, one in mine.items() if rule.of_drafts and (is_off or one.last < began)]
            events += [event for subject in gone for event in self._end(rule, subject, scene)]
            if rule.of_drafts and is_off:
                continue
            symptoms, why, over = self._judged(rule, scene)
            unjudged += [(rule.id, why)] if why else []
            for symptom in symptoms:
                events += _raise(rule, mine, symptom, scene)
            seen, gone = {symptom.subject for symptom in symptoms}, []
            for subject, one in mine.items():
                kept_s = rule.clear_after_s if one.alert is not None and not over else 0.0
                if why:  # its alerts stay, and are forgotten in the end
                    kept_s = FORGOTTEN_AFTER_S if one.alert is not None else INTERRUPTED_S
                if subject not in seen and now - one.last >= kept_s:
                    gone.append(subject)
            events += [event for subject in gone for event in self._end(rule, subject, scene)]
        if scene.is_settling:
            self._settled_at = scene.now
        self.unjudged = tuple(unjudged)
        return tuple(events)

    def _judged(self, rule: Rule, scene: RuleScene) -> tuple[list[Symptom], str, bool]:
        """The rule's symptoms, one of each subject; why it was not judged, if so; and whether the contrary was seen."""
        if why := self._why_not(rule, scene):
            return [], why, False
        try:
            found = {symptom.subject: symptom for symptom in rule.judge(scene, rule.limits)}
        except OverError:
            return [], "", True
        except UnjudgeableError as error:
            return [], str(error), False
        except Exception as error:  # noqa: BLE001 - a rule with a fault must not blind the others
            _log.exception("rule %s failed", rule.id)
            return [], f"the rule failed: {type(error).__name__}", False
        return [found[subject] for subject in sorted(found)[:SUBJECTS]], "", False

    def _why_not(self, rule: Rule, scene: RuleScene) -> str:
        """Why the rule is not judged now; empty where it is."""
        if missing := [source for source in rule.needs if not scene.is_fresh(source)]:
            return f"no fresh data from {', '.join(missing)}"
        if uncounted := [name for name in rule.counters if name not in dict(scene.picture.backend.counters)]:
            return f"/metrics has no {', '.join(uncounted)}"
        if rule.hold_back and (scene.is_settling or scene.now - self._settled_at < SETTLE_S):
            return "the server has just begun"
        if not rule.while_idle and scene.is_idle:
            return "the server is idle"
        trial = scene.picture.trial
        # As far back as the rule looks; a trial whose process died explains nothing any more.
        looks_back = max(rule.limits.get("window_s", 0.0), TRIAL_ENDS_S)
        is_tried = trial.alive if trial is not None else scene.now - scene.past.starts.tried_at <= looks_back
        if rule.in_trials or not is_tried:
            return ""
        return trial.words if trial is not None else "settings were tried a moment ago"

    def _end(self, rule: Rule, subject: str, scene: RuleScene) -> list[AlertEvent]:
        """Put an alert away."""
        alert = self._seen[rule.id].pop(subject).alert
        if alert is None:
            return []
        # The clock may have been set back in the meantime.
        ended = replace(alert, ended=max(scene.picture.wall, alert.raised))
        self.past.appendleft(ended)
        return [AlertEvent(Transition.ENDED, ended, scene.picture.wall)]


def _raise(rule: Rule, mine: dict[str, _Seen], symptom: Symptom, scene: RuleScene) -> list[AlertEvent]:
    """Raise the symptom's alert once it has lasted, or bring it up to date. It gets worse at once, and better as slowly
    as it clears."""
    now, wall = scene.now, scene.picture.wall
    seen = mine.setdefault(symptom.subject, _Seen(now, now))
    seen.last, before = now, seen.alert
    if before is None and now - seen.since < rule.raise_after_s:
        return []
    severity = symptom.severity or rule.severity
    if before is None or severity.rank >= before.severity.rank:
        seen.as_bad = now
    elif now - seen.as_bad < rule.clear_after_s:
        severity = before.severity
    seen.alert = Alert(
        rule=rule.id,
        title=rule.title,
        severity=severity,
        summary=symptom.summary,
        since=before.since if before is not None else wall - (now - seen.since),
        raised=before.raised if before is not None else wall,
        last=wall,
        subject=symptom.subject,
        evidence=symptom.evidence,
        fix=symptom.fix,
        chart=rule.chart,
        names=tuple({**scene.names, **dict(symptom.names)}.items()),
        remedy=symptom.remedy,
    )
    if before is not None and severity is before.severity:
        return []
    return [AlertEvent(Transition.RAISED if before is None else Transition.CHANGED, seen.alert, wall)]
