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


@pytest.mark.parametrize(
    ("arguments", "named"), [((), {}), ((1, 2, [], 4), {}), ((1,), {"x": 1}), ((1,), {"z": 1}), ((), {"y": 1})]
)
def test_wrong_arguments_are_a_type_error_the_first_time_and_every_time(
    arguments: tuple[object, ...], named: dict[str, object]
) -> None:
    @dataclass(frozen=True, slots=True)
    class Fresh:
        x: int
        y: int = 2
        tags: tuple[str, ...] = ()

    for _ in range(2):
        with pytest.raises(TypeError, match=r"Fresh\.__init__\(\)"):
            Fresh(*arguments, **named)  # type: ignore[arg-type]


def test_the_first_instances_are_as_the_later_ones() -> None:
    @dataclass(slots=True)
    class Fresh(Deep):
        last: int = 0

    made = [Fresh(1, z=5, last=number) for number in range(30)]
    assert [dataclasses.replace(one, last=0) for one in made] == [Fresh(1, z=5)] * 30
    assert [(one.total, one.late, one.tags) for one in made] == [(8, 1.5, [])] * 30
    assert [one.last for one in made] == list(range(30))
    assert len({id(one.tags) for one in made}) == 30
