"""What a parameter of the backend is, and how its text is read. The catalogue itself is `core.parameter_catalogue`.

One parameter is one setting of the engine, or of specdash around it. It can be set by an env key of specdash's, by the
`LLAMA_ARG_*` variable of llama.cpp, or by a flag inside `LLAMA_EXTRA_ARGS`; it is rendered as a llama-server flag or as
an attribute of `xllamacpp.CommonParams`.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import TYPE_CHECKING

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
    minimum: float | None = None
    maximum: float | None = None
    unit: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)
    """All values that a text may have, with what each does."""
    levels: Mapping[str, str] = field(default_factory=dict)
    """What single values of a number stand for."""
    words: tuple[tuple[str, int], ...] = ()
    """Words that stand for a number, as (`all`, -2), outside its range too."""
    pattern: str = ""
    """What a text must look like as a whole, a regular expression; `form` says it in words."""
    form: str = ""
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
    def native_keys(self) -> tuple[str, ...]:
        """The variables llama.cpp itself reads."""
        return tuple(key for key in self.keys if key.startswith("LLAMA_ARG_"))

    @property
    def allowed(self) -> str:
        """The values it may have, in words: kind, range and unit, or the choices."""
        if self.choices:
            return ", ".join(self.choices)
        if self.form:
            return self.form
        words = "".join(f" or '{word}'" for word, _ in self.words)
        if self.levels:
            words += f" ({', '.join(map(' '.join, self.levels.items()))})"
        low, high = self.minimum, self.maximum
        unit = f" {self.unit}" if self.unit else ""
        if low is not None and high is not None:
            return f"{self.kind}, {low:.10g} to {high:.10g}{unit}{words}"
        if low is not None or high is not None:
            bound = f"{low:.10g} or more" if low is not None else f"{high:.10g} or less"
            return f"{self.kind}, {bound}{unit}{words}"
        return f"{self.kind}{',' if unit else ''}{unit}{words}"

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
        for word, number in self.words:
            if text.strip().lower() == word:
                return number
        value = self._read(text.strip(), source)
        if self.choices and value not in self.choices:
            raise _refused(source, text, f"use one of: {', '.join(self.choices)}")
        if self.pattern and not re.fullmatch(self.pattern, str(value)):
            raise _refused(source, text, f"use {self.form}")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            self._check_range(value, text, source)
        return value

    def text(self, value: Scalar) -> str:
        """`value` as llama-server and env files write it."""
        if isinstance(value, bool):
            return "1" if value else "0"
        for word, number in self.words:
            if value == number:
                return word
        return f"{value:g}" if isinstance(value, float) else str(value)

    def _read(self, text: str, source: str) -> Scalar:
        if self.kind is ValueKind.SWITCH:
            return _switch(text, source)
        if self.kind is ValueKind.INTEGER:
            return _number(text, source, self.kind, int)
        if self.kind is ValueKind.NUMBER:
            return _number(text, source, self.kind, float)
        if "on" in self.choices and text.lower() in (*TRUE_WORDS, *FALSE_WORDS):
            return "on" if text.lower() in TRUE_WORDS else "off"
        return text

    def _check_range(self, value: float, text: str, source: str) -> None:
        low, high = self.minimum, self.maximum
        if (low is not None and value < low) or (high is not None and value > high):
            unit = f" {self.unit}" if self.unit else ""
            if low is not None and high is not None:
                allowed = f"from {low:g} to {high:g}{unit}"
            else:
                allowed = f"at least {low:g}{unit}" if low is not None else f"at most {high:g}{unit}"
            raise InputError(f"{source}={text}: must be {allowed} ({self.meaning})", key=_key(source))


def _key(source: str) -> str:
    return source.partition(" ")[0]


def _refused(source: str, text: str, fix: str) -> InputError:
    named = f"{source}={text}"
    return InputError(f"{named} is not allowed", fix, key=_key(source), text=f"{named}: {fix}")


def _switch(text: str, source: str) -> bool:
    if text.lower() in TRUE_WORDS:
        return True
    if text.lower() in FALSE_WORDS:
        return False
    raise _refused(source, text, "use 1 or 0 (on or off)")


def _number(text: str, source: str, kind: ValueKind, read: type[int | float]) -> int | float:
    try:
        value = read(text)
    except ValueError:
        raise InputError(f"{source}={text}: not a {kind}", key=_key(source)) from None
    if not math.isfinite(value):
        raise InputError(f"{source}={text}: not a finite number", key=_key(source))
    return value
