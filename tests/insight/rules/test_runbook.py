"""Runbooks with what is known in place of their placeholders, wherever they are shown."""

import re

from insight.rules.judging import IDLE, OK, WALL, Watch, counters, only, process
from specdash.core.config import Resolved
from specdash.core.readings import FailureKind
from specdash.core.records import Alert, AlertSeverity
from specdash.core.target import Target
from specdash.export.check_report import as_json, report, verdict
from specdash.insight.rules.catalogue import runbook, shipped
from specdash.llama.log import LINE_CLASSES
from specdash.tui.action_table import read_keys
from specdash.tui.view import View
from specdash.tui.widgets.alerts import detail_lines

NAMES = ("pid", "port", "url", "upstream")
LITERAL = re.compile(r"\b(" + "|".join(NAMES).upper() + r")\b|\{\w+\}")
SPECS = {rule.id: rule for rule in shipped()}


def an_alert(rule: str, names: tuple[tuple[str, str], ...] = (), **more: object) -> Alert:
    return Alert(rule, "It", AlertSeverity.WARNING, "it is so", WALL, WALL, WALL, names=names, **more)  # type: ignore[arg-type]


def texts(rule: str, names: tuple[tuple[str, str], ...] = ()) -> str:
    todo = runbook(SPECS[rule], an_alert(rule, names))
    return "\n".join((*todo.checks, todo.remedy, todo.meaning))


def test_a_class_of_log_lines_that_is_named_is_one() -> None:
    named = [word for rule in SPECS for word in re.findall(r"\bthe log: ([a-z]+_.*)", texts(rule))]
    assert len(named) > 1
    assert {name for words in named for name in words.split(", ")} <= LINE_CLASSES.keys()


def test_no_placeholder_is_left_whose_value_is_known_and_those_unknown_are_clear() -> None:
    used = set()
    for rule in SPECS:
        general = texts(rule)
        assert not re.search(r"\{\w+\}", general)
        for name in NAMES:
            count = len(re.findall(rf"\b{name.upper()}\b", general))
            assert len(re.findall("4711", texts(rule, ((name, "4711"),)))) == count
            used |= {name} if count else set()
    assert used == set(NAMES)


def test_a_value_cannot_be_more_than_a_word_of_the_command() -> None:
    assert "curl -s '/a b; rm -rf ~'/health" in texts("upstream_unreachable", (("upstream", "/a b; rm -rf ~"),))
    assert "\x1b" not in texts("upstream_unreachable", (("upstream", "/\x1b[2J"),))


def hung() -> Watch:
    watch = Watch(only("server_hung", "slot_hung"))
    watch.look(20, health=OK, metrics=counters(100), slots=IDLE, process=process(4711))
    watch.look(7, health=FailureKind.TIMEOUT, process=process(4711))
    return watch


def test_what_check_prints_and_the_incidents_screen_shows_can_be_typed_as_it_is() -> None:
    watch, rules = hung(), only("server_hung")
    result = verdict(watch.state.picture(watch.at, WALL, 60.0), rules, AlertSeverity.WARNING, 1.0, ended=False)
    printed = report(result, rules, verbose=True)
    assert "Stopped: kill -CONT 4711." in printed
    (alert,) = as_json(result, rules)["alerts"]
    assert alert["runbook"] is not None
    view = View(watch.state.picture(watch.at, WALL + watch.at, 60.0), watch.state)
    lines = detail_lines(watch.found("server_hung"), SPECS["server_hung"], view, 100)
    shown = "\n".join("".join(text for text, _ in line) for line in lines)
    assert "-p 4711" in shown
    for text in (printed, shown, *alert["runbook"]["checks"]):
        assert not LITERAL.search(text)


def test_on_another_machine_no_process_is_named() -> None:
    watch = Watch(only("server_hung"))
    watch.state.retarget(Target("http://box:8080"))
    watch.look(2, health=OK, metrics=counters(100))
    watch.look(7, health=FailureKind.TIMEOUT)
    alert = watch.found("server_hung")
    assert dict(alert.names) == {"url": "http://box:8080", "port": "8080"}
    assert "-p PID" in "\n".join(runbook(SPECS["server_hung"], alert).checks)


def test_the_key_that_takes_a_fix_is_the_one_of_the_action_table() -> None:
    alert = an_alert("endpoint_unusable", fix=(("LLAMA_METRICS", "1"),))
    watch = hung()
    for keys, shown in (({}, "V: to the tune screen"), ({"take": "f8"}, "f8: to the tune screen")):
        view = View(watch.state.picture(watch.at, WALL, 60.0), watch.state, keys=read_keys(Resolved(keys, "test")))
        lines = ["".join(text for text, _ in line) for line in detail_lines(alert, None, view, 100)]
        assert any(line.endswith(shown) for line in lines), lines
