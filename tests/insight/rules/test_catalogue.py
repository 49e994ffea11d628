"""The catalogue of rules: complete, consistent, changeable by a user's file; its runbooks name what is known."""

import re

import pytest
from msgspec.structs import replace

from insight.scenes import IDLE, OK, WALL, Watch, counters, only, process
from specdash.cli.commands import COMMANDS
from specdash.core.config import Resolved
from specdash.core.errors import InputError
from specdash.core.readings import FailureKind
from specdash.core.records import Alert, AlertSeverity
from specdash.core.removed import REMOVED_RULES
from specdash.export.check_report import as_json, report, verdict
from specdash.insight.charts import Metric
from specdash.insight.rules.catalogue import FAMILIES, Rule, runbook, runbook_of, shipped, with_user_limits
from specdash.llama.log import LINE_CLASSES
from specdash.tui.action_table import read_keys
from specdash.tui.view import View
from specdash.tui.widgets.alerts import detail_lines

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


# Runbooks with what is known in place of their placeholders


NAMES = ("pid", "port", "url", "upstream")
LITERAL = re.compile(r"\b(" + "|".join(NAMES).upper() + r")\b|\{\w+\}")


def texts(rule: str, names: tuple[tuple[str, str], ...] = ()) -> str:
    alert = Alert(rule, "It", AlertSeverity.WARNING, "it is so", WALL, WALL, WALL, names=names)
    todo = runbook(RULES[rule], alert)
    return "\n".join((*todo.checks, todo.remedy, todo.meaning))


def test_no_placeholder_is_left_whose_value_is_known_and_those_unknown_are_clear() -> None:
    used, named = set(), set()
    for rule in RULES:
        general = texts(rule)
        assert not re.search(r"\{\w+\}", general)
        classes = [word for words in re.findall(r"\bthe log: ([a-z]+_.*)", general) for word in words.split(", ")]
        named |= set(classes)
        for name in NAMES:
            count = len(re.findall(rf"\b{name.upper()}\b", general))
            assert len(re.findall("4711", texts(rule, ((name, "4711"),)))) == count
            used |= {name} if count else set()
    assert used == set(NAMES)
    assert len(named) > 1
    assert named <= LINE_CLASSES.keys()
    quoted = texts("upstream_unreachable", (("upstream", "/a b; rm -rf ~"),))
    assert "curl -s '/a b; rm -rf ~'/health" in quoted, "one word of the command"


def test_what_check_prints_and_the_incidents_screen_shows_can_be_typed_as_it_is() -> None:
    rules = only("server_hung")
    watch = Watch(rules)
    watch.look(2, health=OK, metrics=counters(100), slots=IDLE, process=process(4711))
    watch.look(7, health=FailureKind.TIMEOUT, process=process(4711))
    result = verdict(watch.state.picture(watch.at, WALL, 60.0), rules, AlertSeverity.WARNING, 1.0, ended=False)
    printed = report(result, rules, verbose=True)
    assert "Stopped: kill -CONT 4711." in printed
    (alert,) = as_json(result, rules)["alerts"]
    assert alert["runbook"] is not None
    found = replace(watch.found("server_hung"), fix=(("LLAMA_METRICS", "1"),))
    view = View(watch.picture, watch.state, keys=read_keys(Resolved({"take": "f8"}, "test")))
    shown = ["".join(text for text, _ in line) for line in detail_lines(found, RULES["server_hung"], view, 100)]
    assert any("-p 4711" in line for line in shown)
    assert any(line.endswith("f8: to the tune screen") for line in shown), "the key that takes the fix"
    for text in (printed, *shown, *alert["runbook"]["checks"]):
        assert not LITERAL.search(text)


def test_on_another_machine_no_process_is_named() -> None:
    watch = Watch(only("server_hung"))
    watch.retarget(url="http://box:8080")
    watch.look(2, health=OK, metrics=counters(100))
    watch.look(7, health=FailureKind.TIMEOUT)
    alert = watch.found("server_hung")
    assert dict(alert.names) == {"url": "http://box:8080", "port": "8080"}
    assert "-p PID" in "\n".join(runbook(RULES["server_hung"], alert).checks)
