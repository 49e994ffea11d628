"""The base of the pages that stand above a screen for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from textual.screen import ModalScreen

from specdash.system.text import clean
from specdash.tui.action_table import DEFAULT_KEYS, GROUPS, PANEL_ACTIONS, FooterScreen, KeyTable, page_bindings
from specdash.tui.layout import PANELS
from specdash.tui.spans import BLANK, Line, fit, wrap
from specdash.tui.widgets.panel import LinesWidget, TitledPanel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from specdash.control.profiles import Profile
    from specdash.tui.action_table import Action
    from specdash.tui.app import Dashboard
    from specdash.tui.spans import Palette


class Painter(Protocol):
    """What decides how a page is drawn: the dashboard, or a program of one page."""

    @property
    def palette(self) -> Palette:
        """The colours."""

    @property
    def keys(self) -> KeyTable:
        """The keys."""


Result = TypeVar("Result")
CLOSING = {"back": "leave", "quit": "leave"}
"""What leaves a page: the actions whose keys do it, and what they do there."""
SCROLLING = {
    "move.down": "scroll(1)",
    "move.up": "scroll(-1)",
    "move.page_down": "scroll(15)",
    "move.page_up": "scroll(-15)",
}
"""What moves a page that may be longer than the screen."""
MOVING = {"move.down": "move(1)", "move.up": "move(-1)"}
"""What moves a selection."""


class ModalPage(LinesWidget):
    """The text of a `PageScreen`, from the line `top` on."""

    def __init__(self, screen: PageScreen[Result]) -> None:
        super().__init__(id="page")
        self._page_screen = screen
        self.top = 0

    def redraw(self) -> None:
        """Lay out for the present size and moment."""
        width, height = self.size
        lines = self._page_screen.lines(width, height)
        self.top = max(min(self.top, len(lines) - height), 0)
        below = len(lines) - self.top - height
        visible = lines[self.top : self.top + height]
        if below > 0 and visible and self._page_screen.counts_the_rest:
            visible[-1] = ((fit(f"  {below + 1} more lines: {self._page_screen.keys['move.down']}", width), "accent"),)
        self.set_lines(visible)

    def on_click(self, event: events.Click) -> None:
        """Let the page do what the line stands for."""
        self._page_screen.clicked(self.top + event.y)


class PageScreen(ModalScreen[Result]):
    """A page of text with keys of its own; nothing of the screen below takes keys meanwhile."""

    DEFAULT_CSS = """
    PageScreen { background: $background; }
    PageScreen #page { width: 1fr; height: 1fr; margin: 1 2; }
    """
    counts_the_rest: ClassVar[bool] = False
    """Whether the last line says how many more there are."""

    def __init__(self, painter: Painter) -> None:
        super().__init__()
        self.page = ModalPage(self)
        self.page.palette = painter.palette
        self.keys = painter.keys

    def lines(self, width: int, height: int) -> list[Line]:
        """The whole text."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        """One page."""
        yield self.page

    def clicked(self, line: int) -> None:
        """Do what a line of the page stands for; most are to be read only."""

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.page.top = max(self.page.top + lines, 0)
        self.page.redraw()

    def action_leave(self) -> None:
        """Close without an answer."""
        self.dismiss(None)


# One question before something is done that cannot be undone: what, to which, and what it means.


class ConfirmScreen(PageScreen[bool]):
    """Enter answers yes, escape no."""

    BINDINGS: ClassVar[list[BindingType]] = page_bindings(
        {"open": "answer(True)", "back": "answer(False)", "quit": "answer(False)"}
    )

    def __init__(self, dashboard: Dashboard, title: str, notes: Sequence[str]) -> None:
        super().__init__(dashboard)
        self._title, self._notes = title, tuple(notes)

    def lines(self, width: int, height: int) -> list[Line]:
        """See `confirm_lines`."""
        return confirm_lines(self._title, self._notes, width, self.keys)

    def action_answer(self, yes: bool) -> None:
        """Close with an answer."""
        self.dismiss(yes)


def confirm_lines(title: str, notes: Sequence[str], width: int, keys: KeyTable) -> list[Line]:
    """The question, what it means, and the keys."""
    lines: list[Line] = [((part, "accent bold"),) for part in wrap(clean(title, 400), width, 3)]
    lines.append(BLANK)
    for note in notes:
        lines += [((part, "text"),) for part in wrap(clean(note, 600), width, 4)]
    return [
        *lines,
        BLANK,
        ((keys["open"], "accent"), (" do it   ", "dim"), (keys["back"], "accent"), (" leave it", "dim")),
    ]


# The presets: named sets of settings to choose from. Choosing makes their values pending; nothing is applied yet.


class PresetsScreen(PageScreen["Profile | None"]):
    """Enter takes the selected one, escape none."""

    BINDINGS: ClassVar[list[BindingType]] = page_bindings(
        {"open": "take_selected", "tune.presets": "leave"} | CLOSING | MOVING
    )

    def __init__(self, dashboard: Dashboard, profiles: Sequence[Profile]) -> None:
        super().__init__(dashboard)
        self.profiles = tuple(profiles)
        self.index = 0

    def lines(self, width: int, height: int) -> list[Line]:
        """See `preset_lines`."""
        return preset_lines(self.profiles, self.index, width, self.keys)[:height]

    def action_move(self, lines: int) -> None:
        """Select another."""
        self.index = min(max(self.index + lines, 0), max(len(self.profiles) - 1, 0))
        self.page.redraw()

    def clicked(self, line: int) -> None:
        """Select the preset in that line; the selected one is taken."""
        at = line - 2
        if at == self.index:
            self.action_take_selected()
        elif 0 <= at < len(self.profiles):
            self.index = at
            self.page.redraw()

    def action_take_selected(self) -> None:
        """Close with the selected one."""
        self.dismiss(self.profiles[self.index] if self.profiles else None)


def preset_lines(profiles: Sequence[Profile], index: int, width: int, keys: KeyTable) -> list[Line]:
    """Names with their summaries, then the values and notes of the selected one."""
    lines: list[Line] = [
        (("Presets", "accent bold"), (f"  {keys['open']} takes one, {keys['back']} none", "dim")),
        BLANK,
    ]
    for at, profile in enumerate(profiles):
        mark, role = (("> ", "accent bold"), "text bold") if at == index else (("  ", "text"), "text")
        lines.append(
            (mark, (f"{clean(profile.name, 28):<28}  ", role), (clean(profile.summary, max(width - 34, 10)), "dim"))
        )
    if not profiles:
        return [*lines, (("  none", "dim"),)]
    lines.append(BLANK)
    chosen = profiles[index]
    for service, values in chosen.values.items():
        for key, value in values.items():
            lines.append(((f"  {service:<8} ", "dim"), (f"{key:<36}", "text"), (clean(value, 60), "warn bold")))
    for note in chosen.notes:
        lines += [((f"  {part}", "dim"),) for part in wrap(clean(note, 400), width - 3, 3)]
    return lines


# The help page: every action of the registry, and what the focused panel shows.


_KEYS_WIDTH = 19
_TWO_COLUMNS = 156


class HelpScreen(PageScreen[None]):
    """Opened by `?`, closed by almost anything."""

    BINDINGS: ClassVar[list[BindingType]] = page_bindings({"help": "leave", "open": "leave"} | CLOSING | SCROLLING)
    counts_the_rest = True

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        focused = dashboard.shown.focused
        self._focused_panel = focused if isinstance(focused, TitledPanel) else None
        self._place = dashboard.shown.place

    def lines(self, width: int, height: int) -> list[Line]:
        """See `help_lines`."""
        return help_lines(width, self._focused_panel, self._place, self.keys)


def help_lines(
    width: int,
    focused: TitledPanel | None,
    place: FooterScreen = FooterScreen.OVERVIEW,
    keys: KeyTable = DEFAULT_KEYS,
) -> list[Line]:
    """The page: the focused panel with its keys, then those of the screen that is looked at, then the other groups,
    side by side where there is room."""
    lines: list[Line] = [(("specdash", "accent bold"), (f"  keys and panels; {keys['back']} closes", "dim")), BLANK]
    own = keys.of(PANEL_ACTIONS.get(focused.id or "", ())) if focused is not None else ()
    if focused is not None and (own or focused.about):
        lines.append(((f"{focused.panel_title} (focused)", "text bold"),))
        lines += [((text, "text"),) for text in wrap(focused.about, width, 3)]
        lines += [*map(_action_line, own), BLANK]
    here = [action for action in keys.on_screen(place) if action not in own]
    groups = [(group, [action for action in keys.in_group(group) if action not in (*own, *here)]) for group in GROUPS]
    blocks = [_block(group, actions) for group, actions in ((f"On this screen: {place}", here), *groups) if actions]
    if width < _TWO_COLUMNS:
        for block in blocks:
            lines += [*block, BLANK]
    else:
        half, total = width // 2, sum(map(len, blocks))
        cut = next(at for at in range(1, len(blocks) + 1) if 2 * sum(map(len, blocks[:at])) >= total)
        left, right = _joined(blocks[:cut]), _joined(blocks[cut:])
        for y in range(max(len(left), len(right))):
            first = left[y] if y < len(left) else BLANK
            lines.append((*_padded(first, half), *(right[y] if y < len(right) else BLANK)))
        lines.append(BLANK)
    lines.append((("What the panels show", "text bold"),))
    for spec in PANELS.values():
        texts = wrap(spec.about, max(width - 24, 20), 3)
        for index, text in enumerate(texts):
            name = f"{keys[f'panel.{spec.id}']} {spec.title}" if index == 0 else ""
            lines.append(((fit(name, 22) + "  ", "accent" if index == 0 else "text"), (text, "text")))
    return lines


def _joined(blocks: list[list[Line]]) -> list[Line]:
    return [line for block in blocks for line in (*block, BLANK)]


def _block(heading: str, actions: Sequence[Action]) -> list[Line]:
    return [((heading, "text bold"),), *(_action_line(action) for action in actions)]


def _action_line(action: Action) -> Line:
    return ((fit(action.shown_keys, _KEYS_WIDTH) + "  ", "accent"), (action.description, "text"))


def _padded(line: Line, width: int) -> Line:
    text_width = sum(len(text) for text, _ in line)
    return (*line, (" " * max(width - text_width, 1), "text"))
