"""The catalogue of rules: complete, consistent, documented, and changeable by a user's file without surprises."""

import pytest

from specdash.core.errors import InputError
from specdash.core.records import AlertSeverity
from specdash.core.removed import REMOVED_RULES
from specdash.insight.charts import Metric
from specdash.insight.rules import catalogue
from specdash.insight.rules.catalogue import FAMILIES, Rule, shipped, with_user_limits

RULES = {rule.spec.id: rule for rule in shipped()}


def changed(text: str) -> dict[str, Rule]:
    return {rule.spec.id: rule for rule in with_user_limits(shipped(), text)}


def test_every_rule_has_a_name_of_its_own() -> None:
    assert len(RULES) == len(shipped())


def test_a_runbook_is_the_docstring_of_its_rule() -> None:
    book = catalogue.runbook_of(
        """What it means, over
    two lines.

    - first -x {pid}    (with its spaces)
    - a second
      that goes on

    What helps.
    """
    )
    assert book.meaning == "What it means, over two lines."
    assert book.checks == ("first -x {pid}    (with its spaces)", "a second that goes on")
    assert book.remedy == "What helps."


@pytest.mark.parametrize("rule", shipped(), ids=lambda rule: rule.spec.id)
def test_an_operator_at_night_finds_all_that_is_needed(rule: Rule) -> None:
    spec = rule.spec
    assert spec.family in FAMILIES
    assert spec.title
    assert not spec.title.endswith(".")
    assert len(spec.meaning) > 40
    assert spec.meaning.endswith(".")
    assert spec.checks
    assert spec.remedy
    assert spec.chart is None or spec.chart in set(Metric)
    assert rule.judge.__doc__


@pytest.mark.parametrize("rule", shipped(), ids=lambda rule: rule.spec.id)
def test_what_a_rule_explains_exists_and_is_not_itself(rule: Rule) -> None:
    assert set(rule.spec.explains) <= RULES.keys() - {rule.spec.id}


def test_no_rule_explains_what_explains_it() -> None:
    def reached(rule: str, path: tuple[str, ...] = ()) -> None:
        assert rule not in path, " -> ".join((*path, rule))
        for explain in RULES[rule].spec.explains:
            reached(explain, (*path, rule))

    for rule in RULES:
        reached(rule)


def test_a_user_changes_limits_severity_and_times_and_switches_off() -> None:
    rules = changed(
        """
        [slot_hung]
        limits.prefill_s = 600
        severity = "warning"
        raise_after_s = 5
        [gpu_lost]
        enabled = false
        """
    )
    slot_hung = rules["slot_hung"].spec
    assert slot_hung.limits == {**RULES["slot_hung"].spec.limits, "prefill_s": 600}
    assert slot_hung.severity is AlertSeverity.WARNING
    assert slot_hung.raise_after_s == 5
    assert not rules["gpu_lost"].spec.enabled
    others = rules.keys() - {"slot_hung", "gpu_lost"}
    assert all(rules[name] == RULES[name] for name in others)


def test_a_removed_rule_is_a_warning_that_names_the_rule_that_took_it_over() -> None:
    heard: list[str] = []
    rules = with_user_limits(shipped(), "[slot_thrash]\nenabled = false\n[clock_jumped]\n", "r.toml", heard.append)
    assert rules == shipped()
    assert heard == [
        "r.toml: the rule slot_thrash was removed and is ignored: prompt_cache_lost (limits.takeovers) took it over",
        "r.toml: the rule clock_jumped was removed and is ignored: no rule took it over",
    ]


@pytest.mark.parametrize("removed", REMOVED_RULES)
def test_what_took_a_removed_rule_over_is_there_with_its_limit(removed: str) -> None:
    assert removed not in RULES
    heir, _, limit = REMOVED_RULES[removed].removesuffix(")").partition(" (limits.")
    assert not heir or not limit or limit in RULES[heir].spec.limits
    assert not heir or heir in RULES


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[slot_hang]", "did you mean 'slot_hung'"),
        ("slot_hung = 3", "[slot_hung]"),
        ("[slot_hung]\nlimits.no_token = 3", "did you mean 'no_token_s'"),
        ("[slot_hung]\nlimits = 3", "limits.no_token_s"),
        ("[slot_hung]\nlimits.no_token_s = -1", "must be a number from 0 on"),
        ("[slot_hung]\nlimits.no_token_s = nan", "must be a number from 0 on"),
        ("[slot_hung]\nlimits.no_token_s = true", "must be a number from 0 on"),
        ('[slot_hung]\nlimits.no_token_s = "30"', "must be a number from 0 on"),
        ('[slot_hung]\nseverity = "fatal"', "notice, warning, critical"),
        ("[slot_hung]\nseverity = [1]", "notice, warning, critical"),
        ('[slot_hung]\nenabled = "no"', "true or false"),
        ('[slot_hung]\ntitle = "x"', "cannot be changed"),
        ("[slot_hung", "not valid TOML"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(InputError) as refused:
        changed(text)
    assert named in str(refused.value)
