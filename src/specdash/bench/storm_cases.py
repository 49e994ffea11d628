"""What an apply storm applies: changes that work, that preflight must refuse, and that only an engine betrays."""

from __future__ import annotations

import random
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.core.applies import Outcome
from specdash.core.changes import ChangeSet, Role

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEALTH_TIMEOUT_S = 30.0
_BROKEN_TEMPLATE = "{% for message in messages %}{{ message.content "

_ENDS_AT_ONCE = """#!/bin/sh
# A llama-server whose library is missing: it tells its version and its flags, and cannot serve.
case "$1" in
  --version) echo 'version: 11434 (storm)'; exit 0 ;;
  --help) cat <<'HELP'
%s
HELP
  exit 0 ;;
esac
echo '0.00.001.000 E srv  llama_server: error while loading shared libraries: libcuda.so.1' >&2
exit 127
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One apply: what it is, what it changes, and how it must end."""

    name: str
    changes: ChangeSet
    outcome: Outcome


def broken_binary(directory: Path, flags: list[str]) -> Path:
    """A llama-server that ends as soon as it is started; preflight cannot know."""
    path = directory / "llama-server-without-libraries"
    listed = "\n".join(f"{flag} VALUE   {flag.strip('-')}" for flag in flags)
    path.write_text(_ENDS_AT_ONCE % listed, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def cases(seed: int, broken: Path, foreign_port: int) -> Iterator[Case]:
    """Cases without end: of each four in a row two work, one is refused, and one fails once the engine runs."""
    random_ = random.Random(seed)  # noqa: S311 - a reproducible mix, not a secret
    good, refused, crashing = _good(random_), _refused(foreign_port), _crashing(broken)
    while True:
        four = [next(good), next(good), next(refused), next(crashing)]
        random_.shuffle(four)
        yield from four


def _backend(**values: str | None) -> ChangeSet:
    return ChangeSet({Role.BACKEND: values})


def _good(random_: random.Random) -> Iterator[Case]:
    while True:
        longest = str(random_.randint(2, 16))
        yield Case("another draft length", _backend(LLAMA_DRAFT_MAX=longest, LLAMA_DRAFT_MIN=None), Outcome.APPLIED)
        least = f"{random_.uniform(0.1, 0.9):.3f}"
        yield Case("another threshold", _backend(LLAMA_DRAFT_P_MIN=least), Outcome.APPLIED)
        chain = random_.choice(["draft-simple,ngram-mod", "draft-simple,ngram-simple", "draft-simple"])
        yield Case("another chain", _backend(LLAMA_SPEC_TYPE=chain, LLAMA_DRAFT_MAX=longest), Outcome.APPLIED)
        window = str(random_.randint(4, 60))
        yield Case("a proxy setting", ChangeSet({Role.PROXY: {"PROXY_LOOP_WINDOW": window}}), Outcome.APPLIED)
        connections = str(random_.randint(32, 128))
        both = {Role.BACKEND: {"LLAMA_DRAFT_MAX": longest}, Role.PROXY: {"PROXY_MAX_CONNECTIONS": connections}}
        yield Case("both services", ChangeSet(both), Outcome.APPLIED)


def _refused(foreign_port: int) -> Iterator[Case]:
    while True:
        for changes in (
            _backend(LLAMA_DRAFT_MAX="0"),
            _backend(LLAMA_DRAFT_MAX="4", LLAMA_DRAFT_MIN="9"),
            _backend(LLAMA_MODEL="/no/such/model.gguf"),
            _backend(LLAMA_SPEC_TYPE="draft-simpel"),
            _backend(LLAMA_PORT=str(foreign_port)),
        ):
            yield Case("refused by preflight", changes, Outcome.REFUSED)


def _crashing(broken: Path) -> Iterator[Case]:
    while True:
        yield Case("a chat template that does not parse", _backend(LLAMA_ARG_CHAT_TEMPLATE=_BROKEN_TEMPLATE),
                   Outcome.ROLLED_BACK)  # fmt: skip
        yield Case("a binary that ends at once", _backend(LLAMA_BIN=str(broken), LLAMA_ENGINE="llama-server"),
                   Outcome.ROLLED_BACK)  # fmt: skip
