"""The notes that running services leave."""

import pytest

from specdash.core.records import ProxyRecord

RECORD = ProxyRecord(
    pid=7,
    pid_started=1.5,
    url="http://127.0.0.1:4000",
    upstream="http://127.0.0.1:8080",
    events="/e.jsonl",
    env_file="/p.env",
    api_key_env="PROXY_API_KEY",
)


def test_a_proxy_record_survives_its_text() -> None:
    assert ProxyRecord.from_json(RECORD.to_json()) == RECORD


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"pid": 1}', RECORD.to_json()[:-20]])
def test_what_is_no_record_is_none(text: str) -> None:
    assert ProxyRecord.from_json(text) is None
