"""Points that a limit rules out are named and marked wherever their speeds are shown."""

from specdash.cli.bench.tune import boot_line
from specdash.tui.widgets.tuner.tuner_boots import chart_lines, dots_of
from specdash.tune.model.problem import BootResult, Point, Stage, WorkloadShares
from specdash.tune.run.status import Boot, RunHead, RunPlan, TuneRun, excluded_points

FAST, START = Point(("draft-simple",), n_max=6), Point(("draft-simple",), n_max=3)
LIMIT = "time to first token 0.62 s, at most 0.30 s are allowed"
MIX = WorkloadShares((("prose", 1.0),))


def boot(number: int, point: Point, speed: float, *, excluded: str = "") -> Boot:
    result = BootResult(point, failure=excluded)
    return Boot(number, Stage.EXPLORE, "", result, 0.0, excluded=excluded, speed=speed)


BOOTS = (
    boot(1, START, 108.0),
    boot(2, Point(), 216.0),
    boot(3, Point(), 214.0, excluded=LIMIT),
    boot(4, FAST, 90.0),
)
PLAN = RunPlan("the test", start=START, workload=MIX)
RUN = TuneRun("/nowhere", RunHead(PLAN, 0.0, 1, 0.0), boots=BOOTS)


def test_a_point_is_out_with_any_of_its_boots() -> None:
    assert excluded_points(BOOTS) == {Point(): LIMIT}


def test_a_line_of_a_boot_keeps_its_speed_and_says_that_a_limit_put_it_out() -> None:
    line = boot_line(BOOTS[2], None, 8)
    assert "214" in line
    assert f"out by a limit: {LIMIT}" in line
    assert "not usable" not in line


def test_the_chart_on_the_screen_has_a_sign_of_its_own_for_them() -> None:
    assert [(boot_dot.is_out, boot_dot.speed) for boot_dot in dots_of(RUN, {})] == [
        (False, 108.0),
        (True, 216.0),
        (True, 214.0),
        (False, 90.0),
    ]
    lines = chart_lines(RUN, {}, 60, 12)
    assert "".join(text for line in lines for text, _ in line).count("⊘") == 2
