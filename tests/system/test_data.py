"""The house's dataclasses are those of the standard library, made without compiling what nobody uses."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import field
from typing import ClassVar

import pytest

from specdash.system.data import dataclass


@dataclass(slots=True)
class Point:
    """What there is of fields."""

    made: ClassVar[int] = 0
    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list, repr=False)
    late: float = field(default=1.5, init=False, compare=False)


@dataclass(slots=True)
class Deep(Point):
    """A class with a base and a last word."""

    z: int = 3
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.x + self.y + self.z


def test_it_is_made_read_compared_and_replaced_as_a_dataclass() -> None:
    point = Point(1, tags=["a"])
    assert repr(point) == "Point(x=1, y=2, late=1.5)"
    assert point == Point(1, 2, ["a"]) != Point(1, 3, ["a"])
    assert dataclasses.asdict(point) == {"x": 1, "y": 2, "tags": ["a"], "late": 1.5}
    assert [item.name for item in dataclasses.fields(Deep)] == ["x", "y", "tags", "late", "z", "total"]
    assert dataclasses.replace(Deep(1), x=5).total == 10
    assert Point(1).tags is not Point(1).tags
    assert copy.copy(point) == point
    match point:
        case Point(x, y, _):
            assert (x, y) == (1, 2)
    assert not hasattr(point, "__dict__")
    assert Deep(1).total == 6


@pytest.mark.parametrize("arguments", [(), (1, 2, [], 4)])
def test_wrong_arguments_are_a_type_error_the_first_time_and_every_time(arguments: tuple[object, ...]) -> None:
    @dataclass(frozen=True, slots=True)
    class Fresh:
        x: int
        y: int = 2
        tags: tuple[str, ...] = ()

    for _ in range(2):
        with pytest.raises(TypeError, match=r"Fresh\.__init__\(\)"):
            Fresh(*arguments)  # type: ignore[arg-type]


def test_nothing_is_compiled_for_a_class_of_which_there_is_no_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr("specdash.system.data.exec", lambda text, _: compiled.append(text), raising=False)

    @dataclass(frozen=True, slots=True)
    class Unused:
        x: int

    assert [item.name for item in dataclasses.fields(Unused)] == ["x"]
    assert not compiled
