"""Why llama.cpp ended, aborted, or runs without speculation, from what it printed.

One table, `FAILURES` (`start_failure_table`), has every way that is known: how it shows, how it ends, and what to do.
`explain` finds the row that a log speaks of, `unspoken` the ways of which no log says a word.

Source: llama.cpp b11434 and b11549, tried on the real servers; GPU memory from the format strings of the source.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from specdash.core.speculation import NO_SPECULATION, SPEC_TYPES, spec_type
from specdash.llama.log_grammar import LINE_CLASSES
from specdash.llama.log_grammar.forms import shape_of
from specdash.llama.log_prefix import ANSI
from specdash.llama.log_reading import read_shape
from specdash.llama.start_failure_kinds import MOST_GENERAL, Ends, KnownFailure
from specdash.llama.start_failure_table import FAILURES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["BY_ID", "FAILURES", "Ends", "KnownFailure", "StartFailure", "explain", "false_alarm", "unspoken"]

BY_ID: dict[str, KnownFailure] = {one.id: one for one in FAILURES}
FALSE_ALARM_CLASSES = frozenset({"ctx_other_missing", "extra_model_unmeasured"})
"""Line classes of which llama.cpp itself says that they are normal, although it prints them as errors."""
_LONGEST = 4096
_MOST = 2000
_LAST = 200
"""Lines at the end of an output that tell whether the server ended: a backtrace may come last."""
_ENDING = frozenset({Ends.EXIT, Ends.ABORT})
_ENDED = re.compile(
    r"exiting due to|^error while |^error: |GGML_ASSERT|terminate called|^\S+\.(?:cpp|cu|c|h):\d+: |CUDA error|"
    r"couldn't bind HTTP server socket|ggml_abort"
)
_ERROR = re.compile(r"\s*(?:[\d.]+\s+)?E\s|error: ")
_HARMLESS = re.compile(r"task id = |speculative decoding context|vocabs are not compatible|got exception")


@dataclass(frozen=True, slots=True)
class StartFailure:
    """What went wrong in one run. `because` and `fix` are sentences without a full stop; `line` is the line of the log
    that says so, "" where none does."""

    id: str
    because: str
    fix: str
    ends: Ends
    line: str = ""


def explain(lines: Iterable[str], exit_code: int | None) -> StartFailure | None:
    """The cause that the lines of one server's output tell of, or None.

    `exit_code`: of a server that has ended, negative for a signal as in `subprocess`; a server that ended well has no
    cause. None: it runs, as far as is known: what makes it run without speculation, or fail requests, is a cause, and
    what ended it only where its last lines say that it did.
    """
    if exit_code == 0:
        return None
    said = [text for line in lines if (text := _clean(line)) and not false_alarm(text)][-_MOST:]
    if exit_code is None and not any(_ENDED.search(line) for line in said[-_LAST:]):
        return _best([one for one in FAILURES if one.ends not in _ENDING], said)
    found = _best([one for one in FAILURES if one.ends in _ENDING], said)
    if found is None:
        return (_by_code(exit_code) if exit_code is not None else None) or _last_error(said)
    if found.id == "synth_without":
        # It is the consequence of something that alone would not have ended it.
        cause = _best([one for one in FAILURES if one.ends is Ends.WITHOUT and one.patterns], said)
        if cause is not None:
            return StartFailure(found.id, f"{found.because}: {cause.because}", cause.fix, found.ends, cause.line)
    return found


def unspoken(parameters: Mapping[str, str]) -> StartFailure | None:
    """Why a server that was started with these speculation parameters (name without dashes) does not speculate, where
    it says nothing of it itself; None where the parameters give no reason."""
    chain = parameters.get("spec-type")
    draft = parameters.get("spec-draft-model") or parameters.get("spec-draft-hf")
    if chain is None:
        if draft is None:
            return None
        return _row("draft_without_type", {"draft": draft})
    names = [part.strip() for part in chain.split(",") if part.strip()]
    if NO_SPECULATION in names and len(names) > 1:
        return _row("none_in_chain", {"chain": chain})
    if draft is None:
        needs = [one.name for name in names if (one := spec_type(name)) is not None and one.needs_draft_model]
        if needs:
            return _row("draft_not_given", {"type": needs[0]})
    return None


def false_alarm(line: str) -> bool:
    """Whether a line looks like an error and is none."""
    if "requires ctx_other" not in line and "measure the memory of the extra model" not in line:
        return False
    return _class_of(shape_of(line[:_LONGEST].encode())) in FALSE_ALARM_CLASSES


def _best(rows: Sequence[KnownFailure], said: Sequence[str]) -> StartFailure | None:
    """The first row, in the table's order, that the lines fit."""
    text = "\n".join(said)
    for one in rows:
        fields = _fields(one, text)
        if fields is not None:
            return _made(one, fields)
    classes: dict[str, str] = {}
    for line in said:
        classes.setdefault(_class_of(shape_of(line.encode("utf-8", "replace"))), line)
    for one in rows:
        for kind in one.classes:
            if kind in classes:
                known = LINE_CLASSES[kind]
                fields = {"title": known.title, "note": known.note.rstrip("."), "line": classes[kind]}
                return _made(one, fields)
    return None


