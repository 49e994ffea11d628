"""Dataclasses: made quickly, and written as JSON field by field. Unknown is None, which JSON calls null."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from operator import attrgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - exported
else:

    def dataclass(*, slots: bool, frozen: bool = False, eq: bool = True) -> Callable[[type], type]:  # noqa: ARG001
        """`dataclasses.dataclass` at a tenth of the price: nothing is compiled before the tenth instance.

        A command makes some two hundred classes before its first answer, of which it uses a third, and most of those
        once. All have slots. One that is frozen at run time takes four times as long to make, and a log makes some
        hundred thousand a second: that nobody writes to a frozen one is left to the type checker.
        """

        def make(owner: type) -> type:
            every: dict[str, Field[Any]] = {}
            for base in owner.__mro__[:0:-1]:
                every |= getattr(base, "__dataclass_fields__", {})
            inherited = set(every)
            content = dict(owner.__dict__)
            for name, kind in inspect.get_annotations(owner).items():
                if not kind.startswith("ClassVar"):
                    every[name] = _field(name, kind, content.pop(name, MISSING))
            for left in ("__dict__", "__weakref__"):
                content.pop(left, None)
            made = type(owner)(
                owner.__name__,
                owner.__bases__,
                {
                    **content,
                    "__qualname__": owner.__qualname__,
                    "__slots__": tuple(name for name in every if name not in inherited),
                    "__dataclass_fields__": every,
                    "__match_args__": tuple(name for name, field in every.items() if field.init),
                },
            )
            if "__init__" not in content:
                made.__init__ = _made_when_called(made)
            if "__repr__" not in content:
                made.__repr__ = _repr_of([name for name, field in every.items() if field.repr])
            if eq and "__eq__" not in content:
                names = [name for name, field in every.items() if field.compare]
                values = attrgetter(*names) if names else lambda _: ()
                made.__eq__ = _eq_of(values)
                if "__hash__" not in content:
                    made.__hash__ = _hash_of(values) if frozen else None
            return made

        return make


_FILLED = 10
"""So many instances of a class get their fields one by one, which takes less than to compile a method for them."""


def _field(name: str, kind: str, default: Any) -> Field[Any]:
    field: Any = default if isinstance(default, Field) else dataclasses.field(default=default)
    # As `dataclasses` itself leaves it, so that `fields`, `replace` and `asdict` know it.
    field.name, field.type, field.kw_only = name, kind, False
    field._field_type = dataclasses._FIELD  # type: ignore[attr-defined] # noqa: SLF001
    return field  # type: ignore[no-any-return]


def _made_when_called(owner: Any) -> Callable[..., None]:
    filled = 0

    def __init__(self: object, *values: Any, **named: Any) -> None:  # noqa: N807
        nonlocal filled
        filled += 1
        if filled > _FILLED or not _fill(owner, self, values, named):
            owner.__init__ = init = _init_of(owner)
            init(self, *values, **named)

    return __init__


def _fill(owner: Any, instance: Any, values: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Do what `_init_of` makes a method for; False where that has to say what is wrong with the arguments."""
    given = dict(zip(owner.__match_args__, values, strict=False)) | named
    if len(given) != len(values) + len(named):
        return False
    for name, field in owner.__dataclass_fields__.items():
        if field.init and name in given:
            setattr(instance, name, given.pop(name))
        elif field.default_factory is not MISSING:
            setattr(instance, name, field.default_factory())
        elif field.default is not MISSING:
            setattr(instance, name, field.default)
        elif field.init:
            return False
    if given:
        return False
    if hasattr(owner, "__post_init__"):
        instance.__post_init__()
    return True


def _init_of(owner: Any) -> Callable[..., None]:
    known: dict[str, Any] = {"MISSING": MISSING}
    taken, body = [], []
    for name, field in owner.__dataclass_fields__.items():
        value = name
        if field.default_factory is not MISSING:
            known[f"made_{name}"] = field.default_factory
            taken += [f"{name}=MISSING"] * field.init
            value = f"made_{name}() if {name} is MISSING else {name}" if field.init else f"made_{name}()"
        elif field.default is not MISSING:
            known[f"default_{name}"] = field.default
            taken += [f"{name}=default_{name}"] * field.init
            value = name if field.init else f"default_{name}"
        elif field.init:
            taken.append(name)
        else:
            continue
        body.append(f" self.{name}={value}")
    if hasattr(owner, "__post_init__"):
        body.append(" self.__post_init__()")
    exec("\n".join([f"def __init__({','.join(['self', *taken])}):", *(body or [" pass"])]), known)  # noqa: S102
    made: Callable[..., None] = known["__init__"]
    made.__qualname__ = f"{owner.__qualname__}.__init__"
    return made


def _repr_of(names: list[str]) -> Callable[[object], str]:
    return lambda self: f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def _eq_of(values: Callable[[object], Any]) -> Callable[[object, object], bool]:
    return lambda self, other: values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash_of(values: Callable[[object], Any]) -> Callable[[object], int]:
    return lambda self: hash(values(self))


def json_of(value: Any, names: str = "", **more: Any) -> Any:
    """A value as what JSON knows: tuples are lists, paths text, data classes objects of all their fields.

    `names` are the attributes of an object that are wanted, in their order, those that are called otherwise in JSON as
    `shown=attribute`, where the attribute may be one of an attribute: `boots class=kind model=prompt.model`. With a `?`
    at its end it is None where it is empty: `reason?`. `more` comes after them, as it is. Of None they are all None.
    """
    if names:
        return {shown: None if value is None else json_of(read(value)) for shown, read in _attributes(names)} | more
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_of(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: json_of(item) for key, item in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [json_of(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value


@cache
def _attributes(names: str) -> list[tuple[str, Callable[[Any], Any]]]:
    pairs = ((name, *name.rstrip("?").partition("=")) for name in names.split())
    return [(shown, _read(path or shown, or_none=name.endswith("?"))) for name, shown, _, path in pairs]


def _read(path: str, *, or_none: bool) -> Callable[[Any], Any]:
    read = attrgetter(path)
    return (lambda value: read(value) or None) if or_none else read
