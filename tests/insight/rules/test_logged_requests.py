"""Clients that leave, by the server's own log."""

import pytest

from insight.rules.judging import OK, Watch, counters, only, process
from specdash.core.readings import Slot, Slots, Source
from specdash.llama.log.parser import LogParser

SPEED = "(    1.00 ms per token,  1000.00 tokens per second)"


class Logged:
    """A server of which the log says this, one request after the other."""

    def __init__(self) -> None:
        self.watch, self.parser, self.task = Watch(only("clients_leaving")), LogParser(), 0
        self.write("srv  update_slots: all slots are idle")

    def write(self, *lines: str) -> None:
        """Lines of this moment, then a look at the server."""
        second = self.watch.at
        text = "".join(f"{int(second // 60)}.{int(second % 60):02}.000.000 {line}\n" for line in lines)
        self.watch.read(Source.LOG, self.parser.feed(text.encode()))
        slots = Slots((Slot(0, is_processing=False, speculative=True),))
        self.watch.look(1, metrics=counters(1), slots=slots, process=process(), health=OK)

    def answer(self) -> None:
        """One request that ran to its end."""
        self.task += 1
        timing = f"I slot print_timing: id  0 | task {self.task} | "
        self.write(
            f"I slot launch_slot_: id  0 | task {self.task} | processing task, is_child = 0",
            timing + f"prompt eval time =      10.00 ms /    10 tokens {SPEED}",
            timing + f"eval time =    1000.00 ms /    20 tokens {SPEED}",
            f"I slot release: id  0 | task {self.task} | stop processing: n_tokens = 30, truncated = 0",
        )

    def leave(self, words: str, *, begun: bool) -> None:
        """One request whose client went away."""
        self.task += 1
        begin = f"I slot launch_slot_: id  0 | task {self.task} | processing task, is_child = 0"
        end = f"I slot      release: id  0 | task {self.task} | stop processing: n_tokens = 9, truncated = 0"
        cancelled = f"{words}: cancel task, id_task = {self.task}"
        self.write(*([begin, cancelled, end] if begun else [cancelled]))


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "queued"])
@pytest.mark.parametrize("words", ["W srv          stop", "W srv  cancel_tasks"])
def test_clients_that_leave_are_known_by_the_servers_log_alone(words: str, begun: bool) -> None:
    logged = Logged()
    for _ in range(8):
        logged.leave(words, begun=begun)
    alert = logged.watch.found("clients_leaving")
    assert "8 of 8 clients" in alert.summary
    assert dict(alert.evidence)["seen in"] == "the server's log (cancel task)"


def test_a_few_that_leave_among_many_that_stay_or_left_long_ago_are_no_storm() -> None:
    logged = Logged()
    for _ in range(6):
        logged.leave("W srv          stop", begun=True)
        for _ in range(4):
            logged.answer()
    assert logged.watch.raised() == set()
    logged = Logged()
    logged.watch.at = 3540.0
    old = [f"0.{second:02}.000.000 W srv          stop: cancel task, id_task = {second}" for second in range(40)]
    now = "59.00.000.000 I slot launch_slot_: id  0 | task 99 | processing task\n"
    logged.watch.read(Source.LOG, LogParser().feed("\n".join([*old, now]).encode()))
    logged.watch.look(3, health=OK, process=process())
    assert logged.watch.raised() == set()
