"""The tuner's screen, driven by keys: it watches any run, and starts and stops one only while armed."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.core.changes import Role
from specdash.tui.action_table import FooterScreen
from specdash.tui.app import Dashboard
from specdash.tui.screens.tune import TuneScreen
from specdash.tui.screens.tuner import FIRST_SIDE, PANELS, TunerScreen, arrange
from specdash.tui.tuner_model import TunerModel, TunerSituation
from specdash.tui.view import View
from specdash.tui.widgets.tuner.tune import TuneModel
from specdash.tui.widgets.tuner.tuner_boots import BOOTS, CHART, DETAIL, BootsTable, boot_rows, chart_lines, dots_of
from specdash.tui.widgets.tuner.tuner_plan import BAR, CARD, PLAN, bar_lines
from specdash.tune.model.gains import Gain
from specdash.tune.model.problem import Budget
from specdash.tune.run.console import NewestRun
from specdash.tune.run.status import TuneStep
from tui import driven
from tui.drawn import block, is_open, text
from tui.driven import SIZES, WALL, cells, opened, page, press, said, shown
from tui.fake_console import FakeConsole
from tui.fake_state import FakeState
from tui.fake_tuner import BOOTS as RAN
from tui.fake_tuner import GATED, NOW, SCENES, FakeTuner, run
from tui.waiting import answered, until


def dashboard(tuner: FakeTuner | None, scene: str = "busy", **options: Any) -> Dashboard:
    """A dashboard with a tuner."""
    return driven.dashboard(scene, tuner=tuner, **{"console": FakeConsole(), **options})


async def test_looks_that_take_longer_than_the_time_between_two_are_shown_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specdash.tui.screens.tuner.LOOK_S", 0.1)
    tuner = FakeTuner("running")
    at_once = tuner.look

    def slowly() -> NewestRun:
        time.sleep(0.15)
        return at_once()

    tuner.look = slowly  # type: ignore[method-assign]
    app = dashboard(tuner)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("T")
        await until(pilot, lambda: app.kept(TunerModel).run is not None)


@pytest.mark.parametrize("scene", ["ready", "running", "nothing"])
async def test_a_look_that_comes_before_the_panels_are_there_leaves_them_the_focus(scene: str) -> None:
    app = dashboard(FakeTuner(scene))
    async with app.run_test(size=(80, 24)) as pilot:
        app.action_toggle_screen("tuner")
        app.show_now()
        await answered(app)
        await pilot.pause()
        board = opened(app, TunerScreen).board
        assert opened(app, TunerScreen).focused is board.present()[0]


async def test_before_a_run_it_says_what_would_be_tuned_and_at_what_price() -> None:
    app = dashboard(FakeTuner())
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "T")
        page = shown(app)
        for part in (
            "READY", "specdash-backend.service", "LLAMA_DRAFT_MAX", "1, 2, 3, 4", "46 configurations", "12 restarts",
            "clients wait about 4 min", "decode tok/s", "2 %", "coding 55 %", "bundled prompts",
        ):  # fmt: skip
            assert part in page, part
        await press(pilot, "T")
        assert not is_open(app, FooterScreen.TUNER)


async def test_nothing_starts_while_it_is_not_armed_and_it_says_so() -> None:
    tuner = FakeTuner()
    app = dashboard(tuner)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "T", "r")
        assert isinstance(app.screen, TunerScreen)
        assert "press A to arm" in said(app)
    assert all(item[0] == "plan" for item in tuner.asked if isinstance(item, tuple))


async def test_the_confirmation_names_the_service_and_the_restarts_and_enter_starts() -> None:
    tuner = FakeTuner()
    app = dashboard(tuner)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "T", "A", "r")
        assert "Tune specdash-backend.service with 12 restarts?" in page(app)
        assert "12 times" in page(app)
        await press(pilot, "escape")
        assert ("start", Budget(12)) not in tuner.asked
        await press(pilot, "r", "enter")
        assert ("start", Budget(12)) in tuner.asked
        assert "TUNING" in shown(app)


async def test_a_run_that_does_not_begin_is_told_with_its_reason() -> None:
    app = dashboard(FakeTuner(refuses="the tuner did not begin: another apply is running"))
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "T", "A", "r", "enter")
        assert "another apply is running" in said(app)
        assert "READY" in shown(app)


@pytest.mark.parametrize("problem", ["ngram-cache has no knob to turn", "error:no backend service is known"])
async def test_where_there_is_nothing_to_tune_it_says_why_and_never_starts(problem: str) -> None:
    tuner = FakeTuner(problem=problem)
    app = dashboard(tuner)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "T", "A", "r")
        assert f"NOTHING TO TUNE: {problem.removeprefix('error:')}" in shown(app)
        assert isinstance(app.screen, TunerScreen)
    assert all(item[0] == "plan" for item in tuner.asked if isinstance(item, tuple))


async def test_the_budget_is_changed_and_what_is_no_budget_is_refused_with_its_range() -> None:
    tuner = FakeTuner()
    app = dashboard(tuner)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "T", "dollar_sign", *["backspace"] * 4, *"8 30", "enter")
        assert ("plan", Budget(8, 30.0)) in tuner.asked
        assert "8 restarts, at most 30 minutes" in shown(app)
        await press(pilot, "dollar_sign", *["backspace"] * 5, *"many", "enter")
        assert "must be a number of restarts" in said(app)
        assert app.kept(TunerModel).budget == Budget(8, 30.0)


@pytest.mark.parametrize(
    ("text", "taken"),
    [("12", True), ("8 30", True), ("3, 1.5", True), ("2", False), ("9999", False), ("8 0", False), ("", False),
     ("8 9 10", False), ("8 nan", False), ("-4", False)],
)  # fmt: skip
def test_budgets_are_read(text: str, taken: bool) -> None:
    model = TunerModel()
    assert (model.read_budget(text) == "") is taken
    assert (model.budget == Budget()) is (not taken or text == "12")


async def test_a_run_shows_boots_progress_reason_and_who_waits() -> None:
    app = dashboard(FakeTuner("running"))
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "T")
        page = shown(app)
        for part in (
            "boot 9 of 12", "race", "8m39s left", "measuring 14 of 24", "in ABBA order", "held 0",
            "the start itself", "Speed by boot", "2m23s",
        ):  # fmt: skip
            assert part in page, part


async def test_a_failed_boot_is_a_row_with_its_reason_and_the_reason_in_full_is_one_key_away() -> None:
    app = dashboard(FakeTuner("failing"))
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "T")
        assert "held --  queued --" in shown(app), "what is not known is never a zero"
        assert "2 failed" in shown(app)
        assert "the engine" in shown(app)
        await press(pilot, "j", "j", "j", "enter")
        assert "out of memory" in " ".join(shown(app).split())
        await press(pilot, "escape")
        assert "2 failed" in shown(app)
        assert isinstance(app.shown, TunerScreen)


async def test_that_the_server_is_away_is_no_alarm_while_a_run_restarts_it() -> None:
    tuner = FakeTuner("running")
    app = dashboard(tuner, scene="down")
    async with app.run_test(size=(120, 36)) as pilot:
        *alarm_lines, _ = app.overview.header.lines[2:]
        alarm = block(alarm_lines)
        assert alarm
        await press(pilot, "T")
        assert alarm not in shown(app)
        assert "DOWN" in shown(app)
        tuner.scene = "nothing"
        opened(app, TunerScreen).look()
        await press(pilot, "tab")
        assert alarm in shown(app)


async def test_a_run_of_another_terminal_is_stopped_only_when_armed_and_says_that_the_original_comes_back() -> None:
    tuner = FakeTuner("begun_elsewhere")
    app = dashboard(tuner)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "T", "E")
        assert "press A to arm" in said(app)
        assert "specdash tune --each 3, pid 4242" in shown(app)
        await press(pilot, "A", "E")
        assert "Stop the tuner on specdash-backend.service" in page(app)
        assert "original settings are put back" in " ".join(page(app).split())
        await press(pilot, "enter")
        assert ("stop", 4242) in tuner.asked
        opened(app, TunerScreen).look()
        await press(pilot, "tab")
        assert "STOPPED" in shown(app)
        assert "your settings are back" in shown(app)


async def test_better_settings_go_to_the_tune_screen_as_pending_changes_and_are_not_applied() -> None:
    tuner, console = FakeTuner("improved"), FakeConsole()
    app = dashboard(tuner, console=console)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "T")
        for part in ("IMPROVED +11.4 % [+8.1, +14.9]", "LLAMA_DRAFT_MAX=8", "was 4", "LLAMA_DRAFT_P_MIN=0.5"):
            assert part in shown(app), part
        await press(pilot, "V")
        assert not is_open(app, FooterScreen.TUNER)
        assert isinstance(app.shown, TuneScreen)
        assert app.kept(TuneModel).wanted[Role.BACKEND] == {"LLAMA_DRAFT_MAX": "8", "LLAMA_DRAFT_P_MIN": "0.5"}
        assert console.started == []
        assert tuner.asked == []
        assert "pending, not applied" in said(app)


@pytest.mark.parametrize("scene", ["nothing", "running", "ready"])
async def test_where_nothing_better_was_found_there_is_nothing_to_take(scene: str) -> None:
    app = dashboard(FakeTuner(scene))
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "T", "V")
        assert isinstance(app.shown, TunerScreen)
        assert "no run has found better settings" in said(app)
        assert app.kept(TuneModel).changes == ()


async def test_no_improvement_comes_with_the_evidence() -> None:
    app = dashboard(FakeTuner("nothing"))
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "T")
        page = " ".join(shown(app).split())
        for part in (
            "NO IMPROVEMENT FOUND", "nothing is recommended", "12 of 12 restarts", "3.1 % from boot to boot",
            "noise alone does as much", "best seen", "not confirmed",
        ):  # fmt: skip
            assert part in page, part


async def test_a_run_that_was_cut_short_says_what_puts_it_back_and_there_is_nothing_to_stop() -> None:
    tuner = FakeTuner("cut_short")
    app = dashboard(tuner)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "T")
        assert "CUT SHORT after 5 restarts" in shown(app)
        assert "the backend puts your settings back by itself" in shown(app)
        await press(pilot, "A", "E")
        assert "no run is in progress" in said(app)


async def test_a_service_that_is_not_known_to_be_as_it_was_is_said_loudly() -> None:
    app = dashboard(FakeTuner("failed"))
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "T")
        assert "MAY STILL RUN WHAT WAS TRIED" in shown(app)
        assert "the engine does not come up again" in shown(app)


async def test_after_an_outcome_a_new_run_is_looked_at_before_it_starts() -> None:
    tuner = FakeTuner("nothing")
    app = dashboard(tuner)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "T", "A", "r")
        assert isinstance(app.screen, TunerScreen)
        assert "READY" in shown(app)
        await press(pilot, "d")
        assert "NO IMPROVEMENT" in shown(app)
        await press(pilot, "d", "r", "enter")
        assert ("start", Budget(12)) in tuner.asked


async def test_without_a_tuner_the_screen_does_not_open() -> None:
    app = dashboard(None)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "T")
        assert not is_open(app, FooterScreen.TUNER)
        assert "no tuner" in said(app)


@pytest.mark.parametrize("scene", ["running", pytest.param("begun_elsewhere", marks=pytest.mark.slow)])
async def test_every_panel_of_every_scene_can_be_reached_and_zoomed_at_every_size(scene: str) -> None:
    app = dashboard(FakeTuner(scene))
    async with app.run_test(size=SIZES[0]) as pilot:
        await press(pilot, "T")
        board = opened(app, TunerScreen).board
        panels = PANELS[app.kept(TunerModel).scene]
        for size in (*SIZES, (80, 50), (160, 30), (110, 24)):
            await pilot.resize_terminal(*size)
            seen = set()
            for _ in panels:
                assert opened(app, TunerScreen).panel.display
                seen.add(opened(app, TunerScreen).panel.id)
                await press(pilot, "tab")
            assert seen == set(panels)
            await press(pilot, "z")
            assert [panel.id for panel in board.panels if panel.display] == [opened(app, TunerScreen).panel.id]
            await press(pilot, "escape")
            assert isinstance(app.shown, TunerScreen)


@given(
    st.integers(80, 260), st.integers(12, 80), st.sampled_from(list(TunerSituation)), st.integers(1, 8),
    st.integers(0, 40),
    st.integers(1, 30), st.integers(1, 30), st.sampled_from([None, BOOTS, CHART, DETAIL, PLAN, CARD]),
)  # fmt: skip
def test_no_part_lies_over_another_or_outside(
    width: int, height: int, scene: TunerSituation, bar: int, rows: int, card: int, detail: int, side: str | None
) -> None:
    side = side if side in PANELS[scene] else None
    places = arrange(width, height, scene, bar, rows, {CARD: card, DETAIL: detail, PLAN: 16}, side)
    cells(places.values(), width, height)
    assert BAR in places
    if height - bar >= 12 and scene is not TunerSituation.PLAN:
        assert (side or FIRST_SIDE[scene]) in places


def test_the_chart_has_every_boot_the_start_as_a_line_and_failures_at_its_bottom() -> None:
    tune_run = SCENES["failing"]()
    assert tune_run is not None
    gains = FakeTuner("failing").look().gains
    lines = block(chart_lines(tune_run, gains, 60, 10)).splitlines()
    assert len(lines) == 10
    assert lines[-1].split() == ["1", "2", "3", "4", "5"]
    assert lines[-2].count("✖") == 2
    assert lines[-2].count("▼") == 1, "no drafts are far slower"
    line = next(line for line in lines if "╌╌╌╌╌" in line)
    assert "65.0" in line
    assert "◇" in line


def test_a_chart_of_failures_only_says_so() -> None:
    tune_run = SCENES["failing"]()
    assert tune_run is not None
    only = replace(tune_run, boots=tune_run.boots[2:3])
    assert "1 failed" in block(chart_lines(only, {}, 60, 10))


def test_what_comes_after_the_last_boot_is_told_from_a_boot() -> None:
    model = TunerModel(run=run(RAN, replace(NOW, step=TuneStep.RESTORE)), looked=True)
    view = View(FakeState("busy").picture(10_000.0, WALL, 300.0), FakeState("busy"))
    assert "PUTTING THE ORIGINAL BACK after 8 of 12 boots" in block(bar_lines(model, view, 80, tall=False))


def test_the_boots_of_the_choice_are_marked_in_table_and_chart() -> None:
    model = TunerModel(run=SCENES["improved"](), looked=True)
    assert model.run is not None
    table = BootsTable(model)
    marked = {row.number for row in boot_rows(model.run) if table.mark(row) == "*"}
    chosen = {boot.number for boot in model.run.boots if boot.result.point == GATED}
    assert marked == chosen != set()
    assert {dot.number for dot in dots_of(model.run, {}) if dot.is_chosen} == chosen


def test_a_wide_interval_does_not_press_the_speeds_together() -> None:
    tune_run = run(RAN[:4])
    wide = {4: Gain(0.12, -0.9, 40.0)}
    narrow = {4: Gain(0.12, 0.1, 0.14)}

    def places(gains: dict[int, Gain]) -> set[int]:
        lines = [text(line) for line in chart_lines(tune_run, gains, 60, 16)]
        return {y for y, line in enumerate(lines) if "●" in line or "◇" in line}

    assert max(places(wide)) - min(places(wide)) >= (max(places(narrow)) - min(places(narrow))) / 2
