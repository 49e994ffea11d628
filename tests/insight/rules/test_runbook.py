"""Runbooks with what is known in place of their placeholders, wherever they are shown."""

import re

import pytest

from insight.rules.judging import IDLE, OK, WALL, Watch, counters, only, process
from specdash.core.config import Resolved
from specdash.core.readings import FailureKind
from specdash.core.records import Alert, AlertSeverity
from specdash.core.target import Target
from specdash.export.check_report import as_json, report, verdict
from specdash.insight.rules.catalogue import PLACEHOLDERS, runbook, shipped
from specdash.tui.action_table import read_keys
from specdash.tui.view import View
from specdash.tui.widgets.alerts import detail_lines

LITERAL = re.compile(r"\b(" + "|".join(PLACEHOLDERS.values()) + r")\b|\{\w+\}")
SPECS = {rule.spec.id: rule.spec for rule in shipped()}


def an_alert(rule: str, names: tuple[tuple[str, str], ...]) -> Alert:
    return Alert(rule, "It", AlertSeverity.WARNING, "it is so", WALL, WALL, WALL, names=names)


def texts(rule: str, names: tuple[tuple[str, str], ...]) -> str:
    todo = runbook(SPECS[rule], an_alert(rule, names))
    return "\n".join((*todo.checks, todo.remedy, todo.meaning))


@pytest.mark.parametrize("rule", SPECS)
def test_no_placeholder_is_left_whose_value_is_known_and_those_unknown_are_clear(rule: str) -> None:
    general = runbook(SPECS[rule])
    plain = "\n".join((*general.checks, general.remedy))
    for known in (
        set(),
        set(PLACEHOLDERS),
        *({name} for name in PLACEHOLDERS),
        *(set(PLACEHOLDERS) - {name} for name in PLACEHOLDERS),
    ):
        text = texts(rule, tuple((name, "4711") for name in known))
        assert not re.search(r"\{\w+\}", text)
        for name, word in PLACEHOLDERS.items():
            literal = re.compile(rf"\b{word}\b")
            assert len(literal.findall(text)) == (0 if name in known else len(literal.findall(plain)))


def test_a_value_cannot_be_more_than_a_word_of_the_command() -> None:
    assert "df -h '/a b; rm -rf ~'" in texts("disk_full", (("folder", "/a b; rm -rf ~"),))
    assert "\x1b" not in texts("disk_full", (("folder", "/\x1b[2J"),))


def hung() -> Watch:
    watch = Watch(only("server_hung", "slot_hung"))
    watch.look(20, health=OK, metrics=counters(100), slots=IDLE, process=process(4711))
    watch.look(7, health=FailureKind.TIMEOUT, process=process(4711))
    return watch


def test_what_check_prints_can_be_typed_as_it_is() -> None:
    watch = hung()
    rules = only("server_hung")
    result = verdict(watch.state.picture(watch.at, WALL, 60.0), rules, AlertSeverity.WARNING, 1.0, ended=False)
    printed = report(result, rules, verbose=True)
    assert "Stopped: kill -CONT 4711." in printed
    assert not LITERAL.search(printed)
    (told,) = as_json(result, rules)["alerts"]
    assert told["runbook"] is not None
    assert not LITERAL.search("\n".join(told["runbook"]["checks"]))


def test_what_the_incidents_screen_shows_can_be_typed_as_it_is() -> None:
    watch = hung()
    alert = watch.alert("server_hung")
    assert alert is not None
    view = View(watch.state.picture(watch.at, WALL + watch.at, 60.0), watch.state)
    lines = detail_lines(alert, SPECS["server_hung"], view, 100)
    shown = "\n".join("".join(text for text, _ in line) for line in lines)
    assert "-p 4711" in shown
    assert not LITERAL.search(shown)


def test_on_another_machine_no_process_is_named() -> None:
    watch = Watch(only("server_hung"))
    watch.state.retarget(Target("http://box:8080"))
    watch.look(2, health=OK, metrics=counters(100))
    watch.look(7, health=FailureKind.TIMEOUT)
    alert = watch.alert("server_hung")
    assert alert is not None
    assert dict(alert.names) == {"url": "http://box:8080", "port": "8080"}
    assert "-p PID" in "\n".join(runbook(SPECS["server_hung"], alert).checks)


def test_a_stranger_at_the_port_is_looked_for_there() -> None:
    watch = Watch(only("port_taken"))
    watch.look(3, health=FailureKind.NOT_FOUND)
    alert = watch.alert("port_taken")
    assert alert is not None
    checks = runbook(SPECS["port_taken"], alert).checks
    assert checks[:2] == ("ss -ltnp | grep :8080", "curl -i http://127.0.0.1:8080/health")


def test_the_doctor_is_sent_to_the_server_that_the_alert_is_of() -> None:
    texts = [text for rule in shipped() for text in (*rule.spec.checks, rule.spec.remedy) if "specdash doctor" in text]
    assert texts
    assert all("specdash doctor --url {url}" in text for text in texts)


def test_the_key_that_takes_a_fix_is_the_one_of_the_action_table() -> None:
    alert = Alert("endpoint_unusable", "t", AlertSeverity.WARNING, "s", WALL, WALL, WALL, fix=(("LLAMA_METRICS", "1"),))
    for keys, shown in (({}, "V: to the tune screen"), ({"take": "f8"}, "f8: to the tune screen")):
        table = read_keys(Resolved(keys, "test"))
        watch = hung()
        view = View(watch.state.picture(watch.at, WALL + watch.at, 60.0), watch.state, keys=table)
        lines = ["".join(text for text, _ in line) for line in detail_lines(alert, None, view, 100)]
        assert any(line.endswith(shown) for line in lines), lines
