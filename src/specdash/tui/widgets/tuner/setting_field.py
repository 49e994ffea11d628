"""The setting that is edited, in its row: the field's place, what may stand in it, the values to choose from, and what
is wrong with what was typed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct, field

from specdash.core.env_edit import key_help, listed_values, parameter_of
from specdash.core.errors import InputError
from specdash.core.speculation import NO_SPECULATION, spec_type
from specdash.system.text import clean
from specdash.tui.layout import Rect
from specdash.tui.spans import fit, wrap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.core.changes import Change
    from specdash.tui.spans import Line

_INDENT = "    "


class SettingField(Struct):
    """What is known of the field. The value wanted before it was opened is the row's, and stays so until another one is
    taken.

    A value that may be several of those listed (`several`) is put together from marks.
    """

    row: Change
    text: str = ""
    problem: str = ""
    marks: list[str] | None = None
    """The marked values, None as long as no mark was changed."""
    spot: Rect | None = None
    """Where the input stands in the table that draws the row."""
    _at: int | None = None
    _top: int = 0
    _options: list[int | None] = field(default_factory=list)
    """Which of `shown` stands on each line of the block."""

    @property
    def listed(self) -> Mapping[str, str]:
        """The values to choose from, with what each does; none where the value is typed."""
        return listed_values(self.row.role, self.row.key, self.row.after or self.row.before or "")

    @property
    def several(self) -> bool:
        """Whether the value may be several of those listed."""
        return any(map(spec_type, self.listed))

    @property
    def shown(self) -> list[str]:
        """The listed values that what was typed last leaves: first those that have it in their name."""
        wanted = self.text.rpartition(",")[2].strip().lower()
        fitting = [value for value, meaning in self.listed.items() if wanted in f"{value} {meaning}".lower()]
        return sorted(fitting, key=lambda value: (value != wanted, wanted not in value))

    @property
    def at(self) -> int:
        """Which of `shown` is the selected one; at first it is the wanted value."""
        shown = self.shown
        if self._at is None and not self.text:
            wanted = self._parts(self.row.after) or self._default
            return next((i for i, value in enumerate(shown) if value in wanted), 0)
        return min(max(self._at or 0, 0), max(len(shown) - 1, 0))

    @property
    def value(self) -> str:
        """What enter takes: what is marked or selected, and what was typed where that is none of the values listed."""
        shown = self.shown
        if "," in self.text or not (shown or (self.marks and not self.text)):
            return self.text.strip()
        if self.marks is not None:
            return ",".join(value for value in self.listed if value in self.marks) or NO_SPECULATION
        if self._at is None and not self.text and self.row.after is not None:
            return self.row.after
        return shown[self.at]

    def typed(self, text: str) -> None:
        """Take what stands in the field now."""
        if text != self.text:
            self.text, self.problem, self._at = text, "", None

    def move(self, lines: int) -> None:
        """Select another of the values."""
        self._at, self.problem = min(max(self.at + lines, 0), len(self.shown) - 1), ""

    def select(self, line: int) -> bool:
        """Select the value on a line of the row's block; whether there is one."""
        if not 0 <= line < len(self._options) or (at := self._options[line]) is None:
            return False
        self.move(at - self.at)
        return True

    def mark(self) -> None:
        """Add the selected value, or take it out. What is no spec type stands alone."""
        if not self.several or not self.shown:
            return
        value = self.shown[self.at]
        marks = self._marked
        if value in marks:
            marks = [mark for mark in marks if mark != value]
        elif spec_type(value) is None:
            marks = [value]
        else:
            marks = [*(mark for mark in marks if spec_type(mark) is not None), value]
        self._at = list(self.listed).index(value)
        self.text, self.problem, self.marks = "", "", marks

    def lines(self, width: int, height: int, label: str) -> list[Line]:
        """The row, which begins with `label`, and what stands below it, in at most `height` lines. The input's place is
        in the first line (`spot`)."""
        self.spot = Rect(2 + len(label), 0, max(width - 3 - len(label), 8), 1)
        head: list[Line] = [((">" + ("*" if self.row.pending else " "), "accent bold"), (label, "text bold"))]
        below = [(clean(self.problem, 600), "bad bold"), *self._about]
        head += [((_INDENT + part, role),) for text, role in below if text for part in wrap(text, width - 5, 3)]
        shown, at = self.shown, self.at
        options = [self._option(value, i == at, width) for i, value in enumerate(shown)]
        room = height - len(head) - (len(options[at]) - 1 if options else 0)
        self._top = max(min(self._top, at, len(shown) - room), at - room + 1, 0)
        seen = [(i, line) for i in range(self._top, min(self._top + room, len(shown))) for line in options[i]]
        self._options = [*(None for _ in head), *(i for i, _ in seen)]
        return [*head, *(line for _, line in seen)][:height]

    @property
    def _marked(self) -> list[str]:
        return self._parts(self.row.after) if self.marks is None else self.marks

    @property
    def _default(self) -> list[str]:
        described = key_help(self.row.key)
        return self._parts(described.default if described is not None else None)

    @property
    def _about(self) -> list[tuple[str, str]]:
        described = key_help(self.row.key)
        if described is None:
            return [("not in the catalogue: handed on as it is", "warn")]
        default = "the engine's own default" if described.default in (None, "") else f"default {described.default}"
        place = f"{self.at + 1} of {len(self.shown)}" if self.shown else "as typed"
        facts = f"enter takes {self.value} · {place}" if self.listed else f"{described.values} · {default}"
        if self.problem:
            return [] if self.listed else [(clean(facts, 300), "dim")]
        return [(clean(described.meaning, 300), "text"), (clean(facts, 300), "dim")]

    def _option(self, value: str, selected: bool, width: int) -> list[Line]:
        """The line of a listed value; two for the selected one, where what it does needs them."""
        wide = max(map(len, self.listed))
        track = " track" if selected else ""
        name = f"[{'x' if value in self._marked else ' '}] {value:<{wide}} " if self.several else f"{value:<{wide}} "
        now = "now " if value in self._parts(self.row.before) else "    "
        room = width - len(_INDENT) - len(name) - len(now) - 1
        default = " (default)" if value in self._default else ""
        first, *rest = wrap(self.listed[value] + default, room, 2 if selected else 1)
        line = (
            ((f"{_INDENT[:-2]}> " if selected else _INDENT) + name, "text" + track),
            (now, "accent" + track),
            (fit(first, room + 1), "dim" + track),
        )
        return [line, *(((fit(" " * (width - room - 1) + part, width), "dim" + track),) for part in rest)]

    def _parts(self, value: str | None) -> list[str]:
        """The listed values that a value means, however it is written."""
        declared = parameter_of(self.row.role, self.row.key)
        if declared is None or not value:
            return []
        if self.several:
            known = (item.name if (item := spec_type(part)) else part.strip().lower() for part in value.split(","))
            return [part for part in known if part in self.listed]
        with suppress(InputError):
            meant = declared.parse(value, self.row.key)
            return [name for name in self.listed if declared.parse(name, self.row.key) == meant]
        return []
