"""Watches a server from its own machine: `specdash agent` there, started by the user's ssh; its readings come here.

ssh's exit code says what went wrong: 255 is its own (no connection), 127 and 126 are those of the other machine's shell
(there is no such program). Their words are for people, and nothing here reads them.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import subprocess
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from specdash import __version__
from specdash.collect.agent_wire import (
    MOST_LINE_BYTES,
    PROTOCOL,
    AgentHello,
    ClockDifference,
    event_key,
    read_hello,
    read_line,
    read_reading,
)
from specdash.core.codec import UnreadableError
from specdash.core.errors import ExitCode
from specdash.core.masking import without_secrets
from specdash.core.proxy_events import ProxyEvents
from specdash.core.readings import FailureKind, Reading, Source
from specdash.system.text import clean, counted

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from specdash.collect.agent_wire import AgentLine, LogPlace
    from specdash.core.target import SshHost, Target

_log = logging.getLogger(__name__)

HELLO_S: Final = 30.0
"""So long the way there and the start of the agent may take: jump hosts, a cold disk."""
SILENT_S: Final = 15.0
"""An agent says something every two seconds; after so long without a byte the connection is dead."""
RETRY_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between two connections, longer each time one fails."""
ORDER_S: Final = 10.0
"""So often the agent is told that somebody still reads."""
AGAIN_S: Final = 1.0
"""How often it is said that nobody looks."""
_LOOK_S: Final = 1.0
_NO_CONNECTION, _NO_PROGRAM, _NOT_EXECUTABLE = 255, 127, 126
_READ_BYTES: Final = 1 << 16
GREETING_BYTES: Final = 1 << 16
"""So much a shell's start files may print before the agent speaks."""
_EVENTS_KNOWN: Final = 10_000
_SAYS_NOTHING: Final = frozenset({Source.PROCESS, Source.SCHEDULING, Source.HEALTH})
"""Of these a lost connection says nothing (a process whose reading fails has ended), or it is said in its own way."""


def gpu_watch(host: SshHost, publish: Callable[[Reading[Any]], None], interval_s: float) -> AgentWatch:
    """What watches the GPUs of a machine behind ssh for a server that is asked from here."""

    def take(reading: Reading[Any]) -> None:
        if reading.source is Source.GPU:
            publish(reading)

    from specdash.core.target import Target

    return AgentWatch(Target(host.url, ssh=host), take, interval_s, lambda _: None)


