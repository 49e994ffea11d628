"""One line of input at the bottom of the screen. Imported on first use: Textual's Input is not cheap to load."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import events
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
        self.last_key: events.Key | None = None

    async def on_key(self, event: events.Key) -> None:
        """Do what a bound key does at once: Textual would pass it on to the app first, and run it only after the
        letters that were read together with it."""
        self.last_key = event
        bound = [] if event.is_printable else self._bindings.key_to_bindings.get(event.key, [])
        for binding in bound[:1]:
            event.stop()
            event.prevent_default()
            await self.run_action(binding.action)

    def pass_on(self, event: events.Key) -> bool:
        """Take a key that was typed before this had the focus; whether it was one."""
        if self.last_key is event:
            return False
        if event.is_printable or event.key in self._bindings.key_to_bindings:
            self.post_message(events.Key(event.key, event.character))
        return True

    async def action_submit(self) -> None:
        """Enter: answer at once, so that a key typed right behind it is not taken for part of the text."""
        self._done(self.value)

    def action_cancel(self) -> None:
        """Escape."""
        self._done(None)
