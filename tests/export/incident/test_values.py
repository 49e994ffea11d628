"""Values keep their types and figures, and lose what others wrote."""

import dataclasses
import json
from dataclasses import asdict
from enum import Enum
from typing import Any

import pytest
from hypothesis import given

from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, Change, Role
from specdash.core.log_facts import LogBatch, ServerEvent, SpeculativeStatistics, TaskFailed, WarningTally
from specdash.core.proxy_events import (
    ActiveView,
    Guardrail,
    GuardrailAction,
    GuardrailEvent,
    ProxyEvents,
    ProxyStatus,
    RequestEvent,
    SessionView,
)
from specdash.core.readings import (
    FailureKind,
    GpuProcess,
    Health,
    HealthStatus,
    ProcessTree,
    Reading,
    RouterModel,
    RouterModels,
    Source,
)
from specdash.core.records import Alert, AlertSeverity
from specdash.core.sources import decode, encode
from specdash.export.incident.redaction import Redactor, redacted
from specdash.insight.picture import DraftingPicture, RouterModelPicture, RouterPicture
from support import any_value, drawn_readings

PLAIN = Redactor()
CANARY = "aardvark"
LINE = f"0.01.205.300 W srv  x: the draft model '{CANARY}' is not compatible with the target model '{CANARY}'"
KNOWN = Reading.known

READINGS: tuple[Reading[Any], ...] = (
    KNOWN(Source.LOG, 1.0, LogBatch(3, 1, (), (), (LINE, CANARY, f"x {CANARY}"), False, (CANARY,))),
    KNOWN(Source.LOG, 1.0, LogBatch(warnings=(WarningTally("draft_incompatible", 3, 1.0, 2.0, LINE),))),
    KNOWN(Source.LOG, 1.0, LogBatch(facts=(ServerEvent("model_loading", (("path", CANARY),)),))),
    KNOWN(Source.LOG, 1.0, LogBatch(facts=(TaskFailed(3, f"parse error near {CANARY}"),))),
    KNOWN(Source.LOG, 1.0, LogBatch(facts=(SpeculativeStatistics(CANARY, 1, 1, 1, 1, printed_type=CANARY),))),
    KNOWN(Source.PROCESS, 1.0, ProcessTree(1, command=("llama-server", "--grammar", f"root ::= {CANARY} x"))),
    KNOWN(Source.HEALTH, 1.0, Health(HealthStatus.ERROR, f"token={CANARY}")),
    KNOWN(
        Source.PROXY_EVENTS,
        1.0,
        ProxyEvents(
            (
                GuardrailEvent(1.0, "s", Guardrail.LOOP_BREAKER, next(iter(GuardrailAction)), "r",
                {"tool": CANARY, "n": 4}),
                RequestEvent(1.0, "s", f"id of {CANARY}", model=f"a {CANARY}", tool_calls=(CANARY,)),
                RequestEvent(1.0, "s", "r", path=f"/v1/messages?{CANARY}", error_type=f"{CANARY}!"),
            )
        ),
    ),
    KNOWN(
        Source.PROXY,
        1.0,
        ProxyStatus(
            problems=(f"PROXY_X='{CANARY}': must be a number",),
            sessions=(SessionView("s", 1.0, model=f"my {CANARY}"),),
            active=(ActiveView("r", "s", 1.0, path=f"/v1/messages?{CANARY}"),),
        ),
    ),
    KNOWN(
        Source.ROUTER,
        1.0,
        RouterModels((RouterModel(f"my {CANARY}", aliases=(f"{CANARY}!",), failure=LINE),)),
    ),
    Reading.unknown(Source.HEALTH, 1.0, FailureKind.ERROR, f"http://user:{CANARY}@host"),
)  # fmt: skip


