"""The rules of memory on what a log and a proxy gave: what raises them, and what only looks like it.

What a real server can be made to do is in tests/e2e/test_memory_rules.py.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from insight.scenes import DATA, IDLE, OK, WALL, Watch, of_family, only, process, tell
from specdash.core.parameter_catalogue import PARAMETERS
from specdash.core.proxy_events import ProxyEvents, RequestEvent
from specdash.core.readings import FailureKind, Slot, Slots
from specdash.core.records import AlertSeverity
from specdash.llama.log.parser import LogParser

OWN = (*of_family("memory"), *only("context_overflow"))
NOTICE, WARNING, CRITICAL = AlertSeverity
FIND_SLOT = b"find_slot: non-consecutive token position 750 after 323 for sequence 0 with 308 new tokens\n"
CUDA_MALLOC = (
    b"ggml_backend_cuda_buffer_type_alloc_buffer: allocating 10240.00 MiB on device 0: cudaMalloc failed: out of memory"
)
NO_ROOM = b"srv  decode: failed to find free space in the KV cache, retrying with smaller batch size, off = 0\n"
SMALLER = (("LLAMA_ARG_UBATCH", "256"),)
IMAGE = b"srv  process_chun: processing image...\n"
SHIFTED = b"slot update_slots: id  0 | task 1 | slot context shift, n_keep = 0, n_left = 255, n_discard = 127\n"
TEXT, SEES, UNKNOWN = ("llama-server", "-m", "x.gguf"), ("llama-server", "-m", "x.gguf", "--mmproj", "y.gguf"), ()


def logged(log: bytes, **sources: Any) -> Watch:
    """Half a minute of life, and the log's lines read amid it."""
    watch, life = Watch(OWN), {"process": process(), "slots": IDLE, "health": OK, **sources}
    watch.look(15, **life)
    tell(watch.state, watch.at, log=LogParser().feed(log))
    watch.look(8, **life)
    return watch


@pytest.mark.parametrize(
    ("log", "command", "severity"),
    [
        # Of a text server a few are a warning; where images may come, and come, only a flood is worth a notice.
        (FIND_SLOT * 20, TEXT, WARNING),
        (FIND_SLOT * 3000, SEES, None),
        (FIND_SLOT * 8000, SEES, NOTICE),
        (FIND_SLOT * 3000, UNKNOWN, None),
        (FIND_SLOT * 8000, UNKNOWN, NOTICE),
        (IMAGE + FIND_SLOT * 500, TEXT, None),
        # Recorded logs of healthy servers raise nothing.
        *((path.read_bytes(), TEXT, None) for path in sorted((DATA / "logs").glob("*lv4.log"))),
    ],
)
def test_find_slot_lines_are_judged_by_whether_images_may_come(
    log: bytes, command: tuple[str, ...], severity: AlertSeverity | None
) -> None:
    watch = logged(log, process=process(command=command))
    assert {alert.severity for alert in watch.state.alerts.picture().active} == ({severity} if severity else set())
    assert watch.raised() == ({"find_slot_storm"} if severity else set())


@pytest.mark.parametrize(
    ("line", "what", "fix"),
    [
        (CUDA_MALLOC, "the GPU's memory could not be allocated", ()),
        (b"CUDA error: out of memory", "the GPU's memory could not be allocated", ()),
        (b"ggml_aligned_malloc: insufficient memory (attempted to allocate  97.75 MB)", "memory could not be", ()),
        (b"Killed", "the server was killed", ()),
        (b"graph_reserve: failed to allocate compute buffers", "a compute buffer could not be allocated", SMALLER),
        (b"start_llama.sh: line 3: 4711 Killed  llama-server", None, ()),
        (b"CUDA error: an illegal memory access was encountered", None, ()),
    ],
)
def test_memory_that_ran_out_is_critical_a_warning_once_a_server_runs_again_and_forgotten(
    line: bytes, what: str | None, fix: tuple[tuple[str, str], ...]
) -> None:
    watch = logged(line + b"\n")
    assert watch.raised() == ({"out_of_memory"} if what else set())
    if what is None:
        return
    assert watch.found("out_of_memory").severity is WARNING
    watch.look(8, health=FailureKind.REFUSED, metrics=FailureKind.REFUSED, slots=FailureKind.REFUSED)
    alert = watch.found("out_of_memory")
    assert (alert.severity, alert.summary.startswith(what), alert.fix) == (CRITICAL, True, fix)
    watch.look(620, health=OK, slots=IDLE, process=process())
    assert watch.raised() == set()


