"""Records survive being written and read, and nothing else is taken for one."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdash.core.changes import ApplyRecord
from specdash.core.records import Alert, Baseline, JsonRecord, ProxyRecord, RunRecord, TrialNote, can_be_meant
from specdash.core.status import StatusNote
from specdash.core.structs import json_of
from support.any_value import of_hint

BASELINE = Baseline(100.0, "m.gguf", "b1", 512, 1, 40.0, 39.0, 41.0, 5, model_bytes=7, decode_tokens=128)
TRIAL = TrialNote("tune", "backend", 5.0, pid=1, pid_started=1.0)
KINDS = st.sampled_from([Alert, ApplyRecord, Baseline, ProxyRecord, RunRecord, StatusNote, TrialNote])
APPLY = '{"number":1,"at":1.0,"ended_at":2.0,"kind":"apply","outcome":"applied"}'


@given(KINDS.flatmap(of_hint))
@settings(max_examples=50)
@example(BASELINE)
@example(TRIAL)
def test_a_record_is_read_as_it_was_written_on_one_line_and_by_an_older_version(record: JsonRecord) -> None:
    text = record.to_json()
    assert "\n" not in text
    sound = can_be_meant(json_of(record)) and record.is_possible
    found = type(record).from_json(text.replace("{", '{"new": 1, ', 1))
    assert found == record if sound else found != record


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
@example("{")
@example("{}")
@example("[" * 100_000)
@example(APPLY.replace("1.0", '"soon"'))
@example(APPLY.replace(":1,", ":1e999,"))
@example(APPLY.replace(":1,", ":Infinity,"))
@example(APPLY.replace("2.0", "NaN"))
@example(APPLY.replace("applied", "exploded"))
def test_what_is_no_record_is_none_and_never_an_error(text: str) -> None:
    assert ApplyRecord.from_json(APPLY) is not None
    assert ApplyRecord.from_json(text) is None


@pytest.mark.parametrize(
    ("record", "changed"),
    [(BASELINE, {"low": 50.0}), (BASELINE, {"concurrency": 0}), (TRIAL, {"pid": 0}), (TRIAL, {"what": "a\nb"})],
)
def test_a_record_of_what_cannot_be_is_none(record: JsonRecord, changed: dict[str, Any]) -> None:
    assert record.from_json(json.dumps(json.loads(record.to_json()) | changed)) is None


def test_json_of_chosen_attributes_is_null_where_there_is_nothing() -> None:
    assert json_of(TRIAL, "what url alive") == {"what": TRIAL.what, "url": TRIAL.url, "alive": TRIAL.alive}
    assert json_of(None, "what url") == {"what": None, "url": None}
