"""Holds what another process told to the declared types of a dataclass, before anybody computes with it."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


def is_sound(value: object) -> bool:
    """Whether every field of a dataclass instance has its declared type.

    Checked are whole numbers, finite numbers, texts, flags, mappings and tuples, each also where None is allowed; what
    is inside a mapping or a tuple is not, and neither are fields of any other type.
    """
    return all(fits(getattr(value, name)) for name, fits in _checks(cast("Hashable", type(value))))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_FITS: dict[str, Callable[[object], bool]] = {
    "int": _is_whole,
    "float": _is_number,
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "dict": lambda value: isinstance(value, dict),
    "tuple": lambda value: isinstance(value, tuple),
}


@cache
def _checks(cls: Hashable) -> tuple[tuple[str, Callable[[object], bool]], ...]:
    checks: list[tuple[str, Callable[[object], bool]]] = []
    for field in dataclasses.fields(cast("Any", cls)):
        # The annotations are texts, because every module here postpones them.
        kind, _, rest = str(field.type).partition(" | ")
        if (fits := _FITS.get(kind.partition("[")[0])) is not None:
            checks.append((field.name, _or_none(fits) if rest == "None" else fits))
    return tuple(checks)


def _or_none(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or fits(value)
