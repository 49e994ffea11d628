"""A tuning run on a scripted bed: what it finds, what it survives, and that the bed is always restored."""

import contextlib
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.bench.load.drive import Interrupted, MeasuredRun
from specdash.core.errors import (
    ConflictError,
    NotWrittenError,
    ServiceError,
    SpecdashError,
    UnreachableError,
)
from specdash.core.flag import Flag
from specdash.tune.model.problem import (
    BootResult,
    Budget,
    PromptResult,
    Stage,
    TuneOutcome,
)
from specdash.tune.run.measuring import Limits, MeasuredBoot, boot_seconds
from specdash.tune.run.status import Boot, Ending, RunEnd, RunHead
from support.tuning import (
    FAST,
    POINTS,
    START,
    Scene,
    boot_failed,
    disturbed,
    samples,
)

BOOTED = (PromptResult("coding-0", "coding", 100, 2.0),)


def boots_of(scene: Scene) -> dict[int, Boot]:
    return {event.number: event for event in scene.record.events if isinstance(event, Boot)}


def outcome_of(end: RunEnd) -> TuneOutcome:
    assert end.outcome is not None
    return end.outcome


def end_of(scene: Scene) -> RunEnd:
    found = scene.record.events[-1]
    assert isinstance(found, RunEnd)
    return found


def test_the_best_point_is_found_and_the_bed_is_left_as_it_was() -> None:
    scene = Scene()
    end = scene.loop().run()
    assert outcome_of(end).chosen == FAST
    assert outcome_of(end).improved
    assert end.settings == (("POINT", FAST.name),)
    assert end.restored is True
    assert scene.bed.restored == 1
    assert isinstance(scene.record.events[0], RunHead)
    assert [boot.result.point for boot in boots_of(scene).values()] == list(POINTS)
    assert [boot.speed for boot in boots_of(scene).values()] == pytest.approx([50.0, 70.0, 30.0, 40.0])


def test_a_key_among_the_engines_arguments_is_not_written_down() -> None:
    scene = Scene()
    loop = scene.loop()
    arguments = "--api-key hush-hush --spec-ngram-mod-n-max 16"
    loop.configure = lambda point: {"POINT": point.name, "LLAMA_EXTRA_ARGS": arguments}
    loop.run()
    assert "--spec-ngram-mod-n-max 16" in str(scene.record.events)
    assert "hush" not in str(scene.record.events)


def test_a_point_that_does_not_come_up_is_a_result_with_its_reason() -> None:
    scene = Scene()
    scene.bed.faults = {2: boot_failed("the draft does not fit into memory")}
    end = scene.loop().run()
    assert boots_of(scene)[2].result.failure == "the draft does not fit into memory"
    assert outcome_of(end).chosen == START


@pytest.mark.parametrize("error", [UnreachableError("refused"), SpecdashError("the first request failed")])
def test_an_engine_that_dies_while_it_is_measured_is_a_result_too(error: SpecdashError) -> None:
    scene = Scene()

    def die() -> MeasuredBoot:
        raise error

    scene.measured = {2: die}
    scene.loop().run()
    assert boots_of(scene)[2].result.failure == str(error)
    assert len(boots_of(scene)) == len(POINTS)


def test_requests_that_fail_make_the_boot_a_failure() -> None:
    scene = Scene()
    scene.measured = {2: lambda: MeasuredBoot(samples(70.0)[:1], problem="3 of 4 requests failed: broke off")}
    end = scene.loop().run()
    assert "3 of 4 requests failed" in boots_of(scene)[2].result.failure
    assert not outcome_of(end).improved


def raising(error: BaseException) -> MeasuredBoot:
    raise error


FAULTS = (
    ServiceError("the service is gone"),
    ConflictError("somebody else edits"),
    KeyboardInterrupt(),
    OSError("bug"),
)


@pytest.mark.parametrize("at", [1, 2, 4])
@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_whatever_the_bed_raises_it_is_restored_and_written_down(error: BaseException, at: int) -> None:
    scene = Scene()
    scene.bed.faults = {at: error}
    loop = scene.loop()
    if isinstance(error, KeyboardInterrupt):
        assert loop.run().ending is Ending.STOPPED
    else:
        with pytest.raises(type(error)):
            loop.run()
    assert scene.bed.restored == 1
    assert sorted(boots_of(scene)) == list(range(1, at))
    if isinstance(error, SpecdashError):
        assert end_of(scene).error == str(error)
        assert end_of(scene).outcome is None


@pytest.mark.parametrize("at", [1, 3])
def test_an_interrupt_while_measuring_ends_the_run_without_a_recommendation(at: int) -> None:
    scene = Scene()
    run = MeasuredRun((), 4, 0.0, 1.0)
    scene.measured = {at: lambda: raising(Interrupted(run))}
    end = scene.loop().run()
    assert end.ending is Ending.STOPPED
    assert end.outcome is None or not end.outcome.improved
    assert end.in_force == "the original"
    assert scene.bed.restored == 1


@pytest.mark.parametrize("write", range(1, 31))
def test_a_full_disk_at_any_time_leaves_the_bed_restored(write: int) -> None:
    scene = Scene()
    scene.record.fails = {write: NotWrittenError("no space left")}
    with contextlib.suppress(NotWrittenError):
        scene.loop().run()
    assert scene.bed.restored == 1 or not scene.bed.boots


