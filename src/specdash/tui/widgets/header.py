"""The header: the server's state in words, what it runs, how the screen looks at it, and, when something is wrong,
the cause and the next step in one loud sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.core.readings import Source
from specdash.insight.picture import BackendState
from specdash.insight.speedup_picture import Paying
from specdash.tui.formatting import (
    age,
    clean,
    clock,
    context,
    count,
    decimal,
    duration,
    fit,
    interval,
    percent,
    rate,
    window,
)
from specdash.tui.spans import Glyphs, Line, Span, line_width, spread, wrap
from specdash.tui.widgets.banner import banner_line
from specdash.tui.widgets.drafting import failure_words
from specdash.tui.widgets.panel import LinesWidget
from specdash.tui.widgets.travel import Travelling, travel_badge, travel_line
from specdash.tui.widgets.trial import AWAY, is_tried, trial_line
from specdash.tui.widgets.warnings import SEVERITY_ROLES, alarming

if TYPE_CHECKING:
    from specdash.insight.picture import BackendPicture
    from specdash.tui.view import View

STATE_ROLES = {
    BackendState.LIVE: "good",
    BackendState.BUSY: "warn",
    BackendState.STALE: "warn",
    BackendState.LOADING: "accent",
    BackendState.RESTARTED: "warn",
    BackendState.DOWN: "bad",
    BackendState.UNAUTHORIZED: "bad",
    BackendState.UNKNOWN: "dim",
}
_BANNER_LINES = 3
_QUIET_LINES = 2
_WIDE = 100
_LEAST_ENGINE = 12
_TROUBLE = 60
"""So much of why nothing is recorded; the alert and the incidents screen have all of it."""
_SILENT = (BackendState.DOWN, BackendState.STALE, BackendState.RESTARTED)
_LAST_WORDS_S = 600.0


@dataclass(frozen=True, slots=True)
class Situation:
    """What the header says that no picture knows: the time of day, for how long the display has been frozen, whether
    this is the demo, for how long it stays armed, and whether it can never be."""

    wall: float
    paused_s: float | None = None
    demo: bool = False
    armed_left_s: float | None = None
    locked: bool = False
    cut_short: bool = False
    """An apply was cut short, and waits to be finished or rolled back."""
    recording_trouble: str = ""
    """What is wrong with the recording, empty when nothing is."""
    on_incidents: bool = False
    """The incidents screen is what is looked at: its key needs no hint."""
    on_speculation: bool = False
    """The speculation screen is what is looked at: it says itself whether the server speculates."""
    travel: Travelling | None = None
    """Where in time the screen is, None when it is live."""
    opening: str | None = None
    """The moment of the record that is being opened, in words, empty for its end; None when none is."""
    tuning: bool = False
    """The tuner's screen is what is looked at, and a run goes on: it says itself what is on trial, and that the server
    is away is its doing."""


class Header(LinesWidget):
    """Two lines, one for the likely cause while an alert is active, and up to three for what else is to be said."""

    def show(self, view: View, situation: Situation) -> None:
        """Draw this view; the height follows the content."""
        self.glyphs = view.glyphs
        lines = header_lines(view, situation, self.size.width or self.app.size.width)
        if self.styles.height is None or self.styles.height.value != len(lines):
            self.styles.height = len(lines)
        self.set_lines(lines)


def header_lines(view: View, situation: Situation, width: int) -> list[Line]:
    """The whole header."""
    backend = view.picture.backend
    tags, how = _tags(view, situation, width), _how(view, situation)
    lines = [
        spread(_what_runs(view, situation, width - line_width(tags) - 1), tags, width),
        spread(_where(backend, width - line_width(how) - 1, wide=width >= _WIDE), how, width),
    ]
    travel = situation.travel
    if travel is not None:
        lines.append(travel_line(travel, view.picture.window_s, width, view.glyphs))
    trial = view.picture.trial
    if trial is not None and not (situation.tuning and trial.alive):
        lines.append(trial_line(trial, situation.wall, width, view.glyphs))
    if situation.tuning and trial is None and backend.state in AWAY:
        return lines
    banner = banner_line(view, width, on_incidents=situation.on_incidents)
    if banner is not None:
        lines.append(banner)
    loud = trouble(view, on_speculation=situation.on_speculation)
    if loud is not None and banner is not None:
        # The banner has the cause; the state's own words stand below it in a quiet voice, where they say more.
        if backend.state is not BackendState.LIVE:
            lines += [((" " + fit(part, width - 1), loud[1]),) for part in wrap(loud[0], width - 2, _QUIET_LINES)]
    elif loud is not None:
        text, role = loud
        lines += [((" " + fit(part, width - 1), f"banner.{role}"),) for part in wrap(text, width - 2, _BANNER_LINES)]
    return lines


def state_line(view: View, situation: Situation) -> list[Span]:
    """The one state: the server's, while what is shown is now; else that it is not, and in plain words how the server
    was."""
    backend, glyphs, travel = view.picture.backend, view.glyphs, situation.travel
    if travel is not None:
        badge: Span = (travel_badge(travel, glyphs), "banner.accent")
    elif situation.opening is not None:
        badge = (f" {glyphs.loading} LOADING RECORD {situation.opening}".rstrip() + " ", "banner.accent")
    elif situation.paused_s is not None:
        badge = (f" PAUSED {age(situation.paused_s)} ", "banner.warn")
    else:
        state = f" {state_glyph(backend.state, glyphs)} {_state_words(backend, view)} "
        return [(state, f"banner.{_state_role(view)}"), (" ", "text")]
    role = _state_role(view)
    return [badge, (f" was {_state_words(backend, view).lower()} ", "dim" if role == "good" else role), (" ", "text")]


def _state_words(backend: BackendPicture, view: View) -> str:
    """`LIVE`, `STALE 12s`, `LOADING 43 %`."""
    word = backend.state.value.upper()
    if backend.state is BackendState.LOADING and backend.loading_progress is not None:
        return f"{word} {percent(backend.loading_progress)}"
    if backend.state is BackendState.STALE:
        sources = [view.source(source) for source in (Source.HEALTH, Source.METRICS, Source.SLOTS)]
        ages = [entry.age_s for entry in sources if entry is not None and entry.age_s is not None]
        return f"{word} {age(min(ages))}" if ages else word
    return word


def _state_role(view: View) -> str:
    """The colour of the state; a restart of a trial is no alarm."""
    state = view.picture.backend.state
    return "accent" if is_tried(view) and state in AWAY else STATE_ROLES[state]


def state_glyph(state: BackendState, glyphs: Glyphs) -> str:
    """A shape per state, so that colour is never the only difference."""
    shapes = {
        BackendState.LIVE: glyphs.live,
        BackendState.BUSY: glyphs.busy,
        BackendState.STALE: glyphs.stale,
        BackendState.LOADING: glyphs.loading,
        BackendState.RESTARTED: glyphs.restarted,
        BackendState.DOWN: glyphs.down,
        BackendState.UNAUTHORIZED: glyphs.down,
    }
    return shapes.get(state, glyphs.unknown)


def trouble(view: View, *, on_speculation: bool = False) -> tuple[str, str] | None:
    """The one thing to say loudly, with its role: the server's state, else that it runs without the speculation that
    was asked for, else a recent error or storm in the log. None of it is said of settings that are only tried."""
    backend = view.picture.backend
    if is_tried(view) and backend.state in (*AWAY, BackendState.LIVE):
        return None
    if backend.state is not BackendState.LIVE:
        role = STATE_ROLES[backend.state]
        text = " ".join(filter(None, (backend.reason, _last_words(view))))
        return (clean(text), "accent" if role == "dim" else role) if text else None
    failure = failure_words(view.picture)
    if failure is not None and not on_speculation:
        return failure, "warn"
    warning = alarming(view.picture.log.warnings)
    if warning is None:
        return None
    text = f"{warning.title}: {count(warning.total)} lines, {rate(warning.per_minute)} a minute. {warning.note}"
    role = SEVERITY_ROLES.get(warning.severity, "warn")
    return clean(text), "warn" if role == "dim" else role


def _last_words(view: View) -> str:
    """The last error that a server wrote before it fell silent: most often the cause."""
    if view.picture.backend.state not in _SILENT:
        return ""
    errors = [w for w in view.picture.log.warnings if w.severity == "error" and w.last_age_s <= _LAST_WORDS_S]
    last = min(errors, key=lambda warning: warning.last_age_s, default=None)
    return f"Last error in the log, {age(last.last_age_s)} ago: {last.sample or last.title}" if last else ""


def _what_runs(view: View, situation: Situation, width: int) -> list[Span]:
    """State, model and speculation, as much as fits; what the tags on the right need has been taken off `width`."""
    backend = view.picture.backend
    spans = state_line(view, situation)
    model = clean(backend.model or "--", 60)
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
    told = [(key, value) for key, value in speculation.parameters if key != "spec-type"]
    return spans + [(f"{_short(key)} {clean(value.rsplit('/', 1)[-1], 24)}", "dim") for key, value in told]


def _short(key: str) -> str:
    """`spec-draft-n-max` as `n-max`: beside the spec type, the prefix says nothing new."""
    return clean(key, 40).removeprefix("spec-").removeprefix("draft-")


def _tags(view: View, situation: Situation, width: int) -> list[Span]:
    spans: list[Span] = []
    if situation.cut_short:
        spans += [(" APPLY CUT SHORT: e ", "banner.bad"), ("  ", "text")]
    if situation.armed_left_s is not None:
        spans += [(f" ARMED {situation.armed_left_s:.0f}s ", "banner.bad"), ("  ", "text")]
    if situation.demo:
        spans.append(("demo  ", "accent"))
    if situation.recording_trouble:
        what, _, why = clean(situation.recording_trouble, _TROUBLE).partition(": ")
        spans.append((f"{what}: {why}  " if why and width >= _WIDE else f"{what}  ", "warn"))
    speedup = view.picture.speedup
    if speedup.verdict is Paying.HURTING and not is_tried(view):
        spans += [(f" HURTING x{decimal(speedup.value)} ", "banner.bad"), ("  ", "text")]
    uptime = view.picture.backend.uptime_s
    if uptime is not None:
        spans += [("up ", "dim"), (duration(uptime), "text"), (" ", "text")]
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


def _how(view: View, situation: Situation) -> list[Span]:
    """Whether it may change anything; window, refresh interval, time of day."""
    word = "locked read-only  " if situation.locked else "read-only  "
    return [
        (word, "dim") if situation.armed_left_s is None else ("armed  ", "bad bold"),
        (window(view.picture.window_s), "text"),
        (" window  ", "dim"),
        (interval(view.interval_s), "text"),
        (f"  {clock(situation.wall)} ", "dim"),
    ]
