"""Clients that leave, by the server's own log."""

import pytest

from insight.rules.judging import OK, Watch, counters, only, process
from specdash.core.readings import Source
from specdash.llama.log.parser import LogParser

SPEED = "(    1.00 ms per token,  1000.00 tokens per second)"


BEGIN = "I slot launch_slot_: id  0 | task {} | processing task, is_child = 0"
LEFT = "I slot      release: id  0 | task {} | stop processing: n_tokens = 9, truncated = 0"
DONE = (
    BEGIN,
    f"I slot print_timing: id  0 | task {{}} | prompt eval time =      10.00 ms /    10 tokens {SPEED}",
    f"I slot print_timing: id  0 | task {{}} | eval time =    1000.00 ms /    20 tokens {SPEED}",
    "I slot release: id  0 | task {} | stop processing: n_tokens = 30, truncated = 0",
)


def logged(*requests: tuple[str, ...]) -> Watch:
    """A server whose log has the lines of one request a second."""
    watch, parser = Watch(only("clients_leaving")), LogParser()
    watch.read(Source.LOG, parser.feed(b"0.00.000.000 srv  update_slots: all slots are idle\n"))
    for task, lines in enumerate(requests, 1):
        at = f"{task // 60}.{task % 60:02}.000.000 "
        watch.read(Source.LOG, parser.feed("".join(f"{at}{line.format(task)}\n" for line in lines).encode()))
        watch.look(1, metrics=counters(1), process=process(), health=OK)
    return watch


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "queued"])
@pytest.mark.parametrize("words", ["W srv          stop", "W srv  cancel_tasks"])
def test_clients_that_leave_are_known_by_the_servers_log_alone(words: str, begun: bool) -> None:
    cancelled = f"{words}: cancel task, id_task = {{}}"
    alert = logged(*[(BEGIN, cancelled, LEFT) if begun else (cancelled,)] * 8).found("clients_leaving")
    assert "8 of 8 clients" in alert.summary
    assert dict(alert.evidence)["seen in"] == "the server's log (cancel task)"


def test_a_few_that_leave_among_many_that_stay_or_left_long_ago_are_no_storm() -> None:
    gone = (BEGIN, "W srv          stop: cancel task, id_task = {}", LEFT)
    assert logged(*[gone, DONE, DONE, DONE, DONE] * 6).raised() == set()
    watch = Watch(only("clients_leaving"))
    watch.at = 3540.0
    old = [f"0.{second:02}.000.000 W srv          stop: cancel task, id_task = {second}" for second in range(40)]
    watch.read(Source.LOG, LogParser().feed("\n".join([*old, f"59.00.000.000 {BEGIN.format(99)}", ""]).encode()))
    watch.look(3, health=OK, process=process())
    assert watch.raised() == set()
