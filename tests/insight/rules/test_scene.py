"""What rules look at: a quarter of an hour, one sample a second, and the server's command line."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insight.rules.judging import OK, Watch, rule
from specdash.core.readings import ProcessTree, Slots
from specdash.core.records import Symptom
from specdash.insight.picture import BackendState
from specdash.insight.rules.catalogue import Limits
from specdash.insight.rules.known import flag
from specdash.insight.rules.scene import KEEP_S, PictureHistory, PictureSample, RuleScene, increase

LIVE, DOWN, LOADING = BackendState.LIVE, BackendState.DOWN, BackendState.LOADING


def past(seconds: int, every: float = 1.0) -> PictureHistory:
    kept = PictureHistory()
    for step in range(int(seconds / every)):
        kept.add(PictureSample(step * every, LIVE))
    return kept


def test_a_quarter_of_an_hour_is_kept_and_a_state_lasts_longer() -> None:
    kept = past(3600)
    samples = kept.since(0.0)
    assert (samples[-1].at - samples[0].at, len(samples)) == (KEEP_S, KEEP_S + 1)
    assert (kept.lasting(LIVE), kept.lasting(DOWN)) == (3599.0, None)
    assert len(past(100, every=0.1).since(0.0)) <= 125, "looks closer than a second share a sample"


def test_growth_is_what_the_totals_say() -> None:
    assert increase([3, None, 5, 1, 4]) == 6, "a total that went back was reset"
    assert increase([3]) is None


@given(st.lists(st.tuples(st.sampled_from((0.1, 0.5, 1.0, 5.0, 400.0)), st.sampled_from((LIVE, DOWN, LOADING)))))
def test_the_last_is_the_last_and_no_change_of_state_is_lost(steps: list[tuple[float, BackendState]]) -> None:
    kept, at = PictureHistory(), 0.0
    changes: list[BackendState] = []
    for pause, state in steps:
        at += pause
        kept.add(PictureSample(at, state))
        assert kept.last is not None
        assert (kept.last.at, kept.last.state) == (at, state)
        if not changes or changes[-1] is not state:
            changes.append(state)
    seen = [sample.state for sample in kept.since(0.0)]
    seen = [state for index, state in enumerate(seen) if not index or seen[index - 1] is not state]
    assert changes[len(changes) - len(seen) :] == seen


@pytest.mark.parametrize(
    ("command", "value"),
    [
        (("-c", "4096"), "4096"),
        (("--ctx-size=4096", "--jinja"), "4096"),
        (("-c", "4096", "--ctx-size", "8192"), "8192"),
        (("-c", "--jinja"), ""),
        (("-c",), ""),
        (("--jinja", "4096"), None),
    ],
)
def test_a_flag_has_the_value_that_llama_server_gives_it(command: tuple[str, ...], value: str | None) -> None:
    found: list[str | None] = []

    def judge(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
        del limits
        found.append(flag(scene, "-c", "--ctx-size"))
        return ()

    watch = Watch([rule(judge)])
    watch.look(process=ProcessTree(10, command=("llama-server", *command)), slots=Slots(()), health=OK)
    assert found == [value]
