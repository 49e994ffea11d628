"""The specdash of another machine, asked over the user's ssh for its services, and for commands that change them.

What runs there goes on when the connection dies. It is known there by an id of ours, so that we read on when there is
a connection again, and no request is carried out twice. What is told of the services is without secrets, read by type
hints, and checked.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from specdash.collect.agent_wire import PROTOCOL, read_hello
from specdash.collect.over_ssh import (
    GREETING_BYTES,
    HELLO_S,
    ORDER_S,
    RETRY_S,
    SILENT_S,
    AgentConnection,
    ending,
    no_agent,
    not_run,
    other_version,
)
from specdash.control.apply.journal import Edit  # noqa: TC001 - the codec reads the hints
from specdash.control.apply.plan import ApplyPlan
from specdash.control.console import Console, RunningApply, ServicesView
from specdash.control.profiles import Profile
from specdash.control.services.services import Deployment
from specdash.core.changes import ApplyKind, ApplyProgress, ApplyRecord, Role
from specdash.core.codec import NOT_READABLE, UnreadableError, check_of, codec_of
from specdash.core.errors import (
    ExitCode,
    Finding,
    SpecdashError,
    UnreachableError,
)
from specdash.core.flag import Flag
from specdash.core.masking import without_secrets
from specdash.system.data import dataclass
from specdash.system.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specdash.core.changes import WantedValues
    from specdash.core.target import SshHost

Told = TypeVar("Told")


# What one tells the other of plans.


def written(value: Any) -> Any:
    """A data class as JSON knows it."""
    codec = codec_of(cast("Any", type(value)))
    return codec.write(value) if codec is not None else value


def read_as(kind: type[Told], data: Any) -> Told:
    """What `written` made. Raises `UnreadableError` for what is none."""
    codec = codec_of(cast("Any", kind))
    try:
        value = codec.read(data) if codec is not None else data
    except NOT_READABLE as error:
        raise UnreadableError(f"no {kind.__name__}: {error}") from error
    if not check_of(cast("Any", kind))(value):
        raise UnreadableError(f"{kind.__name__}: a field of another type than it should be")
    return cast("Told", value)


@dataclass(frozen=True, slots=True)
class PlanOutline:
    """What may be told of an `ApplyPlan`: its edits without the bytes of their files, and their changes masked."""

    kind: ApplyKind
    edits: tuple[Edit, ...]
    findings: tuple[Finding, ...]
    digests: dict[str, str]
    """By role, SHA-256 of the file that was planned on."""
    profile: str | None = None

    @classmethod
    def of(cls, plan: ApplyPlan) -> PlanOutline:
        """That of a plan."""
        edits = tuple(replace(edit.masked, old=b"", new=b"") for edit in plan.edits)
        digests = {str(edit.role): edit.old_digest for edit in plan.edits}
        return cls(plan.kind, edits, plan.findings, digests, plan.profile)

    def plan(self, wanted: WantedValues) -> FarPlan:
        """The plan as it is shown here."""
        return FarPlan(Deployment(), self.edits, self.findings, self.profile, self.kind, False, wanted, self.digests)


@dataclass(frozen=True, slots=True)
class FarPlan(ApplyPlan):
    """A plan that was made on another machine, and is carried out there."""

    wanted: WantedValues = field(default_factory=dict, repr=False)
    """What was asked for, secrets included; nothing of a rollback."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """By role, the versions of the env files that it was planned on."""

    @property
    def argv(self) -> list[str]:
        """The command that carries it out there, if the env files are as they were."""
        expected = [word for role, digest in self.digests.items() for word in ("--expect", f"{role}={digest}")]
        if self.kind is ApplyKind.ROLLBACK:
            return ["rollback", "--yes", "--json", *expected]
        profile = ["--profile", self.profile] if self.profile is not None else []
        return ["apply", "--yes", "--json", "--from-stdin", *profile, *expected]

    @property
    def input(self) -> str:
        """What that command reads: the values, which are not for a command line."""
        return "" if self.kind is ApplyKind.ROLLBACK else json.dumps(self.wanted) + "\n"


def read_wanted(data: Any) -> dict[Role, dict[str, str | None]]:
    """`WantedValues` of a JSON object. Raises ValueError for what is none."""
    if not isinstance(data, dict) or not all(isinstance(values, dict) for values in data.values()):
        raise ValueError("must be an object of services, each an object of keys")
    wanted = {Role(role): dict(values) for role, values in data.items()}
    if not all(value is None or isinstance(value, str) for values in wanted.values() for value in values.values()):
        raise ValueError("values must be texts, or null for a key to remove")
    return wanted


# The connection, and the commands over it.

ANSWER_S: Final = 120.0
"""So long an answer may take: preflight asks engines for their options, and reads headers of models."""
AGAIN_S: Final = 600.0
"""So long a lost connection is made again and again while something runs there."""
LEAVE_S: Final = 15.0
"""The same when somebody wants the end of it."""
IDLE_S: Final = 30.0
"""A connection over which nothing was asked for longer is made anew."""
_LOOK_S: Final = 0.5
_MOST_TEXT: Final = 4000
_MOST_TEXT_KEPT: Final = 1 << 20


class LostConnectionError(UnreachableError):
    """There is no connection, or none any more: whether the last request arrived is not known."""


class FarAnswerError(SpecdashError):
    """The specdash there refuses, in its own words and with its own exit code."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(clean(without_secrets(words), 1000))
        self.exit_code = ExitCode(code) if code in set(ExitCode) else ExitCode.FAILED