def test_a_bug_in_the_tuner_leaves_the_bed_restored() -> None:
    class Broken:
        def ask(self) -> None:
            raise ZeroDivisionError

    scene = Scene(tuner=Broken())
    with pytest.raises(ZeroDivisionError):
        scene.loop().run()
    assert scene.bed.restored == 1


def test_somebody_who_is_impatient_gets_the_original_back_all_the_same() -> None:
    scene = Scene()
    scene.bed.restoring = [KeyboardInterrupt(), KeyboardInterrupt()]
    scene.loop().run()
    assert scene.bed.restored == 1


def test_a_bed_that_cannot_be_restored_is_the_error_whatever_came_before() -> None:
    scene = Scene()
    scene.bed.faults = {2: ServiceError("gone")}
    scene.bed.restoring = [SpecdashError("it does not run the settings from before")]
    with pytest.raises(SpecdashError, match="settings from before"):
        scene.loop().run()
    assert end_of(scene).restored is False


def test_without_any_measured_boot_there_is_no_recommendation() -> None:
    scene = Scene(points=(FAST,))
    scene.bed.faults = {number: boot_failed() for number in range(1, 20)}
    with pytest.raises(SpecdashError, match="cannot be measured: out of memory"):
        scene.loop().run()
    assert scene.bed.boots == 1
    assert end_of(scene).outcome is None


def test_no_time_for_a_single_boot_is_said() -> None:
    scene = Scene(budget=Budget(12, minutes=0.0))
    with pytest.raises(SpecdashError, match="no boot fitted"):
        scene.loop().run()


def test_a_boot_that_somebody_else_disturbed_is_done_again() -> None:
    scene = Scene(measured={2: disturbed})
    end = scene.loop().run()
    assert scene.watcher.thrown == ["the engine generated 17 tokens for other clients"]
    assert scene.bed.boots == len(POINTS) + 1
    assert [len(boot.discarded) for boot in boots_of(scene).values()] == [0, 1, 0, 0]
    assert outcome_of(end).chosen == FAST


def test_a_boot_that_is_disturbed_every_time_is_taken_as_it_is() -> None:
    scene = Scene(measured={2: disturbed, 3: disturbed, 4: disturbed})
    scene.loop().run()
    assert len(scene.watcher.thrown) == 2
    assert boots_of(scene)[2].speed == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (MeasuredBoot(samples(90.0, ttft_s=0.3)), "time to first token 0.30 s, at most 0.16 s are allowed"),
        (MeasuredBoot(samples(90.0, drafted=0)), "draft-simple drafted nothing"),
        (
            MeasuredBoot(samples(90.0), memory_free_bytes=9 << 20),
            "only 9.0 MiB of GPU memory are free",
        ),
    ],
)
def test_a_point_that_breaks_a_limit_is_not_chosen(measured: MeasuredBoot, said: str) -> None:
    scene = Scene(measured={2: lambda: measured})
    end = scene.loop().run()
    out = next(boot for boot in boots_of(scene).values() if boot.excluded)
    assert out.result.point == FAST
    assert said in out.excluded
    assert out.result.failure == out.excluded
    assert out.result.out_of_memory is ("memory are free" in out.excluded)
    assert out.result.prompts
    assert not outcome_of(end).improved


@given(
    st.lists(st.floats(0.01, 5.0), min_size=1, max_size=6),
    st.lists(st.floats(0.01, 5.0), min_size=1, max_size=6),
)
def test_the_first_tokens_limit_is_of_the_medians_over_the_boots(start: list[float], other: list[float]) -> None:
    limits = Limits()
    boots = [Boot(0, Stage.EXPLORE, "", BootResult(START, BOOTED, ttft_s=ttft_s), 0.0) for ttft_s in start]
    for number, ttft_s in enumerate(other):
        result = BootResult(FAST, BOOTED, ttft_s=ttft_s)
        broken = limits.ttft_of(result, START, boots)
        assert bool(broken) == (median(other[: number + 1]) > median(start) * 1.05 + 0.05)
        boots.append(Boot(0, Stage.EXPLORE, "", result, 0.0))


def test_limits_can_be_lifted() -> None:
    slow = MeasuredBoot(samples(90.0, ttft_s=0.3))
    limits = Limits(ttft=None, free_mib=None)
    scene = Scene(measured={2: lambda: slow})
    end = scene.loop(limits=limits).run()
    assert outcome_of(end).chosen == FAST


def test_a_stop_that_is_asked_for_ends_it_before_the_next_boot() -> None:
    stop = Flag()
    scene = Scene()

    def then_stop() -> MeasuredBoot:
        stop.set()
        return MeasuredBoot(samples(50.0))

    scene.measured = {2: then_stop}
    assert scene.loop(stop=stop).run().ending is Ending.STOPPED
    assert scene.bed.boots == 2
    assert scene.bed.restored == 1


def test_a_boot_more_takes_as_long_as_those_before_it() -> None:
    def boot(seconds: float, waited: float) -> Boot:
        return Boot(1, Stage.EXPLORE, "", BootResult(START, BOOTED), 0.0, seconds=seconds, waited_s=waited)

    boots = [boot(10.0, 0.0), boot(11.0, 3.0), boot(300.0, 0.0)]
    assert boot_seconds(boots) == pytest.approx(12.0)
    assert boot_seconds([]) is None


def test_the_time_left_is_of_the_boots_to_come() -> None:
    scene = Scene()
    scene.loop().run()
    left = [now.left_s for now in scene.record.nows]
    assert left[0] is None
    assert min(seconds for seconds in left if seconds is not None) >= 0
