"""What a run of the tuner works with: a bed, a measurement, a record, and whoever wants to be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from specdash.tune.limits import Limits
from specdash.tune.objective import Objective

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.bench.samples import Bed
    from specdash.tune.measuring import Measure, Measured
    from specdash.tune.problem import Point, Tuner
    from specdash.tune.serving import Load
    from specdash.tune.status import Boot, Now, RunEnd, RunHead

REPEATS = 2
"""How often a disturbed boot is done again before it is taken as it is."""


class Record(Protocol):
    """Where a run is written down: `run_files.RunFiles`, and samples beside it."""

    def add(self, event: RunHead | Boot | RunEnd) -> None:
        """Append one event. Raises `NotWrittenError`."""

    def tell(self, now: Now) -> None:
        """Replace what is going on. Raises `NotWrittenError`."""

    def keep(self, number: int, measured: Measured, discarded: str) -> None:
        """Keep the requests of a boot. `discarded` says why they do not count. Raises `NotWrittenError`."""


class Observer(Protocol):
    """Told what goes on, in the thread of the loop."""

    def now(self, now: Now) -> None:
        """A step began, or came further."""

    def booted(self, boot: Boot, again: bool) -> None:
        """A boot ended; `again`: it was told from an earlier run."""

    def discarded(self, why: str) -> None:
        """A boot did not count."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Whether outputs stayed the same. `same` None: that could not be told."""

    same: bool | None
    words: str


@dataclass(frozen=True, slots=True)
class Gear:
    """What a loop works with.

    `configure` gives the settings of a point. `before_boot` waits for a moment at which a restart harms nobody; it may
    raise KeyboardInterrupt. `verify` compares the texts of a point with those without drafts; None: not to be done.
    `users` looks at who waits at the proxies and for a slot, from a thread of its own; None: nobody can.
    """

    tuner: Tuner
    bed: Bed
    measure: Measure
    configure: Callable[[Point], Mapping[str, str]]
    record: Record
    observer: Observer
    before_boot: Callable[[Callable[[str], None]], None] = lambda _: None
    verify: Callable[[Point, Callable[[str], None]], Texts] | None = None
    limits: Limits = field(default_factory=Limits)
    objective: Objective = Objective.DECODE
    repeats: int = REPEATS
    users: Callable[[], Load] | None = None
