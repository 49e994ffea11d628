"""Templates of log lines: one text that both writes a line and reads it back. See `core.proxy_line_table`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from specdash.core.proxy_events import Action

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONGEST_WORD = 200
NOTHING = "-"
"""A word that is empty."""
_INT = r"-?[0-9]{1,18}"
_FLOAT = _INT + r"(?:\.[0-9]{1,18})?"
_TAIL = re.compile(r" ([a-z][a-z0-9_]{0,39})=(\S+)")
_TAIL_PATTERN = r"(?P<tail_>(?: [a-z][a-z0-9_]{0,39}=\S+)*)"
_PIECE = re.compile(r"\{(?P<fact>\w*):(?P<type>\w+)\}|(?P<mark>[\[\]])|(?P<literal>[^\[\]{}]+)")


def word(value: Any) -> str:
    """`value` without blanks and unprintable characters, bounded; a list's items are joined by commas."""
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    text = text[:LONGEST_WORD]
    if not text.isprintable() or " " in text:
        text = "".join(one if one.isprintable() and one != " " else "_" for one in text)
    return text or NOTHING


def _read_word(text: str) -> str:
    return "" if text == NOTHING else text


_TYPES: dict[str, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    "int": (_INT, lambda value: str(int(value)), int),
    "float": (_FLOAT, lambda value: f"{value:.1f}", float),
    "percent": (_FLOAT, lambda value: f"{value * 100:.1f}", lambda text: float(text) / 100),
    "percent0": (_FLOAT, lambda value: f"{value * 100:.0f}", lambda text: float(text) / 100),
    "word": (r"\S+?", word, _read_word),
    "action": ("|".join(Action), str, Action),
}
"""Of each type of value: what it looks like, how it is written, how it is read."""
_NUMBERS = frozenset({"int", "float", "percent", "percent0"})


class Template:
    """A compiled template."""

    def __init__(self, text: str) -> None:
        self._pieces: list[tuple[str, str, int]] = []
        self._types: dict[str, str] = {}
        needed: set[str] = set()
        pattern, group, inside, skips = "", 0, False, False
        for one in _PIECE.finditer(text):
            if one["mark"]:
                inside = one["mark"] == "["
                group += inside
                pattern += "(?:" if inside else ")?"
            elif one["literal"]:
                self._pieces.append((one["literal"], "", group if inside else 0))
                pattern += re.escape(one["literal"]).replace("–", "(?:–|--?)")
            elif one["type"] == "text":
                skips = True
                pattern += ".*"
            else:
                self._pieces.append((one["fact"], one["type"], group if inside else 0))
                self._types[one["fact"]] = one["type"]
                pattern += f"(?P<{one['fact']}>{_TYPES[one['type']][0]})"
                if not inside:
                    needed.add(one["fact"])
        self._needed = frozenset(needed)
        self._regex = re.compile(pattern + ("" if skips else _TAIL_PATTERN))

    def fits(self, facts: Mapping[str, Any]) -> bool:
        """True when a line can be written of these facts."""
        return all(self._known(name, facts) for name in self._needed)

    def write(self, facts: Mapping[str, Any]) -> str:
        """The line, without facts that the template does not name."""
        left_out = self._left_out(facts)
        return "".join(
            _TYPES[kind][1](facts[name]) if kind else name
            for name, kind, group in self._pieces
            if group not in left_out
        )

    def said(self, facts: Mapping[str, Any]) -> set[str]:
        """Names of the facts that the line written of `facts` tells."""
        left_out = self._left_out(facts)
        return {name for name, kind, group in self._pieces if kind and group not in left_out}

    def read(self, line: str) -> tuple[dict[str, Any], list[tuple[str, str]]] | None:
        """The values of a line and its ` name=value` tail, or None when it is another line."""
        found = self._regex.fullmatch(line)
        if found is None:
            return None
        groups = found.groupdict()
        tail = _TAIL.findall(groups.pop("tail_", None) or "")
        return {name: _TYPES[self._types[name]][2](text) for name, text in groups.items() if text is not None}, tail

    def _left_out(self, facts: Mapping[str, Any]) -> set[int]:
        return {
            group
            for name, kind, group in self._pieces
            if group and kind and (not self._known(name, facts) or facts[name] == "")
        }

    def _known(self, name: str, facts: Mapping[str, Any]) -> bool:
        value = facts.get(name)
        if self._types[name] in _NUMBERS:
            return isinstance(value, (int, float)) and abs(value) < 1e15
        return value is not None


def typed(text: str) -> Any:
    """The value of a ` name=value` pair: a number, true or false, or a word."""
    if text in {"true", "false"}:
        return text == "true"
    if re.fullmatch(_INT, text):
        return int(text)
    return float(text) if re.fullmatch(_FLOAT, text) else _read_word(text)


def tail(facts: Mapping[str, Any]) -> str:
    """` name=value` for each fact that is known and can be told in a word."""
    return "".join(
        f" {name}={_tail_value(value)}" for name, value in facts.items() if value is not None and value != ""
    )


def _tail_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.4f}".rstrip("0").rstrip(".")
    return word(value)
