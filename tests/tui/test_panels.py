"""What single panels say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from specdash.core.readings import Gpu, Host, ReadingStatus, Source
from specdash.insight.picture import BackendState, GpuPicture, MeasuredFigure, Picture
from specdash.llama.log import WARNING_CLASSES
from specdash.tui.spans import PALETTES, figure, to_strip
from specdash.tui.widgets.board import COLUMNS, WarningsPanel, alarming, gpu_lines, host_lines, in_order
from specdash.tui.widgets.header import STATE_ROLES, HeaderSituation, header_lines, state_glyph
from specdash.tui.widgets.panel import columns_that_fit, table
from specdash.tui.widgets.speculation.acceptance import position_lines
from tui.drawn import block, text
from tui.driven import view
from tui.fake_state import CANCELLED, CLAMPED, CUDA, FIND_SLOT, SCENES, busy_picture, known, speculation


def header(scene: str) -> str:
    """The header of one scene."""
    return block(header_lines(view(scene), HeaderSituation(1_790_000_000.0), 80))


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        ("busy", "● LIVE"),
        ("down", "✖ DOWN"),
        ("loading", "◔ LOADING"),
        ("stale", "○ STALE 12s"),
        ("unauthorized", "✖ UNAUTHORIZED"),
    ],
)
def test_the_header_names_the_state_in_words_and_with_a_shape(scene: str, words: str) -> None:
    assert words in header(scene)


@pytest.mark.parametrize("name", WARNING_CLASSES)
def test_every_class_of_warnings_is_named_whole_on_the_smallest_screen(name: str) -> None:
    known_class = WARNING_CLASSES[name]
    storm = replace(FIND_SLOT, warning=name, title=known_class.title, count=1_161_371, per_minute=312_440.0)
    at = view()
    at = replace(at, picture=replace(at.picture, log=replace(at.picture.log, warnings=(storm,))))
    (line,) = WarningsPanel().body(at, 36, 1)
    assert "…" not in text(line)
    assert "1.16M" in text(line)


@pytest.mark.parametrize("scene", ["down", "loading", "unauthorized"])
def test_a_panel_without_figures_says_in_words_what_it_waits_for(scene: str) -> None:
    whys = {view(scene).why(source, "") for source in (Source.METRICS, Source.SLOTS)}
    assert len(whys) == 1
    assert not any(jargon in why for why in whys for jargon in ("/", "401", "refused"))


def test_every_state_has_a_colour_and_a_shape() -> None:
    for state in BackendState:
        assert state in STATE_ROLES
        assert state_glyph(state)


def test_a_dead_server_is_told_with_its_cause_the_next_step_and_the_last_error() -> None:
    told = header("down")
    assert "connection refused" in told
    assert "Start it" in told
    assert "CUDA error: an illegal memory access" in told.replace("\n ", " ")


def test_speculation_that_was_asked_for_and_does_not_run_is_told() -> None:
    assert "RUNNING WITHOUT SPECULATION: the draft model could not be loaded" in header("not_speculating")


def test_a_storm_is_told_with_its_count() -> None:
    assert "1,161,371 lines" in header("storm")


def test_no_header_line_is_wider_than_the_screen() -> None:
    for scene in ("busy", *SCENES):
        for width in (80, 120, 200):
            for line in header_lines(view(scene), HeaderSituation(1_790_000_000.0, 12.0, True), width):
                assert cell_len(text(line)) <= width, scene


def test_a_figure_is_bold_when_fresh_dim_with_its_age_when_held_and_dashes_when_unknown() -> None:
    assert figure(known(0.5), "50 %", "", "decode")[0] == ("50 %", "decode bold")
    held = figure(MeasuredFigure(0.5, ReadingStatus.STALE, age_s=42.0), "50 %", "", "decode")
    assert text(held).split() == ["50", "%", "held", "42s"]
    assert all(role == "dim" for _, role in held)
    assert text(figure(MeasuredFigure(), "0", "tok/s", "decode")) == "--"


def test_find_slot_never_falls_off_the_list_of_warnings() -> None:
    many = [replace(CUDA, warning=f"error_{i}") for i in range(10)]
    assert FIND_SLOT in in_order([*many, FIND_SLOT], 4)


def test_warnings_stand_gravest_first() -> None:
    assert in_order([CANCELLED, CLAMPED, CUDA], 5) == [CUDA, CLAMPED, CANCELLED]


def test_only_recent_errors_and_storms_alarm() -> None:
    assert alarming([FIND_SLOT, CLAMPED, CANCELLED]) is None
    assert alarming([FIND_SLOT, CUDA]) is CUDA
    assert alarming([replace(CUDA, last_age_s=900.0)]) is None
    storm = replace(FIND_SLOT, per_minute=50_000.0)
    assert alarming([storm]) is storm


@given(st.integers(1, 64), st.integers(20, 90), st.integers(1, 30))
def test_any_number_of_draft_positions_fits_any_room(count: int, width: int, height: int) -> None:
    shares = tuple(0.9 * 0.95**i for i in range(count))
    picture = replace(speculation(), acceptance_per_position_window=shares, acceptance_per_position_lifetime=shares)
    lines = position_lines(picture, width, height)
    assert len(lines) <= height
    assert all(cell_len(text(line)) <= max(width, 40) for line in lines)


def test_positions_that_do_not_fit_are_summed_up() -> None:
    shares = tuple(0.97 * 0.955**i for i in range(64))
    picture = replace(speculation(), acceptance_per_position_window=shares)
    assert "first 40 positions, 24 more up to 15 %" in block(position_lines(picture, 40, 6))


def test_positions_of_an_idle_server_are_the_lifetime_ones_and_say_so() -> None:
    picture = replace(speculation(), acceptance_per_position_window=None)
    assert "lifetime" in block(position_lines(picture, 40, 12))


def test_unknown_positions_are_dashes() -> None:
    picture = replace(speculation(), acceptance_per_position_window=None, acceptance_per_position_lifetime=None)
    assert block(position_lines(picture, 40, 12)) == "per position --"


def test_without_a_gpu_the_reason_is_shown() -> None:
    assert "libnvidia-ml.so.1" in block(gpu_lines(view("no_gpu").picture.gpu, 60))


def test_a_gpu_that_tells_nothing_shows_dashes_and_throttling_is_named() -> None:
    mute = GpuPicture((Gpu(0),), None, ReadingStatus.KNOWN)
    assert "--" in block(gpu_lines(mute, 60))
    assert "0 %" not in block(gpu_lines(mute, 60))
    hot = GpuPicture((Gpu(0, throttle_reasons=("thermal slowdown",)),), None, ReadingStatus.KNOWN)
    assert "thermal slowdown" in block(gpu_lines(hot, 60))


def test_memory_is_full_once_hardly_any_is_free_whatever_the_driver_reserves() -> None:
    def role(free: int) -> str:
        gpu = Gpu(0, memory_used_bytes=70 << 30, memory_total_bytes=80 << 30, memory_free_bytes=free)
        _, second = gpu_lines(GpuPicture((gpu,), None, ReadingStatus.KNOWN), 60)
        return second[1][1]

    assert (role(9 << 30), role(1 << 30)) == ("text", "warn bold")


def test_a_host_that_tells_nothing_shows_dashes() -> None:
    shown = block(host_lines(Host(), 60))
    assert "--" in shown
    assert "0 %" not in shown


@given(st.integers(10, 140))
def test_a_table_never_grows_beyond_its_width(width: int) -> None:
    picture: Picture = busy_picture(0.0, 0.0, 300.0)
    for line in table(COLUMNS, picture.log.requests, width):
        assert cell_len(text(line).rstrip()) <= width


def test_a_narrow_table_keeps_the_important_columns() -> None:
    kept = [column.heading for column, _ in columns_that_fit(COLUMNS, 40)]
    assert {"ago", "prompt", "decoded", "dec/s"} <= set(kept)
    assert "cached" not in kept


def test_neighbours_that_look_alike_are_painted_as_one_and_a_row_fills_its_width() -> None:
    style = PALETTES["night"].style
    strip = to_strip((("a", "dim"), (" ", "text"), ("b", "dim"), ("  ", "faint track")), 10, style)
    assert [segment.text for segment in strip] == ["a b", "  ", "     "]
    underlined = to_strip((("a", "text"), (" ", "text underline")), 2, style)
    assert [segment.text for segment in underlined] == ["a", " "], "an underline is seen on a blank"
