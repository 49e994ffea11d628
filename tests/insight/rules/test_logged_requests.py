"""Rules that read the server's own log: clients that leave, and answers that repeat themselves."""

import pytest

from insight.rules.judging import OK, Watch, counters, only, process
from specdash.core.readings import Slot, Slots, Source
from specdash.core.records import Alert
from specdash.llama.log.parser import LogParser

RULES = only("clients_leaving")
BUILDS = {"today": "W srv          stop", "2024 to 2026": "W srv  cancel_tasks"}


class Logged:
    """A server of which the log tells, one request after the other."""

    def __init__(self) -> None:
        self.watch = Watch(RULES)
        self.parser = LogParser()
        self.slots = Slots((Slot(0, is_processing=False, speculative=True),))
        self.task = 0
        self.watch.look(2, health=OK, metrics=counters(1), slots=self.slots, process=process())
        self.write("srv  update_slots: all slots are idle")

    def write(self, *lines: str) -> None:
        """Lines of this moment, then a look at the server."""
        second = self.watch.at
        text = "".join(f"{int(second // 60)}.{int(second % 60):02}.000.000 {line}\n" for line in lines)
        self.watch.tell(Source.LOG, self.parser.feed(text.encode()))
        self.watch.look(1, metrics=counters(1), slots=self.slots, process=process(), health=OK)

    def answer(self, tokens: int, drafted: int, accepted: int, slot: int = 0) -> None:
        """One request that ran to its end."""
        self.task += 1
        head = f"I slot {{}}: id  {slot} | task {self.task} | "
        timing = head.format("print_timing")
        speed = "(    1.00 ms per token,  1000.00 tokens per second)"
        self.write(
            head.format("launch_slot_") + "processing task, is_child = 0",
            timing + f"prompt eval time =      10.00 ms /    10 tokens {speed}",
            timing + f"eval time =    1000.00 ms / {tokens:5} tokens {speed}",
            timing + f"total time =    1010.00 ms / {tokens + 10:5} tokens",
            timing + f"draft acceptance = {accepted / drafted:.5f} ({accepted:5} accepted / {drafted:5} generated)",
            head.format("release") + f"stop processing: n_tokens = {tokens + 10}, truncated = 0",
        )

    def leave(self, words: str, *, begun: bool) -> None:
        """One request whose client went away."""
        self.task += 1
        if begun:
            self.write(f"I slot launch_slot_: id  0 | task {self.task} | processing task, is_child = 0")
        self.write(f"{words}: cancel task, id_task = {self.task}")
        if begun:
            self.write(f"I slot      release: id  0 | task {self.task} | stop processing: n_tokens = 9, truncated = 0")

    def alert(self, rule: str) -> Alert | None:
        return self.watch.alert(rule)


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "queued"])
@pytest.mark.parametrize("build", BUILDS)
def test_clients_that_leave_are_known_by_the_servers_log_alone(build: str, begun: bool) -> None:
    logged = Logged()
    for _ in range(8):
        logged.leave(BUILDS[build], begun=begun)
    alert = logged.alert("clients_leaving")
    assert alert is not None
    assert "8 of 8 requests" in alert.summary
    assert dict(alert.evidence)["seen in"] == "the server's log (cancel task)"


def test_a_few_that_leave_among_many_that_stay_are_no_storm() -> None:
    logged = Logged()
    for _ in range(6):
        logged.leave(BUILDS["today"], begun=True)
        for _ in range(4):
            logged.answer(20, 20, 10)
    assert logged.watch.raised() == set()


def test_those_who_left_long_before_specdash_looked_are_no_storm_of_now() -> None:
    logged = Logged()
    old = "".join(
        f"0.{second:02}.000.000 W srv          stop: cancel task, id_task = {second}\n" for second in range(40)
    )
    fresh = Watch(RULES)
    fresh.look(2, health=OK, metrics=counters(1), slots=logged.slots, process=process())
    fresh.tell(
        Source.LOG,
        LogParser().feed(f"{old}59.00.000.000 I slot launch_slot_: id  0 | task 99 | processing task\n".encode()),
    )
    fresh.look(3, health=OK, metrics=counters(1), slots=logged.slots, process=process())
    assert fresh.raised() == set()
