"""Which slots and tasks warning lines name.

A storm prints thousands of lines a second that name the same few slots: of the lines of one class in one block no more
than `LOOKED_AT` are read, evenly spread, and what is found then is a least count.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from specdash.core.log_facts import UNTOUCHED, Touched
from specdash.llama.log_grammar import WARNING_CLASSES, Context

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LOOKED_AT: Final = 24
_SLOT_PREFIX = re.compile(rb"slot[^:|]{0,80}: *id *(\d{1,9}) *\| *task *(-?\d{1,18}) *\|")
_SEQUENCE = re.compile(rb"for sequence (\d{1,9}) ")
"""Of `find_slot`: sequences are slots."""
_PURGED = re.compile(rb"purging slot (\d{1,9}) ")
_CANCELLED = re.compile(rb"id_task = (\d{1,18})")
_FAILED = re.compile(rb"task id = (\d{1,18})")
_WORDS = ("for sequence", "purging slot", "id_task", "task id")
NAMING: Final = frozenset(
    name
    for name, line_class in WARNING_CLASSES.items()
    if not line_class.forms
    or any(form.context is Context.SLOT or any(word in form.template for word in _WORDS) for form in line_class.forms)
)
"""Classes whose lines can name a slot or a task; of those without forms nothing is known."""


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
        for pattern, found in ((_SEQUENCE, slots), (_PURGED, slots), (_CANCELLED, tasks), (_FAILED, tasks)):
            match = pattern.search(line)
            if match is not None:
                found.append(match[1])
                break
    return _distinct(slots, all_seen=all_seen), _distinct(tasks, all_seen=all_seen)


def _distinct(numbers: Sequence[bytes], *, all_seen: bool) -> Touched:
    if not numbers:
        return UNTOUCHED
    latest_first = dict.fromkeys(int(number) for number in reversed(numbers))
    ids = tuple(number for number in reversed(latest_first) if number >= 0)
    return Touched(ids, bool(ids) and not all_seen)
