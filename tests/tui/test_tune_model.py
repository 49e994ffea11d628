"""What is pending, what is shown of it, and when it is forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specdash.core.changes import Role
from specdash.core.masking import MASK
from specdash.tui.arming import Arming
from specdash.tui.tune_model import TuneModel
from tui.fake_console import BACKEND_ENV, FakeConsole


def model() -> TuneModel:
    """The model after a look at two running services."""
    made = TuneModel()
    made.services = FakeConsole().look()
    return made


def row(made: TuneModel, key: str) -> tuple[str | None, bool, str | None, str | None]:
    """Now, pending, wanted and last good of one key."""
    found = next(one for one in made.rows() if one.key == key)
    return found.now, found.pending, found.wanted, found.last_good


def test_a_row_has_the_value_now_the_wanted_one_and_the_last_good_one() -> None:
    made = model()
    made.set("LLAMA_DRAFT_MAX", "12")
    assert row(made, "LLAMA_DRAFT_MAX") == ("4", True, "12", "3")


def test_wanting_what_is_there_is_no_change() -> None:
    made = model()
    made.set("LLAMA_DRAFT_MAX", "12")
    made.set("LLAMA_DRAFT_MAX", "4")
    assert made.count == 0
    made.set("LLAMA_DRAFT_P_MIN", None)
    assert made.count == 0


def test_a_secret_is_masked_now_and_wanted() -> None:
    made = model()
    made.set("LLAMA_API_KEY", "sk-another")
    assert row(made, "LLAMA_API_KEY") == (MASK, True, MASK, MASK)
    assert "sk-" not in repr([(one.now, one.wanted, one.last_good) for one in made.rows()])


def test_removing_a_key_is_a_change_of_its_own() -> None:
    made = model()
    made.set("LLAMA_CTX_SIZE", None)
    assert row(made, "LLAMA_CTX_SIZE")[1:3] == (True, None)
    assert made.changes.of(Role.BACKEND) == {"LLAMA_CTX_SIZE": None}


def test_a_profile_takes_the_place_of_what_was_pending_and_leaves_out_what_is_so_already() -> None:
    made, console = model(), FakeConsole()
    made.set("LLAMA_CTX_SIZE", "4096")
    made.take(console.profiles()[0])
    assert made.changes.of(Role.BACKEND) == {"LLAMA_DRAFT_MAX": "12", "LLAMA_DRAFT_MIN": "2"}
    assert made.profile == "agentic-continuity"
    made.set("LLAMA_DRAFT_MAX", "8")
    assert made.profile is None


def test_what_has_come_true_is_no_longer_pending() -> None:
    made, console = model(), FakeConsole()
    made.set("LLAMA_DRAFT_MAX", "12")
    console.values[Role.BACKEND]["LLAMA_DRAFT_MAX"] = "12"
    made.services = console.look()
    made.settle()
    assert made.count == 0


def test_a_value_that_cannot_be_read_is_told_with_its_range() -> None:
    made = model()
    assert made.problem_with("LLAMA_DRAFT_MAX", "8") is None
    assert "1 to 1024" in str(made.problem_with("LLAMA_DRAFT_MAX", "0"))
    assert "not a whole number" in str(made.problem_with("LLAMA_DRAFT_MAX", "many"))
    assert made.problem_with("MY_OWN_KEY", "anything") is None


@given(st.lists(st.tuples(st.sampled_from([*BACKEND_ENV, "LLAMA_DRAFT_MIN"]), st.none() | st.sampled_from("1234"))))
def test_pending_changes_are_always_exactly_the_difference(steps: list[tuple[str, str | None]]) -> None:
    made, wanted = model(), dict[str, str | None](BACKEND_ENV)
    for key, value in steps:
        made.set(key, value)
        wanted[key] = value
    differing = {key: value for key, value in wanted.items() if BACKEND_ENV.get(key) != value}
    assert made.changes.of(Role.BACKEND) == differing


def test_an_armed_dashboard_disarms_itself_when_nobody_is_there() -> None:
    arming = Arming(idle_s=60)
    assert not arming.armed(0)
    assert arming.toggle(0)
    assert arming.armed(59.9)
    assert not arming.armed(60)


def test_keys_keep_it_armed_and_never_arm_it() -> None:
    arming = Arming(idle_s=60)
    arming.touch(0)
    assert not arming.armed(0)
    arming.toggle(0)
    arming.touch(50)
    assert arming.left_s(100) == 10
    arming.touch(200)
    assert not arming.armed(200)


def test_a_locked_dashboard_is_never_armed() -> None:
    arming = Arming(locked=True)
    assert not arming.toggle(0)
    assert not arming.armed(0)
