"""One line of input at the bottom of the screen. Imported on first use: Textual's Input is not cheap to load."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.widgets import Input

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.binding import BindingType


class Prompt(Input):
    """Enter answers with the text, escape with None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", show=False)]
    DEFAULT_CSS = "Prompt { dock: bottom; height: 1; border: none; padding: 0 1; }"

    def __init__(self, label: str, text: str, done: Callable[[str | None], None], *, secret: bool = False) -> None:
        super().__init__(
            value=text, placeholder=label, compact=True, select_on_focus=True, password=secret, id="prompt"
        )
        self.cursor_blink = False
        self._done = done

    async def action_submit(self) -> None:
        """Enter: answer at once, so that a key typed right behind it is not taken for part of the text."""
        self._done(self.value)

    def action_cancel(self) -> None:
        """Escape."""
        self._done(None)
