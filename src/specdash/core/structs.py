"""What our structs have beyond those of msgspec: how the record keeps them, and JSON of chosen attributes."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, ClassVar

from msgspec import Struct


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


def json_of(value: Any, names: str = "") -> Any:
    """A value as what JSON knows: paths are text, structs objects of all their fields, unknown is None.

    `names` are the attributes of an object that are wanted, with spaces between them; of None they are all None.
    """
    if names:
        return {name: None if value is None else json_of(getattr(value, name)) for name in names.split()}
    if isinstance(value, Struct):
        return {name: json_of(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: json_of(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return list(map(json_of, value))
    return str(value) if isinstance(value, PurePath) else value
