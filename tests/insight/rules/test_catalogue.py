"""The catalogue of rules: complete, consistent, documented, and changeable by a user's file without surprises."""

import re

import pytest

from specdash.cli.commands import COMMANDS
from specdash.core.errors import InputError
from specdash.core.records import AlertSeverity
from specdash.core.removed import REMOVED_RULES
from specdash.insight.charts import Metric
from specdash.insight.rules.catalogue import FAMILIES, Rule, runbook_of, shipped, with_user_limits

RULES = {rule.id: rule for rule in shipped()}


def changed(text: str) -> dict[str, Rule]:
    return {rule.id: rule for rule in with_user_limits(shipped(), text)}


def test_a_runbook_is_the_docstring_of_its_rule() -> None:
    book = runbook_of(
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


def test_an_operator_at_night_finds_all_that_is_needed() -> None:
    assert len(RULES) == len(shipped())
    commands = {command.name for command in COMMANDS}
    for spec in (rule for rule in shipped()):
        assert spec.family in FAMILIES
        assert spec.title.rstrip(".") == spec.title != ""
        assert len(spec.meaning) > 40
        assert spec.checks, spec.id
        assert spec.remedy, spec.id
        assert spec.chart is None or spec.chart in set(Metric)
        for text in (*spec.checks, spec.remedy):
            assert set(re.findall(r"\bspecdash ([a-z][a-z-]+)", text)) <= commands, text
            assert "specdash doctor" not in text or "specdash doctor --url {url}" in text


def test_what_a_rule_explains_exists_and_does_not_explain_it() -> None:
    def reached(rule: str, path: tuple[str, ...] = ()) -> None:
        assert rule not in path, " -> ".join((*path, rule))
        for explain in RULES[rule].explains:
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
    slot_hung = rules["slot_hung"]
    assert slot_hung.limits == {**RULES["slot_hung"].limits, "prefill_s": 600}
    assert (slot_hung.severity, slot_hung.raise_after_s) == (AlertSeverity.WARNING, 5)
    assert not rules["gpu_lost"].enabled
    others = rules.keys() - {"slot_hung", "gpu_lost"}
    assert all(rules[name] == RULES[name] for name in others)


def test_a_removed_rule_is_a_warning_that_names_the_rule_that_took_it_over() -> None:
    heard: list[str] = []
    rules = with_user_limits(shipped(), "[slot_thrash]\nenabled = false\n[clock_jumped]\n", "r.toml", heard.append)
    assert rules == shipped()
    assert heard == [
        "r.toml: the rule slot_thrash was removed and is ignored: prompt_cache_lost took it over",
        "r.toml: the rule clock_jumped was removed and is ignored: no rule took it over",
    ]
    for removed, heir in REMOVED_RULES.items():
        rule, _, limit = heir.removesuffix(")").partition(" (limits.")
        assert removed not in RULES
        assert not rule or not limit or limit in RULES[rule].limits
        assert not rule or rule in RULES


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[slot_hang]", "did you mean 'slot_hung'"),
        ("slot_hung = 3", "[slot_hung]"),
        ("[slot_hung]\nlimits.no_token = 3", "did you mean 'no_token_s'"),
        ("[slot_hung]\nlimits = 3", "limits.no_token_s"),
        *((f"[slot_hung]\nlimits.no_token_s = {value}", "must be a number from 0 on") for value in (
            "-1", "nan", "inf", "true", '"30"', "[1]")),
        ("[slot_hung]\nraise_after_s = -1", "raise_after_s = -1: must be a number from 0 on"),
        ('[slot_hung]\nseverity = "fatal"', "notice, warning, critical"),
        ("[slot_hung]\nseverity = [1]", "notice, warning, critical"),
        ('[slot_hung]\nenabled = "no"', "true or false"),
        ('[slot_hung]\ntitle = "x"', "cannot be changed"),
        ("[slot_hung", "not valid TOML"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_meant_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(InputError) as refused:
        changed(text)
    assert named in str(refused.value)
