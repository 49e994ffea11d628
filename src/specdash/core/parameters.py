"""What a parameter of the backend is, and how its text is read. The catalogue itself is `core.parameter_catalogue`.

One parameter is one setting of the engine, or of specdash around it. It can be set by an env key of specdash's, by the
`LLAMA_ARG_*` variable of llama.cpp, or by a flag inside `LLAMA_EXTRA_ARGS`; it is rendered as a llama-server flag or as
an attribute of `xllamacpp.CommonParams`.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from specdash.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

Scalar = bool | int | float | str


class ValueKind(StrEnum):
    """How the text of a value is read."""

    INTEGER = "whole number"
    NUMBER = "number"
    TEXT = "text"
    PATH = "path"
    SWITCH = "on or off"


TRUE_WORDS = ("1", "true", "on", "yes", "enabled")
FALSE_WORDS = ("0", "false", "off", "no", "disabled")
"""What stands for on and off, in any case."""


class Parameter(Struct, frozen=True, eq=False):
    """One parameter.

    `name` is its llama-server flag without dashes, or, for what only specdash reads, the env key in lower case.
    `keys` are the env keys that set it, the one that wins first. `default` is what holds while it is unset, None
    where the engine decides by itself. `attribute` is the dotted path in `xllamacpp.CommonParams`, None where that
    engine has no such parameter; `inverted` says that the attribute has the opposite sense.
    """

    name: str
    kind: ValueKind
    meaning: str
    keys: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    off_flags: tuple[str, ...] = ()
    attribute: str | None = None
    inverted: bool = False
    default: Scalar | None = None
    bounds: tuple[float | None, float | None] = (None, None)
    unit: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)
    """All values that a text may have, with what each does."""
    levels: Mapping[str, str] = field(default_factory=dict)
    """What single values of a number stand for."""
    words: tuple[tuple[str, int], ...] = ()
    """Words that stand for a number, as (`all`, -2), outside its range too."""
    looks: tuple[str, str] = ("", "")
    """What a text must look like as a whole, a regular expression, and that in words."""
    secret: bool = False
    """Never on a command line, never printed, never stored."""
    environment: str | None = None
    """The variable through which llama-server gets it instead of by a flag."""
    ours: bool = False
    """Read by specdash, not by the engine."""
    always: bool = False
    """Rendered even when it has its default, because the default of the engine differs or changed between builds."""

    @property
    def key(self) -> str:
        """The env key by which messages name the parameter; its flag when it has none."""
        return self.keys[0] if self.keys else self.flags[0]

    @property
    def allowed(self) -> str:
        """The values it may have, in words: kind, range and unit, or the choices."""
        if self.choices:
            return ", ".join(self.choices)
        if self.looks[1]:
            return self.looks[1]
        words = "".join(f" or '{word}'" for word, _ in self.words)
        if self.levels:
            words += f" ({', '.join(map(' '.join, self.levels.items()))})"
        unit = f" {self.unit}" if self.unit else ""
        if span := self._span("{0:.10g} to {1:.10g}", "{0:.10g} or more", "{1:.10g} or less"):
            return f"{self.kind}, {span}{words}"
        return f"{self.kind}{',' if unit else ''}{unit}{words}"

    def _span(self, both: str, least: str, most: str) -> str:
        """The range in one of three forms with its unit; "" where there is none."""
        low, high = self.bounds
        form = "" if low is high is None else most if low is None else least if high is None else both
        return form and form.format(low, high) + (f" {self.unit}" if self.unit else "")

    def listed(self, present: str = "") -> Mapping[str, str]:
        """The values to choose from with what each does; none where any text or number may stand. On and off are
        written as in `present`: true and false for true."""
        if self.kind is not ValueKind.SWITCH:
            return self.choices or self.levels
        spellings = list(zip(TRUE_WORDS, FALSE_WORDS, strict=True))
        written = next((pair for pair in spellings if present.lower() in pair), spellings[0])
        return dict(zip(written, ("on", "off"), strict=True))

    @property
    def shown_default(self) -> str | None:
        """The default as it is written, None where there is none."""
        return None if self.default is None else self.text(self.default)

    def parse(self, text: str, source: str) -> Scalar:
        """The value `text` means; `source` names where it came from. Raises `InputError` when it means none."""
        written = text.strip()
        for word, number in self.words:
            if written.lower() == word:
                return number
        if self.kind in (ValueKind.INTEGER, ValueKind.NUMBER):
            return self._number(written, text, source)
        if self.kind is ValueKind.SWITCH or "on" in self.choices:
            is_on = written.lower() in TRUE_WORDS
            known = is_on or written.lower() in FALSE_WORDS
            if self.kind is ValueKind.SWITCH:
                if not known:
                    raise _refused(source, written, "use 1 or 0 (on or off)")
                return is_on
            written = ("on" if is_on else "off") if known else written
        if self.choices and written not in self.choices:
            raise _refused(source, text, f"use one of: {', '.join(self.choices)}")
        if self.looks[0] and not re.fullmatch(self.looks[0], written):
            raise _refused(source, text, f"use {self.looks[1]}")
        return written

    def _number(self, written: str, text: str, source: str) -> int | float:
        read: type[int | float] = int if self.kind is ValueKind.INTEGER else float
        try:
            value = read(written)
        except ValueError:
            raise _wrong(source, f"{source}={written}: not a {self.kind}") from None
        if isinstance(value, float) and not math.isfinite(value):
            raise _wrong(source, f"{source}={written}: not a finite number")
        low, high = self.bounds
        if (low is not None and value < low) or (high is not None and value > high):
            allowed = self._span("from {0:g} to {1:g}", "at least {0:g}", "at most {1:g}")
            raise _wrong(source, f"{source}={text}: must be {allowed} ({self.meaning})")
        return value

    def text(self, value: Scalar) -> str:
        """`value` as llama-server and env files write it."""
        if isinstance(value, bool):
            return "1" if value else "0"
        for word, number in self.words:
            if value == number:
                return word
        return f"{value:g}" if isinstance(value, float) else str(value)


def declared(
    name: str,
    kind: ValueKind,
    meaning: str,
    keys: str,
    flags: str,
    default: Scalar | None = None,
    bounds: tuple[float | None, float | None] = (None, None),
    unit: str = "",
    **more: Any,
) -> Parameter:
    """A row of a catalogue; `keys` and `flags` are separated by blanks."""
    spelled = tuple(flags.split())
    return Parameter(
        name, kind, meaning, tuple(keys.split()), spelled, default=default, bounds=bounds, unit=unit, **more
    )


def _wrong(source: str, what: str, fix: str = "", text: str = "") -> InputError:
    return InputError(what, fix, key=source.partition(" ")[0], text=text)


def _refused(source: str, text: str, fix: str) -> InputError:
    named = f"{source}={text}"
    return _wrong(source, f"{named} is not allowed", fix, f"{named}: {fix}")
