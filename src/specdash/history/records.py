"""How dataclasses are stored, and the shape of any type hint (see `history.shapes`)."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from enum import Enum
from functools import cache
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from specdash.history.shapes import (
    LOST,
    Anything,
    Fixed,
    Mapped,
    Maybe,
    Member,
    Origin,
    Row,
    Scalar,
    Shape,
    Sink,
    UnreadableError,
    column_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    shape: Shape
    default: Callable[[], Any] | None

    def absent(self) -> Any:
        """What a record gets that was written without the field."""
        return LOST if self.default is None else self.default()


class Record(Shape):
    """A dataclass. In JSON, fields that have their default are left out."""

    loses = True

    def __init__(self, cls: type, fields: Sequence[_Field]) -> None:
        self._cls = cls
        self._fields = fields

    def to_json(self, value: Any) -> Any:
        found = {}
        for field in self._fields:
            one = getattr(value, field.name)
            if field.default is None or not _same(one, field.default()):
                found[field.name] = field.shape.to_json(one)
        return found

    def from_json(self, data: Any) -> Any:
        values = []
        for field in self._fields:
            if field.name in data:
                values.append(field.shape.from_json(data[field.name]))
            elif field.default is not None:
                values.append(field.default())
            else:
                raise UnreadableError(f"{self._cls.__name__} without {field.name}")
        return self._cls(*values)

    def shred(self, values: list[Any], sink: Sink, path: str) -> None:
        for field in self._fields:
            field.shape.shred(list(map(attrgetter(field.name), values)), sink, f"{path}.{field.name}")

    def scalars(self) -> tuple[str, ...]:
        """The names of the fields that are scalars."""
        return tuple(field.name for field in self._fields if isinstance(field.shape, Scalar))

    def has(self, name: str) -> bool:
        """Whether it has a field of that name."""
        return any(field.name == name for field in self._fields)

    def without(self, names: Sequence[str]) -> Record:
        """The record without these fields, to be shredded: they are stored elsewhere."""
        return Record(self._cls, [field for field in self._fields if field.name not in names])

    def gather(self, count: int, origin: Origin, path: str) -> list[Any]:
        return self.gather_with({}, count, origin, path)

    def gather_with(self, given: Mapping[str, list[Any]], count: int, origin: Origin, path: str) -> list[Any]:
        """`gather`, where the columns of some fields are known already."""
        if not count:
            return []
        columns: list[Iterable[Any]] = []
        lost: set[int] = set()
        for field in self._fields:
            if field.name in given:
                columns.append(given[field.name])
                continue
            try:
                column = field.shape.gather(count, origin, f"{path}.{field.name}")
                loses = field.shape.loses
            except UnreadableError:
                column = [field.absent() for _ in range(count)]
                loses = field.default is None
            if loses:
                lost.update(index for index, one in enumerate(column) if one is LOST)
            columns.append(column)
        made = list(map(self._cls, *columns)) if columns else [self._cls() for _ in range(count)]
        for index in lost:
            made[index] = LOST
        return made


class OneOf(Shape):
    """One of several dataclasses, told by the class's name."""

    loses = True

    def __init__(self, records: Mapping[type, Record]) -> None:
        self._records = {cls.__name__: record for cls, record in records.items()}
        self._shared = _shared(list(self._records.values()))
        self._own = {name: record.without(self._shared) for name, record in self._records.items()}

    def to_json(self, value: Any) -> Any:
        name = type(value).__name__
        return [name, self._records[name].to_json(value)]

    def from_json(self, data: Any) -> Any:
        name, values = data
        if name not in self._records:
            raise UnreadableError(f"unknown {name}")
        return self._records[name].from_json(values)

    def shred(self, values: list[Any], sink: Sink, path: str) -> None:
        names = [type(value).__name__ for value in values]
        sink.put(path + "|", names)
        by_name: dict[str, list[Any]] = {}
        for name, value in zip(names, values, strict=True):
            by_name.setdefault(name, []).append(value)
        for shared in self._shared:
            sink.put(f"{path}.{shared}", [getattr(one, shared) for one in values if hasattr(one, shared)])
            sink.put(f"{path}.{shared}|", [name for name in by_name if self._records[name].has(shared)])
        for name, own in by_name.items():
            self._own[name].shred(own, sink, f"{path}<{name}>")

    def gather(self, count: int, origin: Origin, path: str) -> list[Any]:
        names = column_of(origin, path + "|", count)
        shared = {field: self._gather_shared(field, names, origin, path) for field in self._shared}
        found: dict[str, Any] = {}
        for name in set(names):
            record, number = self._records.get(name), names.count(name)
            if record is None:
                found[name] = repeat(LOST)
                continue
            given = {field: columns[name] for field, columns in shared.items() if name in columns}
            found[name] = iter(record.gather_with(given, number, origin, f"{path}<{name}>"))
        return [next(found[name]) for name in names]

    def _gather_shared(self, field: str, names: list[str], origin: Origin, path: str) -> dict[str, list[Any]]:
        """The column of a shared field, by the class that its values belong to; of those that were written with it."""
        written = origin.get(f"{path}.{field}|") or []
        found: dict[str, list[Any]] = {name: [] for name in written}
        having = [name for name in names if name in found]
        if having:
            for name, value in zip(having, column_of(origin, f"{path}.{field}", len(having)), strict=True):
                found[name].append(value)
        return found


