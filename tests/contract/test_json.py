"""The JSON of real models, logs and servers keeps its keys, and the kinds of their values."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from support.engines import RunningBackend, running_backend
from support.outside import frozen, missing, say, shape

HERE = Path(__file__).parent
LOGS = HERE.parent / "data" / "logs"
MODEL, DRAFT = str(bundled_model(TARGET_MODEL)), str(bundled_model(DRAFT_MODEL))

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


def breaches(name: str, value: Any) -> list[str]:
    """What this output lacks of what was promised under that name."""
    now = shape(value)
    return missing(frozen(HERE / "json" / f"{name}.json", now), now, name)


@given(json_values)
def test_a_value_has_its_own_shape(value: Any) -> None:
    assert not missing(shape(value), shape(value))


@given(st.dictionaries(st.sampled_from("abc"), json_values, min_size=1))
def test_a_key_that_goes_is_found(value: dict[str, Any]) -> None:
    key = next(iter(value))
    less = {name: item for name, item in value.items() if name != key}
    assert missing(shape(value), shape(less)) == [f".{key}"]


def test_a_kind_that_changes_is_found() -> None:
    assert missing(shape({"a": {"b": 1}}), shape({"a": {"b": "1"}})) == [".a.b is string"]
    assert missing(shape({"a": [1]}), shape({"a": {"b": 1}})) == [".a has keys now"]
    assert missing(shape([{"a": 1}]), shape([{"b": 1}])) == ["[].a"]


def test_what_may_be_null_or_empty_is_no_breach() -> None:
    assert not missing(shape({"a": 1}), shape({"a": None}))
    assert not missing(shape({"a": [{"b": 1}]}), shape({"a": []}))
    assert not missing(shape({"/x.gguf": 1}), shape({"/y.gguf": 2, "z": 3}))
    assert not missing(shape([{"a": 1, "b": 2}, {"a": 3}]), shape([{"a": 4}]))


def test_parse_log() -> None:
    outputs = [say("parse-log", log, "--json") for log in sorted(LOGS.glob("*_lv[34].log"))]
    assert len(outputs) > 3
    assert {(code, err) for code, _, err in outputs} == {(0, "")}
    # An array of all of them has the shape of all together.
    assert not breaches("parse-log", [json.loads(out) for _, out, _ in outputs])


def test_gguf() -> None:
    code, out, err = say("gguf", MODEL, "--draft", DRAFT, "--json")
    assert code == 0, err
    assert not breaches("gguf", json.loads(out))


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBackend]:
    """The bundled pair on the real engine."""
    values = {
        "LLAMA_ENGINE": "xllamacpp",
        "LLAMA_MODEL": MODEL,
        "LLAMA_DRAFT_MODEL": DRAFT,
        "LLAMA_SPEC_TYPE": "draft-simple",
        "LLAMA_CTX_SIZE": "4096",
        "LLAMA_PARALLEL": "2",
        "LLAMA_THREADS": "1",
    }
    with running_backend(values, tmp_path_factory.mktemp("contract")) as running:
        yield running


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("snapshot", ("snapshot",)),
        ("check", ("check",)),
        ("doctor", ("doctor",)),
        ("smoke", ("smoke",)),
        ("repro-empty", ("repro-empty", "--turns", "2", "--tool-chars", "1500")),
        ("bench-live", ("bench", "live", "--runs", "1", "--max-tokens", "16", "--class", "pattern")),
    ],
)
def test_of_a_server(name: str, words: tuple[str, ...], backend: RunningBackend) -> None:
    command = [sys.executable, "-m", "specdash", *words, "--url", backend.url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode in (0, 1, 2, 14), done.stderr
    assert not breaches(name, json.loads(done.stdout))
