"""Records of applies survive being written and read, and nothing else is taken for one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, ApplyStep, Change, Role

TEXT = st.text(max_size=30)
SECONDS = st.floats(0, 1e9)
RECORDS = st.builds(
    ApplyRecord,
    number=st.integers(1, 10**6),
    at=SECONDS,
    ended_at=SECONDS,
    kind=st.sampled_from(ApplyKind),
    outcome=st.sampled_from(ApplyOutcome),
    changes=st.lists(
        st.builds(Change, st.sampled_from(Role), TEXT, st.none() | TEXT, st.none() | TEXT), max_size=3
    ).map(tuple),
    profile=st.none() | TEXT,
    failed_step=st.none() | st.sampled_from(ApplyStep),
    reason=TEXT,
    log_lines=st.lists(TEXT, max_size=3).map(tuple),
    warnings=st.lists(TEXT, max_size=3).map(tuple),
    downtime_s=st.none() | SECONDS,
    step_seconds=st.dictionaries(TEXT, SECONDS, max_size=3),
    backups=st.dictionaries(TEXT, st.integers(1, 99), max_size=2),
    digests=st.dictionaries(TEXT, TEXT, max_size=2),
    url=st.none() | TEXT,
)


@given(RECORDS)
def test_a_record_is_read_as_it_was_written_on_one_line(record: ApplyRecord) -> None:
    text = record.to_json()
    assert "\n" not in text
    assert ApplyRecord.from_json(text) == record


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_what_is_no_record_is_none_and_never_an_error(text: str) -> None:
    assert ApplyRecord.from_json(text) is None


@pytest.mark.parametrize("text", ["", "{", "{}", "[" * 100_000, '{"number": 1e999}', '{"number": 1, "at": "soon"}'])
def test_half_a_line_is_no_record(text: str) -> None:
    assert ApplyRecord.from_json(text) is None
