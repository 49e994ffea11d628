"""The grammar against the engine itself: what llama-server b11549 can print, also what no recorded run has printed.

`server_formats_b11549.txt` has the format strings found in the binary: all that begin with a context prefix (`srv`,
`slot`, `spec`, `que`, `res`, `cmn`), and those of the engine's own functions (`%s: `) that matter to an operator.
`server_texts_b11549.txt` has fixed texts that the binary prints through the format `%s`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specdash.llama.log_grammar import shape_of
from specdash.llama.log_parser import LogParser
from specdash.llama.log_reading import read_shape

DATA = Path(__file__).parents[1] / "data"
FORMATS = (DATA / "server_formats_b11549.txt").read_text().splitlines()
TEXTS = (DATA / "server_texts_b11549.txt").read_text().splitlines()

FREE_TEXT = {
    "cmn  %12.*s: %s",
    "que  %12.*s: %s",
    "slot %12.*s: id %2d | task %d | %s",
    "spec %12.*s: %s",
    "srv  %12.*s: %s",
    "srv  %12.*s:   %s",
    "srv  %12.*s: failed to create %s",
}
"""Formats that say nothing by themselves: any text could stand there."""

PRINTED_TEXTS = {
    "cmn  %12.*s:   - %-8s: %s (%zu MiB, %zu MiB free)": ("CUDA0", "NVIDIA H100"),
    "slot %12.*s: id %2d | task %d |      acc per pos = (%s)": ("0.944, 0.722",),
    "spec %12.*s: synthetic acceptance: n_max = %zu, mean length = %.6f, rates = [%s]": ("0.9, 0.8",),
    "spec %12.*s: statistics %16s: #calls(b,g,a) = %4zu %6zu %6zu, #gen drafts = %6zu, #acc drafts = %5zu, "
    "#gen tokens = %6zu, #acc tokens = %5zu%s%s": (
        "draft-mtp",
        ", #mean acc len = 2.50, #acc rate/pos = (0.900, 0.600)",
        ", dur(b,g,a) = 0.100, 0.200, 0.300 ms",
    ),
    "srv  %12.*s:   [%10s] %s%s": ("models_dir", "llama", " (llama-8b)"),
    "srv  %12.*s: %s off = %d, n_batch = %d, ret = %d": ("Compute error.",),
    'srv  %12.*s: %s tools runtime container "%s" died, respawning': ("docker", "box"),
}
"""What the engine prints for `%s` where it matters to the grammar, in order."""

FIELD = re.compile(r"%[-+ #0]*\d*(?:\.\d+|\.\*)?(?:hh|h|ll|l|z|j|t)?([diuxXfgespc%])")
SAMPLES = {"%": "%", "s": "text", "f": "3.14", "p": "0x60c7614c5b30", "c": "a"}


def printed(fmt: str) -> bytes:
    """A line of the log as printed with this format."""
    texts = iter(("some_functio", *PRINTED_TEXTS.get(fmt, ())))

    def filled(field: re.Match[str]) -> str:
        return next(texts, "text") if field[1] == "s" else SAMPLES.get(field[1], "7")

    return f"0.01.002.003 I {FIELD.sub(filled, fmt)}\n".encode()


def class_of(line: bytes) -> str:
    return read_shape(shape_of(line.removesuffix(b"\n"))).line_class.id


def test_every_format_of_the_engine_is_recognised() -> None:
    unknown = {fmt for fmt in FORMATS if LogParser().feed(printed(fmt)).unrecognised}
    assert unknown == FREE_TEXT


def test_every_fixed_text_of_the_engine_is_recognised() -> None:
    unknown = []
    for text in TEXTS:
        context, _, message = text.partition(": ")
        head = "slot some_functio: id  3 | task 7 |" if context == "slot" else f"{context:4} some_functio:"
        if LogParser().feed(f"0.01.002.003 I {head} {message}\n".encode()).unrecognised:
            unknown.append(text)
    assert unknown == []


@pytest.mark.parametrize("context", ["srv ", "slot", "spec", "que ", "cmn "])
def test_a_line_is_not_recognised_by_its_context_alone(context: str) -> None:
    ids = " id  3 | task 7 |" if context == "slot" else ""
    line = f"0.01.002.003 W {context} some_functio:{ids} words that no build has printed, n = 7\n"
    batch = LogParser().feed(line.encode())
    assert batch.unrecognised == 1
    assert [tally.warning for tally in batch.warnings] == ["other_warning"]


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        ("making room for prompt cache entry", "prompt_cache_evicted"),
        ("exceeds cache size limit", "prompt_cache_skipped"),
        ("cache size limit reduced", "prompt_cache_shrunk"),
        ("failed to restore state with size", "state_restore_failed"),
        ("exceeds the training context of the model", "context_capped"),
        ("draft model bos tokens must match", "vocab_mismatch"),
        ("draft model eos tokens must match", "vocab_mismatch"),
        ("failed to decode draft batch", "draft_decode_failed"),
        ("llama_process[%d] returned", "draft_decode_failed"),
        ("ctx_dft pos_max=%d < N-", "draft_behind"),
        ("do not fit the draft input width", "draft_input_dropped"),
        ("decode() failed: ", "decode_failed"),
        ("failed to launch slot with", "launch_failed"),
        ("mtmd chunk, ", "media_failed"),
        ("couldn't start HTTP listener", "http_server_failed"),
        ("stopped unexpectedly", "http_server_failed"),
        ("download failed", "download_failed"),
        ("force-killing", "child_killed"),
        ("removing LRU name=", "model_evicted"),
        ("MCP '%s': failed to", "tools_failed"),
        ("KV override", "bad_setting"),
        ("inconsistent sequence positions", "inconsistent_positions"),
        ("error: model does not support", "media_failed"),
    ],
)
def test_trouble_has_its_class(words: str, warning: str) -> None:
    found = {class_of(printed(fmt)) for fmt in FORMATS if words in fmt}
    assert found == {warning}


def test_an_accepted_draft_of_the_debug_output_is_not_a_verification_step() -> None:
    line = b"0.01.002.003 D slot update_slots: id  0 | task 7 | accepted 3/4 draft tokens, new n_tokens = 40\n"
    assert LogParser().feed(line).facts == ()


def test_the_positions_below_an_inconsistent_batch_belong_to_it() -> None:
    log = (
        b"0.01.002.003 E init: the tokens of sequence 0 in the input batch have inconsistent sequence positions:\n"
        b" - the last position stored in the memory module of the context (i.e. the KV cache) for sequence 0 is X = 3\n"
        b" - the tokens for sequence 0 in the input batch have a starting position of Y = 18\n"
        b" it is required that the sequence positions remain consecutive: Y = X + 1\n"
    )
    batch = LogParser().feed(log)
    assert batch.unrecognised == 0
    assert [(tally.warning, tally.count) for tally in batch.warnings] == [("inconsistent_positions", 1)]