class FarHost:
    """A connection, made when something is asked and nobody has one. Safe from any thread: one asks after another."""

    def __init__(self, host: SshHost, options: Sequence[str] = ()) -> None:
        """`options` are those of `specdash agent` there."""
        self.host = host
        self._options = tuple(options)
        self._agent: AgentConnection | None = None
        self._used = 0.0
        self._lock = threading.Lock()

    def ask(self, question: str, answer_s: float = ANSWER_S, **request: Any) -> Any:
        """The answer. Raises `LostConnectionError`, and `FarAnswerError` for what is refused there."""
        with self._lock:
            if time.monotonic() - self._used > IDLE_S:
                # The agent may have ended for want of questions.
                self._close()
            agent = self._agent or self._connected()
            try:
                # What it does not take is told by what there is to read.
                agent.tell({"ask": question, **request})
                answer = json.loads(self._line(agent, answer_s))
                self._used = time.monotonic()
                if "error" in answer:
                    raise FarAnswerError(str(answer["error"]), int(answer["code"]))
                return answer["answer"]
            except (ValueError, TypeError, KeyError):
                self._close()
                raise UnreachableError(f"the agent on {self.host.name} gave no answer that is known here") from None
            except LostConnectionError:
                self._close()
                raise

    def close(self) -> None:
        """End the connection; the next question makes another. What runs there goes on."""
        with self._lock:
            self._close()

    def _close(self) -> tuple[int | None, str]:
        agent, self._agent = self._agent, None
        return agent.close() if agent is not None else (None, "")

    def _connected(self) -> AgentConnection:
        argv = self.host.argv((*self._options, "--changes"))
        try:
            self._agent = agent = AgentConnection(argv)
        except OSError as error:
            raise LostConnectionError(not_run(argv[0], error)) from None
        # What a shell prints before the agent speaks is passed over.
        while (hello := read_hello(self._line(agent, HELLO_S, greeted=False))) is None:
            if agent.greeting_bytes > GREETING_BYTES:
                self._close()
                raise LostConnectionError(no_agent(self.host))
        if hello.protocol != PROTOCOL:
            self._close()
            raise UnreachableError(other_version(self.host, hello))
        return agent

    def _line(self, agent: AgentConnection, within_s: float, *, greeted: bool = True) -> bytes:
        ends = time.monotonic() + within_s
        while time.monotonic() < ends:
            lines, _ = agent.read(_LOOK_S)
            if lines:
                agent.give_back(lines[1:])
                return lines[0]
            if agent.ended:
                raise LostConnectionError(ending(self.host, *self._close(), greeted=greeted))
        self._close()
        raise LostConnectionError(f"no answer from {self.host.name} for {within_s:.0f} s: the connection is dead")


