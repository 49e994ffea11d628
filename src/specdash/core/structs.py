"""What our structs have beyond those of msgspec: how the record keeps them, and JSON of chosen attributes."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable


class Fact(Struct, frozen=True, omit_defaults=True):
    """A fact that the record keeps, without the fields that have their default."""


class TaggedFact(Fact, frozen=True, tag_field="is", tag=True):
    """One of several kinds of fact in one list: it is kept with the name of its class."""


class Masked:
    """A struct whose repr leaves its `hidden` fields out: secrets, and what is too large to read."""

    __slots__ = ()
    hidden: ClassVar[tuple[str, ...]] = ()
    __struct_fields__: ClassVar[tuple[str, ...]]

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self.__struct_fields__ if name not in self.hidden]


def json_of(value: Any, names: str = "", **more: Any) -> Any:
    """A value as what JSON knows: paths are text, structs objects of all their fields, unknown is None.

    `names` are the attributes of an object that are wanted, in their order, those that are called otherwise in JSON as
    `shown=attribute`, where the attribute may be one of an attribute: `boots class=kind model=prompt.model`. With a `?`
    at its end it is None where it is empty: `reason?`. `more` comes after them, as it is. Of None they are all None.
    """
    if names:
        return {shown: None if value is None else json_of(read(value)) for shown, read in _attributes(names)} | more
    if isinstance(value, Struct):
        return {name: json_of(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: json_of(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return list(map(json_of, value))
    return str(value) if isinstance(value, PurePath) else value


@cache
def _attributes(names: str) -> list[tuple[str, Callable[[Any], Any]]]:
    parts = ((*name.rstrip("?").partition("="), name.endswith("?")) for name in names.split())
    return [(shown, _read(path or shown, or_none=or_none)) for shown, _, path, or_none in parts]


def _read(path: str, *, or_none: bool) -> Callable[[Any], Any]:
    read = attrgetter(path)
    return (lambda value: read(value) or None) if or_none else read
