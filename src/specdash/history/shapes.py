"""How each value type is stored, from its type hints: one value as JSON, and many values as columns.

A `Shape` stores every value of one type without loss. What a newer version wrote and this one does not know is left out
when it is read, what an older one did not write yet gets its default: a field, a class in a union, a member of an enum.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from enum import Enum


class UnreadableError(ValueError):
    """What is stored is of a kind that this version does not know."""


class _Lost:
    """Stands in a column for a value that this version cannot read."""


LOST: Final = _Lost()
NOT_FINITE: Final[Mapping[str, float]] = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_MARK: Final = "~"
"""A JSON object with this one key is a value that JSON has no form for."""


class Sink(Protocol):
    """Takes columns."""

    def put(self, path: str, values: list[Any]) -> None:
        """Store a column of scalars (None, flags, numbers, texts)."""


class Origin(Protocol):
    """Gives columns back."""

    def get(self, path: str) -> list[Any] | None:
        """The column of `put`, None when there is none."""


class Shape(ABC):
    """How the values of one type are stored."""

    loses: bool = False
    """Whether reading may find something that this version does not know."""

    @abstractmethod
    def to_json(self, value: Any) -> Any:
        """What `json.dumps` can write without loss and without NaN."""

    @abstractmethod
    def from_json(self, data: Any) -> Any:
        """The value of `to_json`. Raises UnreadableError, or TypeError and ValueError for what is damaged."""

    @abstractmethod
    def shred(self, values: list[Any], sink: Sink, path: str) -> None:
        """Store all values under `path`."""

    @abstractmethod
    def gather(self, count: int, origin: Origin, path: str) -> list[Any]:
        """The `count` values of `shred`; LOST for those that cannot be read. Raises UnreadableError without any."""


def column_of(origin: Origin, path: str, count: int) -> list[Any]:
    if not count:
        return []
    column = origin.get(path)
    if column is None:
        raise UnreadableError(f"no column {path}")
    if len(column) != count:
        raise ValueError(f"column {path} has {len(column)} values instead of {count}")
    return column


class Scalar(Shape):
    """A flag, a number or a text."""

    def to_json(self, value: Any) -> Any:
        if type(value) is float and not math.isfinite(value):
            return {_MARK: repr(value)}
        return value

    def from_json(self, data: Any) -> Any:
        return NOT_FINITE[data[_MARK]] if type(data) is dict else data

    def shred(self, values: list[Any], sink: Sink, path: str) -> None:
        sink.put(path, values)

    def gather(self, count: int, origin: Origin, path: str) -> list[Any]:
        return column_of(origin, path, count)


class Anything(Shape):
    """A value that came from JSON, such as the facts of an event."""

    def to_json(self, value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return {_MARK: repr(value)}
        if isinstance(value, dict):
            plain = {str(key): self.to_json(one) for key, one in value.items()}
            return {_MARK: plain} if _MARK in plain else plain
        if isinstance(value, tuple):
            return {_MARK: [self.to_json(one) for one in value]}
        if isinstance(value, list):
            return [self.to_json(one) for one in value]
        return value

    def from_json(self, data: Any) -> Any:
        if isinstance(data, list):
            return [self.from_json(one) for one in data]
        if not isinstance(data, dict):
            return data
        marked = data.get(_MARK)
        if isinstance(marked, str):
            return NOT_FINITE[marked]
        if isinstance(marked, list):
            return tuple(self.from_json(one) for one in marked)
        return {key: self.from_json(one) for key, one in (data if marked is None else marked).items()}

    def shred(self, values: list[Any], sink: Sink, path: str) -> None:
        import json

        sink.put(path, [json.dumps(self.to_json(value), separators=(",", ":")) for value in values])

    def gather(self, count: int, origin: Origin, path: str) -> list[Any]:
        import json

        return [self.from_json(json.loads(text)) for text in column_of(origin, path, count)]


class Member(Shape):
    """A member of an enum."""

    loses = True

    def __init__(self, enum: type[Enum]) -> None:
        self._by_value = {member.value: member for member in enum}

    def to_json(self, value: Any) -> Any:
        return value.value

    def from_json(self, data: Any) -> Any:
        member = self._by_value.get(data)
        if member is None:
            raise UnreadableError(f"unknown {data!r}")
        return member

    def shred(self, values: list[Any], sink: Sink, path: str) -> None:
        sink.put(path, [value.value for value in values])

    def gather(self, count: int, origin: Origin, path: str) -> list[Any]:
        find = self._by_value.get
        return [find(value, LOST) for value in column_of(origin, path, count)]


class Mapped(Shape):
    """A mapping from texts."""

    def __init__(self, of: Shape) -> None:
        self._of = of
        self._whole = Anything()

    def to_json(self, value: Any) -> Any:
        return {str(key): self._of.to_json(one) for key, one in value.items()}

    def from_json(self, data: Any) -> Any:
        return {key: self._of.from_json(one) for key, one in data.items()}

    def shred(self, values: list[Any], sink: Sink, path: str) -> None:
        self._whole.shred([self.to_json(value) for value in values], sink, path)

    def gather(self, count: int, origin: Origin, path: str) -> list[Any]:
        return [self.from_json(data) for data in self._whole.gather(count, origin, path)]


class Maybe(Shape):
    """A record, a tuple or a member, or None. Scalars need no Maybe: a column holds None as it is."""

    def __init__(self, of: Shape) -> None:
        self._of = of
        self.loses = of.loses

    def to_json(self, value: Any) -> Any:
        return None if value is None else self._of.to_json(value)

    def from_json(self, data: Any) -> Any:
        return None if data is None else self._of.from_json(data)

    def shred(self, values: list[Any], sink: Sink, path: str) -> None:
        sink.put(path + "?", [value is not None for value in values])
        self._of.shred([value for value in values if value is not None], sink, path)

    def gather(self, count: int, origin: Origin, path: str) -> list[Any]:
        present = column_of(origin, path + "?", count)
        found = iter(self._of.gather(sum(present), origin, path))
        return [next(found) if is_there else None for is_there in present]


class Row(Shape):
    """A tuple of any length, of one type."""

    def __init__(self, of: Shape) -> None:
        self._of = of

    def to_json(self, value: Any) -> Any:
        return [self._of.to_json(one) for one in value]

    def from_json(self, data: Any) -> Any:
        found = []
        for one in data:
            try:
                found.append(self._of.from_json(one))
            except UnreadableError:
                continue
        return tuple(found)

    def shred(self, values: list[Any], sink: Sink, path: str) -> None:
        sink.put(path + "#", [len(value) for value in values])
        self._of.shred([one for value in values for one in value], sink, path + "[]")

    def gather(self, count: int, origin: Origin, path: str) -> list[Any]:
        lengths = column_of(origin, path + "#", count)
        items = iter(self._of.gather(sum(lengths), origin, path + "[]"))
        if not self._of.loses:
            return [tuple(islice(items, length)) for length in lengths]
        return [tuple(one for one in islice(items, length) if one is not LOST) for length in lengths]


class Fixed(Shape):
    """A tuple of so many values of a type each."""

    def __init__(self, of: Sequence[Shape]) -> None:
        self._of = of
        self.loses = any(one.loses for one in of)

    def to_json(self, value: Any) -> Any:
        return [shape.to_json(one) for shape, one in zip(self._of, value, strict=True)]

    def from_json(self, data: Any) -> Any:
        return tuple(shape.from_json(one) for shape, one in zip(self._of, data, strict=True))

    def shred(self, values: list[Any], sink: Sink, path: str) -> None:
        for index, shape in enumerate(self._of):
            shape.shred([value[index] for value in values], sink, f"{path}.{index}")

    def gather(self, count: int, origin: Origin, path: str) -> list[Any]:
        columns = [shape.gather(count, origin, f"{path}.{index}") for index, shape in enumerate(self._of)]
        whole = list(zip(*columns, strict=True)) if columns else [()] * count
        return [LOST if LOST in one else one for one in whole] if self.loses else whole
