"""The proxy screen, driven by keys, and what its parts say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from specdash.collect.uap_journal import parse_line
from specdash.core.proxy_events import RequestEvent, RequestOutcome, RequestPhase
from specdash.insight.picture import ProxyPicture
from specdash.tui.action_table import FooterScreen
from specdash.tui.app import Dashboard
from specdash.tui.layout import PanelId
from specdash.tui.screens.proxy import (
    REQUESTS,
    SESSIONS,
    ProxyScreen,
    RequestScreen,
    arrange,
    now_known,
    request_lines,
    summary_lines,
)
from specdash.tui.view import View
from specdash.tui.widgets.header import footer_line
from specdash.tui.widgets.panel import columns_that_fit, table
from specdash.tui.widgets.services.proxy import marks, session_line, state_spans
from specdash.tui.widgets.services.proxy_tables import (
    ProxyRequestsTable,
    request_columns,
    requests_of,
    session_columns,
    state_of,
)
from tui.drawn import block, text
from tui.driven import SIZES, WALL, cells, dashboard, opened, press, view
from tui.fake_proxy import LOOPING, MAIN, gone_proxy, held_proxy, proxy_picture, sessions, uap_proxy
from tui.fake_state import HOSTILE, SCENES, FakeState
from tui.waiting import until


def only(app: Dashboard) -> str | None:
    """The session that the requests are filtered by."""
    return opened(app, ProxyScreen).board.requests.only


def shown(app: Dashboard) -> str:
    """Everything that the proxy screen shows."""
    board = opened(app, ProxyScreen).board
    return "\n".join(block(part.lines) for part in (board.summary, *board.tables) if part.display)


async def test_enter_on_a_session_shows_only_its_requests_and_escape_shows_all() -> None:
    app = dashboard()
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "p", "tab", "down", "enter")
        requests = opened(app, ProxyScreen).board.requests
        assert only(app) == LOOPING
        assert {row.session for row in requests._rows} == {LOOPING}
        assert "only session conversation_0199aa31" in shown(app)
        assert "*conv" in shown(app)
        await press(pilot, "enter")
        assert only(app) is None
        await press(pilot, "enter", "escape")
        assert only(app) is None
        assert len({row.session for row in requests._rows}) == 3


async def test_enter_on_a_request_tells_everything_and_follows_it_to_its_end() -> None:
    app = dashboard()
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "p", "enter")
        detail = app.screen
        assert isinstance(detail, RequestScreen)
        told = block(detail.page.lines)
        for words in ("req_011CDecode", LOOPING, "398 of 560 drafted tokens accepted (71 %)", "malformed tool retried"):
            assert words in told
        picture = view().picture
        done = replace(picture.proxy.finished[0], request_id="req_011CDecode")
        ended = replace(picture, proxy=replace(picture.proxy, finished=(done,)))
        detail.show(View(ended, FakeState()))
        assert "end_turn, HTTP 200" in block(detail.page.lines)
        await press(pilot, "escape")
        opened(app, ProxyScreen)


async def test_the_selection_keeps_to_its_request_when_new_ones_come() -> None:
    app = dashboard()
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "p", "down", "down")
        requests = opened(app, ProxyScreen).board.requests
        chosen = requests.selected
        assert chosen is not None
        item = view()
        newer = replace(item.picture.proxy.finished[0], request_id="new", at=WALL)
        proxy = replace(item.picture.proxy, finished=(newer, *item.picture.proxy.finished))
        requests.show(replace(item, picture=replace(item.picture, proxy=proxy)))
        assert requests.selected == chosen
        await press(pilot, "g")
        assert requests.chosen is None
        await press(pilot, "G")
        assert requests.selected == requests._rows[-1]


async def test_the_last_row_can_be_seen_and_pages_move_by_what_is_seen() -> None:
    app = dashboard()
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "p", "end")
        assert any(text(line).startswith(">") for line in opened(app, ProxyScreen).board.requests.lines)
        await press(pilot, "home", "pagedown")
        assert any(text(line).startswith(">") for line in opened(app, ProxyScreen).board.requests.lines)


async def test_zoom_gives_one_table_the_screen_and_gives_it_back() -> None:
    app = dashboard()
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "p", "z")
        board = opened(app, ProxyScreen).board
        assert [table.id for table in board.tables if table.display] == [REQUESTS]
        assert board.requests.size.height == 19
        await press(pilot, "escape")
        assert all(table.display and table.size.height for table in board.tables)
        await press(pilot, "shift+tab", "z")
        assert [table.id for table in board.tables if table.display] == [SESSIONS]


async def test_keys_of_the_overview_change_nothing_behind_the_screen() -> None:
    app = dashboard()
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "p", "1", "8", "P", "slash", "f", "0")
        assert not app.overview.board.choices
        opened(app, ProxyScreen)
        assert not app.screen.query("TextPrompt")


async def test_a_frozen_display_opens_on_the_frozen_moment() -> None:
    now = [10_000.0]
    app = dashboard(clock=lambda: now[0])
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: app.overview.view is not None)
        await press(pilot, "space")
        now[0] += 60.0
        await press(pilot, "p")
        seen = opened(app, ProxyScreen).view
        assert seen is not None
        assert seen.picture.at == 10_000.0
        await press(pilot, "space")
        thawed = opened(app, ProxyScreen).view
        assert thawed is not None
        assert thawed.picture.at == 10_060.0


async def test_window_theme_and_help_work_on_the_screen_as_well() -> None:
    app = dashboard()
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "p", "w")
        assert "15m" in shown(app)
        await press(pilot, "t")
        assert opened(app, ProxyScreen).board.requests.palette.name == app.theme == "day"
        await press(pilot, "question_mark", "escape")
        opened(app, ProxyScreen)


async def test_the_log_misses_nothing_meanwhile() -> None:
    state = FakeState()
    app = Dashboard(state, clock=lambda: 10_000.0, wall=lambda: WALL)
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "p")
        state.lines.append("a line that came meanwhile")
        app.refresh_view()
        assert app.overview.board.log_panel.buffer.lines[-1] == "a line that came meanwhile"


async def test_a_tick_that_changes_nothing_repaints_nothing() -> None:
    app = dashboard()
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "p")
        painted: list[str] = []
        board = opened(app, ProxyScreen).board
        for part in (board, board.summary, *board.tables):
            original = part.refresh

            def spy(*regions: object, original: object = original, name: str = str(part.id), **rest: object) -> object:
                painted.append(name)
                return original(*regions, **rest)  # type: ignore[operator]

            part.refresh = spy  # type: ignore[method-assign, assignment]
        app.refresh_view()
        assert painted == []


@pytest.mark.slow
async def test_every_scene_draws_at_every_size() -> None:
    state = FakeState()
    app = dashboard(state)
    async with app.run_test(size=SIZES[0]) as pilot:
        await press(pilot, "p")
        for size in (*SIZES, (60, 15), (20, 4)):
            await pilot.resize_terminal(*size)
            for scene in ("busy", *SCENES):
                state.scene = scene
                app.refresh_view()
                await pilot.pause()
                assert "None" not in shown(app), (scene, size)
                assert "\x1b" not in shown(app), (scene, size)
                if size == SIZES[0]:
                    app.export_screenshot().encode("utf-8")
                    await press(pilot, "enter")
                    app.export_screenshot().encode("utf-8")
                    if isinstance(app.screen, RequestScreen):
                        await press(pilot, "escape")
    assert app._exception is None


async def test_a_setting_that_is_not_usable_is_told_below_the_state() -> None:
    app = dashboard("proxy_held")
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "p")
        await pilot.pause()
        assert opened(app, ProxyScreen).board.summary.size.height == 4
        assert "PROXY_LOOP_WINDOW" in shown(app)


async def test_the_overviews_panel_grows_when_a_proxy_turns_up() -> None:
    state = FakeState("no_proxy")
    app = Dashboard(state, clock=lambda: 10_000.0, wall=lambda: WALL)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        panel = app.overview.board.panels[PanelId.PROXY]
        assert panel.size.height == 1
        assert "no proxy: start specdash with --proxy-url" in block(panel.lines)
        state.scene = "busy"
        app.refresh_view()
        await pilot.pause()
        assert panel.size.height == 4
        assert "88 % HIGH" in block(panel.lines)


@pytest.mark.parametrize(
    ("proxy", "words"),
    [
        (proxy_picture(WALL), "● upstream ok"),
        (held_proxy(WALL), "▲ HELD 12s restart of the backend, 2 waiting   ◔ upstream loading"),
        (gone_proxy(WALL), "○ STALE 42s connection refused: nothing listens there  ● upstream ok"),
        (uap_proxy(), "? upstream --"),
        (replace(uap_proxy(), live=None, reason="unauthorized: x"), "✖ unauthorized: x"),
        (ProxyPicture(), "no proxy: start specdash with --proxy-url http://127.0.0.1:4000, and --proxy-log FILE"),
    ],
)
def test_the_state_is_told_in_words_and_with_a_shape(proxy: ProxyPicture, words: str) -> None:
    assert words in text(state_spans(proxy, WALL))


def test_a_session_is_told_with_its_level_its_loop_and_its_streak() -> None:
    full, looping, malformed, *_ = sessions(WALL)
    assert "88 % HIGH  5f1c2a…9a2e44  ~4 turns left" in text(session_line(full, 100))
    assert "2-turn LOOP x9" in text(session_line(looping, 100))
    assert "malformed x3" in text(session_line(malformed, 100))
    assert "--" in text(session_line(None, 100))


def test_what_a_uap_proxy_does_not_tell_is_dashes_and_never_zero() -> None:
    told = block(summary_lines(view("proxy_uap"), 120))
    for label in ("requests", "errors", "ttft", "decode", "accepted"):
        assert f"{label} --" in told
    assert "UAP proxy" in told
    assert text(ProxyRequestsTable().key_figure(view("proxy_uap"))) == "-- running"
    row = block(table(session_columns(WALL, 80), uap_proxy().live.sessions, 78))  # type: ignore[union-attr]
    assert row.split()[-1] == "--"


def test_a_request_that_just_ended_is_not_shown_as_running_as_well() -> None:
    proxy = proxy_picture(WALL)
    ended = replace(proxy.finished[0], request_id=proxy.running[0].request_id)
    both = requests_of(replace(proxy, finished=(ended, *proxy.finished)), None)
    assert [row for row in both if row.request_id == ended.request_id] == [ended]
    assert now_known(replace(proxy, finished=(ended,)), proxy.running[0]) == ended


def test_requests_of_one_session_are_running_ones_first() -> None:
    rows = requests_of(proxy_picture(WALL), MAIN)
    assert {row.session for row in rows} == {MAIN}
    assert state_of(rows[0])[0] == "● PREFILL 56 %"


def test_ends_differ_by_word_and_shape() -> None:
    proxy = proxy_picture(WALL)
    shapes = {
        state_of(replace(proxy.finished[0], outcome=outcome))[0].split(" ")[0]
        for outcome in (RequestOutcome.ERROR, RequestOutcome.CLIENT_LEFT)
    }
    assert len(shapes) == 2
    assert state_of(replace(proxy.running[0], phase=RequestPhase.HELD))[0] == "● HELD try 2"


def test_marks_of_one_guardrail_stand_together() -> None:
    told = marks(("malformed_tool:retried", "malformed_tool:recovered", "max_tokens:applied"))
    assert told == "malformed tool retried recovered, max tokens applied"


def test_the_detail_of_a_retried_request_lists_what_the_guardrails_did() -> None:
    item = view()
    told = block(request_lines(item.picture.proxy.finished[1], item, 100))
    assert "malformed tool detected: kind unknown_tool, tool Raed, streak 3" in told
    assert "8,290 of them from the cache (86 %)" in told


def ends_of(*texts: str, at: float = WALL) -> tuple[RequestEvent, ...]:
    """Ends of requests as a UAP proxy's journal tells them."""
    events = [parse_line(text, at) for text in texts]
    return tuple(event for event in events if isinstance(event, RequestEvent))