def _shared(records: Sequence[Record]) -> tuple[str, ...]:
    """The scalar fields that most of several records have: stored together, in the order of the records, because what
    comes one after the other is of the same moment, slot or session."""
    counts: dict[str, int] = {}
    for record in records:
        for name in record.scalars():
            counts[name] = counts.get(name, 0) + 1
    return tuple(name for name, count in counts.items() if count > len(records) / 2 and count > 1)


def _same(one: Any, default: Any) -> bool:
    """Whether a value is its default in every respect, so that it need not be written."""
    if type(one) is not type(default):
        return False
    if isinstance(one, float):
        return one == default and math.copysign(1.0, one) == math.copysign(1.0, default)
    return bool(one == default) if not isinstance(one, tuple | dict) else not one and not default


def _default(field: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    if field.default is not dataclasses.MISSING:
        value = field.default
        return lambda: value
    return field.default_factory if field.default_factory is not dataclasses.MISSING else None


@cache
def record_of(cls: type, names: tuple[tuple[str, Any], ...] = ()) -> Record:
    """The shape of a dataclass. `names` are those its hints use that its module knows to type checkers alone."""
    import sys

    hints = typing.get_type_hints(cls, {**vars(sys.modules[cls.__module__]), **dict(names)})
    fields = dataclasses.fields(cls)
    return Record(cls, [_Field(one.name, shape_of(hints[one.name], names), _default(one)) for one in fields])


def shape_of(hint: Any, names: tuple[tuple[str, Any], ...] = ()) -> Shape:
    """The shape of the values that a type hint allows. Raises TypeError for a hint that it does not know."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return Anything()
    if origin in (Union, types.UnionType):
        return _union(arguments, names)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return Row(shape_of(arguments[0], names))
        return Fixed([shape_of(one, names) for one in arguments])
    if origin is dict:
        return Mapped(shape_of(arguments[1], names))
    if isinstance(hint, type):
        if issubclass(hint, Enum):
            return Member(hint)
        if dataclasses.is_dataclass(hint):
            return record_of(hint, names)
        if hint in (bool, int, float, str):
            return Scalar()
    raise TypeError(f"cannot store {hint!r}")


def _union(arguments: tuple[Any, ...], names: tuple[tuple[str, Any], ...]) -> Shape:
    kinds = [one for one in arguments if one is not type(None)]
    if all(one in (bool, int, float, str) for one in kinds):
        return Scalar()
    if len(kinds) == 1:
        of = shape_of(kinds[0], names)
    elif all(isinstance(one, type) and dataclasses.is_dataclass(one) for one in kinds):
        of = OneOf({one: record_of(one, names) for one in kinds})
    else:
        raise TypeError(f"cannot store a union of {kinds!r}")
    return Maybe(of) if len(kinds) < len(arguments) else of