@pytest.mark.parametrize("reading", READINGS, ids=lambda item: str(item.source))
def test_a_reading_loses_what_others_wrote_and_can_still_be_stored(reading: Reading[Any]) -> None:
    clean = redacted(reading, PLAIN)
    assert type(clean) is type(reading)
    assert (clean.source, clean.at, clean.status) == (reading.source, reading.at, reading.status)
    assert CANARY not in json.dumps(encode(clean), ensure_ascii=False)
    assert decode(json.loads(json.dumps(encode(clean)))) == clean


@pytest.mark.parametrize(
    "view",
    [
        DraftingPicture(because=LINE, fix=LINE),
        RouterPicture((RouterModelPicture(f"my {CANARY}", "loaded", failure=LINE),), f"my {CANARY}"),
    ],
)
def test_a_view_loses_what_others_wrote(view: object) -> None:
    assert CANARY not in str(redacted(view, PLAIN))


def test_the_figures_of_events_stay() -> None:
    (event,) = redacted(
        ProxyEvents((RequestEvent(5.0, "s", "r-1", prompt_tokens=12, tool_calls=("a", "b")),)), PLAIN
    ).events
    assert (event.prompt_tokens, event.request_id, len(event.tool_calls)) == (12, "r-1", 2)


SECRET = "wombat-8f3a77c1"
KNOWING = Redactor([SECRET])


def poisoned(value: Any) -> Any:
    """The value with the secret at the end of every text."""
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return f"{value} {SECRET}"
    if isinstance(value, tuple | list):
        return type(value)(map(poisoned, value))
    if isinstance(value, dict):
        return {poisoned(key): poisoned(entry) for key, entry in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            dataclass_field.name: poisoned(getattr(value, dataclass_field.name))
            for dataclass_field in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **fields)
    return value


@given(any_value.readings)
def test_a_known_secret_is_in_no_text_of_any_reading(reading: Reading[Any]) -> None:
    bad = poisoned(reading)
    clean = redacted(bad, KNOWING)
    assert SECRET not in json.dumps(encode(clean), ensure_ascii=False)
    assert type(clean.value) is type(bad.value)


@given(drawn_readings.counters)
def test_numbers_are_never_touched(counters: Any) -> None:
    assert redacted(counters, PLAIN) == counters


@given(drawn_readings.slots)
def test_slots_are_never_touched(slots: Any) -> None:
    assert redacted(slots, PLAIN) == slots


def test_an_apply_keeps_its_story_without_its_log_lines() -> None:
    record = ApplyRecord(
        7, 1.0, 2.0, ApplyKind.APPLY, ApplyOutcome.ROLLED_BACK, (Change(Role.BACKEND, "MY_OWN", "4", CANARY),),
        reason=f"the server ended: {LINE}", log_lines=(LINE, CANARY),
    )  # fmt: skip
    clean = redacted(record, PLAIN)
    assert CANARY not in json.dumps(asdict(clean))
    assert clean.changes[0].before == "4"
    assert clean.reason.startswith("the server ended: ")
    assert "is not compatible" in clean.log_lines[0]


def test_an_alert_keeps_its_figures_and_loses_quoted_lines() -> None:
    alert = Alert(
        "storm", "A storm", AlertSeverity.WARNING, "312 warnings a minute", 1.0, 2.0, 3.0,
        evidence=(("rate", "312 /min"), ("sample", f"{CANARY} without a stamp"), ("seen", LINE)),
        fix=(("LLAMA_CTX_SIZE", "8192"), ("MY_OWN", CANARY), ("LLAMA_EXTRA_ARGS", None)),
    )  # fmt: skip
    clean = redacted(alert, PLAIN)
    assert CANARY not in json.dumps(asdict(clean))
    assert clean.evidence[0] == ("rate", "312 /min")
    assert clean.fix[0] == ("LLAMA_CTX_SIZE", "8192")
    assert clean.fix[2] == ("LLAMA_EXTRA_ARGS", None)


def test_names_of_processes_stay() -> None:
    assert redacted(GpuProcess(7, 1024, "llama-server"), PLAIN) == GpuProcess(7, 1024, "llama-server")
