"""A machine that others keep busy is no fault of speculation: nothing is said, raised or advised while it lasts."""

import pytest
from msgspec.structs import replace

from insight.speedup_data import NOW, WALL, add, baseline, request, row_of, state
from specdash.core.readings import Gpu, Gpus, Host, ProcessTree, Reading, Source
from specdash.core.target import Target
from specdash.insight.picture import BackendState, Paying, Picture
from specdash.insight.rules.catalogue import shipped
from specdash.insight.rules.scene import PictureHistory, RuleScene, sample_of
from specdash.insight.rules.speculation import speculation_hurting, speculation_hurting_is_over
from specdash.insight.speedup.others import CpuOfOthers
from specdash.insight.speedup.verdict import VerdictKind, verdict
from specdash.insight.state import TargetState

BASE = (baseline(),)
LIMITS = next(rule.spec.limits for rule in shipped() if rule.spec.id == "speculation_hurting")
CPUS = 2


def watched(made: TargetState, first: float, last: float, others: float, *, wait: float | None = None) -> TargetState:
    """One look a second at machine and process, where others take this share of the CPUs and the server one of them."""
    for second in range(round(last - first)):
        at = first + second + 1
        busy = min(1.0, others + 1.0 / CPUS)
        made.apply(Reading.known(Source.HOST, at, Host(cpu_utilisation=busy, cpu_count=CPUS)))
        used = (busy - others) * CPUS
        made.apply(Reading.known(Source.PROCESS, at, ProcessTree(10, cpu_cores=used, cpu_wait=wait)))
    return made


def seen(made: TargetState, after: float = 0.0, window_s: float = 300.0) -> Picture:
    picture = made.picture(NOW + after, WALL + after, window_s)
    return replace(picture, backend=replace(picture.backend, state=BackendState.LIVE))


def alerts(picture: Picture, made: TargetState) -> tuple[bool, bool]:
    """Whether the alert would be raised, and whether one that stands is over."""
    past = PictureHistory()
    past.add(sample_of(picture))
    scene = RuleScene(picture, past, made.experiments.samples)
    return bool(list(speculation_hurting(scene, LIMITS))), speculation_hurting_is_over(scene)


def test_slow_requests_on_a_quiet_machine_are_a_loss() -> None:
    made = watched(state(row_of(20, rate=30.0, every_s=8.0), BASE), NOW - 200, NOW, 0.05)
    picture = seen(made)
    assert verdict(picture).kind is VerdictKind.COSTS
    assert alerts(picture, made) == (True, False)


@pytest.mark.parametrize("rate", [30.0, 100.0])
def test_the_same_requests_beside_two_busy_processes_say_nothing(rate: float) -> None:
    made = watched(state(row_of(20, rate=rate, every_s=8.0), BASE), NOW - 200, NOW, 0.71)
    picture = seen(made)
    found = verdict(picture)
    assert found.headline == "CAN'T TELL: other programs take 71 % of the CPUs"
    assert (found.fix, found.better, found.command) == ((), "", "")
    assert (picture.speedup.verdict, picture.speedup.value) == (Paying.UNKNOWN, None)
    assert "took 0 % when the baseline was measured" in picture.speedup.why
    assert alerts(picture, made) == (False, True)


def test_the_first_slow_request_is_told_by_what_the_machine_did_while_it_ran() -> None:
    """Quiet until 14 s ago: nobody waits until a mean of a minute has risen."""
    quiet = [request(WALL - 60 + 3 * place, rate=100.0) for place in range(12)]
    slow = [request(WALL - 1, rate=20.0)]
    made = watched(watched(state([*quiet, *slow], BASE), NOW - 100, NOW - 14, 0.05), NOW - 14, NOW, 0.7)
    assert verdict(seen(made)).short == "CAN'T TELL"


def test_afterwards_the_requests_of_that_time_do_not_count() -> None:
    slow = [request(WALL - 200 + 7 * place, rate=20.0, tokens=101) for place in range(16)]
    made = watched(watched(state(slow, BASE), NOW - 250, NOW - 88, 0.8), NOW - 88, NOW, 0.05)
    add(made, row_of(10, rate=100.0))
    picture = seen(made)
    assert verdict(picture).headline == "PAYS 2.0×"
    assert picture.speedup.requests == 10
    assert "16 more ran while other programs took the CPUs" in picture.speedup.why


def test_until_there_are_enough_others_it_is_said_why() -> None:
    slow = [request(WALL - 200 + 7 * place, rate=20.0, tokens=101) for place in range(16)]
    made = watched(watched(state(slow, BASE), NOW - 250, NOW - 88, 0.8), NOW - 88, NOW, 0.05)
    add(made, row_of(3, rate=100.0))
    assert verdict(seen(made)).headline == "CAN'T TELL: other programs take 80 % of the CPUs"


def test_a_baseline_of_a_time_as_busy_compares_like_with_like() -> None:
    made = watched(state(row_of(20, rate=30.0, every_s=8.0), (baseline(others=0.65),)), NOW - 200, NOW, 0.71)
    assert verdict(seen(made)).kind is VerdictKind.COSTS


def test_a_little_work_of_others_is_no_excuse() -> None:
    made = watched(state(row_of(20, rate=30.0, every_s=8.0), BASE), NOW - 200, NOW, 0.1)
    assert verdict(seen(made)).kind is VerdictKind.COSTS


@pytest.mark.parametrize(("wait", "kind"), [(0.0, VerdictKind.COSTS), (0.3, VerdictKind.UNCLEAR)])
def test_a_server_on_a_gpu_is_slowed_only_where_it_waits_for_a_cpu(wait: float, kind: VerdictKind) -> None:
    made = state(row_of(20, rate=30.0, every_s=8.0), BASE)
    made.apply(Reading.known(Source.GPU, NOW - 250, Gpus((Gpu(0, "H100"),))))
    assert verdict(seen(watched(made, NOW - 200, NOW, 0.71, wait=wait))).kind is kind


def test_an_unknown_use_of_the_cpus_is_no_excuse_either() -> None:
    made = state(row_of(20, rate=30.0, every_s=8.0), BASE)
    made.apply(Reading.known(Source.HOST, NOW - 2, Host(cpu_utilisation=0.9, cpu_count=2)))
    made.apply(Reading.known(Source.PROCESS, NOW - 2, ProcessTree(10)))
    assert verdict(seen(made)).kind is VerdictKind.COSTS


def test_two_looks_that_are_not_of_one_moment_cancel_out() -> None:
    """The server works every other second; the process is read half a second after the machine."""
    seen_by = CpuOfOthers()
    for second in range(60):
        process = ProcessTree(10, cpu_cores=2.0 if second % 2 else 0.0)
        seen_by.add(float(second), Host(cpu_utilisation=0.5, cpu_count=2), process, None)
    assert seen_by.over(10.0, 50.0) == pytest.approx(0.0, abs=0.03)
    assert CpuOfOthers().over(0.0, 1.0) is None
    assert CpuOfOthers().now(1.0) is None


@pytest.mark.parametrize("process_first", [False, True])
def test_readings_of_one_look_are_one_in_whatever_order_they_come(process_first: bool) -> None:
    made = TargetState(Target("http://127.0.0.1:8080"))
    for second in range(20):
        host = Reading.known(Source.HOST, float(second), Host(cpu_utilisation=0.9, cpu_count=2))
        process = Reading.known(Source.PROCESS, float(second), ProcessTree(10, cpu_cores=0.4 + second % 2))
        for reading in (process, host) if process_first else (host, process):
            made.apply(reading)
    assert made.others.over(1.0, 19.0) == pytest.approx(0.45, abs=0.02)
