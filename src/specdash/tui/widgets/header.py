"""The header: the server's state in words, what it runs, how the screen looks at it, and, when something is wrong,
the cause and the next step in one loud sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from rich.cells import cell_len

from specdash.core.readings import Source
from specdash.core.records import AlertSeverity, Drafting, EventKind
from specdash.insight.picture import BackendState
from specdash.system.text import (
    UNKNOWN,
    age,
    clean,
    clock,
    compact,
    context,
    duration,
    moment,
    number,
    percent,
    rate,
    scale_time,
)
from specdash.tui.action_table import DEFAULT_KEYS, Action, FooterScreen, KeyTable
from specdash.tui.layout import MINIMUM_HEIGHT, MINIMUM_WIDTH
from specdash.tui.plot import APPLIED, MarkStyle, look_of_event
from specdash.tui.spans import GLYPHS, Line, Span, figure, fit, line_width, spread, wrap
from specdash.tui.widgets.board import SEVERITY_ROLES, alarming, all_warnings
from specdash.tui.widgets.panel import LinesWidget
from specdash.tui.widgets.speculation.verdict import WITHOUT_SPECULATION, badge, verdict_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from textual import events

    from specdash.core.records import Alert, TimelineEvent, TrialNote
    from specdash.history.player import Player
    from specdash.insight.picture import BackendPicture, Picture
    from specdash.tui.spans import Line
    from specdash.tui.view import View


# The banner below the header: the likely cause of what is wrong, in one line on every screen.

ROLES = {AlertSeverity.CRITICAL: "bad", AlertSeverity.WARNING: "warn", AlertSeverity.NOTICE: "accent"}
_WORDY = 100


def glyph(severity: AlertSeverity) -> str:
    """A shape per severity, so that colour is never the only difference."""
    shapes = {AlertSeverity.CRITICAL: GLYPHS.down, AlertSeverity.WARNING: GLYPHS.alert}
    return shapes.get(severity, GLYPHS.note)


def lead(view: View) -> Alert | None:
    """The alert that names the likely cause; None when nothing is wrong."""
    alerts = view.picture.alerts
    found = (alert for alert in alerts.active if alert.key == alerts.cause_key)
    return next(found, alerts.active[0] if alerts.active else None)


def worst(alerts: Iterable[Alert]) -> AlertSeverity:
    """The gravest severity among these; there must be one."""
    return max((alert.severity for alert in alerts), key=lambda alert_severity: alert_severity.rank)


def banner_lines(view: View, width: int, *, on_incidents: bool = False) -> list[Line]:
    """The likely cause, in the colour of the gravest alert; since when, how many more alerts there are, and the key to
    press; nothing when nothing is wrong. A sentence that one line cannot hold has two, on the incidents screen, which
    says it below: there the title is enough."""
    alert = lead(view)
    if alert is None:
        return []
    alerts = view.picture.alerts
    severity = worst(alerts.active)
    role = ROLES[severity]
    style = f"banner.{role}" if severity is not AlertSeverity.NOTICE else f"{role} bold track"
    word = f"{severity.upper()}  " if width >= _WORDY else ""
    more = f"  +{len(alerts.active) - 1} more" if len(alerts.active) > 1 else ""
    since = f"  {age(view.picture.wall - alert.since)}" if width >= _WORDY else ""
    hint = (
        ""
        if on_incidents
        else f"  {view.keys['incidents']}: what to do"
        if width >= _WORDY
        else f"  press {view.keys['incidents']}"
    )
    right = f"{since}{more}{hint} "
    left = f" {glyph(severity)} {word}"
    room = width - len(left) - len(right)
    sentence = " ".join(clean(alerts.cause or f"{alert.title}: {alert.summary}", 400).split())
    if on_incidents and cell_len(sentence) > room:
        sentence = clean(alert.title, 80)
    first = next(iter(wrap(sentence, room, 2)), "")
    lines: list[Line] = [((left + fit(first, max(room, 0)) + right, style),)]
    if rest := sentence.removeprefix(first).strip():
        lines.append(((fit(" " * len(left) + rest, width), style),))
    return lines


# The line below the header while settings are tried on the server: whose restarts these are, on every screen.

AWAY = (BackendState.DOWN, BackendState.STALE, BackendState.LOADING, BackendState.RESTARTED)
"""How a server looks that is started again."""
_MEANING = "restarts and failed starts are its own"


def trial_line(trial: TrialNote, wall: float, width: int, view: View) -> Line:
    """Who tries what, how far that is, and where to see more; in yellow where it was cut short."""
    words = clean(trial.words, 200)
    words = words[:1].upper() + words[1:]
    if not trial.alive:
        return ((fit(f" {GLYPHS.alert} {words}", width), "banner.warn"),)
    hint = f"  {view.keys['tuner']} shows it " if trial.what == "tune" else " "
    since = f"  for {age(max(wall - trial.at, 0.0))}" if width >= _WORDY else ""
    room = width - len(since) - len(hint)
    left = f" {GLYPHS.busy} {words}"
    meaning = f"{left}: {_MEANING}"
    return ((fit(meaning if len(meaning) <= room else left, room) + since + hint, "banner.accent"),)


# Where in time the screen is: the words in the header, and the strip under them.

SPAN_WINDOWS = 12
"""The strip is so many windows wide, or as wide as the record."""
LEAST_SPAN_S = 900.0
_DAY_S = 86_400.0
_NOTED = MarkStyle("", "·", "dim", "other event")
_LEAST_STRIP = 20


class ReplayHeader(Struct, frozen=True):
    """A replay as the header shows it. Moments are Unix times; `now` is the real one."""

    position: float
    now: float
    first: float
    last: float
    playing: bool = False
    speed: float = 1.0
    loading: bool = False
    """The moment is not shown yet, or not all that is counted by then."""
    problem: str = ""
    can_return: bool = True
    """There is a live server to go back to."""
    events: Sequence[TimelineEvent] = ()


def travelling(player: Player, now: float, *, can_return: bool) -> ReplayHeader:
    """What there is to show of a player."""
    session = player.session
    return ReplayHeader(
        position=session.position,
        now=now,
        first=session.first,
        last=session.last,
        playing=player.playing,
        speed=player.speed,
        loading=player.seeking or not session.is_deep,
        problem=player.problem,
        can_return=can_return,
        events=session.events,
    )


def travel_badge(travel: ReplayHeader) -> str:
    """` REPLAY 02:13:45 (-3h12m) ▶ 5x `, or LOADING RECORD for as long as not all is shown."""
    ago = duration(max(0.0, travel.now - travel.position), short=True)
    play = "▶" if travel.playing else "⏸"
    pace = f" {travel.speed:g}x" if travel.playing or travel.speed > 1 else ""
    word = f"{GLYPHS.loading} LOADING RECORD" if travel.loading else "REPLAY"
    return f" {word} {moment(travel.position, travel.now)} (-{ago}) {play}{pace} "


def travel_line(travel: ReplayHeader, window_s: float, width: int, keys: KeyTable = DEFAULT_KEYS) -> Line:
    """The strip: the record around the moment, what happened in it, and what the keys do."""
    if travel.problem:
        return ((" " + fit(f"cannot read the record: {clean(travel.problem, 200)}", width - 1), "bad"),)
    begin, end = _stretch(travel, window_s)
    left = f" {scale_time(begin, end - begin)} "
    right = " now" if travel.can_return and end >= travel.last else f" {scale_time(end, end - begin)}"
    hint = f"  {keys['travel.live']} live" if travel.can_return else ""
    step, event = (
        f"{keys[f'travel.{a}']} {keys[f'travel.{b}']}" for a, b in (("back", "on"), ("event_before", "event_next"))
    )
    hint = f"  {keys['pause']} plays  {step} step  {event} events{hint}" if width >= 2 * len(left) + 90 else hint
    room = width - len(left) - len(right) - len(hint) - 1
    if room < _LEAST_STRIP:
        hint, room = "", width - len(left) - len(right) - 1
    strip = _strip(travel, begin, end, max(room, 1))
    spans: list[Span] = [(left, "dim"), *strip, (right, "dim"), (hint, "dim")]
    blank = width - line_width(spans)
    return (*spans, (" " * max(blank, 0), "text"))


def _stretch(travel: ReplayHeader, window_s: float) -> tuple[float, float]:
    """The part of the record that the strip shows: around the moment, within the record."""
    length = min(max(window_s * SPAN_WINDOWS, LEAST_SPAN_S), max(travel.last - travel.first, 1.0))
    begin = min(max(travel.position - length / 2, travel.first), travel.last - length)
    return begin, begin + length


def _strip(travel: ReplayHeader, begin: float, end: float, width: int) -> list[Span]:
    cells: list[Span] = [("─", "faint")] * width
    ranked: list[tuple[int, MarkStyle]] = []
    for event in travel.events:
        if begin <= event.at <= end:
            look = look_of_event(event) or (APPLIED if event.kind is EventKind.APPLY else _NOTED)
            ranked.append((_cell(event.at, begin, end, width), look))
    for cell, look in sorted(ranked, key=lambda pair: pair[1] is not _NOTED):
        cells[cell] = (look.head, look.role)
    here = _cell(travel.position, begin, end, width)
    cells[here] = ("█", "accent bold")
    joined: list[Span] = []
    for text, role in cells:
        if joined and joined[-1][1] == role:
            joined[-1] = (joined[-1][0] + text, role)
        else:
            joined.append((text, role))
    return joined


def _cell(at: float, begin: float, end: float, width: int) -> int:
    return min(max(int((at - begin) / (end - begin) * width), 0), width - 1)


STATE_ROLES = {
    BackendState.LIVE: "good",
    BackendState.BUSY: "warn",
    BackendState.WEDGED: "bad",
    BackendState.STALE: "warn",
    BackendState.LOADING: "accent",
    BackendState.RESTARTED: "warn",
    BackendState.DOWN: "bad",
    BackendState.UNAUTHORIZED: "bad",
    BackendState.UNKNOWN: "dim",
}
_BANNER_LINES = 3
_QUIET_LINES = 2
_USUAL_LINES = 3
"""Of the header, one of them the banner; with more, a small terminal has none to spare for why the verdict is so."""
_WIDE = 100
_LEAST_ENGINE = 12
_TROUBLE = 60
"""So much of why nothing is recorded; the alert and the incidents screen have all of it."""
_SILENT = (BackendState.DOWN, BackendState.STALE, BackendState.RESTARTED)
_LAST_WORDS_S = 600.0


class HeaderSituation(Struct, frozen=True):
    """What the header says that no picture knows: the time of day, for how long the display has been frozen, whether
    this is the demo, for how long it stays armed, and whether it can never be."""

    wall: float
    paused_s: float | None = None
    demo: bool = False
    armed_left_s: float | None = None
    locked: bool = False
    recording_trouble: str = ""
    """What is wrong with the recording, empty when nothing is."""
    on_incidents: bool = False
    """The incidents screen is what is looked at: its key needs no hint."""
    on_speculation: bool = False
    """The speculation screen is what is looked at: it says itself whether the server speculates."""
    travel: ReplayHeader | None = None
    """Where in time the screen is, None when it is live."""
    opening: str | None = None
    """The moment of the record that is being opened, in words, empty for its end; None when none is."""
    tuning: bool = False
    """The tuner's screen is what is looked at, and a run goes on: it says itself what is on trial, and that the server
    is away is its doing."""
    on_overview: bool = False
    """The overview is what is looked at: the verdict stands below the header."""


class DashboardHeader(LinesWidget):
    """Two lines, one for the likely cause while an alert is active, up to three for anything else, and on the
    overview the verdict."""

    _verdict: tuple[View, tuple[int, int, bool], list[Line]] | None = None
    """What was drawn of it last, and of what."""

    def show(self, view: View, situation: HeaderSituation) -> None:
        """Draw this view; the height follows the content."""
        width = self.size.width or self.app.size.width
        lines = header_lines(view, situation, width)
        if situation.on_overview:
            drawn = (view, width, self.app.size.height)
            brief = len(lines) > _USUAL_LINES
            if self._verdict is None or self._verdict[0] is not view or self._verdict[1] != (*drawn[1:], brief):
                self._verdict = view, (*drawn[1:], brief), verdict_lines(*drawn, brief=brief)
            lines += self._verdict[2]
        if self.styles.height is None or self.styles.height.value != len(lines):
            self.styles.height = len(lines)
        self.set_lines(lines)


def header_lines(view: View, situation: HeaderSituation, width: int) -> list[Line]:
    """The whole header."""
    backend = view.picture.backend
    tags, how = _tags(view, situation, width), _how(view, situation)
    lines = [
        spread(_what_runs(view, situation, width - line_width(tags) - 1), tags, width),
        spread(_where(backend, width - line_width(how) - 1, wide=width >= _WIDE), how, width),
    ]
    travel = situation.travel
    if travel is not None:
        lines.append(travel_line(travel, view.picture.window_s, width, view.keys))
    trial = view.picture.trial
    if trial is not None and not (situation.tuning and trial.alive):
        lines.append(trial_line(trial, situation.wall, width, view))
    if situation.tuning and trial is None and backend.state in AWAY:
        return lines
    banner = banner_lines(view, width, on_incidents=situation.on_incidents)
    lines += banner
    loud = trouble(view, on_speculation=situation.on_speculation)
    if loud is not None and banner:
        # The banner has the cause; the state's own words stand below it in a quiet voice, where they say more.
        if backend.state is not BackendState.LIVE:
            lines += [((" " + fit(part, width - 1), loud[1]),) for part in wrap(loud[0], width - 2, _QUIET_LINES)]
    elif loud is not None:
        text, role = loud
        lines += [((" " + fit(part, width - 1), f"banner.{role}"),) for part in wrap(text, width - 2, _BANNER_LINES)]
    return lines


def state_line(view: View, situation: HeaderSituation) -> list[Span]:
    """The one state: the server's, while what is shown is now; else that it is not, and in plain words how the server
    was."""
    backend, travel = view.picture.backend, situation.travel
    if travel is not None:
        badge: Span = (travel_badge(travel), "banner.accent")
    elif situation.opening is not None:
        badge = (f" {GLYPHS.loading} LOADING RECORD {situation.opening}".rstrip() + " ", "banner.accent")
    elif situation.paused_s is not None:
        badge = (f" PAUSED {age(situation.paused_s)} ", "banner.warn")
    else:
        state = f" {state_glyph(backend.state)} {_state_words(backend, view)} "
        return [(state, f"banner.{_state_role(view)}"), (" ", "text")]
    role = _state_role(view)
    return [badge, (f" was {_state_words(backend, view).lower()} ", "dim" if role == "good" else role), (" ", "text")]


def _state_words(backend: BackendPicture, view: View) -> str:
    """`LIVE`, `STALE 12s`."""
    word = backend.state.value.upper()
    if backend.state is BackendState.STALE:
        sources = [view.source(source) for source in (Source.HEALTH, Source.METRICS, Source.SLOTS)]
        ages = [entry.age_s for entry in sources if entry is not None and entry.age_s is not None]
        return f"{word} {age(min(ages))}" if ages else word
    return word


def _state_role(view: View) -> str:
    """The colour of the state; a restart of a trial is no alarm."""
    state = view.picture.backend.state
    return "accent" if view.is_tried and state in AWAY else STATE_ROLES[state]


def state_glyph(state: BackendState) -> str:
    """A shape per state, so that colour is never the only difference."""
    shapes = {
        BackendState.LIVE: GLYPHS.live,
        BackendState.BUSY: GLYPHS.busy,
        BackendState.WEDGED: GLYPHS.down,
        BackendState.STALE: GLYPHS.stale,
        BackendState.LOADING: GLYPHS.loading,
        BackendState.RESTARTED: GLYPHS.restarted,
        BackendState.DOWN: GLYPHS.down,
        BackendState.UNAUTHORIZED: GLYPHS.down,
    }
    return shapes.get(state, GLYPHS.unknown)


def trouble(view: View, *, on_speculation: bool = False) -> tuple[str, str] | None:
    """The one thing to say loudly, with its role: the server's state, else that it runs without the speculation that
    was asked for, else a recent error or storm in the log. None of it for settings that are only tried."""
    backend = view.picture.backend
    if view.is_tried and backend.state in (*AWAY, BackendState.LIVE):
        return None
    if backend.state is not BackendState.LIVE:
        role = STATE_ROLES[backend.state]
        text = " ".join(filter(None, (backend.reason, _last_words(view))))
        return (clean(text), "accent" if role == "dim" else role) if text else None
    failure = _failure(view.picture)
    if failure is not None and not on_speculation:
        return failure, "warn"
    warning = alarming(view.picture.log.warnings)
    if warning is None:
        return None
    text = f"{warning.title}: {number(warning.total)} lines, {rate(warning.per_minute)} a minute. {warning.note}"
    role = SEVERITY_ROLES.get(warning.severity, "warn")
    return clean(text), "warn" if role == "dim" else role


def _failure(picture: Picture) -> str | None:
    """`RUNNING WITHOUT SPECULATION: <cause>`, None unless that is so. Where no start was checked, the log says so."""
    drafting = picture.views.drafting
    because = drafting.because
    if drafting.state is not Drafting.FAILED:
        because = picture.backend.speculation.problem
        if not because or drafting.state is not Drafting.UNKNOWN:
            return None
    return clean(f"{WITHOUT_SPECULATION}: {because}" if because else WITHOUT_SPECULATION, 400)


def _last_words(view: View) -> str:
    """The last error that a server wrote before it fell silent: most often the cause."""
    if view.picture.backend.state not in _SILENT:
        return ""
    errors = [w for w in view.picture.log.warnings if w.severity == "error" and w.last_age_s <= _LAST_WORDS_S]
    last = min(errors, key=lambda warning: warning.last_age_s, default=None)
    return f"Last error in the log, {age(last.last_age_s)} ago: {last.sample or last.title}" if last else ""


def _what_runs(view: View, situation: HeaderSituation, width: int) -> list[Span]:
    """State, model and speculation, as much as fits; what the tags on the right need has been taken off `width`."""
    backend = view.picture.backend
    spans = state_line(view, situation)
    model = clean(backend.model or UNKNOWN, 60)
    spans.append((fit(model, min(len(model), max(width - line_width(spans), 8))), "text bold"))
    speculation = backend.speculation
    for text, tone in _speculation(view):
        if line_width(spans) + len(text) + 2 > width:
            break
        spans.append(("  " + text, tone))
    if speculation.active is False and not speculation.types:
        spans.append(("  no speculation", "dim"))
    return spans


def _speculation(view: View) -> list[Span]:
    speculation = view.picture.backend.speculation
    spans: list[Span] = []
    if speculation.types:
        off = speculation.active is False
        name = "+".join(clean(kind, 24) for kind in speculation.types)
        spans.append((name + (" (inactive)" if off else ""), "warn" if off else "accent"))
    settings = [(key, value) for key, value in speculation.parameters if key != "spec-type"]
    return spans + [(f"{_short(key)} {clean(value.rsplit('/', 1)[-1], 24)}", "dim") for key, value in settings]


def _short(key: str) -> str:
    """`spec-draft-n-max` as `n-max`: beside the spec type, the prefix says nothing new."""
    return clean(key, 40).removeprefix("spec-").removeprefix("draft-")


def _tags(view: View, situation: HeaderSituation, width: int) -> list[Span]:
    spans: list[Span] = []
    if situation.armed_left_s is not None:
        spans += [(f" ARMED {situation.armed_left_s:.0f}s ", "banner.bad"), ("  ", "text")]
    if situation.demo:
        spans.append(("demo  ", "accent"))
    if situation.recording_trouble:
        what, _, why = clean(situation.recording_trouble, _TROUBLE).partition(": ")
        spans.append((f"{what}: {why}  " if why and width >= _WIDE else f"{what}  ", "warn"))
    if not (situation.on_overview or situation.on_speculation) and (words := badge(view)):
        spans += [(words, "banner.bad"), ("  ", "text")]
    uptime = view.picture.backend.uptime_s
    if uptime is not None:
        spans += [("up ", "dim"), (duration(uptime, short=True), "text"), (" ", "text")]
    return spans


def _where(backend: BackendPicture, width: int, *, wide: bool) -> list[Span]:
    """Address and engine, as much as fits."""
    spans: list[Span] = [
        (" " + fit(clean(backend.url, 60), min(len(clean(backend.url, 60)), max(width - 1, 8))), "dim")
    ]
    engine = clean(backend.engine, 60) if backend.engine else ""
    room = width - line_width(spans) - 2
    if engine and room >= _LEAST_ENGINE:
        spans.append(("  " + fit(engine, min(len(engine), room)), "dim"))
    if backend.n_ctx and wide and width - line_width(spans) >= _LEAST_ENGINE:
        spans.append((f"  ctx {context(backend.n_ctx)}", "dim"))
    return spans


def _how(view: View, situation: HeaderSituation) -> list[Span]:
    """Whether it may change anything; window, refresh interval, time of day."""
    word = "locked read-only  " if situation.locked else "read-only  "
    return [
        (word, "dim") if situation.armed_left_s is None else ("armed  ", "bad bold"),
        (duration(view.picture.window_s, short=True), "text"),
        (" window  ", "dim"),
        (f"{view.interval_s:g}s", "text"),
        (f"  {clock(situation.wall)} ", "dim"),
    ]


# What a terminal below 80x24 gets: the state, the cause, the key figures, and the size that is needed.


class SmallNotice(LinesWidget):
    """The whole screen of a small terminal."""

    def show(self, view: View, situation: HeaderSituation) -> None:
        """Draw this view."""
        self.set_lines(small_lines(view, situation, self.app.size.width, self.app.size.height))


def small_lines(view: View, situation: HeaderSituation, width: int, height: int) -> list[Line]:
    """State, cause, figures, and what to do."""
    backend = view.picture.backend
    acceptance = backend.speculation.acceptance.window
    lines: list[Line] = [tuple(state_line(view, situation))]
    trial = view.picture.trial
    if trial is not None:
        tone = "accent" if trial.alive else "warn bold"
        lines += [((text, tone),) for text in wrap(clean(trial.words, 200), width, 2)]
    loud = trouble(view)
    if active := view.picture.alerts.active:
        loud = clean(view.picture.alerts.cause, 400), ROLES[worst(active)]
    if loud is not None:
        lines += [((text, f"{loud[1]} bold"),) for text in wrap(loud[0], width, 3)]
    lines += [
        (("acceptance ", "dim"), *figure(acceptance, percent(acceptance.value, 1), "", "acceptance")),
        (("prefill    ", "dim"), *figure(backend.prefill, rate(backend.prefill.value), "tok/s", "prefill")),
        (("decode     ", "dim"), *figure(backend.decode, rate(backend.decode.value), "tok/s", "decode")),
        (("warnings   ", "dim"), (compact(all_warnings(view.picture.log)), "text")),
    ]
    needs = f"needs {MINIMUM_WIDTH}x{MINIMUM_HEIGHT}, this terminal is {width}x{height}"
    return [*lines[: max(height - 1, 1)], ((fit(needs, width), "warn"),)]


# The footer: the keys worth knowing, from the registry.

_FIRST = {
    FooterScreen.OVERVIEW: "panels",
    FooterScreen.PROXY: "row",
    FooterScreen.TUNE: "setting",
    FooterScreen.INCIDENTS: "alert",
    FooterScreen.SPECULATION: "row",
    FooterScreen.TUNER: "boot",
}


class Footer(LinesWidget):
    """One line of keys of one screen; those that do not fit are left out from the end."""

    def __init__(self, *, id: str, place: FooterScreen = FooterScreen.OVERVIEW) -> None:  # noqa: A002 the name is Textual's
        super().__init__(id=id)
        self._place = place
        self.keys = DEFAULT_KEYS

    def redraw(self) -> None:
        """Lay the keys out for the present width."""
        self.set_lines([footer_line(self.size.width, self._place, self.keys)])

    async def on_click(self, event: events.Click) -> None:
        """Do what the key under the mouse does."""
        shown, end = _fitting(self.size.width, self._place, self.keys), 0
        for at, span in enumerate(self.lines[0]):
            end += line_width((span,))
            if event.x < end:
                # A key and its word are two spans; the first two stand for the keys of movement.
                if at > 1:
                    await self.app.run_action(shown[at // 2 - 1][0].handler)
                return


def footer_line(width: int, place: FooterScreen = FooterScreen.OVERVIEW, keys: KeyTable = DEFAULT_KEYS) -> Line:
    """`1-9 panels  ? help  …`."""
    return _line(_fitting(width, place, keys), place, keys)


def _fitting(width: int, place: FooterScreen, keys: KeyTable) -> list[tuple[Action, str]]:
    """The actions for which the footer has room, with their words."""
    shown = [(action, label) for action in keys.actions if (label := action.label(place)) is not None]
    while True:
        fitting = [(action, label.text) for action, label in shown]
        if line_width(_line(fitting, place, keys)) <= width or not shown:
            return fitting
        least = max(range(len(shown)), key=lambda i: (shown[i][1].rank, i))
        del shown[least]


def _line(actions: list[tuple[Action, str]], place: FooterScreen, keys: KeyTable) -> Line:
    first = f"{keys['panel.acceptance']}-{keys['panel.gain']}" if place is FooterScreen.OVERVIEW else keys.arrows
    spans: list[Span] = [(f" {first}", "accent"), (f" {_FIRST[place]}", "dim")]
    for action, text in actions:
        shown = keys[action.id] + (f"/{keys['slower']}" if action.id == "faster" else "")
        spans += [("  " + shown, "accent"), (" " + text, "dim")]
    return tuple(spans)