class FarCommand:
    """A command of specdash there, from its request to its end. `run` blocks; `cancel` may come from any thread."""

    def __init__(self, far: FarHost, argv: Sequence[str], given: str = "", *, terminal: bool = False) -> None:
        """`given` is what it reads on standard input before all answers: secrets are in it, never in `argv`."""
        self._far, self._argv, self._given, self._terminal = far, list(argv), given, terminal
        self._id = secrets.token_hex(16)
        self._cancelling, self._is_cancelled = Flag(), False
        self.is_of_dashboard = False
        """Whether a dashboard asks, which may be refused there."""
        self.last: ApplyProgress | None = None
        """How far it has come."""
        self._after = self._tries = 0
        self._lost_at: float | None = None
        self._wished_at: float | None = None
        self.began = False
        """Whether it may have begun."""
        self.exit_code: int | None = None
        """None for one that ended without saying how, and left what `unfinished` or `record` say, if anything."""
        self.unfinished = ""
        self.record: ApplyRecord | None = None
        self.texts = {"out": "", "err": ""}
        """What it has written."""
        self.on_text: Callable[[str, str], None] = lambda _name, _text: None
        """Takes what it writes to `out` and `err`."""
        self.on_progress: Callable[[ApplyProgress], None] = lambda _: None
        self.on_question: Callable[[], str] = lambda: ""
        """Gives the answer to what was asked last."""
        self.on_lost: Callable[[str], None] = lambda _: None
        """Hears why the connection was lost, and "" when it is there again."""

    @property
    def printed_record(self) -> ApplyRecord | None:
        """The record that it printed, as `--json` has it do."""
        return ApplyRecord.from_json((self.texts["out"].strip().splitlines() or [""])[-1])

    @property
    def last_words(self) -> str:
        """Why it left no record."""
        last = (self.texts["err"].strip().splitlines() or ["it ended there before it changed anything"])[-1]
        return clean(f"{self._far.host.name}: {last}", 1000)

    @property
    def undoing(self) -> bool:
        """Whether it is rolling back: nothing stops that."""
        return self.last is not None and self.last.step == "rollback"

    def cancel(self) -> bool:
        """Do there what Ctrl-C does; returns at once: False when that comes too late."""
        self._cancelling.set()
        return self.last is None or self.last.step != "record"

    def run(self) -> None:
        """Have it begin, and see it to its end over as many connections as that takes.

        Raises `LostConnectionError` when there is no connection to begin with, and when there has been none for long:
        it goes on there then. Raises `FarAnswerError` when it is refused.
        """
        while True:
            try:
                if self._reads_to_its_end():
                    return
            except LostConnectionError as error:
                if not self.began or not self._is_waited_for(str(error)):
                    raise
            except (ValueError, TypeError, KeyError, AttributeError):
                raise UnreachableError(f"the agent on {self._far.host.name} says what is not known here") from None

    def _reads_to_its_end(self) -> bool:
        """Have it begin, if nobody did, and read what is new; whether that is all."""
        if not self.began:
            self._far.ask("ready", SILENT_S)
            self.began = True
            whose = {"terminal": self._terminal, "dashboard": self.is_of_dashboard}
            self._far.ask("begin", id=self._id, argv=self._argv, input=self._given, **whose)
        if self._cancelling.is_set() and not self._is_cancelled:
            self._far.ask("cancel", SILENT_S, id=self._id)
            self._is_cancelled = True
        answer = self._far.ask("follow", SILENT_S, id=self._id, after=self._after)
        if self._lost_at is not None:
            self._lost_at = self._wished_at = None
            self.on_lost("")
        self._after = int(answer["after"])
        if self._take(answer["lines"]):
            return True
        if (dead := answer.get("dead")) is None:
            return False
        self.unfinished = clean(str(dead.get("unfinished") or ""), _MOST_TEXT)
        self.record = ApplyRecord.from_json(dead.get("record") or "")
        return True

    def _is_waited_for(self, why: str) -> bool:
        """Wait a while before the next connection; whether there shall be one."""
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at, self._tries = now, 0
            self.on_lost(why)
        if self._cancelling.is_set():
            self._wished_at = self._wished_at or now
            time.sleep(RETRY_S[0])
            return now - self._wished_at < LEAVE_S
        self._cancelling.wait(RETRY_S[min(self._tries, len(RETRY_S) - 1)])
        self._tries += 1
        return now - self._lost_at < AGAIN_S

    def _answered(self) -> str:
        """What somebody answers, however long that takes: an agent that is asked nothing ends, and the question with
        it."""
        answered = threading.Event()

        def keep() -> None:
            while not answered.wait(ORDER_S):
                with contextlib.suppress(SpecdashError):
                    self._far.ask("ready", SILENT_S)

        thread = threading.Thread(target=keep, name="specdash-question", daemon=True)
        thread.start()
        try:
            return self.on_question()
        finally:
            answered.set()
            thread.join()

    def _take(self, lines: list[str]) -> bool:
        """Hand out what it said; whether that is all."""
        for line in lines:
            event = _event(line)
            if "progress" in event:
                try:
                    self.last = read_as(ApplyProgress, event["progress"])
                except UnreadableError:
                    continue
                self.on_progress(self.last)
            elif event.get("asks") is True:
                text = self._answered()
                with contextlib.suppress(FarAnswerError):  # it was asked over another connection: that was a no
                    self._far.ask("answer", SILENT_S, id=self._id, text=text)
            elif isinstance(event.get("exit"), int):
                self.exit_code = event["exit"]
                return True
            else:
                for name in ("out", "err"):
                    if isinstance(event.get(name), str):
                        self.texts[name] = (self.texts[name] + event[name])[-_MOST_TEXT_KEPT:]
                        self.on_text(name, event[name])
        return False


