"""Why llama.cpp ended, aborted, or runs without speculation, from what it printed.

The causes are fields of the line classes (`llama.log.trouble_lines`); here are those of which no line speaks, and how
the one that a log speaks of is found: `explain`, and `unspoken` for the ways of which no log says a word.

Source: llama.cpp b11434 and b11549, tried on the real servers; GPU memory from the format strings of the source.
"""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.speculation import NO_SPECULATION, SPEC_TYPES, spec_type
from specdash.llama.log import GRAMMAR, TABLE
from specdash.llama.log.forms import ANSI, Cause, ServerEnd, split_port
from specdash.llama.log.trouble_lines import DRAFT_LOAD_FAILED, FALSE_ALARM

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdash.llama.log.forms import ReadLine

MOST_GENERAL = "other_exit"
"""The cause that the last error line of a server that ended falls into, where no other does."""

_NO_REASON = "try without speculation, then another build"
_BY_SIGNAL: dict[int, tuple[str, str, str]] = {
    signal.SIGKILL: (
        "killed",
        "it was killed (SIGKILL): by the kernel when memory is out, unless a person did",
        "`dmesg` has the reason; use a smaller model or context",
    ),
    signal.SIGILL: (
        "wrong_cpu",
        "it uses instructions that this CPU does not have (SIGILL)",
        "use a build for this CPU",
    ),
    signal.SIGSEGV: ("crashed", "it crashed (an invalid memory access)", f"it is a bug: {_NO_REASON}"),
    signal.SIGBUS: ("crashed", "it crashed (an invalid memory access)", f"it is a bug: {_NO_REASON}"),
    signal.SIGABRT: ("aborted", "it aborted and printed no reason", _NO_REASON),
}

_OF_DRAFT = {
    "model_missing": Cause("draft_missing", "the draft model {path} does not exist", "correct LLAMA_DRAFT_MODEL"),
    "model_broken": Cause(
        "draft_broken",
        "the draft model could not be loaded: {message}",
        "download or convert it again (`specdash gguf FILE` says what is wrong)",
    ),
}
"""Causes of a model that is missing or broken, where the log says that the draft model could not be loaded."""
OF_LINES: tuple[Cause, ...] = tuple(cause for line_class in TABLE for cause in line_class.every_cause)
"""Every cause that a log speaks of; where it speaks of several, the first one counts, general ones last."""
_OF_MEMORY = frozenset({"gpu_memory", "gpu_out_of_memory", "compute_buffer_failed", "alloc_failed"})
_LONGEST = 4096
_MOST = 2000
_LAST = 200
"""Lines at the end of an output that tell whether the server ended: a backtrace may come last."""
_ENDING = frozenset({ServerEnd.EXIT, ServerEnd.ABORT, ServerEnd.EITHER})
_GOES_ON = frozenset({ServerEnd.WITHOUT, ServerEnd.REQUEST, ServerEnd.EITHER})
_ENDED = re.compile(
    r"exiting due to|^error while |^error: |GGML_ASSERT|terminate called|^\S+\.(?:cpp|cu|c|h):\d+: |CUDA error|"
    r"couldn't bind HTTP server socket|ggml_abort"
)
_ERROR = re.compile(r"\s*(?:[\d.]+\s+)?E\s|error: ")
_HARMLESS = re.compile(r"task id = |speculative decoding context|vocabs are not compatible|got exception")


class StartFailure(Struct, frozen=True):
    """What went wrong in one run. `because` and `fix` are sentences without a full stop; `line` is the line of the log
    that says so, "" where none does."""

    id: str
    because: str
    fix: str
    ends: ServerEnd
    line: str = ""


