"""Which slots and tasks warning lines name.

A storm prints thousands of lines a second that name the same few slots: of the lines of one class in one block no more
than `LOOKED_AT` are read, evenly spread, and what is found then is a least count.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from specdash.core.log_facts import Touched

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LOOKED_AT: Final = 32
_SLOT_PREFIX = re.compile(rb"slot[^:|]{0,80}: *id *(\d{1,9}) *\| *task *(-?\d{1,18}) *\|")
_SLOTS = (re.compile(rb"for sequence (\d{1,9}) "), re.compile(rb"purging slot (\d{1,9}) "))
"""`find_slot`, whose sequences are slots; slots emptied to make room."""
_TASKS = (re.compile(rb"id_task = (\d{1,18})"), re.compile(rb"task id = (\d{1,18})"))
"""Requests that were cancelled; that failed."""


def evenly(indices: Sequence[int]) -> Iterable[int]:
    """At most `LOOKED_AT` of the indices, evenly spread, the first and the last among them."""
    if len(indices) <= LOOKED_AT:
        return indices
    step = (len(indices) - 1) / (LOOKED_AT - 1)
    return [indices[round(place * step)] for place in range(LOOKED_AT)]


def touched(lines: Iterable[bytes], *, all_seen: bool) -> tuple[Touched, Touched]:
    """Slots and tasks that the lines name; `all_seen` says that they are all there are."""
    slots: list[bytes] = []
    tasks: list[bytes] = []
    for line in lines:
        prefix = _SLOT_PREFIX.search(line)
        if prefix is not None:
            slots.append(prefix[1])
            tasks.append(prefix[2])
            continue
        for patterns, found in ((_SLOTS, slots), (_TASKS, tasks)):
            match = next(filter(None, (pattern.search(line) for pattern in patterns)), None)
            if match is not None:
                found.append(match[1])
    return _distinct(slots, all_seen=all_seen), _distinct(tasks, all_seen=all_seen)


def _distinct(numbers: Sequence[bytes], *, all_seen: bool) -> Touched:
    latest_first = dict.fromkeys(int(number) for number in reversed(numbers))
    ids = tuple(number for number in reversed(latest_first) if number >= 0)
    return Touched(ids, bool(ids) and not all_seen)
