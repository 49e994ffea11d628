"""Which of the changed keys count at once, and which with a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.changes import Role
from specdash.core.key_help import key_help

if TYPE_CHECKING:
    from specdash.control.preflight.context import Findings, PreflightContext


def check(role: Role, context: PreflightContext, out: Findings) -> None:
    """Add how the changed keys take effect."""
    later: list[str] = []
    at_once: list[str] = []
    for key in sorted(context.changed):
        known = key_help(key)
        needs = known.restart if known is not None else role is Role.BACKEND
        (later if needs else at_once).append(key)
    for keys, how in ((later, f"a restart of the {role}"), (at_once, "a reload (SIGHUP), without a restart")):
        if keys:
            verb = "takes" if len(keys) == 1 else "take"
            said = f"{', '.join(keys)} {verb} effect with {how}"
            out.info("restart", said, key=keys[0] if len(keys) == 1 else None)
