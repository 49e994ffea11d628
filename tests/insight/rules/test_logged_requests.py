"""Rules that read the server's own log: clients that leave, and answers that repeat themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insight.rules.judging import OK, Watch, counters, only, process
from specdash.core.readings import Props, Slot, Slots, Source
from specdash.core.records import Alert, AlertSeverity
from specdash.core.target import Target
from specdash.llama.log.parser import LogParser

RULES = only("clients_leaving", "repeating_answer")
BUILDS = {"today": "W srv          stop", "2024 to 2026": "W srv  cancel_tasks"}


class Logged:
    """A server of which the log tells, one request after the other."""

    def __init__(self, *, draft_model: str | None = None, types: tuple[str, ...] = ("draft-simple",)) -> None:
        self.watch = Watch(RULES)
        if draft_model is not None:
            parameters = (("spec-draft-model", draft_model),)
            self.watch.state.retarget(Target(self.watch.state.target.url, parameters=parameters))
        self.parser = LogParser()
        self.slots = Slots((Slot(0, is_processing=False, speculative=True, speculative_types=types),))
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
    assert dict(alert.evidence)["told by"] == "the server's log (cancel task)"


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


def test_a_long_answer_of_which_every_draft_is_right_repeats_itself() -> None:
    logged = Logged()
    for _ in range(3):
        logged.answer(200, 200, 110)
    logged.answer(3000, 2400, 2376, slot=2)
    alert = logged.alert("repeating_answer")
    assert alert is not None
    assert (alert.subject, alert.severity) == ("slot 2", AlertSeverity.WARNING)
    evidence = dict(alert.evidence)
    assert evidence["request"] == "slot 2, task 4"
    assert evidence["acceptance"] == "99.0 %"
    assert evidence["other answers"] == "55 % of drafts accepted"


def test_where_only_repeated_text_is_drafted_it_may_be_a_copy_and_is_a_notice() -> None:
    logged = Logged(types=("ngram-mod",))
    logged.answer(3000, 2400, 2400)
    alert = logged.alert("repeating_answer")
    assert alert is not None
    assert alert.severity is AlertSeverity.NOTICE


@given(st.lists(st.tuples(st.integers(1, 999), st.integers(1, 999)), max_size=15))
def test_short_answers_never_repeat_themselves_however_right_their_drafts(answers: list[tuple[int, int]]) -> None:
    logged = Logged()
    for tokens, drafted in answers:
        logged.answer(tokens, drafted, drafted)
    assert logged.watch.raised() == set()


@pytest.mark.parametrize(
    ("tokens", "drafted", "accepted"), [(3000, 2400, 2100), (3000, 900, 900), (900, 720, 720)],
    ids=["good drafts", "few drafts", "short"],
)  # fmt: skip
def test_a_long_answer_with_good_drafts_is_no_loop(tokens: int, drafted: int, accepted: int) -> None:
    logged = Logged()
    logged.answer(tokens, drafted, accepted)
    assert logged.watch.raised() == set()


def test_a_drafter_that_is_always_right_is_no_loop() -> None:
    logged = Logged()
    for _ in range(5):
        logged.answer(100, 80, 80)
    logged.answer(3000, 2400, 2400)
    assert logged.watch.raised() == set()


def test_a_draft_model_that_is_the_model_itself_is_no_loop() -> None:
    logged = Logged(draft_model="/m/model.gguf")
    logged.watch.tell(Source.PROPS, Props(model_path="/m/model.gguf"))
    logged.answer(3000, 2400, 2400)
    assert logged.watch.raised() == set()
