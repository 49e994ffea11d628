"""A tuning run on a scripted bed: what it finds, what it survives, and that the bed is always restored."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.bench.load.drive import Interrupted, MeasuredRun
from specdash.core.errors import (
    ConflictError,
    InputError,
    NotWrittenError,
    ServiceError,
    SpecdashError,
    UnreachableError,
)
from specdash.core.flag import Flag
from specdash.tune.model.problem import (
    TAIL,
    BootResult,
    Budget,
    NextBoot,
    Objective,
    Point,
    PromptResult,
    Stage,
    Task,
    TuneOutcome,
    WorkloadShares,
)
from specdash.tune.run.loop import AllFailedError, StartFailedError, Texts
from specdash.tune.run.measuring import EngineLoad, LimitBreaches, Limits, MeasuredBoot, StartFigures, Surroundings
from specdash.tune.run.status import Boot, Ending, RunEnd, RunHead, TuneStep
from support.tuning import (
    FAST,
    KINDS,
    POINTS,
    SLOW,
    SPEEDS,
    START,
    WORKLOAD,
    InTurn,
    Scene,
    boot_failed,
    disturbed,
    samples,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.tune.run.loop import Loop


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
    secret = replace(loop.gear, configure=lambda point: {"POINT": point.name, "LLAMA_EXTRA_ARGS": arguments})
    loop.gear = secret
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


def test_requests_that_fail_make_the_boot_a_failure_and_are_kept() -> None:
    scene = Scene()
    scene.measured = {2: lambda: MeasuredBoot(samples(70.0)[:1], problem="3 of 4 requests failed: broke off")}
    end = scene.loop().run()
    assert "3 of 4 requests failed" in boots_of(scene)[2].result.failure
    assert not outcome_of(end).improved
    assert [number for number, _, _ in scene.record.samples] == [1, 2, 3, 4]


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
    with pytest.raises(StartFailedError, match="cannot be measured: out of memory"):
        scene.loop().run()
    assert scene.bed.boots == 1
    assert end_of(scene).outcome is None


def test_no_time_for_a_single_boot_is_said() -> None:
    scene = Scene(budget=Budget(12, minutes=0.0))
    with pytest.raises(AllFailedError, match="no boot fitted"):
        scene.loop().run()


def test_the_budget_of_restarts_is_kept() -> None:
    scene = Scene(budget=Budget(2))
    scene.loop().run()
    assert scene.bed.boots == 2


def test_a_boot_that_somebody_else_disturbed_is_done_again() -> None:
    scene = Scene(measured={2: disturbed})
    end = scene.loop().run()
    assert scene.watcher.thrown == ["the engine generated 17 tokens for somebody else"]
    assert scene.bed.boots == len(POINTS) + 1
    assert [(number, why != "") for number, _, why in scene.record.samples][:3] == [(1, False), (2, True), (2, False)]
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
        (MeasuredBoot(samples(90.0), warnings=frozenset({"old", "something_new"})), "new in the log: something_new"),
        (MeasuredBoot(samples(90.0, drafted=0)), "draft-simple drafted nothing"),
        (
            MeasuredBoot(samples(90.0), seen=Surroundings(memory_free_bytes=9 << 20)),
            "only 9.0 MiB of GPU memory are free",
        ),
    ],
)
def test_a_point_that_breaks_a_limit_is_not_chosen(measured: MeasuredBoot, said: str) -> None:
    first = MeasuredBoot(samples(50.0), warnings=frozenset({"old"}))
    scene = Scene(measured={1: lambda: first, 2: lambda: measured, 5: lambda: measured})
    end = scene.loop().run()
    out = next(boot for boot in boots_of(scene).values() if boot.excluded)
    assert out.result.point == FAST
    assert said in out.excluded
    assert out.result.failure == out.excluded
    assert out.result.out_of_memory is ("memory are free" in out.excluded)
    assert out.result.prompts
    assert not outcome_of(end).improved
    assert f"ruled out by a limit: {FAST.name}, 90 ({out.excluded})" in outcome_of(end).why


def test_a_point_that_broke_a_limit_in_its_only_boot_is_booted_again_and_may_be_chosen() -> None:
    busy = MeasuredBoot(samples(70.0, ttft_s=0.3))
    scene = Scene(measured={2: lambda: busy})
    end = scene.loop().run()
    told = boots_of(scene)
    assert [boot.result.failure for boot in told.values()] == [""] * 6
    assert [told[number].result.point for number in (5, 6)] == [FAST, FAST]
    assert outcome_of(end).chosen == FAST
    assert "ruled out" not in outcome_of(end).why


def test_on_a_busy_machine_no_limit_is_broken_by_less_than_boots_differ_by() -> None:
    """Times to first token go up and down by more than the limit from boot to boot, of the start, too."""
    times = iter((0.1, 0.35, 0.3, 0.4, 0.25, 0.2, 0.33, 0.15))
    scene = Scene(budget=Budget(8))
    scene.tuner = Again(Task(POINTS, START, WORKLOAD, scene.budget), 8)
    scene.measured = {
        number: lambda: MeasuredBoot(samples(SPEEDS[scene.bed.point], ttft_s=next(times))) for number in range(1, 9)
    }
    end = scene.loop().run()
    assert not any(boot.excluded for boot in boots_of(scene).values())
    assert outcome_of(end).chosen == FAST


@given(
    st.lists(st.floats(0.01, 5.0), min_size=1, max_size=6),
    st.lists(st.floats(0.01, 5.0), min_size=1, max_size=6),
)
def test_no_point_is_ruled_out_by_one_boot_and_more_noise_never_makes_a_limit_tighter(
    start: list[float], other: list[float]
) -> None:
    norm, conduct, limits = StartFigures(), LimitBreaches(), Limits()
    for ttft_s in start:
        norm.learn(BootResult(START, BOOTED, ttft_s=ttft_s), START)
    allowed = norm.longest(0.05, 0.05)
    assert allowed >= median(start) * 1.05 + 0.05 - 1e-9
    for number, ttft_s in enumerate(other):
        result = BootResult(FAST, BOOTED, ttft_s=ttft_s)
        out = conduct.add(FAST, limits.soft(result, MeasuredBoot(()), norm))
        assert number > 0 or not out
        norm.learn(result, START)


class Again(InTurn):
    """A tuner that boots the start and the fastest point in turn, and drops a point that failed."""

    def __init__(self, task: Task, boots: int) -> None:
        super().__init__(task, ())
        self.order = [START, *[FAST, START] * boots][:boots]

    def ask(self) -> NextBoot | None:
        failed = {result.point for result in self.results if result.failure}
        left = [point for point in self.order[len(self.results) :] if point not in failed]
        return NextBoot(left[0], Stage.RACE, "in turn") if left else None

    def tell(self, result: BootResult) -> None:
        self.results.append(result)

    def outcome(self) -> TuneOutcome:
        failed = {result.point for result in self.results if result.failure}
        every, self.results = self.results, [result for result in self.results if result.point not in failed]
        found = super().outcome()
        self.results = every
        return found


def raced(boots: int, slow: Sequence[int], *, budget: int = 4, **more: Any) -> tuple[Scene, Loop]:
    """A race of the start and the fastest point, in which these measurements met a busy moment."""
    scene = Scene(budget=Budget(budget), **more)
    scene.tuner = Again(Task(POINTS, START, WORKLOAD, scene.budget), boots)
    busy = MeasuredBoot(samples(90.0, ttft_s=0.3))
    scene.measured = {number: (lambda: busy) for number in slow}
    return scene, scene.loop()


def test_one_busy_moment_does_not_rule_a_point_out_that_kept_the_limits_before() -> None:
    scene, loop = raced(4, slow=[4])
    end = loop.run()
    told = boots_of(scene)
    assert [boot.result.failure for boot in told.values()] == [""] * 5
    assert "time to first token 0.30 s" in told[4].broke
    assert told[5].result.point == FAST
    assert "half of its boots or more broke a limit" in told[5].why
    assert outcome_of(end).chosen == FAST


def test_a_limit_that_is_broken_in_most_boots_of_a_point_rules_it_out() -> None:
    scene, loop = raced(4, slow=[4, 5])
    end = loop.run()
    told = boots_of(scene)
    assert told[5].result.failure.endswith("(in 2 of 3 boots a limit was broken)")
    assert outcome_of(end).chosen == START


def test_a_crash_rules_a_point_out_however_well_it_did_before() -> None:
    scene, loop = raced(4, slow=[])
    scene.bed.faults = {4: boot_failed("the engine crashed")}
    end = loop.run()
    assert boots_of(scene)[4].result.failure == "the engine crashed"
    assert outcome_of(end).chosen == START


def test_a_busy_moment_of_the_start_is_no_failure_of_it() -> None:
    scene, loop = raced(4, slow=[3])
    loop.run()
    assert boots_of(scene)[3].result.point == START
    assert boots_of(scene)[3].result.failure == ""


def test_what_no_boot_could_decide_any_more_is_not_recommended() -> None:
    """There is no time left for the boot that would decide."""
    scene, loop = raced(4, slow=[4])
    loop.task = replace(loop.task, budget=Budget(4, minutes=60.0))

    def out_of_time() -> MeasuredBoot:
        loop._began -= 3600.0
        return MeasuredBoot(samples(90.0, ttft_s=0.3))

    scene.measured[4] = out_of_time
    end = loop.run()
    assert len(boots_of(scene)) == 4
    assert not outcome_of(end).improved
    assert "half of its boots or more broke a limit" in outcome_of(end).why


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_run_that_has_to_decide_asks_the_same_when_it_is_taken_up_again(cut: int) -> None:
    whole, loop = raced(4, slow=[4])
    wanted = loop.run().outcome
    told = tuple(boots_of(whole).values())
    scene, loop = raced(4, slow=[4 - cut] if cut < 4 else [])
    loop.earlier = told[:cut]
    assert loop.run().outcome == wanted
    again = [boot.result.point for boot in boots_of(scene).values()]
    assert [*(boot.result.point for boot in told[:cut]), *again] == [boot.result.point for boot in told]


def test_who_waits_is_told_whenever_that_changes_and_not_otherwise() -> None:
    looks = iter([EngineLoad(waiting=0), EngineLoad(waiting=3), EngineLoad(waiting=3), EngineLoad(waiting=1, queued=2)])
    last = EngineLoad(waiting=1, queued=2)
    scene = Scene(gear={"users": lambda: next(looks, last)})
    loop = scene.loop()
    for _ in range(5):
        loop._beat()
    assert [(now.held, now.queued) for now in scene.record.nows] == [(0, None), (3, None), (1, 2)]
    loop._tell(TuneStep.RESTART)
    assert (scene.record.nows[-1].held, scene.record.nows[-1].queued) == (1, 2)


def test_a_disk_that_is_full_when_it_is_told_who_waits_ends_nothing() -> None:
    scene = Scene(gear={"users": lambda: EngineLoad(waiting=1)})
    scene.record.fails = {1: NotWrittenError("no space left")}
    scene.loop()._beat()
    assert scene.record.nows == []


def test_a_long_boot_tells_who_waits_while_it_is_under_way() -> None:
    scene = Scene(points=(FAST,), gear={"users": lambda: EngineLoad(waiting=2)})

    def slow() -> MeasuredBoot:
        deadline = time.monotonic() + 10
        while not any(now.held == 2 for now in scene.record.nows) and time.monotonic() < deadline:
            time.sleep(0.01)
        return MeasuredBoot(samples(50.0))

    scene.measured = {1: slow}
    scene.loop().run()
    first = next(now for now in scene.record.nows if now.held == 2)
    assert (first.step, first.number) == (TuneStep.MEASURE, 1)


def test_limits_can_be_lifted() -> None:
    slow = MeasuredBoot(samples(90.0, ttft_s=0.3), warnings=frozenset({"new"}))
    limits = Limits(ttft=None, free_mib=None, warnings=False)
    scene = Scene(measured={2: lambda: slow}, gear={"limits": limits})
    end = scene.loop().run()
    assert outcome_of(end).chosen == FAST


def test_texts_that_change_refuse_the_point_and_those_that_do_not_let_it_pass() -> None:
    scene = Scene(verify=lambda point, _: Texts(False, f"{point.name}: DAMAGED"))
    end = scene.loop().run()
    assert (outcome_of(end).chosen, outcome_of(end).improved) == (START, False)
    assert "changes the texts" in outcome_of(end).why
    scene = Scene(verify=lambda _point, _say: Texts(True, "identical"))
    end = scene.loop().run()
    assert outcome_of(end).improved
    assert end.texts == "identical"


def test_a_run_goes_on_where_it_was_cut_short() -> None:
    first = Scene()
    first.bed.faults = {3: KeyboardInterrupt()}
    first.loop().run()
    measured = tuple(boots_of(first).values())
    assert len(measured) == 2
    scene = Scene()
    end = scene.loop(earlier=measured).run()
    assert scene.bed.boots == len(POINTS) - 2
    assert [(boot.number, again) for boot, again in scene.watcher.boots] == [
        (1, True),
        (2, True),
        (3, False),
        (4, False),
    ]
    assert end.outcome == Scene().loop().run().outcome
    head = scene.record.events[0]
    assert isinstance(head, RunHead)
    assert head.resumed


def test_what_another_tuner_measured_is_not_gone_on_with() -> None:
    first = Scene()
    first.loop().run()
    boot = boots_of(first)[1]
    other = replace(boot, result=replace(boot.result, point=SLOW))
    scene = Scene()
    with pytest.raises(InputError, match="begin anew"):
        scene.loop(earlier=(other,)).run()
    assert scene.bed.boots == 0


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


def test_latencies_are_judged_by_the_slowest_prompts_of_each_boot() -> None:
    workload = Objective.LATENCY.workload(WorkloadShares(tuple((kind, 0.5) for kind in KINDS)))
    assert workload.shares[0] == (TAIL, 1.0)
    scene = Scene(gear={"objective": Objective.LATENCY})
    loop = scene.loop()
    loop.task = replace(loop.task, workload=workload)
    scene.tuner = None
    loop.gear.tuner.task = loop.task  # type: ignore[attr-defined]
    loop.run()
    told = [
        {prompt.prompt for prompt in boot.result.prompts if prompt.kind == TAIL} for boot in boots_of(scene).values()
    ]
    assert [len(group) for group in told] == [3] * len(POINTS)
    seconds = boots_of(scene)[1].result.prompts[0].seconds
    assert seconds == pytest.approx(2.1)


def test_per_watt_wants_a_driver_that_tells_what_is_drawn() -> None:
    scene = Scene(gear={"objective": Objective.PER_WATT})
    scene.measured = {1: lambda: MeasuredBoot(samples(50.0), seen=Surroundings(watts=200.0))}
    scene.points = (FAST,)
    scene.loop().run()
    assert boots_of(scene)[1].speed == pytest.approx(50 / 200)
    assert "did not tell" in boots_of(scene)[2].result.failure


def test_where_nothing_drafts_no_text_needs_to_be_compared() -> None:
    scene = Scene(points=(Point(),))
    scene.measured = {2: lambda: MeasuredBoot(samples(90.0, drafted=0))}
    scene.verify = lambda *_: pytest.fail("compared")
    end = scene.loop().run()
    assert outcome_of(end).chosen == Point()
    assert "nothing drafts" in end.texts
