"""The one field in which anything is typed, on a real terminal: keys that arrive together are taken in their order."""

import sys

import pytest

from support.pseudo_terminal import PseudoTerminal

ASKS = """
import sys
from textual.app import App
from textual.widgets import Static
from specdash.tui.widgets.prompt import TextPrompt

class Asks(App):
    def compose(self):
        yield Static("")
        yield TextPrompt("label", sys.argv[1], self.exit)

    def on_mount(self):
        self.query_one(TextPrompt).focus()

    def on_descendant_focus(self):
        self.query_one(Static).update("TYPE")

print("ANSWER", repr(Asks().run()))
"""
BACKSPACE, LEFT, HOME, END, DELETE, ENTER, ESCAPE = (
    b"\x7f", b"\x1b[D", b"\x1b[H", b"\x1b[F", b"\x1b[3~", b"\r", b"\x1b",
)  # fmt: skip


@pytest.mark.parametrize(
    ("value", "keys", "answer"),
    [
        ("", b"one" + HOME + b"x" + END + b"y" + LEFT + LEFT + DELETE + b"z" + ENTER, "xonzy"),
        ("4096", END + BACKSPACE + BACKSPACE + b"12" + ENTER + b"9", "4012"),
    ],
)
def test_keys_of_one_write_are_taken_in_their_order(value: str, keys: bytes, answer: str) -> None:
    with PseudoTerminal([sys.executable, "-c", ASKS, value]) as terminal:
        terminal.wait_for("TYPE")
        terminal.press(keys)
        terminal.wait_for(f"ANSWER {answer!r}")
