"""The log's tail in memory."""

from hypothesis import given
from hypothesis import strategies as st

from specdash.tui.widgets.logs import LogBuffer, found, is_marker

LINES = st.lists(st.text(alphabet="ab E[]", max_size=6), max_size=30)


@given(st.lists(LINES, max_size=8), st.text(alphabet="abE", max_size=2), st.booleans())
def test_filtering_while_lines_arrive_equals_filtering_afterwards(
    batches: list[list[str]], needle: str, inverted: bool
) -> None:
    live = LogBuffer(capacity=1000)
    live.inverted = inverted
    live.set_filter(needle)
    for batch in batches:
        live.extend([(line, False) for line in batch])
    everything = [line for batch in batches for line in batch]
    assert live.lines == everything
    assert live.shown == [line for line in everything if not needle or found(line, needle) != inverted]


@given(st.lists(LINES, max_size=20))
def test_memory_is_bounded(batches: list[list[str]]) -> None:
    buffer = LogBuffer(capacity=10)
    for batch in batches:
        buffer.extend([(line, False) for line in batch])
    assert buffer.lines == [line for batch in batches for line in batch][-10:]


def test_a_line_of_ten_megabytes_is_kept_short() -> None:
    buffer = LogBuffer()
    buffer.extend([("x" * 10_000_000, False)])
    assert len(buffer.lines[0]) < 10_000


def test_lines_that_came_too_fast_are_counted_in_their_place() -> None:
    buffer = LogBuffer()
    buffer.extend([("a", False), ("b", False)], skipped=3000)
    assert is_marker(buffer.lines[0])
    assert "3,000 lines" in buffer.lines[0]


def test_capitals_matter_only_when_the_needle_has_some() -> None:
    assert found("CUDA error", "cuda")
    assert not found("cuda error", "CUDA")


def test_detail_is_left_out_unless_something_is_looked_for() -> None:
    buffer = LogBuffer(capacity=3)
    steps = [(f"step {number}", True) for number in range(10)]
    assert buffer.extend([("begun", False), *steps, ("warning", False)]) == 2
    assert buffer.shown == ["begun", "warning"], "what tells something outlives the detail"
    buffer.set_filter("step")
    assert buffer.shown == ["step 8", "step 9"]
    buffer.set_filter("")
    buffer.folded = False
    buffer.refilter()
    assert buffer.shown == buffer.lines == ["step 8", "step 9", "warning"]
