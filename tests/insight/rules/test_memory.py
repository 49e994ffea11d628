"""The rules of memory on what a log and a proxy told: what raises them, and what only looks like it.

What a real server can be made to do is in tests/e2e/test_memory_rules.py.
"""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from insight.rules.judging import IDLE, OK, WALL, Watch, only, process
from specdash.core.parameter_catalogue import PARAMETERS
from specdash.core.proxy_events import ProxyEvents, RequestEvent
from specdash.core.readings import FailureKind, Slot, Slots, Source
from specdash.core.records import AlertSeverity
from specdash.insight.rules.catalogue import shipped
from specdash.llama.log.parser import LogParser

LOGS = Path(__file__).parents[2] / "data" / "logs"
OWN = tuple(rule for rule in shipped() if rule.spec.family == "memory" or rule.spec.id.startswith("context_"))
FIND_SLOT = b"find_slot: non-consecutive token position 750 after 323 for sequence 0 with 308 new tokens\n"
CUDA_MALLOC = (
    b"ggml_backend_cuda_buffer_type_alloc_buffer: allocating 10240.00 MiB on device 0: cudaMalloc failed: out of memory"
)
NO_ROOM = b"srv  decode: failed to find free space in the KV cache, retrying with smaller batch size, off = 0\n"
IMAGE = b"srv  process_chun: processing image...\n"


def told(watch: Watch, log: bytes, **sources: Any) -> None:
    """Half a minute of life, and the log's lines read amid it."""
    life = {"process": process(), "slots": IDLE, "health": OK, **sources}
    watch.look(15, **life)
    watch.tell(Source.LOG, LogParser().feed(log))
    watch.look(8, **life)


def test_find_slot_lines_of_a_text_server_are_a_warning_from_a_few_on() -> None:
    watch = Watch(OWN)
    told(watch, FIND_SLOT * 20, process=replace(process(), command=("llama-server", "-m", "x.gguf")))
    alert = watch.alert("find_slot_storm")
    assert alert is not None
    assert alert.severity is AlertSeverity.WARNING


@pytest.mark.parametrize("command", [("llama-server", "-m", "x.gguf", "--mmproj", "y.gguf"), ()])
def test_find_slot_lines_of_a_server_that_may_see_images_are_a_notice_only_when_they_flood(
    command: tuple[str, ...],
) -> None:
    for lines, expected in ((3000, None), (8000, AlertSeverity.NOTICE)):
        watch = Watch(OWN)
        told(watch, FIND_SLOT * lines, process=replace(process(), command=command))
        alert = watch.alert("find_slot_storm")
        assert (alert.severity if alert else None) is expected


def test_find_slot_lines_beside_images_in_the_log_are_normal() -> None:
    watch = Watch(OWN)
    told(watch, IMAGE + FIND_SLOT * 500, process=replace(process(), command=("llama-server", "-m", "x.gguf")))
    assert watch.raised() == set()


@pytest.mark.parametrize(
    ("line", "where"),
    [
        (CUDA_MALLOC, "the GPU's memory could not be allocated"),
        (b"CUDA error: out of memory", "the GPU's memory could not be allocated"),
        (b"ggml_aligned_malloc: insufficient memory (attempted to allocate  97.75 MB)", "memory could not be"),
        (b"Killed", "the server was killed"),
        (b"start_llama.sh: line 3: 4711 Killed  llama-server", None),
        (b"CUDA error: an illegal memory access was encountered", None),
    ],
)
def test_memory_that_ran_out_is_told_from_other_ends(line: bytes, where: str | None) -> None:
    watch = Watch(OWN)
    told(watch, line + b"\n")
    watch.look(8, health=FailureKind.REFUSED, metrics=FailureKind.REFUSED, slots=FailureKind.REFUSED)
    alert = watch.alert("out_of_memory")
    assert (alert is not None and alert.summary.startswith(where)) if where else alert is None
    assert alert is None or alert.severity is AlertSeverity.CRITICAL


def test_memory_that_ran_out_is_a_warning_once_a_server_runs_again_and_forgotten_after_ten_minutes() -> None:
    watch = Watch(OWN)
    told(watch, b"CUDA error: out of memory\n")
    alert = watch.alert("out_of_memory")
    assert alert is not None
    assert alert.severity is AlertSeverity.WARNING
    watch.look(620, health=OK, slots=IDLE, process=process())
    assert watch.raised() == set()


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.glob("*lv4.log")))
def test_recorded_healthy_logs_raise_nothing(name: str) -> None:
    watch = Watch(OWN)
    told(watch, (LOGS / name).read_bytes())
    assert watch.raised() <= {"replay_thrash"}


def test_the_context_of_an_idle_slot_may_be_full() -> None:
    slot = Slot(0, is_processing=True, n_ctx=1000, task=3, n_decoded=5, n_prompt_tokens=960)
    for busy, expected in ((True, {"context_nearly_full"}), (False, set[str]())):
        watch = Watch(OWN)
        watch.look(15, slots=Slots((replace(slot, is_processing=busy),)), health=OK)
        assert watch.raised() == expected


def turn(session: str, at: float, prompt: int, cached: int, **more: Any) -> RequestEvent:
    """A turn of a conversation, WALL + `at` seconds."""
    return RequestEvent(
        WALL + at, session, f"{session}{at}", prompt_tokens=prompt, cached_tokens=cached, completion_tokens=50,
        duration_s=1.0, tools=0, **more,
    )  # fmt: skip


