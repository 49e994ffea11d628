"""The help page: every action of the registry, and what the focused panel shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.screen import ModalScreen

from specdash.tui.actions import GROUPS, Action, in_group
from specdash.tui.formatting import fit
from specdash.tui.layout import PANELS, PanelSpec
from specdash.tui.spans import BLANK, Line, wrap
from specdash.tui.widgets.panel import LinesWidget

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from specdash.tui.spans import Glyphs
    from specdash.tui.themes import Palette

_KEYS_WIDTH = 19
_TWO_COLUMNS = 156


class HelpPage(LinesWidget):
    """The page's text, scrolled by whole lines."""

    def __init__(self, palette: Palette, glyphs: Glyphs, focused: PanelSpec | None) -> None:
        super().__init__(id="help-page")
        self.palette, self.glyphs = palette, glyphs
        self.focused_panel = focused
        self.top = 0

    def redraw(self) -> None:
        """Lay out for the present size."""
        width, height = self.size
        lines = help_lines(width, self.focused_panel)
        self.top = max(min(self.top, len(lines) - height), 0)
        below = len(lines) - self.top - height
        visible = lines[self.top : self.top + height]
        if below > 0 and visible:
            visible[-1] = ((fit(f"  {below + 1} more lines: ↓ or j", width), "accent"),)
        self.set_lines(visible)

    def scroll_lines(self, lines: int) -> None:
        """Move by lines."""
        self.top = max(self.top + lines, 0)
        self.redraw()


class HelpScreen(ModalScreen[None]):
    """Opened by `?`, closed by almost anything."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,h,enter", "dismiss", "Close", show=False),
        Binding("down,j", "scroll(1)", "Down", show=False),
        Binding("up,k", "scroll(-1)", "Up", show=False),
        Binding("pagedown,space", "scroll(15)", "Page down", show=False),
        Binding("pageup", "scroll(-15)", "Page up", show=False),
    ]
    CSS = "HelpScreen { background: $background; } #help-page { width: 1fr; height: 1fr; margin: 1 2; }"

    def __init__(self, palette: Palette, glyphs: Glyphs, focused: PanelSpec | None) -> None:
        super().__init__()
        self._page = HelpPage(palette, glyphs, focused)

    def compose(self) -> ComposeResult:
        """One page."""
        yield self._page

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self._page.scroll_lines(lines)

    async def action_dismiss(self, result: None = None) -> None:
        """Close."""
        self.dismiss(result)


def help_lines(width: int, focused: PanelSpec | None) -> list[Line]:
    """The page: the focused panel first, then the groups, side by side where there is room."""
    lines: list[Line] = [(("specdash", "accent bold"), ("  keys and panels; esc closes", "dim")), BLANK]
    if focused is not None:
        lines.append(((f"{focused.title} (focused)", "text bold"),))
        lines += [((text, "text"),) for text in wrap(focused.about, width, 3)] + [BLANK]
    blocks = [_group_lines(group) for group in GROUPS]
    if width < _TWO_COLUMNS:
        for block in blocks:
            lines += [*block, BLANK]
    else:
        half = width // 2
        left, right = _joined(blocks[:3]), _joined(blocks[3:])
        for y in range(max(len(left), len(right))):
            first = left[y] if y < len(left) else BLANK
            lines.append((*_padded(first, half), *(right[y] if y < len(right) else BLANK)))
        lines.append(BLANK)
    lines.append((("What the panels show", "text bold"),))
    for spec in PANELS.values():
        texts = wrap(spec.about, max(width - 24, 20), 3)
        for index, text in enumerate(texts):
            name = f"{spec.digit} {spec.title}" if index == 0 else ""
            lines.append(((fit(name, 22) + "  ", "accent" if index == 0 else "text"), (text, "text")))
    return lines


def _joined(blocks: list[list[Line]]) -> list[Line]:
    return [line for block in blocks for line in (*block, BLANK)]


def _group_lines(group: str) -> list[Line]:
    return [((group, "text bold"),), *(_action_line(action) for action in in_group(group))]


def _action_line(action: Action) -> Line:
    return ((fit(action.shown_keys, _KEYS_WIDTH) + "  ", "accent"), (action.description, "text"))


def _padded(line: Line, width: int) -> Line:
    text_width = sum(len(text) for text, _ in line)
    return (*line, (" " * max(width - text_width, 1), "text"))
