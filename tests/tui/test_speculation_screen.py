"""The speculation screen, driven by keys: does it speculate, with what, how well; and slots changed only when armed."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from textual.pilot import Pilot

from specdash.control.slots import SlotAction, SlotChange, SlotPlan
from specdash.core.errors import RefusedError
from specdash.core.records import Drafting
from specdash.core.speculation import PublishedAcceptance
from specdash.core.target import Target
from specdash.insight.picture import DrafterPicture, DraftingPicture, Picture
from specdash.tui.app import Dashboard
from specdash.tui.screens.modal import ConfirmScreen
from specdash.tui.screens.speculation import DRAFTING, MORE, REQUESTS, PanelDemand, SpeculationScreen, arrange
from specdash.tui.widgets.speculation.drafting import DrafterPanel, drafting_lines, position_lines, rows_for
from tui import driven
from tui.drawn import block, screen, text
from tui.driven import SIZES, cells, opened, press, said, shown, view
from tui.fake_alerts import with_alerts, zero_acceptance
from tui.fake_console import FakeConsole
from tui.fake_state import FakeState
from tui.fake_views import BECAUSE, CLAMPED, FIX, NGRAM, SIMPLE


@dataclass
class FakeSlots:
    """Remembers what it was asked; refuses to touch slot 0, which is busy."""

    planned: list[tuple[str, int, str | None]] = field(default_factory=list)
    done: list[tuple[str, int, str | None]] = field(default_factory=list)

    def plan(self, action: str, slot: int, filename: str | None) -> SlotPlan:
        """As the real one words it."""
        self.planned.append((action, slot, filename))
        if slot == 0:
            raise RefusedError(f"slot 0 is busy; wait until its request has ended, then {action} it")
        question = f"{action} slot {slot} with {filename}?"
        target = Target("http://127.0.0.1:8080")
        return SlotPlan(target, SlotAction(action), slot, filename, question=question, warnings=("beware",))

    def carry_out(self, plan: SlotPlan) -> SlotChange:
        """At once."""
        self.done.append((str(plan.action), plan.slot, plan.filename))
        return SlotChange(plan.action, plan.slot, plan.filename, 5120, 1024**2)


def dashboard(scene: str = "draft_simple", slots: FakeSlots | None = None, **options: Any) -> Dashboard:
    """A dashboard with slots."""
    return driven.dashboard(scene, console=FakeConsole(), slots=slots, **options)


def with_drafter(picture: Picture, drafter: DrafterPicture) -> Picture:
    """The picture with another drafter."""
    return replace(picture, views=replace(picture.views, drafter=drafter))


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        ("draft_simple", "SPECULATING draft-simple"),
        ("ready", "READY, nothing drafted yet"),
        ("off", "OFF"),
        ("failed", f"RUNNING WITHOUT SPECULATION because {BECAUSE}"),
        ("unknown_views", "NOT KNOWN YET"),
    ],
)
def test_the_state_is_the_first_thing_on_the_screen(scene: str, words: str) -> None:
    for width, tall in ((80, False), (120, True), (200, True)):
        lines = drafting_lines(view(scene), width, tall=tall)
        bar = [line for line in lines if line and line[0][1].startswith("banner.")]
        assert words in " ".join(block(bar).split())
        assert all(len(text(line)) <= width for line in lines)


def test_a_failure_is_a_warning_with_its_fix_and_off_as_asked_is_none() -> None:
    failed, off = drafting_lines(view("failed"), 120, tall=False), drafting_lines(view("off"), 120, tall=False)
    assert failed[0][0][1] == "banner.warn"
    assert FIX in block(failed)
    assert off[0][0][1] == "banner.dim"


def test_a_chain_is_explained_type_by_type_in_the_engines_order() -> None:
    lines = block(drafting_lines(view("ngrams"), 200, tall=True))
    assert lines.index("1 ngram-mod") < lines.index("2 draft-mtp")
    assert "Pays when" in lines


async def test_what_matters_is_seen_at_once_at_every_size() -> None:
    wanted = {
        "draft_simple": (
            "67.2 % accepted",
            "break-even 31 %",
            "Qwen3-0.6B for Qwen3-32B",
            "77.6 % cached",
            "attention",
        ),
        "checkpoints": ("checkpoint + replay", "27 %", "5.44", "3.61", "613 in 1.20k steps"),
        "clamped": ("drafts 7 of 16 asked, block 8", "DFlash, Qwen3-8B"),
        "failed": ("RUNNING WITHOUT SPECULATION", "nothing drafts", "77.6 % cached"),
        "routed": ("any = qwen3-coder-30b", "sleeping", "draft-mtp", "exit code 1"),
    }
    for scene, words in wanted.items():
        app = dashboard(scene)
        async with app.run_test(size=SIZES[0]) as pilot:
            await press(pilot, "m")
            for size in SIZES:
                await pilot.resize_terminal(*size)
                for word in words:
                    assert word in shown(app), (scene, size, word)


async def test_what_is_not_known_is_drawn_as_such_and_no_box_is_empty() -> None:
    app = dashboard("unknown_views")
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "m")
        panels = [panel for panel in opened(app, SpeculationScreen).board.panels if panel.display]
        assert {panel.panel_title for panel in panels} == {"Drafter", "Checkpoints", "Prefix cache"}
        assert all(panel.size.height == 1 and "--" in text(panel.lines[0]) for panel in panels)


async def test_the_failure_is_told_once_on_each_screen() -> None:
    app = dashboard("failed")
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert screen(app).count("RUNNING WITHOUT SPECULATION") == 1
        assert screen(app).count(BECAUSE) == 1
        assert FIX.split(", ")[0] in screen(app)
        await press(pilot, "m")
        assert shown(app).count("RUNNING WITHOUT SPECULATION") == 1


async def test_tab_brings_every_panel_and_z_gives_it_the_room() -> None:
    app = dashboard("checkpoints")
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "m")
        speculation_screen = opened(app, SpeculationScreen)
        seen = []
        for _ in speculation_screen.board.present():
            assert speculation_screen.panel.display
            assert speculation_screen.panel.size.height >= 2
            seen.append(speculation_screen.panel.panel_title)
            await press(pilot, "tab")
        assert len(set(seen)) == 5
        assert speculation_screen.panel.panel_title == seen[0]
        await press(pilot, "shift+tab", "z")
        assert speculation_screen.panel.panel_title == seen[-1]
        assert [panel.panel_title for panel in speculation_screen.board.panels if panel.display] == [seen[-1]]
        await press(pilot, "escape")
        assert app.shown is speculation_screen
        assert sum(panel.display for panel in speculation_screen.board.panels) > 1


async def test_a_text_that_does_not_fit_is_scrolled() -> None:
    app = dashboard("checkpoints")
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "m", "tab")
        assert "before drafts" not in shown(app)
        await press(pilot, "G")
        assert "before drafts" in shown(app)
        await press(pilot, "g")
        assert "before drafts" not in shown(app)


async def test_slots_are_not_changed_unless_armed() -> None:
    slots = FakeSlots()
    app = dashboard(slots=slots)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "m")
        for key in ("S", "O", "X"):
            await press(pilot, key)
            assert "press A to arm first" in said(app)
            app.clear_notifications()
        assert not slots.planned
        assert app.shown.prompt is None


async def choose(pilot: Pilot[None], app: Dashboard, slot: int) -> None:
    """Open the screen, arm, and select a slot."""
    await press(pilot, "m", "A")
    opened(app, SpeculationScreen).board.bring(opened(app, SpeculationScreen).board.slots)
    await pilot.pause()
    await press(pilot, *["down"] * slot)


async def test_a_slot_is_erased_after_a_question_that_names_it() -> None:
    slots = FakeSlots()
    app = dashboard(slots=slots)
    async with app.run_test(size=(80, 24)) as pilot:
        await choose(pilot, app, 1)
        await press(pilot, "X")
        assert isinstance(app.screen, ConfirmScreen)
        page = block(app.screen.page.lines)
        assert "erase slot 1" in page
        assert "beware" in page
        await press(pilot, "escape")
        assert not slots.done
        await press(pilot, "X", "enter")
        assert slots.done == [("erase", 1, None)]
        assert "slot 1 erased: 5120 tokens" in said(app)


async def test_a_slot_is_saved_and_restored_with_the_named_file() -> None:
    slots = FakeSlots()
    app = dashboard(slots=slots)
    async with app.run_test(size=(120, 36)) as pilot:
        await choose(pilot, app, 1)
        await press(pilot, "S", "enter")
        assert isinstance(app.screen, ConfirmScreen)
        assert "save slot 1 with slot-1.bin" in block(app.screen.page.lines)
        await press(pilot, "enter", "O")
        prompt = opened(app, SpeculationScreen).prompt
        assert prompt is not None
        assert prompt.value == "slot-1.bin"
        await press(pilot, "enter", "enter")
        assert slots.done == [("save", 1, "slot-1.bin"), ("restore", 1, "slot-1.bin")]


async def test_a_refusal_is_told_and_nothing_is_done() -> None:
    slots = FakeSlots()
    app = dashboard(slots=slots)
    async with app.run_test(size=(120, 36)) as pilot:
        await choose(pilot, app, 0)
        await press(pilot, "X")
        assert "slot 0 is busy" in said(app)
        assert app.screen is opened(app, SpeculationScreen)
        assert not slots.done


async def test_a_slot_that_is_not_seen_is_shown_before_it_is_changed() -> None:
    slots = FakeSlots()
    app = dashboard("checkpoints", slots=slots)
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "m", "A", "X")
        assert not slots.planned
        assert opened(app, SpeculationScreen).panel is opened(app, SpeculationScreen).board.slots
        assert "similarity" in shown(app)


async def test_an_arming_that_ran_out_before_the_answer_changes_nothing() -> None:
    slots, now = FakeSlots(), [10_000.0]
    app = dashboard(slots=slots, clock=lambda: now[0])
    async with app.run_test(size=(120, 36)) as pilot:
        await choose(pilot, app, 1)
        await press(pilot, "X")
        now[0] += 3_600.0
        await press(pilot, "enter")
        assert not slots.done
        assert "press A to arm first" in said(app)


async def test_a_terminal_that_shrinks_and_grows_finds_its_panels_again() -> None:
    app = dashboard("routed")
    async with app.run_test(size=(200, 50)) as pilot:
        await press(pilot, "m")
        before = shown(app)
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        await pilot.pause()
        assert "more:" in shown(app)
        await pilot.resize_terminal(200, 50)
        await pilot.pause()
        await pilot.pause()
        assert shown(app) == before


WANTS = st.lists(st.tuples(st.integers(2, 9), st.integers(1, 30)), min_size=1, max_size=7).map(
    lambda sizes: [PanelDemand(f"p{i}" if i < 6 else REQUESTS, least, most) for i, (least, most) in enumerate(sizes)]
)


@given(st.integers(80, 300), st.integers(18, 120), st.integers(1, 8), WANTS, st.integers(0, 6))
def test_parts_stay_on_the_board_and_never_overlap(
    width: int, height: int, bar: int, wants: list[PanelDemand], first: int
) -> None:
    chosen = wants[first % len(wants)].id
    places = arrange(width, height, bar, wants, chosen)
    assert all(place.height > 0 for place in places.values())
    cells(places.values(), width, height)
    assert DRAFTING in places
    assert chosen in places
    assert (MORE in places) == any(want.id not in places for want in wants)
    alone = arrange(width, height, bar, wants, chosen, chosen)
    assert alone[chosen].height == height - bar


@given(st.integers(28, 200), st.integers(1, 40), st.integers(1, 64))
def test_every_position_has_a_bar_whatever_the_room(width: int, height: int, positions: int) -> None:
    picture = replace(NGRAM, per_position=tuple(0.9 * 0.99**i for i in range(positions)))
    lines = position_lines(picture, width, height)
    assert 1 <= len(lines) <= height
    assert all(len(text(line)) <= width for line in lines)
    drawn = block(lines)
    assert str(positions) in drawn


def test_positions_that_do_not_fit_are_told_together_and_a_published_curve_ends_where_it_was_published() -> None:
    rows = rows_for(SIMPLE, 4)
    assert [name for name, _, _ in rows] == ["1-2", "3-4", "5-6", "7-8"]
    assert rows[0][1] == pytest.approx((0.91 + 0.84) / 2)
    assert rows[0][2] == pytest.approx((0.88 + 0.79) / 2)
    assert rows[3][2] is None
    assert rows_for(CLAMPED, 8)[0][2] == 0.95
    assert [name for name, _, _ in rows_for(NGRAM, 16)][:5] == ["1-4", "5-8", "9-12", "13-16", "17-20"]


def test_what_was_published_without_positions_is_named_and_not_drawn() -> None:
    means = PublishedAcceptance("draft-mtp", "EAGLE-3, coding", "a thread", (), None, 0.481)
    item = view("draft_simple")
    drafter = replace(SIMPLE, references=(means, SIMPLE.references[0]))
    panel = DrafterPanel()
    drawn = block(panel.content(replace(item, picture=with_drafter(item.picture, drafter)), 100, 40))
    assert "published  Qwen3-0.6B for Qwen3-32B" in drawn
    assert "EAGLE-3, coding  48 % accepted" in drawn
    assert "88 %" in drawn


def test_a_state_without_a_cause_is_still_a_sentence() -> None:
    for state in Drafting:
        item = view("draft_simple")
        views = replace(item.picture.views, drafting=DraftingPicture(state))
        lines = drafting_lines(replace(item, picture=replace(item.picture, views=views)), 80, tall=False)
        assert "because" not in block(lines)
        assert "None" not in block(lines)


async def test_a_cause_that_the_banner_cuts_is_told_in_the_panel() -> None:
    state = FakeState("failed")
    make = state.picture

    def alarmed(now: float, wall: float, window_s: float = 300.0) -> Picture:
        picture = make(now, wall, window_s)
        return with_alerts(picture, (zero_acceptance(wall),), ())

    state.picture = alarmed  # type: ignore[method-assign]
    app = Dashboard(state, clock=lambda: 10_000.0, wall=lambda: 1_790_000_000.0, theme="night")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "RUNNING WITHOUT SPECULATION" not in block(app.overview.header.lines)
        assert BECAUSE.split(" (")[0] in " ".join(screen(app).split())
        assert "running without speculation" in screen(app)
