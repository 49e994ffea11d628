"""Why a server ended, or runs without speculation: from what real ones printed. `log_golden.json` has whole logs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from specdash.llama.log import TABLE
from specdash.llama.start_failures import OF_LINES, explain, out_of_memory, unspoken

DATA = Path(__file__).parents[1] / "data"
LAST_LINES: dict[str, list[Any]] = json.loads((DATA / "last_lines.json").read_text())
"""Last lines of servers by their cause, each behind the exit code."""


def cause_of(*lines: str, code: int | None = 1) -> str | None:
    found = explain(lines, code)
    assert found is None or (found.fix and "{" not in found.because + found.fix)
    return found.id if found is not None else None


def test_each_way_to_end_is_distinguished_by_the_last_lines() -> None:
    found = {wanted: cause_of(*lines, code=code) for wanted, (code, *lines) in LAST_LINES.items()}
    assert found == {wanted: wanted for wanted in LAST_LINES}


@pytest.mark.parametrize(
    ("line", "code", "wanted"),
    [
        # What llama.cpp calls normal is no cause.
        ("E failed to initialize the context: x requires ctx_other to be set (this warning is normal here)", 1, None),
        ("0.00.1.0 W operator(): failed to measure the memory of the extra model, fitting without it: failed", 1, None),
        # Colours and JSON hide none.
        ("\x1b[34m0.00.011.215\x1b[0m \x1b[31mE \x1b[0msrv x: failed to create MTP context", 1, "mtp_no_heads"),
        ('{"type":"log","time":9,"level":"error","msg":"srv x: failed to create MTP context\\n"}', 1, "mtp_no_heads"),
        # A server that ended well has no cause, one that runs has none that would have ended it.
        ("0.00.011.215 E srv  load_model: failed to create MTP context", 0, None),
        ("0.00.010.524 E srv  init_listene: the server is built without SSL support", None, None),
    ],
)  # fmt: skip
def test_what_a_line_is_worth(line: str, code: int | None, wanted: str | None) -> None:
    assert cause_of(line, code=code) == wanted


def test_a_server_that_was_killed_did_not_end_of_its_vocabulary() -> None:
    log = (DATA / "logs" / "flag_vocab_mismatch.log").read_text().splitlines()
    assert (cause_of(*log, code=None), cause_of(*log, code=-9)) == ("vocab_mismatch", "killed")


@pytest.mark.parametrize(
    ("parameters", "cause"),
    [
        ({"spec-draft-model": "d.gguf"}, "draft_without_type"),
        ({"spec-type": "none,draft-simple", "spec-draft-model": "d.gguf"}, "none_in_chain"),
        ({"spec-type": "ngram-mod,draft-dflash"}, "draft_not_given"),
        ({"spec-type": "draft-simple", "spec-draft-model": "d.gguf"}, None),
        ({"spec-type": "ngram-mod"}, None),
        ({"spec-type": "none"}, None),
        ({}, None),
    ],
)
def test_what_no_log_says_is_known_from_the_parameters(parameters: dict[str, str], cause: str | None) -> None:
    found = unspoken(parameters)
    assert (found.id if found is not None else None) == cause
    assert cause != "draft_not_given" or (found and found.because.startswith("draft-dflash needs a draft model"))


def test_every_cause_captures_what_it_says_and_belongs_to_one_class_of_lines() -> None:
    assert len(OF_LINES) == len({cause.id for cause in OF_LINES})
    for found, cause in ((line_class, cause) for line_class in TABLE for cause in line_class.every_cause):
        wanted = set(re.findall(r"\{(\w+)\}", cause.because + cause.fix))
        for pattern in cause.patterns or found.patterns:
            given = set(re.findall(r"\{(\w+):", pattern))
            assert wanted <= given | {"types", "line"}, (cause.id, pattern)
        assert cause.fix, cause.id


def test_an_engine_without_memory_is_distinguished_from_one_whose_log_names_it() -> None:
    for line in (
        "ggml_backend_cuda: allocating 512.00 MiB on device 0: cudaMalloc failed: out of memory",
        "CUDA error: out of memory",
        "llama_init_from_model: failed to allocate compute pp buffers",
    ):
        assert out_of_memory(["loading", line])
    assert not out_of_memory(["CUDA error: an illegal memory access was encountered", "memory_seq_rm [0, end))"])