class AgentWatch:
    """Keeps an agent running there from `start` to `stop`, and begins again when the connection dies."""

    def __init__(
        self,
        target: Target,
        publish: Callable[[Reading[Any]], None],
        interval_s: float,
        on_target: Callable[[Target], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`on_target` is told of the target as the agent knows it."""
        self._target, self._publish, self._on_target = target, publish, on_target
        self._interval_s = interval_s
        self._clock, self._wall = clock, wall
        self._stopping = threading.Event()
        self._agent: AgentConnection | None = None
        self._lock = threading.Lock()
        self._log_read: LogPlace | None = None
        self._last: dict[Source, float] = {}
        """When the last reading of each source was made, by this machine's clock."""
        self._events: deque[int] = deque(maxlen=_EVENTS_KNOWN)
        self._left_out = (0, 0)
        self.unread = 0
        """Lines and readings that were not understood."""
        self._thread = threading.Thread(target=self._run, name="specdash-ssh", daemon=True)

    @property
    def host(self) -> SshHost:
        """The other machine."""
        return cast("SshHost", self._target.ssh)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Begin to end; `join` waits."""
        self._stopping.set()
        with self._lock:
            if self._agent is not None:
                self._agent.kill()

    def join(self, timeout_s: float) -> None:
        """Wait for the end."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))

    def set_interval(self, interval_s: float) -> None:
        """Change the seconds between two looks, there too."""
        self._interval_s = interval_s
        with self._lock:
            if self._agent is not None:
                self._agent.tell({"interval": interval_s})

    def _run(self) -> None:
        failures = 0
        self._publish_away(f"connecting to {self.host.name} over ssh", Source.HEALTH)
        while not self._stopping.is_set():
            began = self._clock()
            try:
                why = self._watch()
            except Exception as error:  # noqa: BLE001 - a bug shall show, not end the watch
                _log.exception("watching over ssh failed")
                why = f"the reader of the agent failed: {type(error).__name__}"
            if self._stopping.is_set():
                return
            # A connection that held for long was a good one.
            failures = 0 if self._clock() - began > RETRY_S[-1] else failures + 1
            self._publish_away(why, *Source)
            again = self._clock() + RETRY_S[min(failures, len(RETRY_S)) - 1]
            while not self._stopping.wait(AGAIN_S) and self._clock() < again:
                self._publish_away(why, Source.HEALTH)

    def _publish_away(self, why: str, *sources: Source) -> None:
        now = self._clock()
        for source in sources:
            if source is Source.HEALTH:
                self._publish(Reading.unknown(source, now, FailureKind.UNAVAILABLE, why))
            elif source not in _SAYS_NOTHING:
                self._publish(Reading.unknown(source, now, FailureKind.UNREACHABLE, why))

    def _watch(self) -> str:
        """One connection, to its end; why it ended."""
        options = ["--refresh", f"{self._interval_s:g}"]
        if self._log_read is not None:
            options += ["--log-after", ":".join(map(str, self._log_read))]
        argv = self.host.argv(tuple(options))
        try:
            agent = AgentConnection(argv)
        except OSError as error:
            return not_run(argv[0], error)
        with self._lock:
            self._agent = agent
            if self._stopping.is_set():
                agent.kill()
        clocks, hello = ClockDifference(), cast("AgentHello | None", None)
        began = self._clock()
        silent_s = 0.0
        why = ""
        waiting = ""
        try:
            while not self._stopping.is_set():
                agent.say_that_we_read(self._interval_s)
                lines, is_alive = agent.read(_LOOK_S)
                silent_s = 0.0 if is_alive else silent_s + _LOOK_S
                for line in lines:
                    if hello is not None:
                        waiting = self._take(line, clocks, waiting)
                    elif (hello := read_hello(line)) is not None:
                        if hello.protocol != PROTOCOL:
                            return other_version(self.host, hello)
                        waiting = self._take(line, clocks, waiting)
                if agent.ended:
                    break
                if hello is None and (self._clock() - began > HELLO_S or agent.greeting_bytes > GREETING_BYTES):
                    why = no_agent(self.host)
                    break
                if hello is not None and silent_s >= SILENT_S:
                    why = f"nothing came from {self.host.name} for {SILENT_S:.0f} s: the connection is dead"
                    break
        finally:
            code, words = agent.close()
            with self._lock:
                self._agent = None
        return why or ending(self.host, code, words, greeted=hello is not None)

    def _take(self, data: bytes, clocks: ClockDifference, waiting: str) -> str:
        """Publish what a line says; why the agent waits, "" when it watches."""
        now = self._clock()
        try:
            line = read_line(data)
        except UnreadableError as error:
            self._not_understood(str(error))
            return waiting
        clocks.saw(line, now, self._wall())
        if line.target is not None:
            self._on_target(line.target.seen_from(self._target, self.host))
            waiting = ""
        if line.waiting:
            words = f"{self.host.name}: {clean(line.waiting, 300)}"
            self._publish_away(words, *(Source if words != waiting else (Source.HEALTH,)))
            waiting = words
        elif waiting:
            self._publish_away(waiting, Source.HEALTH)
        for row in line.readings:
            self._take_reading(row, clocks, now)
        self._log_read = line.log_read or self._log_read
        self._tell_left_out(line)
        return waiting

    def _take_reading(self, row: Any, clocks: ClockDifference, now: float) -> None:
        try:
            reading = read_reading(row)
        except UnreadableError as error:
            self._not_understood(str(error))
            return
        if isinstance(reading.value, ProxyEvents):
            reading = replace(reading, value=self._fresh(reading.value))
        at = min(now, max(clocks.here(reading.at), self._last.get(reading.source, float("-inf"))))
        self._last[reading.source] = at
        self._publish(replace(reading, at=at, value=clocks.dated(reading.value)))

    def _fresh(self, batch: ProxyEvents) -> ProxyEvents:
        """Without what was read before: an agent that begins again reads the proxy's last events again."""
        known = frozenset(self._events)
        fresh = [(event, key) for event in batch.events if (key := event_key(event)) not in known]
        self._events.extend(key for _, key in fresh)
        return replace(batch, events=tuple(event for event, _ in fresh))

    def _not_understood(self, why: str) -> None:
        self.unread += 1
        self._tell(
            FailureKind.GARBAGE, f"{counted(self.unread, 'line')} of the agent on {self.host.name}, the last: {why}"
        )

    def _tell_left_out(self, line: AgentLine) -> None:
        left_out = line.log_lines_left_out, line.readings_left_out
        if left_out != self._left_out and any(left_out):
            lines, readings = counted(left_out[0], "log line"), counted(left_out[1], "reading")
            self._tell(FailureKind.UNREACHABLE, f"the link to {self.host.name} is slow: {lines}, {readings} left out")
        self._left_out = left_out

    def _tell(self, kind: FailureKind, words: str) -> None:
        """What is wrong with the watching itself is told where it is told that specdash is short of CPU."""
        detail = clean(without_secrets(words), 300)
        self._publish(Reading.unknown(Source.SCHEDULING, self._clock(), kind, detail))


def not_run(program: str, error: OSError) -> str:
    """That there is no ssh to run."""
    return f"cannot run {program} ({error.strerror}): [ssh] command in config.toml names the ssh to use"


def no_agent(host: SshHost) -> str:
    """That something speaks there, and no agent."""
    return f"no agent speaks on {host.name}: is `{host.program}` there specdash?"


def other_version(host: SshHost, hello: AgentHello) -> str:
    """That the agent there speaks another protocol, and on which side to upgrade."""
    there, here = clean(hello.version, 40), __version__
    older = f"upgrade it on {host.name}" if hello.protocol < PROTOCOL else "upgrade it here"
    return (
        f"specdash {there} on {host.name} speaks protocol {hello.protocol}, specdash {here} here speaks "
        f"{PROTOCOL}: {older}"
    )


def ending(host: SshHost, code: int | None, words: str, *, greeted: bool) -> str:
    """Why a connection ended. `words` are the last that ssh wrote, `greeted` says whether the agent had spoken."""
    program = host.program
    why = f": {words}" if words else ""
    if code == _NO_CONNECTION:
        return f"ssh to {host.name} has no connection (exit 255){why}"
    if code in (_NO_PROGRAM, _NOT_EXECUTABLE) and not greeted:
        return (
            f"specdash is not installed on {host.name} as `{program}` (exit {code}){why}. Install it there "
            "from a checkout (`pip install .`), or set program under [ssh] in config.toml"
        )
    if code == ExitCode.USAGE and not greeted:
        return (
            f"specdash on {host.name} is of another version than {__version__} here, and refuses `specdash agent` "
            f"(exit 2){why}; `{host.words('--version')}` says which"
        )
    if code == 0 and not greeted:
        return f"`{program}` on {host.name} ended without a word{why}: is it specdash?"
    if code is not None and code < 0:
        return f"ssh to {host.name} was ended by signal {-code}"
    return f"the agent on {host.name} ended (exit {code}){why}"


class AgentConnection:
    """One ssh process and its pipes. Not for several threads, but for `kill` and `tell`."""

    def __init__(self, argv: tuple[str, ...]) -> None:
        """Raises OSError when there is no such program."""
        # In a session of its own it has no terminal to ask on, and Ctrl-C is for us to answer.
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._out, self._err = cast("IO[bytes]", self._process.stdout), cast("IO[bytes]", self._process.stderr)
        self._selector = selectors.DefaultSelector()
        for stream in (self._out, self._err):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ)
        os.set_blocking(cast("IO[bytes]", self._process.stdin).fileno(), False)
        self._rest = bytearray()
        self._unread: list[bytes] = []
        self._is_overlong = False
        self._words = b""
        self._ordered = float("-inf")
        self.ended = False
        """Whether nothing more comes."""
        self.greeting_bytes = 0
        """How much came in all."""

    def read(self, timeout_s: float) -> tuple[list[bytes], bool]:
        """The lines that came within so long, empty for one that was too long; and whether anything came."""
        if self._unread:
            lines, self._unread = self._unread, []
            return lines, True
        lines = []
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            stream = cast("IO[bytes]", key.fileobj)
            data = _read(stream)
            if data == b"":
                self._selector.unregister(stream)
                # A master of shared connections keeps standard error open for ever.
                self.ended = self.ended or stream is self._out
            elif data is not None and stream is self._out:
                self.greeting_bytes += len(data)
                lines += self._lines(data)
            elif data is not None:
                self._words = (self._words + data)[-4096:]
        if not ready and self._process.poll() is not None:
            self.ended = True
        return lines, bool(ready)

    def give_back(self, lines: list[bytes]) -> None:
        """Have lines read again."""
        self._unread = lines

    def say_that_we_read(self, interval_s: float) -> None:
        """Repeat the order to look every so often, every `ORDER_S`: an agent without orders ends."""
        if time.monotonic() - self._ordered >= ORDER_S:
            self._ordered = time.monotonic()
            self.tell({"interval": interval_s})

    def tell(self, words: dict[str, Any]) -> None:
        """Write a line to the agent; one that has no room for it has ended or hangs."""
        with suppress(OSError, ValueError):
            cast("IO[bytes]", self._process.stdin).write(json.dumps(words).encode() + b"\n")

    def kill(self) -> None:
        """End it, from any thread. The agent there ends when its input does."""
        self._process.kill()

    def close(self) -> tuple[int | None, str]:
        """End it; its exit code (None where it had to be killed), and the last line that it wrote for people."""
        code: int | None
        with suppress(OSError):
            cast("IO[bytes]", self._process.stdin).close()
        try:
            code = self._process.wait(1.0 if self.ended else 0.2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            code = None
        while data := _read(self._err):
            self._words = (self._words + data)[-4096:]
        self._selector.close()
        self._out.close()
        self._err.close()
        lines = [line for line in self._words.decode("utf-8", "replace").splitlines() if line.strip()]
        return code, clean(without_secrets(lines[-1].strip()), 300) if lines else ""

    def _lines(self, data: bytes) -> list[bytes]:
        lines: list[bytes] = []
        *whole, rest = data.split(b"\n")
        for part in whole:
            is_overlong = self._is_overlong or len(self._rest) + len(part) > MOST_LINE_BYTES
            lines.append(b"" if is_overlong else bytes(self._rest) + part)
            self._rest, self._is_overlong = bytearray(), False
        self._rest += rest
        if len(self._rest) > MOST_LINE_BYTES:
            self._rest, self._is_overlong = bytearray(), True
        return lines


def _read(stream: IO[bytes]) -> bytes | None:
    """What is there: nothing at the end, None where there is none now."""
    try:
        return os.read(stream.fileno(), _READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""