def explain(lines: Iterable[str], exit_code: int | None) -> StartFailure | None:
    """The cause that the lines of one server's output speak of, or None.

    `exit_code`: of a server that has ended, negative for a signal as in `subprocess`; a server that ended well has no
    cause. None: it runs, as far as is known: what makes it run without speculation, or fail requests, is a cause, and
    what ended it only where its last lines say that it did.
    """
    if exit_code == 0:
        return None
    printed = [found for line in lines if (found := _read(line)) and found[1].line_class.id != FALSE_ALARM][-_MOST:]
    ended = exit_code is not None or any(_ENDED.search(line) for line, _, _ in printed[-_LAST:])
    ends = _ENDING if ended else _GOES_ON
    causes = [(cause, *found) for found in printed if (cause := found[1].cause) is not None and cause.ends in ends]
    if causes:
        cause, line, kind, text = min(causes, key=lambda found: (found[0].general, OF_LINES.index(found[0])))
        if any(kind.line_class.id == DRAFT_LOAD_FAILED for _, kind, _ in printed):
            cause = _OF_DRAFT.get(cause.id, cause)
        made = _made(cause, {"line": line} | kind.texts(text))
        either = ServerEnd.EXIT if ended else ServerEnd.WITHOUT
        return replace(made, ends=either) if cause.ends is ServerEnd.EITHER else made
    if not ended:
        return None
    by_signal = _BY_SIGNAL.get(exit_code - 128 if exit_code > 128 else -exit_code) if exit_code is not None else None
    if by_signal is not None:
        return StartFailure(*by_signal, ServerEnd.ABORT)
    for line, _, _ in reversed(printed):
        # An error of a request, or of speculation, ends no server.
        if _ERROR.match(line) and not _HARMLESS.search(line):
            # Without its clock, level and function names.
            message = re.sub(
                r"^\s*(?:[\d.]+\s+)?[DIWE]\s+(?:(?:srv|slot|spec|cmn|que)\s+)?(?:[\w()~<>]+:\s+){0,2}", "", line
            )[:200].rstrip(" .")
            fix = "mend what the line names; the log has more"
            return StartFailure(MOST_GENERAL, message, fix, ServerEnd.EXIT, line.strip()[:200])
    return None


def out_of_memory(lines: Iterable[str]) -> bool:
    """Whether the lines of one server's output say that memory ran out. A GPU's error alone does not."""
    causes = [found[1].cause for line in lines if (found := _read(line)) is not None]
    return any(cause.id in _OF_MEMORY for cause in causes if cause is not None)


def unspoken(parameters: Mapping[str, str]) -> StartFailure | None:
    """Why a server that was started with these speculation parameters (name without dashes) does not speculate, where
    it says nothing of it itself; None where the parameters give no reason."""
    chain = parameters.get("spec-type")
    draft = parameters.get("spec-draft-model") or parameters.get("spec-draft-hf")
    if chain is None:
        if draft is None:
            return None
        because = f"a draft model is given ({draft}) and no type that uses it: it is loaded, and does nothing"
        fix = "set LLAMA_SPEC_TYPE=draft-simple, or the type the draft is made for"
        return StartFailure("draft_without_type", because, fix, ServerEnd.WITHOUT)
    names = [part.strip() for part in chain.split(",") if part.strip()]
    if NO_SPECULATION in names and len(names) > 1:
        because = f"the chain {chain} has 'none' in it, which disables all of it without a word"
        return StartFailure("none_in_chain", because, "remove 'none' from LLAMA_SPEC_TYPE", ServerEnd.WITHOUT)
    if draft is None:
        needs = [item.name for name in names if (item := spec_type(name)) is not None and item.needs_draft_model]
        if needs:
            return _made(next(cause for cause in OF_LINES if cause.id == "draft_not_given"), {"type": needs[0]})
    return None


def _made(cause: Cause, fields: Mapping[str, str]) -> StartFailure:
    shown = {key: value.strip()[:200] for key, value in fields.items()}
    because, fix = cause.because, cause.fix
    if cause.id == "spec_type_unknown" and (known := spec_type(shown.get("type", ""))) is not None:
        fix = f"today it is called {known.name}"
    elif "{types}" in fix:
        shown["types"] = ", ".join([NO_SPECULATION, *(kind.name for kind in SPEC_TYPES)])
    for key, value in shown.items():
        because, fix = because.replace(f"{{{key}}}", value), fix.replace(f"{{{key}}}", value)
    return StartFailure(cause.id, because.rstrip("."), fix.rstrip("."), cause.ends, shown.get("line", ""))


def _read(line: str) -> tuple[str, ReadLine, bytes] | None:
    """A line as the server wrote it, what it is, and its bytes; None for an empty one and for the command of a
    recording."""
    own = split_port(ANSI.sub(b"", line[:_LONGEST].encode("utf-8", "replace")).rstrip()[:_LONGEST])[1]
    if not own or own.startswith(b"# CMD:"):
        return None
    return own.decode("utf-8", "replace"), GRAMMAR.read(own), own