def _last_error(said: Sequence[str]) -> StartFailure | None:
    """The last line printed as an error that is not about a request or about speculation, which end no server."""
    for line in reversed(said):
        if _ERROR.match(line) and not _HARMLESS.search(line):
            return _row(MOST_GENERAL, {"said": message(line), "line": line})
    return None


def _fields(one: KnownFailure, text: str) -> dict[str, str] | None:
    """What the patterns of a row capture; None when one of them is in no line."""
    fields: dict[str, str] = {}
    for pattern in one.patterns:
        match = _compiled(pattern).search(text)
        if match is None:
            return None
        fields |= {key: value for key, value in match.groupdict().items() if value is not None}
        fields.setdefault("line", _line_at(text, match.start()))
    return fields if one.patterns else None


def _row(name: str, fields: Mapping[str, str]) -> StartFailure:
    return _made(BY_ID[name], fields)


def _made(one: KnownFailure, fields: Mapping[str, str]) -> StartFailure:
    shown = {key: value.strip()[:200] for key, value in fields.items()}
    because, fix = one.because, one.fix
    if one.id == "spec_type_unknown" and (known := spec_type(shown.get("type", ""))) is not None:
        fix = f"today it is called {known.name}"
    elif "{types}" in fix:
        shown["types"] = ", ".join([NO_SPECULATION, *(kind.name for kind in SPEC_TYPES)])
    for key, value in shown.items():
        because, fix = because.replace(f"{{{key}}}", value), fix.replace(f"{{{key}}}", value)
    return StartFailure(one.id, because.rstrip("."), fix.rstrip("."), one.ends, shown.get("line", ""))


def _by_code(exit_code: int) -> StartFailure | None:
    """What the exit code alone tells."""
    code = exit_code - 128 if exit_code > 128 else -exit_code if exit_code < 0 else None
    row = {
        signal.SIGKILL: "killed",
        signal.SIGILL: "wrong_cpu",
        signal.SIGSEGV: "crashed",
        signal.SIGBUS: "crashed",
        signal.SIGABRT: "aborted",
    }.get(signal.Signals(code) if code in {int(one) for one in signal.Signals} else signal.SIGTERM)
    return _row(row, {}) if code is not None and row is not None else None


def message(line: str) -> str:
    """A line without its clock, level and function names."""
    return re.sub(r"^\s*(?:[\d.]+\s+)?[DIWE]\s+(?:(?:srv|slot|spec|cmn|que)\s+)?(?:[\w()~<>]+:\s+){0,2}", "", line)


def _clean(line: str) -> str:
    text = line[:_LONGEST]
    if "\x1b" in text:
        text = ANSI.sub(b"", text.encode("utf-8", "replace")).decode("utf-8", "replace")
    text = text.rstrip()
    return "" if text.startswith("# CMD:") else text.replace('\\"', '"')


def _line_at(text: str, at: int) -> str:
    end = text.find("\n", at)
    return text[text.rfind("\n", 0, at) + 1 : end if end >= 0 else len(text)]


def _class_of(shape: bytes) -> str:
    return read_shape(shape[:_LONGEST]).line_class.id


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)