def talks(sessions: int, *, cached: bool, growth: int = 200, **more: Any) -> list[RequestEvent]:
    """Conversations that take turns, one turn every two seconds, five turns each; what was cached of each turn."""
    events = []
    for count in range(5 * sessions):
        number, name = count // sessions, f"s{count % sessions}"
        prompt = 2000 + growth * number
        known = min(prompt, prompt - growth) if number else 0
        more |= {"changed": "", "known_share": known / prompt}
        events.append(turn(name, 100 + 2 * count, prompt, known if cached else 0, messages=1 + 2 * number, **more))
    return events


def judged(events: list[RequestEvent], started: float = 0.0, slots: int = 2) -> set[str]:
    watch = Watch(OWN)
    watch.at = 200.0
    watch.state.retarget(replace(watch.state.target, proxy_log="events.jsonl"))
    watch.tell(Source.PROXY_EVENTS, ProxyEvents(tuple(events)))
    some = Slots(tuple(Slot(number, is_processing=False) for number in range(slots)))
    watch.look(15, process=process(started=WALL + started), slots=some, health=OK)
    return watch.raised()


def test_turns_that_find_nothing_cached_have_lost_their_cache() -> None:
    assert judged(talks(1, cached=False)) == {"prompt_cache_lost"}


def test_turns_that_go_on_from_the_cache_have_not() -> None:
    assert judged(talks(1, cached=True)) == set()
    assert judged(talks(2, cached=True)) == set()


def test_conversations_before_a_restart_and_their_first_turns_after_it_have_lost_nothing() -> None:
    assert judged(talks(1, cached=False), started=150.0) == set()
    assert judged(talks(5, cached=False), started=140.0, slots=5) == set()


@pytest.mark.parametrize(
    ("changed", "command", "words", "fix"),
    [
        ("system", (), "session s0 had", ()),
        ("", ("--no-cache-prompt",), "gone (--no-cache-prompt)", (("LLAMA_ARG_CACHE_PROMPT", None),)),
    ],
)
def test_the_reason_decides_what_helps(changed: str, command: tuple[str, ...], words: str, fix: Any) -> None:
    watch = Watch(OWN)
    watch.at = 200.0
    watch.state.retarget(replace(watch.state.target, proxy_log="events.jsonl"))
    events = [replace(event, changed=changed, changed_at=0.0) for event in talks(1, cached=False)]
    watch.tell(Source.PROXY_EVENTS, ProxyEvents(tuple(events)))
    run = replace(process(started=WALL), command=("llama-server", *command))
    watch.look(15, process=run, slots=IDLE, health=OK)
    alert = watch.alert("prompt_cache_lost")
    assert alert is not None
    assert words in alert.summary
    assert (alert.fix, bool(alert.subject)) == (fix, bool(changed))


@pytest.mark.parametrize("unknown", ["prompt_tokens", "cached_tokens"])
def test_turns_whose_sizes_nobody_told_have_lost_nothing(unknown: str) -> None:
    events = talks(1, cached=False)
    untold: dict[str, Any] = {unknown: None}
    assert judged([replace(event, **untold) for event in events]) == set()
    every_second = [replace(event, **untold) if at % 2 else event for at, event in enumerate(events)]
    assert judged(every_second) == set()


def test_every_fix_names_a_setting_of_the_backend() -> None:
    known = {key for parameter in PARAMETERS for key in parameter.keys}
    watch = Watch(only("kv_full", "context_overflow"))
    shifted = b"slot update_slots: id  0 | task 1 | slot context shift, n_keep = 0, n_left = 255, n_discard = 127\n"
    watch.look(15, health=OK)
    watch.tell(Source.LOG, LogParser().feed(NO_ROOM * 9 + shifted))
    slots = Slots((Slot(0, is_processing=False, n_ctx=4096), Slot(1, is_processing=False, n_ctx=4096)))
    watch.look(2, slots=slots, health=OK)
    assert watch.raised() == {"kv_full", "context_overflow"}
    for rule in ("kv_full", "context_overflow"):
        alert = watch.alert(rule)
        assert alert is not None
        assert alert.fix == (("LLAMA_CTX_SIZE", "16384"),)
        assert {key for key, _ in alert.fix} <= known


@pytest.mark.parametrize(
    ("n_ctx", "flags", "fix"),
    [
        (8192, (), {"LLAMA_PARALLEL": "4", "LLAMA_CTX_SIZE": str(4 * 8192)}),
        (8192, ("--kv-unified",), {"LLAMA_PARALLEL": "4"}),
        (None, (), {}),
    ],
)
def test_more_slots_are_advised_with_the_context_that_they_need(
    n_ctx: int | None, flags: tuple[str, ...], fix: dict[str, str]
) -> None:
    watch = Watch(OWN)
    watch.at = 200.0
    watch.state.retarget(replace(watch.state.target, proxy_log="events.jsonl"))
    watch.tell(Source.PROXY_EVENTS, ProxyEvents(tuple(talks(4, cached=False))))
    some = Slots(tuple(Slot(number, is_processing=False, n_ctx=n_ctx) for number in range(2)))
    run = replace(process(started=WALL), command=("llama-server", *flags))
    watch.look(15, process=run, slots=some, health=OK)
    alert = watch.alert("prompt_cache_lost")
    assert alert is not None
    assert dict(alert.fix) == fix