def test_what_a_log_line_does_not_tell_of_an_end_is_dashes_and_never_made_up() -> None:
    item = view("proxy_uap")
    (end,) = ends_of("RESP: finish=stop output_tokens=12 text_len=40 text=x tool_calls=[] args=[]")
    told = [line.split() for line in block(request_lines(end, item, 100)).splitlines()]
    words = {line[0]: " ".join(line[1:]) for line in told if line}
    assert words["ended"].endswith("ago")
    assert (words["end"], words["endpoint"], words["retries"]) == ("end_turn", "--", "--")
    assert (words["guardrails"], words["request"], words["session"]) == ("--",) * 3
    assert words["answer"].startswith("12 tokens")
    (row,) = block(table(request_columns(200), [end], 200)).splitlines()[1:]
    assert row.split()[1:3] == ["--", "end_turn"]
    assert "0" not in row.split()[2:]
    (dateless,) = ends_of("RESP: finish=stop output_tokens=12 text_len=40 text=x tool_calls=[] args=[]", at=0.0)
    assert "1970" not in block(request_lines(dateless, item, 100))
    assert block(table(request_columns(200), [dateless], 200)).splitlines()[1].split()[0] == "--"


def test_ends_that_have_no_id_are_rows_of_their_own() -> None:
    line = "RESP: finish=stop output_tokens=12 text_len=40 text=x tool_calls=[] args=[]"
    rows = ends_of(line, line)
    keys = {ProxyRequestsTable().key(row) for row in rows}
    assert len(keys) == len(rows)