@pytest.mark.parametrize(
    ("command", "sizes", "fix"),
    [
        (("-c", "4096"), (4096, 2048), "8192"),
        ((), (4096, 2048), "12288"),
        (("--kv-unified",), (4096, 2048), "8192"),
        (("-c", "0"), (4096, 2048), "12288"),
        ((), (None, None), None),
    ],
)
def test_no_room_in_the_kv_cache_and_a_shifted_context_ask_for_twice_the_context(
    command: tuple[str, ...], sizes: tuple[int | None, ...], fix: str | None
) -> None:
    slots = Slots(tuple(Slot(number, is_processing=False, n_ctx=size) for number, size in enumerate(sizes)))
    tree = process(command=("llama-server", *command))
    watch = logged(NO_ROOM * 9 + SHIFTED, slots=slots, process=tree)
    alerts = watch.state.alerts.picture().active
    assert {alert.subject: alert.severity for alert in alerts} == {"": NOTICE, "KV cache": WARNING}
    assert {alert.fix for alert in alerts} == {(("LLAMA_CTX_SIZE", fix),) if fix else ()}
    assert "LLAMA_CTX_SIZE" in {key for parameter in PARAMETERS for key in parameter.keys}


def test_the_context_of_an_idle_slot_may_be_full() -> None:
    slot = Slot(0, is_processing=True, n_ctx=1000, task=3, n_decoded=5, n_prompt_tokens=960)
    assert logged(b"", slots=Slots((slot,))).found("context_overflow").subject == "slot 0"
    assert logged(b"", slots=Slots((replace(slot, is_processing=False),))).raised() == set()


def talks(sessions: int, *, cached: bool, growth: int = 200, **more: Any) -> list[RequestEvent]:
    """Conversations that take turns, one turn every two seconds, five turns each; what was cached of each turn."""
    events = []
    for count in range(5 * sessions):
        number, name, at = count // sessions, f"s{count % sessions}", 100 + 2 * count
        prompt = 2000 + growth * number
        known = prompt - growth if number else 0
        fields = {"changed": "", "known_share": known / prompt, "messages": 1 + 2 * number, **more}
        event = RequestEvent(
            WALL + at, name, f"{name}{at}", prompt_tokens=prompt, cached_tokens=known if cached else 0,
            completion_tokens=50, duration_s=1.0, tools=0, **fields,
        )  # fmt: skip
        events.append(event)
    return events


def judged(
    events: list[RequestEvent], started: float = 0.0, *command: str, slots: int = 2, n_ctx: int | None = None
) -> Watch:
    watch = Watch(OWN)
    watch.at = 200.0
    watch.retarget(proxy_log="events.jsonl")
    tell(watch.state, watch.at, proxy_events=ProxyEvents(tuple(events)))
    some = Slots(tuple(Slot(number, is_processing=False, n_ctx=n_ctx) for number in range(slots)))
    run = process(started=WALL + started, command=("llama-server", *command))
    watch.look(15, process=run, slots=some, health=OK)
    return watch


def test_turns_that_find_nothing_cached_have_lost_their_cache_and_those_that_go_on_have_not() -> None:
    assert judged(talks(1, cached=False)).raised() == {"prompt_cache_lost"}
    for sessions in (1, 2):
        assert judged(talks(sessions, cached=True)).raised() == set()
    # Conversations before a restart, and their first turns after it, have lost nothing.
    assert judged(talks(1, cached=False), 150.0).raised() == set()
    assert judged(talks(5, cached=False), 140.0, slots=5).raised() == set()
    for unknown in ("prompt_tokens", "cached_tokens"):
        assert judged([replace(event, **{unknown: None}) for event in talks(1, cached=False)]).raised() == set()


@pytest.mark.parametrize(
    ("sessions", "changed", "command", "n_ctx", "words", "fix"),
    [
        (1, "system", (), None, "session s0 had", {}),
        (1, "", ("--no-cache-prompt",), None, "gone (--no-cache-prompt)", {"LLAMA_ARG_CACHE_PROMPT": None}),
        # More slots come with the context that they need.
        (4, "", (), 8192, "4 conversations share 2", {"LLAMA_PARALLEL": "4", "LLAMA_CTX_SIZE": str(4 * 8192)}),
        (4, "", ("--kv-unified",), 8192, "4 conversations share 2 slots", {"LLAMA_PARALLEL": "4"}),
        (4, "", (), None, "4 conversations share 2 slots", {}),
    ],
)
def test_the_reason_decides_what_helps(
    sessions: int, changed: str, command: tuple[str, ...], n_ctx: int | None, words: str, fix: dict[str, str | None]
) -> None:
    events = talks(sessions, cached=False, changed=changed, changed_at=0.0)
    alert = judged(events, 0.0, *command, n_ctx=n_ctx).found("prompt_cache_lost")
    assert words in alert.summary
    assert (dict(alert.fix), bool(alert.subject)) == (fix, bool(changed))
