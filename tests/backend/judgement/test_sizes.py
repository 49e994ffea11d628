"""How a fix writes a value that LLAMA_EXTRA_ARGS set."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from specdash.backend import settings

if TYPE_CHECKING:
    from backend.judgement.conftest import Check


def test_a_fix_for_an_extra_argument_names_its_flag_and_keeps_the_others(backend: Check) -> None:
    words, flag, value = "-fa on --cache-type-k q8_0 -b 4 --spec-type ngram-mod", "--batch-size", "2048"
    (row,) = backend({"LLAMA_EXTRA_ARGS": words}).errors
    assert row.key == settings.SOURCE
    assert f"{flag} {value} in LLAMA_EXTRA_ARGS" in row.fix
    assert "LLAMA_EXTRA_ARGS=" not in row.line
    fixed = settings.parse(words).rest, shlex.join([*shlex.split(words), flag, value])
    assert not backend({"LLAMA_EXTRA_ARGS": fixed[1]}).errors
