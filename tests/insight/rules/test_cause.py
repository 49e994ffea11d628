"""The likely cause: what explains the rest, over others too, and never a notice alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insight.rules.judging import WALL, rule
from specdash.core.records import Alert, AlertSeverity
from specdash.insight.rules.book import LATER_S, likely_cause

NOTICE, WARNING, CRITICAL = AlertSeverity
EXPLAINS = {"oom": ("crash",), "crash": ("down",), "down": ("errors",), "errors": (), "throttled": ("slow",)}
RULES = tuple(rule(lambda *_: (), key, explains=others) for key, others in EXPLAINS.items())


def alert(rule_id: str, severity: AlertSeverity = WARNING, since: float = 0.0, subject: str = "") -> Alert:
    at = WALL + since
    return Alert(rule_id, rule_id, severity, "", since=at, raised=at, last=at, subject=subject)


@pytest.mark.parametrize(
    ("active", "cause"),
    [
        ([], None),
        ([alert("slow", NOTICE)], None),
        ([alert("slow")], "slow"),
        # What explains another, though it is milder and newer, and over others; unless it began much later.
        ([alert("down", CRITICAL), alert("crash", since=10)], "crash"),
        ([alert("errors", CRITICAL), alert("down"), alert("crash"), alert("oom", NOTICE)], "oom"),
        ([alert("down", CRITICAL), alert("crash", since=LATER_S + 1)], "down"),
        # Of two causes that of the worst, then that which explains more, then the older.
        ([alert("throttled"), alert("slow"), alert("down", CRITICAL)], "down"),
        ([alert("throttled"), alert("slow", CRITICAL), alert("down")], "throttled"),
        ([alert("slow"), alert("throttled"), alert("errors", since=-5)], "throttled"),
        ([alert("slow"), alert("errors", since=-5)], "errors"),
    ],
)
def test_the_cause_explains_the_worst_of_what_is_wrong(active: list[Alert], cause: str | None) -> None:
    found = likely_cause(active, RULES)
    assert (found.rule if found is not None else None) == cause


ALERTS = st.lists(
    st.builds(
        alert,
        st.sampled_from((*EXPLAINS, "slow")),
        st.sampled_from(list(AlertSeverity)),
        st.floats(-300, 300),
        st.sampled_from(("", "a", "b")),
    ),
    max_size=8,
    unique_by=lambda item: item.key,
)


@given(ALERTS, st.randoms(use_true_random=False))
def test_the_cause_is_one_of_the_alerts_in_any_order(active: list[Alert], random: object) -> None:
    found = likely_cause(active, RULES)
    assert (found is None) is all(item.severity is NOTICE for item in active)
    assert found is None or found in active
    random.shuffle(active)  # type: ignore[attr-defined]
    assert likely_cause(active, RULES) == found
