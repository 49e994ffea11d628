"""Moments and lengths of time as people write them."""

import time
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.errors import UsageError
from specdash.core.moments import parse_length, parse_moment

pytestmark = pytest.mark.usefixtures("utc")
NOW = datetime.fromisoformat("2026-03-10T15:30:00+00:00").timestamp()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", "2026-03-10T15:30:00+00:00"),
        ("02:13:45", "2026-03-10T02:13:45+00:00"),
        ("15:30", "2026-03-10T15:30:00+00:00"),
        ("16:00", "2026-03-09T16:00:00+00:00"),
        ("3h", "2026-03-10T12:30:00+00:00"),
        ("-1h30m", "2026-03-10T14:00:00+00:00"),
        ("2026-03-01", "2026-03-01T00:00:00+00:00"),
        ("2026-03-01T02:00Z", "2026-03-01T02:00:00+00:00"),
        ("2026-03-01T02:00+02:00", "2026-03-01T00:00:00+00:00"),
    ],
)
def test_a_moment(text: str, meant: str) -> None:
    assert parse_moment(text, NOW) == datetime.fromisoformat(meant).timestamp()


@pytest.mark.parametrize("text", ["", "25:00", "yesterday", "-", "3", "3y", "h", "-h", "02:00pm", "1h 3x"])
def test_what_is_no_moment_is_refused_with_the_ways_to_write_one(text: str) -> None:
    with pytest.raises(UsageError, match="write 02:00"):
        parse_moment(text, NOW)


def test_a_time_of_day_is_the_calendars_over_the_change_to_summer_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    if time.tzname == ("Europe", "Europe"):
        pytest.skip("no time zone data here")
    after_change = datetime.fromisoformat("2026-03-29T12:00:00+02:00").timestamp()
    assert parse_moment("13:00", after_change) == datetime.fromisoformat("2026-03-28T13:00:00+01:00").timestamp()


@given(st.floats(0.0, 2e9), st.integers(0, 23), st.integers(0, 59))
def test_a_time_of_day_is_within_the_last_day(now: float, hour: int, minute: int) -> None:
    assert now - 86400 - 1 <= parse_moment(f"{hour:02}:{minute:02}", now) <= now


def test_a_length() -> None:
    assert list(map(parse_length, ("90s", "15m", "1h30m", "7d", "1.5h"))) == [90, 900, 5400, 604800, 5400]
    for text in ("", "15", "m", "15 minutes", "-15m", "1h-3m"):
        with pytest.raises(UsageError, match="no length of time"):
            parse_length(text)
