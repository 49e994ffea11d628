"""What is kept of a reading holds nothing that others wrote, and no secret: canaries everywhere."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord
from specdash.core.log_facts import LogBatch, ServerEvent, TaskFailed, WarningTally
from specdash.core.readings import FailureKind, Health, HealthStatus, Reading, Source
from specdash.core.sources import encode
from specdash.history.writer import LINES_KEPT, lighter, to_keep
from specdash.llama.log.parser import LogParser
from support.recording import value

CANARY = "xyzzyprompt"
KEY = "sk-canarysecret"
SHIFT = (
    b"0.01.234.567 W slot update_slots: id  3 | task 9 | slot context shift, n_keep = 1, n_left = 2, n_discard = 3\n"
)


def stored(value: Any, source: Source = Source.LOG) -> str:
    return json.dumps(encode(to_keep(Reading.known(source, 1.0, value))))


LINES = (
    f"0.01.000.000 I srv  log_server_r: done request: POST /v1/chat/completions {CANARY}\n",
    f"0.01.000.000 D srv  operator(): http: streamed chunk: data: {CANARY}\n",
    f"0.01.000.000 W srv  something_new: parsing failed near {CANARY}\n",
    f"0.01.000.000 E srv    send_error: task id = 7, error: Failed to parse input at pos 3: {CANARY}\n",
    f"0.01.000.000 E srv  operator(): got exception: {CANARY}\n",
    f'0.01.000.000 I slot launch_slot_: id  0 | task 1 | launching slot : {{"prompt": "{CANARY}"}}\n',
    f"0.01.000.000 I srv  load_model: loading model '/models/{CANARY}.gguf'\n",
    f"main: chat template, chat_template: {CANARY}, example_format: '{CANARY}'\n",
    f"{CANARY}\n",
    f'{{"type":"log","time":1,"level":"warn","msg":"{CANARY}"}}\n',
    f"0.01.000.000 W failed to allocate {CANARY}\n",
)


@pytest.mark.parametrize("line", LINES)
def test_no_text_of_a_line_gets_in(line: str) -> None:
    assert CANARY not in stored(LogParser().feed(line.encode()))


@given(st.lists(st.sampled_from(LINES) | st.text(max_size=30).map(lambda item: f"{item}{CANARY}\n"), max_size=12))
def test_no_text_of_any_log_gets_in(lines: list[str]) -> None:
    assert CANARY not in stored(LogParser().feed("".join(lines).encode("utf-8", "replace")))


def test_texts_inside_facts_do_not_get_in_either() -> None:
    batch = LogBatch(
        facts=(
            TaskFailed(1, f"Failed to parse input: {CANARY}"),
            ServerEvent("model_loading", (("path", f"/models/{CANARY}"),)),
            ServerEvent("child_started", (("model", CANARY), ("port", "8081"))),
        ),
        warnings=(WarningTally("other_error", 1, None, None, f"E srv: {CANARY}"),),
        tail=(f"W srv: {CANARY}",),
        unrecognised_samples=(CANARY,),
    )
    text = stored(batch)
    assert CANARY not in text
    assert "8081" in text


def test_a_warning_keeps_its_class_its_numbers_and_its_line() -> None:
    kept = value(to_keep(Reading.known(Source.LOG, 1.0, LogParser().feed(SHIFT))))
    assert [(tally.warning, tally.count) for tally in kept.warnings] == [("context_shift", 1)]
    assert len(kept.tail) == 1
    assert "n_discard = 3" in kept.tail[0]


def test_a_storm_leaves_few_lines_of_each_batch() -> None:
    kept = value(to_keep(lighter(Reading.known(Source.LOG, 1.0, LogParser(tail_lines=5000).feed(SHIFT * 5000)))))
    assert len(kept.tail) == LINES_KEPT
    assert kept.warnings[0].count == 5000


def test_lines_of_requests_are_not_kept_but_their_facts_are() -> None:
    line = b"0.01.234.567 I slot      release: id  3 | task 9 | stop processing: n_tokens = 40, truncated = 0\n"
    kept = value(to_keep(Reading.known(Source.LOG, 1.0, LogParser().feed(line))))
    assert kept.tail == ()
    assert len(kept.facts) == 1


def test_secrets_in_messages_of_servers_are_masked() -> None:
    health = Health(HealthStatus.ERROR, f"started with --api-key {KEY} at http://user:{KEY}@host/")
    assert KEY not in stored(health, Source.HEALTH)
    failed: Reading[Any] = Reading.unknown(Source.PROXY, 1.0, FailureKind.ERROR, f"--api-key {KEY}")
    assert KEY not in json.dumps(encode(to_keep(failed)))


def test_log_lines_of_a_failed_apply_are_made_anew() -> None:
    record = ApplyRecord(1, 2.0, 3.0, ApplyKind.APPLY, ApplyOutcome.ROLLED_BACK, log_lines=(f"E srv: {CANARY}",))
    text = stored((record,), Source.APPLIES)
    assert CANARY not in text
    assert '"rolled back"' in text
