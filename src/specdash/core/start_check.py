"""Did it really speculate? What the runner saw of a backend right after its start, kept in its run record.

`specdash backend run` looks at `/slots[].speculative`, at the error lines of the log, and at one short completion after
every start and every swap; the verdict lies in the run record, where dashboards and applies find it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SEE_LOG = "see the first lines of the log, and `specdash preflight`"
"""What to do where nothing says why a server does not speculate."""


def unexplained(drafting: int, slots: int) -> str:
    """Why a server is taken not to speculate, where all that is known is how many of its slots can draft."""
    many = f"{drafting} of {slots} slots draft" if drafting else "its slots do not draft"
    return f"{many}, and the log does not say why"


class Drafting(StrEnum):
    """Whether the server speculates, as a state of its own."""

    YES = "speculating"
    """Drafts were seen."""
    READY = "ready"
    """Its slots can draft, and none was seen yet."""
    OFF = "off"
    """No speculation was asked for, and there is none."""
    FAILED = "running without speculation"
    """It was asked for, and the server runs without."""
    UNKNOWN = "unknown"


class Completion(StrEnum):
    """How a first completion ended."""

    ANSWERED = "answered"
    LATE = "late"
    """No answer in time: the server may be slow, or busy with somebody else's prompt."""
    BROKEN_OFF = "broken off"
    """The connection ended, most often because the server did."""
    NOT_ALLOWED = "not allowed"
    """The server refused this client (its key), or said that it is not ready: nothing about speculation."""
    FAILED = "failed"
    """The server failed it, as it would fail anybody's."""


@dataclass(frozen=True, slots=True)
class StartCheck:
    """The verdict on one start. Moments are Unix time; None is unknown."""

    drafting: Drafting
    checked: float
    because: str = ""
    """What says so; for FAILED the cause, in one sentence without a full stop."""
    fix: str = ""
    """What to do about it, in one sentence."""
    cause: str = ""
    """Id of the cause in `llama.start_failures`, "" where none was recognised."""
    slots: int | None = None
    slots_drafting: int | None = None
    probe_tokens: int | None = None
    """Tokens that the probe generated; None when there was no probe."""
    probe_drafted: int | None = None
    probe_accepted: int | None = None
    probe_tasks: tuple[int, ...] = ()
    """Numbers of the probe's tasks in the server's log, where they could be learnt: no request of a user's."""
    probe_problem: str = ""
    """Why the probe got no proper answer, or was not made; "" when it was answered."""
    pending: bool = False
    """The probe is still to come, or under way: another verdict follows."""