def recovered(far: FarHost, on_progress: Callable[[ApplyProgress], None]) -> ApplyRecord | None:
    """Roll back there what was cut short; how that ended."""
    command = FarCommand(far, ("recover", "--yes", "--json", "--rollback"))
    command.on_progress = on_progress
    command.run()
    return command.record or command.printed_record


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        # Words of the interpreter, or of a handler of signals.
        return {"err": line + "\n"}
    return event if isinstance(event, dict) else {}


class FarConsole(Console):
    """As `Console`; secrets are masked in what it gives."""

    def __init__(self, host: SshHost, services: Sequence[str] = (), patience: Sequence[str] = ()) -> None:
        """`services` are options that say which services they are there, `patience` those of an apply."""
        self._host = host
        self._services, self._patience_options = tuple(services), tuple(patience)
        self._far = FarHost(host, services)
        self._running = None

    def look(self) -> ServicesView:
        """The services there as they are now; that they cannot be seen is a problem, too."""
        try:
            return self._read(ServicesView, self._far.ask("look"))
        except SpecdashError as error:
            return ServicesView(problems=(str(error),))

    def plan(self, wanted: WantedValues, profile: str | None = None) -> FarPlan:
        """What applying would do there, with the findings of preflight there. Raises `SpecdashError`."""
        answer = self._far.ask("plan", wanted=wanted, profile=profile)
        return self._read(PlanOutline, answer).plan(wanted)

    def plan_rollback(self) -> FarPlan:
        """What going back to before the last good apply would do. Raises `SpecdashError`."""
        return self._read(PlanOutline, self._far.ask("plan_rollback")).plan({})

    def missing_values(self, key: str, values: Mapping[str, str]) -> Mapping[str, str]:
        """See `Console`; none where nobody can be asked."""
        try:
            return self._read(dict[str, str], self._far.ask("missing_values", key=key, values=dict(values)))
        except SpecdashError:
            return {}

    def profiles(self) -> tuple[Profile, ...]:
        """The named sets there. Raises `SpecdashError`."""
        try:
            told = [read_as(Profile, entry) for entry in self._far.ask("profiles")]
            return tuple(
                replace(profile, values={Role(role): values for role, values in profile.values.items()})
                for profile in told
            )
        except (ValueError, TypeError):
            raise self._unknown() from None

    def start(self, plan: ApplyPlan) -> RunningApply:
        """Have a plan carried out there. One at a time, as `Console` does."""
        if self.busy:
            raise SpecdashError("an apply is running; wait for its end")
        assert isinstance(plan, FarPlan)  # noqa: S101 - it was made here
        return self._started([*plan.argv, *self._patience_options], plan.input)

    def recover(self, *, finish: bool) -> RunningApply:
        """Finish or roll back there what was cut short."""
        return self._started(["recover", "--yes", "--json", "--finish" if finish else "--rollback"])

    def unfinished(self) -> str | None:
        """In words, what was cut short there; None where there is nothing, or nobody can be asked."""
        try:
            words = self._far.ask("unfinished")
        except SpecdashError:
            return None
        finally:
            # It is asked once, at the start of every dashboard.
            self._far.close()
        return clean(words, 1000) if isinstance(words, str) else None

    def close(self, timeout: float) -> bool:
        """As `Console`; the connection ends, too."""
        ended = super().close(timeout)
        if ended:
            self._far.close()
        return ended

    def _started(self, argv: Sequence[str], given: str = "") -> RunningApply:
        far = FarHost(self._host, self._services)
        command = FarCommand(far, (*argv, *self._services), given)
        self._running = running = RunningApply(lambda report: _record_of(command, far, report), command.cancel)
        return running.start()

    def _read(self, kind: type[Told], answer: Any) -> Told:
        try:
            return read_as(kind, answer)
        except UnreadableError:
            raise self._unknown() from None

    def _unknown(self) -> SpecdashError:
        return UnreachableError(f"the agent on {self._host.name} says what is not known here")


def _record_of(command: FarCommand, far: FarHost, report: Callable[[ApplyProgress], None]) -> ApplyRecord:
    """See a command to its end, and what it recorded. One that was killed there is rolled back there."""

    def lost(why: str) -> None:
        if command.last is not None:
            report(replace(command.last, detail=f"{why}; it goes on there" if why else "connected again"))

    command.is_of_dashboard, command.on_progress, command.on_lost = True, report, lost
    try:
        command.run()
        record = recovered(far, report) if command.unfinished else command.record or command.printed_record
    finally:
        far.close()
    if record is None:
        raise SpecdashError(command.last_words)
    return record
