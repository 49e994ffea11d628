"""User-facing errors and the exit codes they end a command with."""

from __future__ import annotations

from enum import IntEnum


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
    """No llama-server answers where one was expected."""
    NO_ENGINE = 5
    """No engine is installed that could run the model."""
    PORT_IN_USE = 6
    """Another process owns the port that was asked for."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C, SIGTERM or SIGHUP; `backend run` alone answers SIGTERM with 0, as a service should."""


class SpecdashError(Exception):
    """An error with one clear line for the user: the thing, the value, what to do.

    Raised for anything the user can mend; everything else is a bug and keeps its traceback.
    """

    exit_code: ExitCode = ExitCode.FAILED


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
