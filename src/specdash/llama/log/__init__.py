"""llama-server's log: every kind of line as data, and the parser that reads it.

A new kind of line is one more `LineClass` in `request_lines`, `server_lines` or `trouble_lines`; nothing else needs to
change. Where two patterns fit the same line, the first class in table order wins.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from specdash.llama.log.forms import ERROR, WARNING, Grammar, LineClass
from specdash.llama.log.request_lines import MEMORY_LINES, REQUEST_LINES, SPECULATION_LINES
from specdash.llama.log.server_lines import SERVER_LINES
from specdash.llama.log.trouble_lines import TROUBLE_LINES

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN = LineClass("unknown", "another line")
OTHER_ERROR = LineClass(
    "other_error",
    "an error that specdash does not know",
    severity=ERROR,
    note="Counted by the level letter E. The log has its text.",
)
OTHER_WARNING = LineClass(
    "other_warning",
    "a warning that specdash does not know",
    severity=WARNING,
    note="Counted by the level letter W. The log has its text.",
)

TABLE: tuple[LineClass, ...] = REQUEST_LINES + SPECULATION_LINES + MEMORY_LINES + TROUBLE_LINES + SERVER_LINES
LINE_CLASSES: Mapping[str, LineClass] = MappingProxyType(
    {line_class.id: line_class for line_class in (*TABLE, OTHER_ERROR, OTHER_WARNING, UNKNOWN)}
)
"""Every line class by its id."""
WARNING_CLASSES: Mapping[str, LineClass] = MappingProxyType(
    {name: line_class for name, line_class in LINE_CLASSES.items() if line_class.severity is not None}
)
"""The classes whose lines are counted, by id."""
GRAMMAR = Grammar(TABLE, {"": UNKNOWN, "E": OTHER_ERROR, "W": OTHER_WARNING})


def warning_class(name: str) -> LineClass:
    """The class of a counted warning; one that another version counted under a name of its own is another warning."""
    return WARNING_CLASSES.get(name, OTHER_WARNING)
