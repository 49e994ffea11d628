"""A line of input, at the bottom or in a row. Imported on first use: Textual's Input is not cheap."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.binding import Binding
from textual.widgets import Input

from specdash.tui.action_table import page_bindings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from textual.binding import BindingType


_CLOSING = page_bindings({"back": "cancel"})
_OWN = {
    key for binding in (*Input.BINDINGS, *_CLOSING) if isinstance(binding, Binding) for key in binding.key.split(",")
}
"""Keys that edit the line, or call it off."""


class TextPrompt(Input):
    """Enter answers with the text, escape with None. `keys` are done in place of what they mean in a text."""

    BINDINGS: ClassVar[list[BindingType]] = _CLOSING
    DEFAULT_CSS = """
    TextPrompt { height: 1; border: none; padding: 0 1; }
    Screen > TextPrompt { dock: bottom; }
    """

    def __init__(
        self,
        label: str,
        text: str,
        done: Callable[[str | None], None],
        *,
        secret: bool = False,
        keys: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        super().__init__(
            value=text, placeholder=label, compact=True, select_on_focus=True, password=secret, id="prompt"
        )
        self.cursor_blink = False
        self._done = done
        self._keys = keys or {}
        self.last_key: events.Key | None = None

    async def on_key(self, event: events.Key) -> None:
        """Do what a bound key does at once: Textual would pass it on to the app first, and run it only after the
        letters that were read together with it."""
        self.last_key = event
        if event.key in self._keys:
            event.stop()
            event.prevent_default()
            self._keys[event.key]()
        bound = None if event.is_printable else self.screen.active_bindings.get(event.key)
        if bound is not None and bound.node is self:
            event.stop()
            event.prevent_default()
            await self.run_action(bound.binding.action)

    def pass_on(self, event: events.Key) -> bool:
        """Take a key that was typed before this had the focus; whether it was one."""
        if self.last_key is event:
            return False
        if event.is_printable or event.key in self._keys or event.key in _OWN:
            self.post_message(events.Key(event.key, event.character))
        return True

    async def action_submit(self) -> None:
        """Enter: answer at once, so that a key typed right behind it is not taken for part of the text."""
        self._done(self.value)

    def action_cancel(self) -> None:
        """Escape."""
        self._done(None)
