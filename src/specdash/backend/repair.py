"""What a runner finds at its start that the one before left half-done: undone, holds lifted, a record written.

A change (its journal) and a trial (its note) hold both versions of the env files, so that nothing else is needed. Those
of 0.1 have the same form, and end in the same way.
"""

from __future__ import annotations

import os
import time
from dataclasses import field
from typing import TYPE_CHECKING

from specdash.backend import trial
from specdash.backend.journal import ApplyLock, unfinished
from specdash.backend.proxy_hold import ProxyHold, held_fronts
from specdash.backend.start_check import healthy
from specdash.backend.transaction import undo_dead
from specdash.core.changes import Role
from specdash.core.errors import ConflictError, SpecdashError
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.journal import HeldProxy

_HOLD_S = 600.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was found and put back. `lines` are sentences for the log."""

    lines: tuple[str, ...] = ()
    held: tuple[HeldProxy, ...] = ()
    """Proxies that the dead runner held."""
    env: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def resume(self, url: str) -> None:
        """Keep the proxies held until the backend at `url` answers, then let their clients through."""
        hold = ProxyHold(held_fronts(self.held, self.env), "specdash puts the old settings back", _HOLD_S)
        deadline = time.monotonic() + _HOLD_S
        while hold.count and not healthy(url) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        hold.resume()


def repair(env_file: str, env: Mapping[str, str] = os.environ) -> Repaired:
    """Undo the change and the trial of a dead process on this env file, or on a proxy's alone.

    Never raises: what cannot be undone is in the sentences, and its journal stays for the next start.
    """
    lines: list[str] = []
    held: tuple[HeldProxy, ...] = ()
    file = os.path.realpath(env_file)
    try:
        with ApplyLock("repair", env):
            journal = unfinished(env)
            backend = journal.edit(Role.BACKEND) if journal is not None else None
            if journal is not None and (backend is None or os.path.realpath(backend.env_file) == file):
                held = journal.held
                lines += undo_dead(journal, env)
            noted = trial.read_trial(env)
            if noted is not None and os.path.realpath(noted.env_file) == file and not noted.alive:
                why = "the original is back"
                try:
                    change = noted.way_back(None)
                    for edit in change.edits if change is not None else ():
                        edit.write()
                except ConflictError as error:
                    why = str(error)
                trial.end(env)
                lines.append(f"`specdash {noted.what}` was cut short while it tried settings: {why}")
    except ConflictError:
        # Another process is at it, and will finish it.
        return Repaired()
    except SpecdashError as error:
        lines.append(str(error))
    return Repaired(tuple(lines), held, env)
