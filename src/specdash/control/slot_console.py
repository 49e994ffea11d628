"""The dashboard's hand on the slots of the server that it shows. Every method may block: call it from a thread."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.control.slots import SlotChange, SlotPlan
    from specdash.core.target import Target


@dataclass(frozen=True, slots=True)
class SlotConsole:
    """Changes to the slots of `target()`. All methods raise `SpecdashError`."""

    target: Callable[[], Target]
    env: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def files(self) -> tuple[str, ...]:
        """Names of what can be restored, the newest first."""
        from specdash.control.slots import list_slots

        return tuple(one.filename for one in list_slots(self.target(), env=self.env).files)

    def plan(self, action: str, slot: int, filename: str | None) -> SlotPlan:
        """See `control.slots.plan`; `action` is `save`, `restore` or `erase`."""
        from specdash.control.slots import SlotAction, plan

        return plan(self.target(), SlotAction(action), slot, filename, env=self.env)

    def carry_out(self, plan: SlotPlan) -> SlotChange:
        """See `control.slots.carry_out`."""
        from specdash.control.slots import carry_out

        return carry_out(plan, env=self.env)
