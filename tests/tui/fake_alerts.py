"""Alerts, events and speed-ups for screens: what is wrong, what was, and whether speculation pays."""

from msgspec.structs import replace

from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord
from specdash.core.log_facts import SpeculativeStatistics
from specdash.core.records import Alert, AlertSeverity, Baseline, EventKind, TimelineEvent
from specdash.insight.derive import events
from specdash.insight.experiments import ApplyMark
from specdash.insight.picture import AlertsPicture, Basis, Paying, Picture, SpeedUpPicture
from specdash.insight.rules.catalogue import Rule

BASELINE = Baseline(1_789_990_000.0, "Qwen3-Coder-30B", "llama-server", 4096, 1, 57.6, 55.0, 60.1, 12)
PAYING = SpeedUpPicture(
    value=1.84,
    low=1.70,
    high=2.00,
    basis=Basis.MEASURED,
    verdict=Paying.PAYING,
    why="82 requests against the baseline of 4k context, one at a time, recorded 2 h ago",
    requests=82,
    baseline=BASELINE,
    decode_rate=106.0,
    baseline_rate=57.6,
    mean_accepted_length=4.41,
    break_even_length=2.40,
    break_even_acceptance=0.31,
    by_type=(
        SpeculativeStatistics(
            "draft-simple", 12_400, 11_000, 62_925, 42_160, (), 4.4, (0.91, 0.84, 0.77, 0.69, 0.6), (12_100.0,)
        ),
        SpeculativeStatistics("ngram-mod", 3_100, 900, 11_625, 2_790, (), 1.9, (0.4, 0.3, 0.2), (200.0,)),
    ),
)
HURTING = replace(
    PAYING,
    value=0.82,
    low=0.74,
    high=0.91,
    verdict=Paying.HURTING,
    decode_rate=47.2,
    mean_accepted_length=1.62,
)
ESTIMATE = replace(
    PAYING,
    basis=Basis.ESTIMATED,
    verdict=Paying.EVEN,
    value=1.05,
    low=0.93,
    high=1.18,
    baseline=None,
    why="no baseline is recorded for this model: run `specdash baseline record` while nobody needs the server",
)


def zero_acceptance(wall: float) -> Alert:
    """The worst, with a fix."""
    return Alert(
        rule="zero_acceptance",
        title="Not one draft token is accepted",
        severity=AlertSeverity.CRITICAL,
        summary="0 of 4,096 draft tokens were accepted in the last 60 s: the drafter's output is noise, likely NaN",
        since=wall - 252.0,
        raised=wall - 240.0,
        last=wall,
        evidence=(("drafted in 60 s", "4,096"), ("accepted in 60 s", "0"), ("accepted the hour before", "67 %")),
        fix=(("LLAMA_SPEC_TYPE", None), ("LLAMA_DRAFT_MAX", "0")),
        chart="acceptance",
    )


def hung_slot(wall: float) -> Alert:
    """A warning of one slot."""
    return Alert(
        rule="slot_hung",
        title="Slot hangs",
        severity=AlertSeverity.WARNING,
        summary="slot 3 is busy and has given no token for 48 s",
        since=wall - 61.0,
        raised=wall - 48.0,
        last=wall,
        subject="slot 3",
        evidence=(("task", "4711"), ("tokens", "801")),
        chart="decode",
    )


def no_slots(wall: float) -> Alert:
    """A notice."""
    return Alert(
        "endpoint_unusable", "The server shows no slots", AlertSeverity.NOTICE,
        "/slots answers 501: start the server with --slots", wall - 3000.0, wall - 3000.0, wall,
    )  # fmt: skip


def past_alerts(wall: float) -> tuple[Alert, ...]:
    """Two that are over."""
    down = Alert(
        rule="backend_down", title="Server is down", severity=AlertSeverity.CRITICAL,
        summary="nothing usable answers at http://127.0.0.1:8080: connection refused",
        since=wall - 1_500.0, raised=wall - 1_500.0, last=wall - 1_390.0, ended=wall - 1_390.0,
        evidence=(("state", "down"),), chart="decode",
    )  # fmt: skip
    storm = Alert(
        rule="find_slot_storm", title="find_slot storm", severity=AlertSeverity.WARNING,
        summary="12,400 find_slot lines a minute", since=wall - 5_000.0, raised=wall - 4_990.0, last=wall - 4_000.0,
        ended=wall - 4_000.0, chart="warnings",
    )  # fmt: skip
    return down, storm


