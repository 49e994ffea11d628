"""What a row of the table of `start_failures` is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MOST_GENERAL = "other_exit"
"""The row that the last error line of a server that ended falls into, where no other does."""


class Ends(StrEnum):
    """What becomes of the server."""

    EXIT = "exit"
    """It ends by itself, nearly always with exit code 1."""
    ABORT = "abort"
    """It is ended by a signal of its own making (SIGABRT), or by one of the system's."""
    WITHOUT = "runs without speculation"
    REQUEST = "fails requests"
    """It goes on; a request fails."""


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One way to fail.

    `patterns` are regular expressions; all of them must fit a line each. What their named groups capture fills the
    braces of `because` (a clause: "it ended because ...") and of `fix`. `classes` are line classes of
    `llama.log_grammar` that stand for it where no row's patterns fit. A row with neither is found by other means: by
    the parameters (`unspoken`) or by the exit code.
    """

    id: str
    what: str
    """What it is, in words: for lists and documents."""
    ends: Ends
    because: str
    fix: str
    patterns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
