"""The presets: named sets of settings to choose from. Choosing makes their values pending; nothing is applied yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.screen import ModalScreen

from specdash.tui.formatting import clean
from specdash.tui.spans import BLANK, Line, wrap
from specdash.tui.widgets.panel import LinesWidget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from specdash.control.profiles import Profile
    from specdash.tui.spans import Glyphs
    from specdash.tui.themes import Palette


class PresetsPage(LinesWidget):
    """The list, and what the selected one sets."""

    def __init__(self, palette: Palette, glyphs: Glyphs, profiles: Sequence[Profile]) -> None:
        super().__init__(id="presets-page")
        self.palette, self.glyphs = palette, glyphs
        self.profiles = tuple(profiles)
        self.index = 0

    def redraw(self) -> None:
        """Lay out for the present size and selection."""
        width, height = self.size
        self.set_lines(preset_lines(self.profiles, self.index, width)[:height])


class PresetsScreen(ModalScreen["Profile | None"]):
    """Enter takes the selected one, escape none."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "take", "Take", show=False),
        Binding("escape,q,o", "take(False)", "Close", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("up,k", "move(-1)", "Up", show=False),
    ]
    CSS = "PresetsScreen { background: $background; } #presets-page { width: 1fr; height: 1fr; margin: 1 2; }"

    def __init__(self, palette: Palette, glyphs: Glyphs, profiles: Sequence[Profile]) -> None:
        super().__init__()
        self.page = PresetsPage(palette, glyphs, profiles)

    def compose(self) -> ComposeResult:
        """One page."""
        yield self.page

    def action_move(self, lines: int) -> None:
        """Select another."""
        self.page.index = min(max(self.page.index + lines, 0), max(len(self.page.profiles) - 1, 0))
        self.page.redraw()

    def action_take(self, chosen: bool = True) -> None:
        """Close with the selected one, or with none."""
        page = self.page
        self.dismiss(page.profiles[page.index] if chosen and page.profiles else None)


def preset_lines(profiles: Sequence[Profile], index: int, width: int) -> list[Line]:
    """Names with their summaries, then the values and notes of the selected one."""
    lines: list[Line] = [(("Presets", "accent bold"), ("  enter takes one, esc none", "dim")), BLANK]
    for at, one in enumerate(profiles):
        mark, role = (("> ", "accent bold"), "text bold") if at == index else (("  ", "text"), "text")
        lines.append((mark, (f"{clean(one.name, 28):<28}  ", role), (clean(one.summary, max(width - 34, 10)), "dim")))
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
