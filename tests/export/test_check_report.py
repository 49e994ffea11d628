"""`specdash check`: documented, clean, one line where one is due."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from insight.scenes import IDLE, OK, WALL, Watch, counters, process
from specdash.core.readings import FailureKind, Source
from specdash.core.records import Alert, AlertSeverity
from specdash.export.check_report import CheckStatus, as_json, first_line, report, verdict
from specdash.export.snapshot import to_text
from specdash.insight.picture import AlertsPicture, BackendPicture, BackendState, Picture
from specdash.insight.rules.catalogue import shipped

DOCS = Path(__file__).parents[2] / "docs"
NOTICE, WARNING, CRITICAL = AlertSeverity


def down() -> Picture:
    """A server that was well, and is down."""
    watch = Watch()
    watch.look(20, health=OK, metrics=counters(100), slots=IDLE, process=process())
    watch.look(2, health=FailureKind.REFUSED, process=FailureKind.UNAVAILABLE)
    return watch.state.picture(watch.at, WALL + watch.at, 60.0)


def alert(severity: AlertSeverity, summary: str = "it is so", **more: Any) -> Alert:
    return Alert("slot_hung", "Slot hangs", severity, summary, WALL, WALL, WALL, **more)


def shown(*active: Alert, past: tuple[Alert, ...] = (), state: BackendState = BackendState.LIVE) -> Picture:
    alerts = AlertsPicture(active=active, past=past)
    return Picture(1.0, WALL, 60.0, BackendPicture("http://x", state, "as told"), alerts=alerts)


def test_text_names_every_active_alert_and_none_when_there_is_none() -> None:
    assert re.search(r"^alerts +CRITICAL  Server is down: ", to_text(down()), re.MULTILINE)
    assert re.search(r"^alerts +none$", to_text(shown()), re.MULTILINE)


def test_every_field_is_documented() -> None:
    page = (DOCS / "scripting.md").read_text(encoding="utf-8")
    result = verdict(down(), shipped(), WARNING, 4.0, ended=False)
    document: Any = as_json(result, shipped())
    for name in (*document, *document["performance"], *document["alerts"][0]["runbook"]):
        assert f"`{name}`" in page, name


@pytest.mark.parametrize(
    ("active", "fail_on", "status"),
    [
        ((), NOTICE, CheckStatus.OK),
        ((NOTICE,), NOTICE, CheckStatus.WARNING),
        ((NOTICE,), WARNING, CheckStatus.OK),
        ((WARNING, NOTICE), WARNING, CheckStatus.WARNING),
        ((WARNING,), CRITICAL, CheckStatus.OK),
        ((WARNING, CRITICAL), CRITICAL, CheckStatus.CRITICAL),
        ((CRITICAL,), NOTICE, CheckStatus.CRITICAL),
    ],
)
def test_the_worst_alert_that_is_a_failure_decides(
    active: tuple[AlertSeverity, ...], fail_on: AlertSeverity, status: CheckStatus
) -> None:
    alerts = [alert(severity, subject=str(severity)) for severity in active]
    assert verdict(shown(*alerts), shipped(), fail_on, 4.0, ended=False).status is status


def test_a_server_of_which_nothing_is_known_is_unknown_unless_a_rule_has_spoken() -> None:
    nothing = shown(state=BackendState.UNKNOWN)
    assert verdict(nothing, shipped(), WARNING, 4.0, ended=False).status is CheckStatus.UNKNOWN
    spoken = shown(alert(CRITICAL), state=BackendState.UNKNOWN)
    assert verdict(spoken, shipped(), WARNING, 4.0, ended=False).status is CheckStatus.CRITICAL


def test_alerts_that_are_over_count_only_where_they_shall() -> None:
    over = replace(alert(CRITICAL), ended=WALL + 5)
    assert verdict(shown(past=(over,)), shipped(), WARNING, 4.0, ended=False).status is CheckStatus.OK
    result = verdict(shown(past=(over,)), shipped(), WARNING, 60.0, ended=True)
    assert result.status is CheckStatus.CRITICAL
    assert "(over)" in first_line(result)


def test_no_text_breaks_the_line_or_begins_performance_data() -> None:
    hostile = alert(WARNING, "a | b\nc\r\n\x1b[2J$(reboot) 'x'=1")
    result = verdict(shown(hostile), shipped(), WARNING, 4.0, ended=False)
    lines = report(result, shipped(), verbose=False).splitlines()
    assert len(lines) == 2
    assert lines[0].count("|") == 1
    assert "|" not in lines[1]
    assert all(line.isprintable() for line in lines)


def test_performance_data_are_plain_decimals_after_eleven_days_too() -> None:
    picture = shown(state=BackendState.LIVE)
    picture = replace(picture, backend=replace(picture.backend, uptime_s=1_234_567.0, requests_processing=float("nan")))
    data = first_line(verdict(picture, shipped(), WARNING, 4.0, ended=False)).partition(" | ")[2].split()
    assert "uptime=1234567s" in data
    for item in data:
        assert re.fullmatch(r"[a-z]+=-?\d+(\.\d+)?(s|%)?", item), item


def test_a_fix_is_printed_as_the_command_that_makes_it() -> None:
    fixed = alert(WARNING, fix=(("LLAMA_DRAFT_MAX", "4"), ("LLAMA_SPEC_TYPE", None)))
    told = report(verdict(shown(fixed), shipped(), WARNING, 4.0, ended=False), shipped(), verbose=True)
    assert "fix: specdash apply LLAMA_DRAFT_MAX=4" in told
    assert "fix: specdash apply -LLAMA_SPEC_TYPE" in told


def test_sources_have_their_failure() -> None:
    health = next(source for source in down().backend.sources if source.source is Source.HEALTH)
    assert health.failure is FailureKind.REFUSED
