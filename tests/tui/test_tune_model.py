"""What is pending, what is shown of it, and when it is forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from specdash.core.changes import Change, Role
from specdash.core.masking import MASK
from specdash.tui.arming import Arming
from specdash.tui.widgets.tuner.tune import TuneModel
from tui.fake_console import BACKEND_ENV, FakeConsole


def model() -> TuneModel:
    """The model after a look at two running services."""
    made = TuneModel()
    made.services = FakeConsole().look()
    return made


def row(made: TuneModel, key: str) -> Change:
    """One key, its secrets masked."""
    return next(change for change in made.rows() if change.key == key).masked


def wanted(made: TuneModel) -> dict[str, str | None]:
    """What is pending for the backend."""
    return {change.key: change.after for change in made.changes if change.role is Role.BACKEND}


def test_a_secret_is_masked_now_and_wanted() -> None:
    made = model()
    made.set("LLAMA_API_KEY", "sk-another")
    assert row(made, "LLAMA_API_KEY") == Change(Role.BACKEND, "LLAMA_API_KEY", MASK, MASK)
    assert "sk-" not in repr(made.rows())


def test_a_profile_takes_the_place_of_what_was_pending_and_leaves_out_what_is_so_already() -> None:
    made, console = model(), FakeConsole()
    made.set("LLAMA_CTX_SIZE", "4096")
    made.take(console.profiles()[0])
    assert wanted(made) == {"LLAMA_DRAFT_MAX": "12", "LLAMA_DRAFT_MIN": "2"}
    assert made.profile == "agentic-continuity"
    made.set("LLAMA_DRAFT_MAX", "8")
    assert made.profile is None


def test_a_value_that_cannot_be_read_is_told_with_its_range() -> None:
    made = model()
    assert made.problem_with("LLAMA_DRAFT_MAX", "8") is None
    assert "1 to 1024" in str(made.problem_with("LLAMA_DRAFT_MAX", "0"))
    assert "not a whole number" in str(made.problem_with("LLAMA_DRAFT_MAX", "many"))
    assert made.problem_with("MY_OWN_KEY", "anything") is None


@given(st.lists(st.tuples(st.sampled_from([*BACKEND_ENV, "LLAMA_DRAFT_MIN"]), st.none() | st.sampled_from("1234"))))
def test_pending_changes_are_always_exactly_the_difference(steps: list[tuple[str, str | None]]) -> None:
    made, after = model(), dict[str, str | None](BACKEND_ENV)
    for key, value in steps:
        made.set(key, value)
        after[key] = value
    differing = {key: value for key, value in after.items() if BACKEND_ENV.get(key) != value}
    assert wanted(made) == differing


def test_keys_keep_it_armed_and_never_arm_it() -> None:
    arming = Arming(idle_s=60)
    arming.touch(0)
    assert not arming.armed(0)
    arming.toggle(0)
    arming.touch(50)
    assert arming.left_s(100) == 10
    arming.touch(200)
    assert not arming.armed(200)
