"""Warning lines tell which slots and tasks they are about: all of a few, some of a storm."""

import pytest

from specdash.core.log_facts import LogBatch, Touched
from specdash.llama.log.parser import LOOKED_AT, LogParser


def touched(text: bytes) -> dict[str, tuple[Touched, Touched]]:
    batch: LogBatch = LogParser().feed(text)
    return {tally.warning: (tally.slots, tally.tasks) for tally in batch.warnings}


@pytest.mark.parametrize(
    ("line", "slots", "tasks"),
    [
        (b"0.01.002.003 W slot x: id  3 | task 12 | slot context shift, n_keep = 0, n_left = 9, n_discard = 4",
         (3,), (12,)),
        (b"0.57.309.308 W find_slot: non-consecutive token position 323 after 323 for sequence 2 with 376 new tokens",
         (2,), ()),
        (b"srv          stop: cancel task, id_task = 31", (), (31,)),
        (b"srv    send_error: task id = 5, error: Context size has been exceeded.", (), (5,)),
        (b"srv  try_clear_id: purging slot 1 with 1024 tokens", (1,), ()),
        (b"0.01.002.003 E slot get_availabl: id  0 | task -1 | failed to restore context checkpoint (x)", (0,), ()),
        (b"ggml_abort: failed to allocate compute buffers", (), ()),
    ],
)  # fmt: skip
def test_a_line_names_its_slot_and_task_in_its_own_way(
    line: bytes, slots: tuple[int, ...], tasks: tuple[int, ...]
) -> None:
    ((found_slots, found_tasks),) = touched(line + b"\n").values()
    assert (found_slots, found_tasks) == (Touched(slots), Touched(tasks))


def shift(i: int) -> bytes:
    line = b"0.%02d.%03d.000 W slot update_slots: id  %d | task %d | slot context shift, n_keep = 0, n_left = 1, %s\n"
    return line % (i // 1000, i % 1000, i % 4, i // 100, b"n_discard = 3")


def test_of_a_few_lines_all_are_read() -> None:
    text = b"".join(shift(i) for i in range(LOOKED_AT))
    slots, tasks = touched(text)["context_shift"]
    assert (sorted(slots.ids), tasks.ids, slots.more) == ([0, 1, 2, 3], (0,), False)


def test_of_a_storm_some_lines_are_read_and_the_counts_are_least_ones() -> None:
    text = b"".join(shift(i) for i in range(2000))
    slots, tasks = touched(text)["context_shift"]
    assert set(slots.ids) <= {0, 1, 2, 3}
    assert tasks.ids[0] == 0
    assert tasks.ids[-1] == 19
    assert slots.more
    assert tasks.more


def test_lines_of_servers_that_are_gone_are_tallied_apart() -> None:
    started = b"0.00.001.000 I srv  llama_server: initializing ...\n"
    shifted = shift(9000)
    text = started + 3 * shifted + started + 2 * shifted + started + shifted
    for piece in (len(text), 40):
        parser = LogParser()
        batches = [parser.feed(text[at : at + piece]) for at in range(0, len(text), piece)]
        found = [(tally.count, tally.lives_ago) for batch in batches for tally in batch.warnings]
        assert sum(count for count, _ in found) == 6
        if piece == len(text):
            assert found == [(3, 2), (2, 1), (1, 0)]
        else:
            assert {lives_ago for _, lives_ago in found} == {0}