UNJUDGED = (
    ("gpu_throttled", "no fresh data from gpu"),
    ("gpu_lost", "no fresh data from gpu"),
    ("acceptance_collapse", "the server is idle"),
)
JUDGED = (
    "zero_acceptance",
    "slot_hung",
    "endpoint_unusable",
    "backend_down",
    "find_slot_storm",
    "context_overflow",
    "disk_full",
)


def with_alerts(picture: Picture, active: tuple[Alert, ...], past: tuple[Alert, ...]) -> Picture:
    """The picture with these alerts, an apply and a restart on its timeline."""
    wall = picture.wall
    first = active[0] if active else None
    record = ApplyRecord(7, 0.0, 0.0, ApplyKind.APPLY, ApplyOutcome.APPLIED)
    applies = (ApplyMark(record, 200.0, wall - 200.0, "DRAFT_MAX 4→12"),)
    restart = TimelineEvent(wall - 1_380.0, EventKind.RESTART, "restarted")
    cause = f"{first.title}: {first.summary}" if first is not None else ""
    alerts = AlertsPicture(active, past, cause, first.key if first is not None else None, UNJUDGED, JUDGED)
    return replace(picture, alerts=alerts, applies=applies, timeline=events((restart,), alerts, applies))


def alerts(picture: Picture) -> Picture:
    """Three active, two over."""
    wall = picture.wall
    return with_alerts(picture, (zero_acceptance(wall), hung_slot(wall), no_slots(wall)), past_alerts(wall))


def alerts_past(picture: Picture) -> Picture:
    """All is over."""
    return with_alerts(picture, (), past_alerts(picture.wall))


def alerts_none(picture: Picture) -> Picture:
    """Nothing is wrong, and some rules cannot be judged."""
    return replace(picture, alerts=AlertsPicture(unjudged=UNJUDGED, judged=JUDGED))


def notice(picture: Picture) -> Picture:
    """A notice alone."""
    return with_alerts(picture, (no_slots(picture.wall),), ())


def hurting(picture: Picture) -> Picture:
    """Speculation slows the server down."""
    return replace(picture, speedup=HURTING)


def estimated(picture: Picture) -> Picture:
    """No baseline is recorded."""
    return replace(picture, speedup=ESTIMATE)


def _spec(alert: Alert, meaning: str, checks: tuple[str, ...], remedy: str) -> Rule:
    return Rule(alert.rule, "speculation", alert.title, alert.severity, meaning, checks, remedy)


SPECS = {
    spec.id: spec
    for spec in (
        _spec(
            zero_acceptance(0.0),
            "The server drafts, and the target refuses every token. A draft model whose output is NaN looks like this, "
            "and so does one of another tokenizer. Each draft costs time and gives nothing.",
            (
                "the log's lines about the draft model: vocabularies, NaN, flash attention",
                "specdash preflight --env-file FILE",
                "whether the draft model alone answers sensibly: llama-cli -m DRAFT -p hello",
            ),
            "Switch speculation off until the draft model is repaired; requests are faster without it.",
        ),
        _spec(
            hung_slot(0.0),
            "A slot that decodes gives a token every few milliseconds.",
            ("specdash snapshot",),
            "Restart.",
        ),
        _spec(
            no_slots(0.0), "Without /slots nothing is known of single requests.", ("its command line",), "Add --slots."
        ),
        *(
            _spec(past_alert, "It was, and is no more.", ("specdash services status",), "Nothing now.")
            for past_alert in past_alerts(0.0)
        ),
        *(
            Rule(rule, "machine", title, AlertSeverity.WARNING, "", ())
            for rule, title in (
                ("gpu_throttled", "GPU is throttled"),
                ("gpu_lost", "GPU is lost"),
                ("acceptance_collapse", "Acceptance collapsed"),
                ("context_overflow", "KV cache is full"),
                ("disk_full", "Disk is nearly full"),
            )
        ),
    )
}
"""The runbooks of these alerts, so that pictures do not change with the texts of the real rules."""
