"""The likely cause: what explains the rest, over others too, and never a notice alone."""

from hypothesis import given
from hypothesis import strategies as st

from insight.rules.judging import WALL, rule
from specdash.core.records import Alert, AlertSeverity
from specdash.insight.rules.book import LATER_S, likely_cause
from specdash.insight.rules.catalogue import Rule

NOTICE, WARNING, CRITICAL = AlertSeverity


def alert(rule_id: str, severity: AlertSeverity = WARNING, since: float = 0.0, subject: str = "") -> Alert:
    at = WALL + since
    return Alert(rule_id, rule_id, severity, "", since=at, raised=at, last=at, subject=subject)


def rules(**explains: tuple[str, ...]) -> tuple[Rule, ...]:
    return tuple(rule(lambda *_: (), key, explains=others) for key, others in explains.items())


OOM = rules(oom=("crash",), crash=("down",), down=("errors",), errors=(), throttled=("slow",), slow=())


def cause(*active: Alert, of: tuple[Rule, ...] = OOM) -> str | None:
    found = likely_cause(active, of)
    return found.rule if found is not None else None


def test_nothing_wrong_has_no_cause() -> None:
    assert cause() is None
    assert cause(alert("slow", NOTICE)) is None


def test_one_alert_is_its_own_cause() -> None:
    assert cause(alert("slow")) == "slow"


def test_what_explains_another_is_its_cause_though_it_is_milder_and_newer() -> None:
    assert cause(alert("down", CRITICAL), alert("crash", WARNING, since=10)) == "crash"


def test_a_cause_reaches_over_others() -> None:
    assert cause(alert("errors", CRITICAL), alert("down"), alert("crash"), alert("oom", NOTICE)) == "oom"


def test_what_began_much_later_explains_nothing() -> None:
    assert cause(alert("down", CRITICAL), alert("crash", since=LATER_S + 1)) == "down"


def test_of_two_causes_that_of_the_worst_wins() -> None:
    assert cause(alert("throttled"), alert("slow"), alert("down", CRITICAL)) == "down"
    assert cause(alert("throttled"), alert("slow", CRITICAL), alert("down", WARNING)) == "throttled"


def test_of_two_alike_that_which_explains_more_wins_then_the_older() -> None:
    assert cause(alert("slow"), alert("throttled"), alert("errors", since=-5)) == "throttled"
    assert cause(alert("slow"), alert("errors", since=-5)) == "errors"


def test_rules_that_explain_each_other_still_have_a_cause() -> None:
    circle = rules(a=("b",), b=("a",))
    assert cause(alert("a"), alert("b", CRITICAL), of=circle) == "b"


IDS = ("oom", "crash", "down", "errors", "slow", "unheard of")
ALERTS = st.lists(
    st.builds(
        alert, st.sampled_from(IDS), st.sampled_from(AlertSeverity), st.floats(-1e4, 1e4), st.sampled_from(("", "a"))
    ),
    max_size=8,
    unique_by=lambda item: item.key,
)


@given(
    ALERTS,
    st.dictionaries(st.sampled_from(IDS), st.lists(st.sampled_from(IDS), max_size=4).map(tuple)),
    st.randoms(use_true_random=False),
)
def test_the_cause_is_one_of_the_alerts_whatever_their_order(
    active: list[Alert], explains: dict[str, tuple[str, ...]], random: object
) -> None:
    found = likely_cause(active, rules(**explains))
    assert (found is None) is all(item.severity is NOTICE for item in active)
    assert found is None or found in active
    random.shuffle(active)  # type: ignore[attr-defined]
    assert likely_cause(active, rules(**explains)) == found
