"""Structs as JSON and back, without loss, by their type hints.

A struct is an object without the fields that have their default; one of several structs names its class under
`is`. Numbers that are not finite are `NaN` and `Infinity`, as Python's `json` writes and reads them. Data of a newer
version is read as far as it is known: unknown fields, and entries of unknown kinds in a list, are left out.
"""

from __future__ import annotations

import base64
import math
import types
from collections.abc import Callable  # noqa: TC003 - a NamedTuple needs it
from enum import Enum
from functools import cache
from typing import Any, Final, NamedTuple, Union, get_args, get_origin

import msgspec
import msgspec.structs

_CLASS: Final = "is"
NOT_READABLE: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""What `ValueCodec.read` raises, `UnreadableError` among them."""


class UnreadableError(ValueError):
    """What is stored is of a kind that this version does not know."""


class ValueCodec(NamedTuple):
    """How values of one type become JSON and values again. `read` raises any of `NOT_READABLE`."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


PLAIN: Final = ValueCodec(lambda value: value, lambda data: data)
"""Of what is JSON already."""


@cache
def codec_of(hint: Any) -> ValueCodec | None:
    """The codec of the values that a type hint allows; None where they are JSON already. Raises TypeError for a hint
    that it does not know."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in (Any, bool, int, float, str):
        return None
    if origin in (Union, types.UnionType):
        return _of_union(arguments)
    if origin is tuple:
        return _of_sequence(arguments[0]) if arguments[1:] == (Ellipsis,) else _of_fixed(arguments)
    if origin is dict:
        return _of_mapping(arguments[1])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _of_enum(hint)
    if hint is bytes:
        return ValueCodec(lambda value: base64.b64encode(value).decode(), base64.b64decode)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _of_struct(hint)
    raise TypeError(f"cannot store {hint!r}")


def _of_struct(cls: type) -> ValueCodec:
    fields = [(field.name, _default(field), codec_of(field.type)) for field in msgspec.structs.fields(cls)]
    names = frozenset(name for name, _, _ in fields)
    nested = [(name, codec.read) for name, _, codec in fields if codec is not None]

    def write(value: Any) -> Any:
        data = {}
        for name, default, codec in fields:
            entry = getattr(value, name)
            if type(entry) is not type(default) or (entry is not default and not _is_default(entry, default)):
                data[name] = entry if codec is None else codec.write(entry)
        return data

    def read(data: Any) -> Any:
        values = dict(data)
        values.pop(_CLASS, None)
        for name, read_field in nested:
            if name in values:
                values[name] = read_field(values[name])
        try:
            return cls(**values)
        except TypeError:
            # Fields of a newer version; to look for them each time would take longer than the rest.
            return cls(**{name: entry for name, entry in values.items() if name in names})

    return ValueCodec(write, read)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _is_default(entry: Any, default: Any) -> bool:
    """Whether a value of its default's type is that in every respect, so that it need not be written."""
    if isinstance(entry, float):
        return bool(entry == default) and math.copysign(1.0, entry) == math.copysign(1.0, default)
    return bool(entry == default) if not isinstance(entry, tuple | dict) else not entry and not default


def _of_union(arguments: tuple[Any, ...]) -> ValueCodec | None:
    kinds = [argument for argument in arguments if argument is not type(None)]
    if all(kind in (bool, int, float, str) for kind in kinds):
        return None
    codec = codec_of(kinds[0]) if len(kinds) == 1 else _of_classes(kinds)
    if codec is None or len(kinds) == len(arguments):
        return codec
    write, read = codec
    return ValueCodec(
        lambda value: None if value is None else write(value), lambda data: None if data is None else read(data)
    )


def _of_classes(kinds: list[Any]) -> ValueCodec:
    if not all(issubclass(kind, msgspec.Struct) for kind in kinds):
        raise TypeError(f"cannot store a union of {kinds!r}")
    codecs = {kind.__name__: _of_struct(kind) for kind in kinds}

    def write(value: Any) -> Any:
        name = type(value).__name__
        return {_CLASS: name, **codecs[name].write(value)}

    def read(data: Any) -> Any:
        codec = codecs.get(data[_CLASS])
        if codec is None:
            raise UnreadableError(f"unknown {data[_CLASS]}")
        return codec.read(data)

    return ValueCodec(write, read)


def _of_sequence(hint: Any) -> ValueCodec:
    codec = codec_of(hint)
    if codec is None:
        return ValueCodec(list, tuple)
    write, read_entry = codec

    def read(data: Any) -> Any:
        entries = []
        for entry in data:
            try:
                entries.append(read_entry(entry))
            except UnreadableError:
                continue
        return tuple(entries)

    return ValueCodec(lambda value: [write(entry) for entry in value], read)


def _of_fixed(hints: tuple[Any, ...]) -> ValueCodec:
    codecs = [codec_of(hint) or PLAIN for hint in hints]
    return ValueCodec(
        lambda value: [codec.write(entry) for codec, entry in zip(codecs, value, strict=True)],
        lambda data: tuple(codec.read(entry) for codec, entry in zip(codecs, data, strict=True)),
    )


def _of_mapping(hint: Any) -> ValueCodec:
    write, read = codec_of(hint) or PLAIN
    return ValueCodec(
        lambda value: {key: write(entry) for key, entry in value.items()},
        lambda data: {key: read(entry) for key, entry in data.items()},
    )


def _of_enum(enum: type[Enum]) -> ValueCodec:
    members = {member.value: member for member in enum}

    def read(data: Any) -> Any:
        if data not in members:
            raise UnreadableError(f"unknown {data!r}")
        return members[data]

    return ValueCodec(lambda value: value.value, read)
