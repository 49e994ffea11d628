"""The table of line classes: complete, unambiguous, and found again behind every prefix."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.llama.log_grammar import (
    LINE_CLASSES,
    TABLE,
    WARNING_CLASSES,
    Context,
    Form,
    LineClass,
    shape_of,
)
from specdash.llama.log_parser import LogParser
from specdash.llama.log_reading import read_shape

if TYPE_CHECKING:
    from collections.abc import Callable

FORMS = [(line_class, form) for line_class in TABLE for form in line_class.forms]
PREFIXES: dict[str, Callable[[str], str]] = {
    "none": lambda line: line,
    "level": lambda line: f"I {line}",
    "stamp": lambda line: f"63.17.951.405 I {line}",
    "stamp, two blanks": lambda line: f"6.33.268.728  I {line}",
    "router": lambda line: f"[42027] 2.46.193.190 W {line}",
    "journald": lambda line: f"May  2 01:30:52 corrm-pc start_llama_server.sh[37450]: 63.17.951.405 I {line}",
    "journald, no stamp": lambda line: f"May 22 01:30:52 box llama-server[37450]: {line}",
    "journald iso": lambda line: f"2026-05-22T01:30:52+0200 box llama-server[37450]: 0.00.001.405 I {line}",
    "docker": lambda line: f"2026-05-22T01:30:52.123456789Z 0.00.001.405 I {line}",
    "kubernetes": lambda line: f"2026-05-22T01:30:52.123456789Z stderr F 0.00.001.405 I {line}",
    "compose": lambda line: f"llama-server-1  | 0.00.001.405 I {line}",
    "colours": lambda line: f"\x1b[34m0.00.001.910\x1b[0m \x1b[32mI \x1b[0m{line}",
}
FIELD = re.compile(r"\{\w*:(\w+)\}")
SAMPLES = {
    "d": "   12",
    "f": "  345.67",
    "w": "draft-simple",
    "s": "models/q8.gguf",
    "list": "0.944, 0.722, 0.000",
    "x": "60c7614c5b30",
    "dots": "....",
    "rest": "etc.",
}


LINES_OF_THEIR_OWN = ("", "# {:rest}", "## {:rest}", ".{:dots}")
"""Never printed with a level: behind a letter they are other lines."""


def printed(form: Form) -> str:
    """A line of this form, with something in every field, after what stands in front of it."""
    message = FIELD.sub(lambda field: SAMPLES[field[1]], form.template)
    if form.context is Context.SLOT:
        return f"slot   operator(): id  3 | task 1366 | {message}"
    return f"srv  some_functio: {message}" if form.context is Context.ANY else message


def test_has_the_classes_that_the_json_contract_names() -> None:
    assert {
        "find_slot_non_consecutive",
        "kv_no_free_space",
        "context_shift",
        "checkpoint_erased",
        "spec_init_failed",
        "draft_clamped",
        "alloc_failed",
        "cuda_error",
        "request_cancelled",
    } <= set(WARNING_CLASSES)


def test_ids_are_unique() -> None:
    assert len(LINE_CLASSES) == len(TABLE)


@pytest.mark.parametrize("line_class", WARNING_CLASSES.values(), ids=lambda line_class: line_class.id)
def test_a_warning_class_says_what_it_means(line_class: LineClass) -> None:
    assert line_class.title
    assert line_class.note.endswith(".")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_printed_form_is_of_its_own_class_behind(prefix: str) -> None:
    others = {}
    for line_class, form in FORMS:
        line = re.sub("\x1b\\[[0-9;]*m", "", PREFIXES[prefix](printed(form)))
        found = read_shape(shape_of(line.encode())).line_class.id
        if found != line_class.id and not (prefix == "level" and form.template in LINES_OF_THEIR_OWN):
            others[line] = found
    assert others == {}


@pytest.mark.parametrize(
    "form", [form for _, form in FORMS if form.make is not None], ids=lambda form: str(form.template)[:40]
)
def test_the_values_of_every_form_that_makes_a_fact_can_be_captured(form: Form) -> None:
    batch = LogParser().feed(f"0.01.002.003 I {printed(form)}\n".encode())
    assert batch.unrecognised == 0
    assert len(batch.facts) == 1
    assert batch.facts[0].at_s == pytest.approx(1.002003)


@pytest.mark.parametrize("name", ["print_timing", "operator()", "a_new_name_o", "~destructor", ""])
def test_the_function_name_in_the_slot_prefix_does_not_matter(name: str) -> None:
    batch = LogParser().feed(
        f"slot {name:>12}: id  0 | task 7 | stop processing: n_tokens = 5, truncated = 0\n".encode()
    )
    assert batch.unrecognised == 0
    assert len(batch.facts) == 1


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_numbers_and_padding_do_not_change_what_a_line_is(data: st.DataObject) -> None:
    line_class, form = data.draw(st.sampled_from([found for found in FORMS if found[1].make is not None]))
    gap = st.text(" ", max_size=12)

    def filled(field: re.Match[str]) -> str:
        if field[1] == "d":
            return data.draw(gap) + str(data.draw(st.integers(-1, 10**12)))
        if field[1] == "f":
            return data.draw(gap) + f"{data.draw(st.floats(0, 1e9)):.3f}"
        return SAMPLES[field[1]]

    message = FIELD.sub(filled, form.template)
    line = f"slot f: id {data.draw(gap)}3 | task -1 | {message}" if form.context is Context.SLOT else message
    assert read_shape(shape_of(line.encode())).line_class.id == line_class.id
    batch = LogParser().feed(line.encode() + b"\n")
    assert (len(batch.facts), batch.unrecognised) == (1, 0)
