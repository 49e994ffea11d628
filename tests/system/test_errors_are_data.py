"""Nobody decides by reading a sentence of ours: errors and problems carry key, problem and fix as data."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from support.sources import nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SENTENCES = re.compile(
    r"(err|error|exc|failure|message|reason|problem|trouble|refusal|refused|remark|detail|because|why|said)$"
)
"""How variables and attributes that hold sentences are called."""
PARSERS = {"startswith", "endswith", "partition", "rpartition", "split", "rsplit", "find", "index", "removeprefix"}
PARSERS |= {"removesuffix"}
MATCHERS = {"search", "match", "fullmatch", "findall", "finditer"}
PROSE = re.compile(r"[a-z] [a-z]|[:;] $|^\W*[a-z]+\b: |^[:;] [a-z]")
"""A text that nobody would look for but in a sentence."""
FOREIGN = {
    "backend/binary.py": "the engine's --help",
    "control/services/containers.py": "what podman and docker print",
    "control/services/supervisor_client.py": "the last line of a process that died",
    "control/services/systemd.py": "what systemctl prints",
    "core/proxy_lines.py": "the proxy's log, also of other versions",
    "bench/compare/machine.py": "/proc/cpuinfo",
    "export/incident/redaction.py": "the settings' problems as a proxy tells them, also of other versions",
    "llama/log_reading.py": "names of log formats",
    "llama/start_failures.py": "llama.cpp's log",
    "proxy/http/server.py": "OpenSSL's reason",
    "proxy/upstream/upstream.py": "llama.cpp's answer",
    "tune/run/console.py": "the last line of a process that died",
    "bench/replay/replay_run.py": "the server's words, which are cut where they quote the session",
}
SHORTER = {
    "core/errors.py",
    "export/incident/redaction.py",
    "export/gguf_report.py",
    "tui/widgets/header.py",
    "tui/widgets/board.py",
    "tui/widgets/tuner/tuner_plan.py",
}
"""Where a sentence is shown without its beginning or end for want of room, and nothing is decided by it."""


def _name(node: ast.expr) -> str:
    """What a text is called: the name behind `str()`, calls of methods and parentheses."""
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
        case ast.Call(ast.Name("str"), [inner, *_]):
            return _name(inner)
        case ast.Call(ast.Attribute(inner)):
            return _name(inner)
    return ""


def _is_prose(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Constant) and PROSE.search(str(part.value)) for part in ast.walk(node))


def readings_in(tree: Iterable[ast.AST]) -> Iterator[int]:
    """Lines on which a sentence is searched or cut."""
    for node in tree:
        match node:
            case ast.Compare(left, [ast.In() | ast.NotIn()], [ast.Name() | ast.Attribute() | ast.Call() as text]):
                is_text = isinstance(left, ast.JoinedStr) or (isinstance(left, ast.Constant) and str(left.value))
                if is_text and (SENTENCES.search(_name(text)) or _is_prose(left)):
                    yield node.lineno
            case ast.Compare(_, [ast.Eq() | ast.NotEq()], [ast.Constant(str(text))]) if PROSE.search(text):
                yield node.lineno
            case ast.Call(ast.Attribute(text, method), [first, *_]) if method in PARSERS:
                if SENTENCES.search(_name(text)) or _is_prose(first):
                    yield node.lineno
            case ast.Call(ast.Attribute(attr=method), [*_, text]) if method in MATCHERS and SENTENCES.search(
                _name(text)
            ):
                yield node.lineno


@pytest.mark.parametrize(
    "line",
    [
        "'not set' in str(error)",
        "f'{key}=' in str(error)",
        "str(error).startswith(key)",
        "said.partition('; ')",
        "text.partition(': use ')",
        "PATTERN.search(error.reason)",
        "state == 'waiting to restart'",
    ],
)
def test_a_sentence_that_is_read_is_seen(line: str) -> None:
    assert list(readings_in(ast.walk(ast.parse(line)))) == [1]


def test_nobody_reads_a_sentence_of_ours() -> None:
    found = {
        f"{name}:{line}"
        for name, tree in nodes().items()
        if name not in {*FOREIGN, *SHORTER}
        for line in readings_in(tree)
    }
    assert sorted(found) == []


def test_each_exception_is_one() -> None:
    assert [name for name in (*FOREIGN, *SHORTER) if not list(readings_in(nodes()[name]))] == []
