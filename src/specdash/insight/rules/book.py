"""Which alerts are raised now and which were: hysteresis, and holding back while a server settles.

A symptom raises an alert when it was seen at every judgement for `raise_after_s`, and the alert is over when it was not
for `clear_after_s`, when the contrary is seen, or when that server is gone of whose doing it tells. What cannot be
judged (its sources are silent, the server settles or idles) neither holds nor clears: it stays as it is, until it is
forgotten.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from specdash.core.records import Alert, AlertEvent, AlertSeverity, Drafting, Transition
from specdash.insight.rules.catalogue import UnjudgeableError
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.core.records import Symptom
    from specdash.insight.rules.catalogue import Rule, RuleSpec
    from specdash.insight.rules.scene import RuleScene


# Which of several alerts is the likely cause of the others: what each rule explains is data, in its TOML.

LATER_S = 120.0
"""A cause may be seen so much later than what follows from it, since rules need different times to tell."""


def likely_cause(active: Sequence[Alert], rules: Iterable[Rule]) -> Alert | None:
    """The alert that explains best what is wrong; None when nothing is, notices alone being nothing wrong, and neither
    being alerts that were refuted.

    One that another active alert explains is a consequence. Among the rest, that wins which stands for the worst alert,
    itself or one that follows from it; then that which explains more, is worse itself, and began first.
    """
    active = [alert for alert in active if not alert.refuted]
    if all(alert.severity is AlertSeverity.NOTICE for alert in active):
        return None
    follows = _consequences(active, {rule.spec.id: rule.spec.explains for rule in rules})
    explained = {key for alert in active for key in follows[alert.key] if alert.key not in follows.get(key, ())}
    first = [alert for alert in active if alert.key not in explained] or list(active)
    by_key = {alert.key: alert for alert in active}

    def rank(alert: Alert) -> tuple[int, int, int, float, tuple[str, str]]:
        worst = max(by_key[key].severity.rank for key in (alert.key, *follows[alert.key]))
        return -worst, -len(follows[alert.key]), -alert.severity.rank, alert.since, alert.key

    return min(first, key=rank)


def _consequences(
    active: Sequence[Alert], explains: Mapping[str, Sequence[str]]
) -> dict[tuple[str, str], set[tuple[str, str]]]:
    """By alert, the active ones that follow from it, also over others."""
    direct = {
        alert.key: {
            other.key
            for other in active
            if other.rule != alert.rule
            and other.rule in explains.get(alert.rule, ())
            and alert.since <= other.since + LATER_S
        }
        for alert in active
    }
    return {key: _reached(key, direct) for key in direct}


def _reached(key: tuple[str, str], direct: Mapping[tuple[str, str], set[tuple[str, str]]]) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    open_keys = list(direct[key])
    while open_keys:
        pair = open_keys.pop()
        if pair not in found and pair != key:
            found.add(pair)
            open_keys += direct[pair]
    return found


SETTLE_S = 10.0
"""After loading or a restart, so long is nothing judged that says of itself to be held back."""
PAST_KEPT = 200
FORGOTTEN_AFTER_S = 600.0
"""An alert that could not be judged for so long is over."""
INTERRUPTED_S = 10.0
"""A symptom that has not lasted long enough yet survives so long without being judged: a look that failed, or a pause
between two requests, does not restart it."""
TRIAL_ENDS_S = 5.0
"""So long after a trial may the restart be seen that ended it."""
SUBJECTS = 40
"""One rule has at most so many symptoms at a time."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    """One symptom: since when without a break, when last and when last as bad as its alert says (monotonic), and that
    alert once it is raised."""

    since: float
    last: float
    alert: Alert | None = None
    as_bad: float = 0.0


@dataclass(frozen=True, slots=True)
class Unjudged:
    """A rule that could not be judged, and why."""

    rule: str
    why: str


class AlertBook:
    """Judges the rules at every scene. Bounded; one book per server."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rule for rule in rules if rule.spec.enabled)
        self.past: deque[Alert] = deque(maxlen=PAST_KEPT)
        """Alerts that are over, newest first."""
        self.unjudged: tuple[Unjudged, ...] = ()
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._settled_at: float | None = None

    @property
    def active(self) -> tuple[Alert, ...]:
        """Raised and not over: worst first, then the newest."""
        raised = [seen.alert for seen in self._seen.values() if seen.alert is not None]
        return tuple(sorted(raised, key=lambda alert: (-alert.severity.rank, -alert.raised, alert.rule, alert.subject)))

    def remember(self, past: Iterable[Alert], active: Iterable[Alert], now: float) -> None:
        """Begin with the alerts of a record that ends at monotonic `now`: those that were over, in any order, and those
        that were not: what is judged next goes on with them, or ends them."""
        self.past.extend(sorted(past, key=lambda alert: -(alert.ended or alert.last))[:PAST_KEPT])
        known = {rule.spec.id for rule in self.rules}
        for alert in active:
            if alert.rule in known:
                self._seen[alert.key] = _Seen(now - max(0.0, alert.last - alert.since), now, alert)

    def judge(self, scene: RuleScene) -> tuple[AlertEvent, ...]:
        """Judge all rules; what became of their alerts."""
        events: list[AlertEvent] = []
        unjudged: list[Unjudged] = []
        for rule in self.rules:
            if rule.spec.of_drafts and scene.picture.views.drafting.state is Drafting.OFF:
                events += self._ended_by_choice(rule.spec, scene)
                continue
            if rule.spec.ends_with_server:
                events += self._ended_with_server(rule.spec, scene)
            why = self._why_not(rule.spec, scene)
            symptoms = _symptoms(rule, scene) if why is None else why
            if isinstance(symptoms, str):
                unjudged.append(Unjudged(rule.spec.id, symptoms))
                events += self._frozen(rule.spec, scene)
            else:
                events += self._take(rule, symptoms, scene)
        if scene.is_settling:
            self._settled_at = scene.now
        self.unjudged = tuple(unjudged)
        return tuple(events)

    def _why_not(self, spec: RuleSpec, scene: RuleScene) -> str | None:
        missing = [source for source in spec.needs if not scene.is_fresh(source)]
        if missing:
            return f"no fresh data from {', '.join(missing)}"
        uncounted = [name for name in spec.counters if name not in dict(scene.picture.backend.counters)]
        if uncounted:
            return f"/metrics has no {', '.join(uncounted)}"
        settled = self._settled_at
        if spec.hold_back and (scene.is_settling or (settled is not None and scene.now - settled < SETTLE_S)):
            return "the server has just begun"
        if not spec.while_idle and scene.is_idle:
            return "the server is idle"
        return _trial_words(scene) if spec.trial_s == inf and _is_of_trial(spec, scene) else None

    def _take(self, rule: Rule, symptoms: dict[str, Symptom], scene: RuleScene) -> list[AlertEvent]:
        spec, now = rule.spec, scene.now
        wait_s = spec.raise_after_s
        if spec.trial_s is not None and scene.now - scene.past.starts.tried_at <= TRIAL_ENDS_S:
            wait_s = max(wait_s, spec.trial_s)
        events = []
        for subject, symptom in symptoms.items():
            seen = self._seen.setdefault((spec.id, subject), _Seen(now, now))
            seen.last = now
            event = self._raise(rule.spec, seen, symptom, scene, wait_s)
            if event is not None:
                events.append(event)
        for key in [key for key in self._seen if key[0] == spec.id and key[1] not in symptoms]:
            seen = self._seen[key]
            over = rule.is_over is not None and rule.is_over(scene)
            if seen.alert is None or over or now - seen.last >= spec.clear_after_s:
                events += self._end(key, scene, rule)
        return events

    def _raise(
        self, spec: RuleSpec, seen: _Seen, symptom: Symptom, scene: RuleScene, wait_s: float
    ) -> AlertEvent | None:
        now, wall = scene.now, scene.picture.wall
        severity = symptom.severity or spec.severity
        names = tuple({**scene.names, **dict(symptom.names)}.items())
        if seen.alert is None:
            if now - seen.since < wait_s:
                return None
            seen.alert = Alert(
                rule=spec.id,
                title=spec.title,
                severity=severity,
                summary=symptom.summary,
                since=wall - (now - seen.since),
                raised=wall,
                last=wall,
                subject=symptom.subject,
                evidence=symptom.evidence,
                fix=symptom.fix,
                chart=spec.chart,
                names=names,
                remedy=symptom.remedy,
            )
            seen.as_bad = now
            return AlertEvent(Transition.RAISED, seen.alert, wall)
        before = seen.alert.severity
        if severity.rank >= before.rank:
            seen.as_bad = now
        elif now - seen.as_bad < spec.clear_after_s:
            severity = before
        seen.alert = replace(
            seen.alert,
            severity=severity,
            summary=symptom.summary,
            evidence=symptom.evidence,
            fix=symptom.fix,
            names=names,
            remedy=symptom.remedy,
            last=wall,
        )
        return AlertEvent(Transition.CHANGED, seen.alert, wall) if severity is not before else None

    def _ended_with_server(self, spec: RuleSpec, scene: RuleScene) -> list[AlertEvent]:
        """What was last seen of a server before the present one is over; trials come and go, and end nothing."""
        began = max((start.at for start in scene.past.starts.seen if not start.on_trial), default=-inf)
        past = [key for key, seen in self._seen.items() if key[0] == spec.id and seen.last < began]
        return [event for key in past for event in self._end(key, scene)]

    def _ended_by_choice(self, spec: RuleSpec, scene: RuleScene) -> list[AlertEvent]:
        """The server does not speculate, and shall not: what was wrong with its drafts is over."""
        return [event for key in [key for key in self._seen if key[0] == spec.id] for event in self._end(key, scene)]

    def _frozen(self, spec: RuleSpec, scene: RuleScene) -> list[AlertEvent]:
        """A rule that cannot be judged neither holds nor ends: its alerts stay, and are forgotten in the end."""
        events = []
        for key in [key for key in self._seen if key[0] == spec.id]:
            seen = self._seen[key]
            kept_s = INTERRUPTED_S if seen.alert is None else FORGOTTEN_AFTER_S
            if scene.now - seen.last >= kept_s:
                events += self._end(key, scene)
        return events

    def _end(self, key: tuple[str, str], scene: RuleScene, judged: Rule | None = None) -> list[AlertEvent]:
        """Put the alert away; where its rule was judged, it may say that the alert was wrong."""
        alert, wall = self._seen.pop(key).alert, scene.picture.wall
        if alert is None:
            return []
        why = judged.refute(scene, judged.spec.limits, alert) if judged is not None and judged.refute else ""
        if why:
            alert = replace(alert, refuted=True, evidence=(*alert.evidence, ("refuted", why)))
        # The clock may have been set back in the meantime.
        ended = replace(alert, ended=max(wall, alert.raised))
        self.past.appendleft(ended)
        return [AlertEvent(Transition.ENDED, ended, wall)]


def _is_of_trial(spec: RuleSpec, scene: RuleScene) -> bool:
    """Whether what the rule sees may be the doing of a trial, as far back as it looks; one whose process died explains
    nothing any more."""
    trial = scene.picture.trial
    looks_back = max(spec.limits.get("window_s", 0.0), TRIAL_ENDS_S)
    return scene.now - scene.past.starts.tried_at <= looks_back if trial is None else trial.alive


def _trial_words(scene: RuleScene) -> str:
    trial = scene.picture.trial
    return trial.words if trial is not None else "settings were tried a moment ago"


def _symptoms(rule: Rule, scene: RuleScene) -> dict[str, Symptom] | str:
    """By subject; why the rule failed when it did."""
    try:
        found = {symptom.subject: symptom for symptom in rule.judge(scene, rule.spec.limits)}
    except UnjudgeableError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a rule with a fault must not blind the others
        _log.exception("rule %s failed", rule.spec.id)
        return f"the rule failed: {type(error).__name__}"
    if len(found) <= SUBJECTS:
        return found
    return {subject: found[subject] for subject in sorted(found)[:SUBJECTS]}
