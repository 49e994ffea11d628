"""What `specdash agent` writes and whoever started it over ssh reads: one JSON object a line, whole and checked.

The first line has a `hello` with the protocol's number; every line has the clocks of the machine where it was written,
so that readings can be dated by the clocks of the one where it is read. Nothing here ever holds a key.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from specdash.core.codec import NOT_READABLE, UnreadableError, check_of, codec_of
from specdash.core.proxy_events import ProxyEvents, ProxyStatus, RequestEvent
from specdash.core.readings import ProcessTree, Reading
from specdash.core.records import StartCheck  # noqa: TC001 - the codec reads the hints
from specdash.core.sources import SOURCES, decode
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from specdash.core.target import SshHost, Target

PROTOCOL: Final = 1
"""Grows when an older reader would misread what is written. New fields and sources are left out by older readers."""
MOST_LINE_BYTES: Final = 8 * 1024 * 1024
"""No line is longer: what would be is not written, and what is is not read."""
TRUSTED_WALL_S: Final = 2.0
"""Wall clocks that differ by less are taken as the same: how long a line was under way is not known."""

LogPlace = tuple[int, int, int]
"""Device, inode and offset: how far a log file was read."""


@dataclass(frozen=True, slots=True)
class AgentHello:
    """The first word of an agent."""

    version: str
    """Of specdash there."""
    protocol: int
    host: str
    """What the machine calls itself."""


@dataclass(frozen=True, slots=True)
class AgentTarget:
    """What the agent knows of its server: a `Target` without what is secret."""

    url: str
    origin: str = ""
    log: str | None = None
    pid: int | None = None
    model: str | None = None
    engine: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    start_check: StartCheck | None = None
    proxy_url: str | None = None
    proxy_log: str | None = None
    proxy_origin: str = ""

    @classmethod
    def of(cls, target: Target) -> AgentTarget:
        """Without its keys."""
        return cls(**{name: getattr(target, name) for name in LEARNT_FIELDS}, url=target.url)

    def seen_from(self, target: Target, host: SshHost) -> Target:
        """`target`, which is watched over ssh, with what is known there. Files are named as scp names them: none is of
        this machine."""
        files = {name: path and f"{host.name}:{path}" for name in ("log", "proxy_log") if (path := getattr(self, name))}
        known = {name: getattr(self, name) for name in LEARNT_FIELDS}
        return replace(target, **{**known, **files, "origin": f"ssh, {self.url}: {self.origin}"})


LEARNT_FIELDS: Final = tuple(entry.name for entry in fields(AgentTarget) if entry.name != "url")
"""What an agent tells of a target."""


@dataclass(frozen=True, slots=True)
class AgentLine:
    """One line: whatever there was to say since the one before."""

    now: float
    """Its machine's monotonic clock when it was written."""
    wall: float
    """Unix time there, likewise."""
    hello: AgentHello | None = None
    target: AgentTarget | None = None
    waiting: str = ""
    """Why nothing is watched there."""
    readings: tuple[Any, ...] = ()
    """As `core.sources.encode` writes them."""
    log_read: LogPlace | None = None
    """How far the log was read for these and all earlier readings."""
    log_lines_left_out: int = 0
    """Raw lines that a slow link had no room for, since the agent began."""
    readings_left_out: int = 0
    """Readings, likewise."""


_CODEC = codec_of(AgentLine)
_CHECK = check_of(AgentLine)


def write_line(line: AgentLine) -> bytes:
    """The line with its end. Raises ValueError for numbers that are not finite."""
    assert _CODEC is not None  # noqa: S101 - for the type checker
    return json.dumps(_CODEC.write(line), separators=(",", ":"), allow_nan=False).encode() + b"\n"


def read_line(data: bytes) -> AgentLine:
    """The line. Raises UnreadableError for what is none."""
    assert _CODEC is not None  # noqa: S101 - for the type checker
    try:
        line: AgentLine = _CODEC.read(json.loads(data))
    except NOT_READABLE as error:
        raise UnreadableError(f"no line of an agent: {error}") from error
    if not _CHECK(line):
        raise UnreadableError("a field of another type than it should be")
    return line


def read_hello(data: bytes) -> AgentHello | None:
    """The hello of a line of any protocol; None where there is none."""
    try:
        hello = json.loads(data)["hello"]
        return AgentHello(str(hello["version"]), int(hello["protocol"]), str(hello["host"]))
    except NOT_READABLE:
        return None


def read_reading(row: Any) -> Reading[Any]:
    """A reading as it was written. Raises UnreadableError for one that is not known, or not of its type."""
    reading = decode(row)
    value = reading.value
    if value is None and reading.failure is None:
        raise UnreadableError("neither a value nor a failure")
    if value is not None and not check_of(SOURCES[reading.source].value)(value):
        raise UnreadableError(f"{reading.source}: a field of another type than it should be")
    is_told = reading.failure is None or isinstance(reading.failure.detail, str)
    if not is_told or not math.isfinite(reading.at):
        raise UnreadableError(f"{reading.source}: no reading")
    return reading


# The other machine's clocks.

_DRIFT: Final = 1e-4
"""Clocks drift apart by no more, in seconds a second."""


class ClockDifference:
    """Dates what is read by the clocks of this machine.

    The smallest difference between the reading of a line and its writing is that of the line that was least under way;
    it may rise by what clocks drift.
    """

    def __init__(self) -> None:
        self._ahead: float | None = None
        self._seen = 0.0
        self.wall_s = 0.0
        """Unix time here minus Unix time there; 0 where that is little."""

    def saw(self, line: AgentLine, now: float, wall: float) -> None:
        """Take in the clocks of a line that was read just now."""
        ahead = now - line.now
        if self._ahead is None or ahead < (most := self._ahead + (now - self._seen) * _DRIFT):
            self._ahead = ahead
            difference = wall - line.wall
            self.wall_s = difference if abs(difference) >= TRUSTED_WALL_S else 0.0
        else:
            self._ahead = most
        self._seen = now

    def here(self, at: float) -> float:
        """A moment of the other monotonic clock by this one's."""
        return at + (self._ahead or 0.0)

    def dated(self, value: Any) -> Any:
        """A value with its Unix times by the clock of this machine."""
        shift = self.wall_s
        if not shift:
            return value
        if isinstance(value, ProcessTree):
            return _moved(value, shift, "started_wall")
        if isinstance(value, ProxyEvents):
            return replace(value, events=tuple(_moved(event, shift, "at") for event in value.events))
        if isinstance(value, ProxyStatus):
            sessions = tuple(_moved(session, shift, "last_seen") for session in value.sessions)
            active = tuple(_moved(request, shift, "started") for request in value.active)
            return _moved(replace(value, sessions=sessions, active=active), shift, "started", "held_since")
        if isinstance(value, tuple):
            return tuple(_moved(entry, shift, "at", "ended_at") for entry in value)
        return value


def _moved(value: Any, shift: float, *names: str) -> Any:
    moments = {name: getattr(value, name, None) for name in names}
    return replace(value, **{name: moment + shift for name, moment in moments.items() if moment is not None})


def event_key(event: Any) -> int:
    """Tells an event of the proxy that was read before; equal for equal events."""
    return hash((type(event) is RequestEvent, repr(event)))
