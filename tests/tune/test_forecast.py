"""How long a run takes: what a forecast is made of, and how it follows what the boots show."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.backend import demo
from specdash.tune.model.problem import BootResult, Budget, Point, PromptResult, Stage
from specdash.tune.run.measuring import MachinePace, before, boot_seconds, busy_share, left_s, total_s
from specdash.tune.run.planning import TuneOptions, earlier_pace, known_pace, prepare, start_seconds
from specdash.tune.run.status import Boot, Forecast, RunHead, RunPlan, Setup, TuneRunRecord

if TYPE_CHECKING:
    from pathlib import Path

PACE = MachinePace(start_s=2.0, decode=100.0, prefill=1000.0)
PRINT = {"model": "a, 10 bytes", "engine": "llama-server 1", "cores": "2"}


def boot(number: int = 1, seconds: float = 10.0, waited: float = 1.0, *, failure: str = "") -> Boot:
    prompts = () if failure else tuple(PromptResult(f"p{place}", "prose", 200, 2.0) for place in range(4))
    result = BootResult(Point(), prompts, failure=failure)
    return Boot(number, Stage.EXPLORE, "", result, 0.0, seconds=seconds, waited_s=waited)


def test_a_boot_costs_its_start_its_warm_up_and_every_prompt() -> None:
    found = before(PACE, 10, 968, 500, load=None, repeats=2, checks=False)
    assert found.boot_s == pytest.approx(2.0 + (968 + 32) / 100 + 0.5 + 10 * 0.02)
    assert (found.wait_s, found.check_s, found.restore_s) == (0.0, 0.0, 2.0)
    assert total_s(found, 12) == pytest.approx(12 * found.boot_s + 2.0)


def test_texts_are_compared_in_boots_of_their_own_where_it_comes_to_that() -> None:
    found = before(PACE, 10, 968, 500, load=None, repeats=2, checks=True)
    assert found.check_s > 2 * PACE.start_s
    assert 0 < total_s(found, 12) - 12 * found.boot_s - found.restore_s < found.check_s


def test_a_machine_that_others_use_is_waited_for_and_boots_are_made_again() -> None:
    idle = before(PACE, 10, 968, 500, load=0.0, repeats=2, checks=False)
    assert idle.wait_s == pytest.approx(1.0)
    busy = before(PACE, 10, 968, 500, load=2.0, repeats=2, checks=False)
    assert busy.wait_s > idle.wait_s + idle.boot_s
    assert busy.boot_s == idle.boot_s


@given(st.floats(0, 64), st.floats(0, 64), st.integers(0, 3))
def test_the_busier_the_machine_the_longer_it_takes_and_never_beyond_all_waits(
    value: float, other: float, repeats: int
) -> None:
    less, more = (
        before(PACE, 5, 500, 0, load=load, repeats=repeats, checks=False).wait_s for load in sorted((value, other))
    )
    assert less <= more + 1e-9
    assert more <= (repeats + 1) * 121.0 + repeats * (2.0 + 5.32 + 0.1) + 1e-6
    assert 0 <= busy_share(value) <= 1


def test_boots_say_more_than_the_forecast_and_one_that_hung_does_not_count() -> None:
    boots = [boot(seconds=10.0), boot(seconds=11.0), boot(seconds=300.0)]
    assert boot_seconds(boots) == pytest.approx(11.0 + 1.0)
    assert boot_seconds([]) is None
    assert boot_seconds([], Forecast(5.0, 2.0)) == pytest.approx(7.0)
    assert boot_seconds([boot(failure="out of memory", seconds=0.1)], Forecast(5.0, 1.0)) == pytest.approx(6.0)


def test_waits_and_discarded_boots_count_as_they_come_on_average() -> None:
    boots = [boot(waited=0.0), boot(waited=60.0)]
    assert boot_seconds(boots) == pytest.approx(10.0 + 30.0)
    assert boot_seconds(boots, Forecast(10.0, wait_s=0.0)) == pytest.approx(10.0 + 20.0)


def test_what_is_left_is_the_boots_to_come_the_texts_and_putting_back() -> None:
    plan = Forecast(10.0, 1.0, check_s=20.0, restore_s=3.0)
    boots = [boot(1), boot(2)]
    assert left_s(boots, 6, plan, elapsed_s=0.0, better=False) == pytest.approx(4 * 11.0 + 3.0)
    assert left_s(boots, 6, plan, elapsed_s=5.0, better=True) == pytest.approx(4 * 11.0 - 5.0 + 20.0 + 3.0)
    assert left_s(boots, 6, plan, elapsed_s=900.0, better=False) == pytest.approx(3 * 11.0 + 3.0)
    assert left_s(boots, 2, plan, elapsed_s=4.0, better=True, comparing=True) == pytest.approx(16.0 + 3.0)
    assert left_s(boots, 2, plan, elapsed_s=0.0, better=False) == pytest.approx(3.0)
    assert left_s([], 6, plan, elapsed_s=0.0, better=False) == pytest.approx(total_s(plan, 6))
    assert left_s([], 6, None, elapsed_s=0.0, better=False) is None


def kept_run(home: Path, **options: object) -> dict[str, str]:
    env = {"HOME": str(home), "XDG_STATE_HOME": str(home)}
    record = TuneRunRecord(home / "specdash" / "tune" / "20260101T000000Z")
    record.write_setup(Setup({"objective": "decode", "while_serving": False, **options}, PRINT))
    record.add(RunHead(RunPlan("the test", budget=Budget(3)), 0.0, 1, 0.0))
    record.add(boot(1, 12.0))
    record.add(boot(2, 14.0))
    return env


def test_an_earlier_run_of_the_same_model_on_the_same_machine_tells_the_pace(tmp_path: Path) -> None:
    env = kept_run(tmp_path)
    found = earlier_pace(PRINT, env)
    assert found is not None
    assert found.decode == pytest.approx(100.0)
    assert found.start_s == pytest.approx(13.0 - 8.0 - 4 * 0.02 - 32 / 100)
    assert known_pace(PRINT, 99.0, None, env) == found
    assert earlier_pace({**PRINT, "model": "another"}, env) is None
    assert earlier_pace({**PRINT, "prompts": "others"}, env) == found


def test_of_several_runs_the_one_with_answers_of_the_nearest_length_tells(tmp_path: Path) -> None:
    env = kept_run(tmp_path)
    record = TuneRunRecord(tmp_path / "specdash" / "tune" / "20260102T000000Z")
    record.write_setup(Setup({"objective": "decode"}, PRINT))
    record.add(RunHead(RunPlan("the test", budget=Budget(3)), 0.0, 1, 0.0))
    short = tuple(PromptResult(f"p{place}", "prose", 20, 0.1) for place in range(4))
    record.add(replace(boot(1), result=BootResult(Point(), short)))
    found = [earlier_pace(PRINT, env, tokens) for tokens in (None, 16, 500)]
    assert [machine_pace.decode for machine_pace in found if machine_pace is not None] == pytest.approx(
        [200.0, 200.0, 100.0]
    )


def test_times_that_are_no_decode_times_tell_no_pace(tmp_path: Path) -> None:
    assert earlier_pace(PRINT, kept_run(tmp_path, objective="latency-p95")) is None


def test_where_nothing_was_applied_yet_a_start_is_told_by_the_size_of_what_is_loaded(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    with model.open("wb") as file:
        file.truncate(3_000_000_000)
    env = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    assert start_seconds([str(model), None], env) == pytest.approx(5.0)


def test_a_forecast_says_nothing_of_a_boot_that_is_told_without_its_times() -> None:
    old = replace(boot(), seconds=None, waited_s=None)
    assert boot_seconds([old]) is None


def test_a_plan_foretells_by_the_run_before_it(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    values = {"LLAMA_MODEL": str(demo.bundled_model(demo.TARGET_MODEL)), "LLAMA_SPEC_TYPE": "ngram-mod"}
    options = TuneOptions(beside=True, busy_ok=True, check_texts=False, restarts=10, tokens=200, each=2)
    first = prepare(options, values, "the test", None, None, env)
    assert (first.plan.eta_s, first.plan.forecast) == (None, None)
    assert "known after the first boot" in first.plan.notes[0]
    record = TuneRunRecord(tmp_path / "specdash" / "tune" / "20260101T000000Z")
    record.write_setup(Setup({"objective": "decode"}, first.fingerprint))
    record.add(RunHead(first.plan, 0.0, 1, 0.0))
    record.add(boot(1, 12.0))
    found = prepare(options, values, "the test", None, None, env).plan
    assert found.forecast is not None
    # The earlier boot had four prompts of 200 tokens, these have eight.
    assert found.forecast.boot_s == pytest.approx(12.0 + 4 * (2.0 + 0.02))
    assert found.eta_s == pytest.approx(10 * found.forecast.boot_s)
    busy = prepare(replace(options, while_serving=True, beside=False), values, "the test", None, None, env).plan
    assert "users leave no room" in busy.notes[-1]
