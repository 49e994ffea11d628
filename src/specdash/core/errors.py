"""User-facing errors and the exit codes they end a command with."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable


class ExitCode(IntEnum):
    """Exit codes of every command, documented in README; `specdash check` alone uses the Nagios order instead."""

    OK = 0
    FAILED = 1
    """The command ran, and what it was asked for did not come true."""
    USAGE = 2
    """Unknown option or argument, or a value that cannot be meant."""
    BAD_INPUT = 3
    """A file or setting named by the user is missing, unreadable or not what it should be."""
    UNREACHABLE = 4
    """No llama-server answers where one was expected, or the machine of `--on` cannot be reached or has no specdash."""
    NO_ENGINE = 5
    """No engine is installed that could run the model."""
    PORT_IN_USE = 6
    """Another process owns the port that was asked for."""
    REFUSED = 7
    """Preflight found an error; nothing was touched."""
    CONFLICT = 8
    """Another apply is running, or another program changed the file; nothing was touched."""
    SERVICE = 9
    """The service is unknown to its manager, the manager is not running, or it refused; nothing was changed."""
    NOT_WRITTEN = 10
    """A file could not be written (disk full, read-only, not the owner); the old one is still there."""
    ROLLED_BACK = 11
    """The change was tried and failed; everything is as it was before."""
    ROLLBACK_FAILED = 12
    """The change failed and so did undoing it; the message says what is left to do."""
    UNFINISHED = 13
    """Not used since 0.2: an apply that was cut short is put back without a command."""
    INCONCLUSIVE = 14
    """A comparison shows nothing either way: its control went wrong too, or what was to be compared did not happen."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C, SIGTERM or SIGHUP; `backend run` alone answers SIGTERM with 0, as a service should."""


class Problem(Struct, frozen=True):
    """What is wrong, and the way out. Code that decides reads the fields; the text is for people."""

    what: str
    fix: str = ""
    """What to do, "" where nothing is known."""
    key: str | None = None
    """The env key to blame."""
    text: str = ""
    """The whole as one sentence, where that is not `what; fix`."""
    also: tuple[str, ...] = ()
    """Other keys whose values are part of it."""
    is_removed: bool = False
    """It is a key that llama.cpp reads no longer."""

    def __str__(self) -> str:
        return self.text or (f"{self.what}; {self.fix}" if self.fix else self.what)


class SpecdashError(Exception):
    """An error with one clear line for the user: the thing, the value, what to do.

    Raised for anything the user can mend; everything else is a bug and keeps its traceback.
    """

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, what: str | Problem = "", fix: str = "", *, key: str | None = None, text: str = "") -> None:
        self.problem = what if isinstance(what, Problem) else Problem(what, fix, key, text)
        super().__init__(str(self.problem))


class UsageError(SpecdashError):
    """The command line cannot be meant."""

    exit_code = ExitCode.USAGE


class InputError(SpecdashError):
    """A file or setting named by the user is missing, unreadable or malformed."""

    exit_code = ExitCode.BAD_INPUT


class UnreachableError(SpecdashError):
    """No llama-server answers where one was expected."""

    exit_code = ExitCode.UNREACHABLE


class EngineMissingError(SpecdashError):
    """Neither the llama-server binary nor the xllamacpp package can be used."""

    exit_code = ExitCode.NO_ENGINE


class PortInUseError(SpecdashError):
    """The port that was asked for belongs to another process."""

    exit_code = ExitCode.PORT_IN_USE


class RefusedError(SpecdashError):
    """Preflight found an error in what was asked for."""

    exit_code = ExitCode.REFUSED


class ConflictError(SpecdashError):
    """Another apply is running, or a file changed since it was read."""

    exit_code = ExitCode.CONFLICT


class ServiceError(SpecdashError):
    """A service is missing, or its manager cannot or will not do what was asked."""

    exit_code = ExitCode.SERVICE


class NotWrittenError(SpecdashError):
    """A file could not be written; what was there before is still there."""

    exit_code = ExitCode.NOT_WRITTEN


class Severity(StrEnum):
    """How much a finding weighs."""

    ERROR = "error"
    """The change is refused."""
    WARNING = "warning"
    """The change goes on; the operator should know."""
    INFO = "info"


class Finding(Struct, frozen=True):
    """One result of a check. Texts are single lines and hold no secrets.

    `rule` names the check in a stable word, as `port-owner`. `key` is the env key to change, None when none is to blame
    (a full disk). `message` says what is wrong with which value; `fix` what to do, "" when nothing is to be done.
    """

    rule: str
    severity: Severity
    message: str
    key: str | None = None
    fix: str = ""

    @property
    def line(self) -> str:
        """The finding as one line of text."""
        about = f"{self.key}: " if self.key is not None and not self.message.startswith(self.key) else ""
        return f"{about}{self.message}{f'; {self.fix}' if self.fix else ''}"


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that refuse the change."""
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)