@given(st.integers(48, 220))
def test_no_line_of_a_detail_is_wider_than_the_page(width: int) -> None:
    item = view("hostile")
    for request in requests_of(item.picture.proxy, None)[:6]:
        for line in request_lines(request, item, width):
            assert cell_len(text(line)) <= width


@given(st.integers(76, 300), st.sampled_from(["sessions", "requests"]))
def test_a_table_never_grows_beyond_its_width_and_keeps_the_important_columns(width: int, which: str) -> None:
    proxy = proxy_picture(WALL)
    if which == "sessions":
        columns = session_columns(WALL, width)
        lines = table(columns, sessions(WALL), width)
        important = {"session", "use", "turns", "loop"}
    else:
        requests = request_columns(width)
        lines = table(requests, requests_of(proxy, None), width)
        important = {"time", "phase or end", "dec/s", "ttft", "acc"}
        columns = requests  # type: ignore[assignment]
    assert important <= {column.heading for column, _ in columns_that_fit(columns, width)}
    assert all(cell_len(text(line).rstrip()) <= width for line in lines)


@given(st.integers(80, 300), st.integers(10, 120), st.integers(2, 4), st.integers(0, 60))
def test_the_parts_fill_the_screen_and_never_overlap(width: int, height: int, summary: int, rows: int) -> None:
    taken = cells(arrange(width, height, summary, rows).values(), width, height)
    assert max(y for _, y in taken) == height - 1


def test_the_footer_keeps_enter_help_and_quit_at_80() -> None:
    line = text(footer_line(80, FooterScreen.PROXY))
    assert len(line) <= 80
    for key in ("enter open", "p overview", "? help", "q quit", "tab table"):
        assert key in line


def test_hostile_text_stays_text() -> None:
    told = block(summary_lines(view("hostile"), 120))
    assert "[red]not markup[/red]" in told
    assert HOSTILE not in told
