"""Machine and memory: what NVML, the kernel, the log and the proxy show, raised and not raised.

Real CPUs and a real server are in tests/e2e/test_machine_rules.py and test_memory_rules.py, broken drivers in
tests/collect/test_gpu.py.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from insight.scenes import DATA, IDLE, OK, WALL, Watch, only, process, tell, working
from specdash.collect.gpu import THROTTLE_REASONS
from specdash.core.parameter_catalogue import PARAMETERS
from specdash.core.proxy_events import ProxyEvents, RequestEvent
from specdash.core.readings import (
    FailureKind,
    Gpu,
    GpuProcess,
    Gpus,
    Host,
    ProcessTree,
    SchedulingDelay,
    Slot,
    Slots,
)
from specdash.core.records import AlertSeverity
from specdash.insight.rules.machine import THROTTLES
from specdash.llama.log.parser import LogParser

OF_MACHINE = only("machine")
NOTICE, WARNING, CRITICAL = AlertSeverity
GIB, MIB = 1 << 30, 1 << 20
GPU = Gpu(
    0, "H200", utilisation=0.9, memory_used_bytes=8 * GIB, memory_total_bytes=80 * GIB, memory_free_bytes=70 * GIB,
    power_watts=250.0, power_limit_watts=700.0, temperature_celsius=61, throttle_reasons=(),
    processes=(GpuProcess(10, 8 * GIB, is_backend=True),),
)  # fmt: skip
HOST = Host(
    cpu_utilisation=0.5, cpu_count=2, memory_used_bytes=24 * GIB, memory_total_bytes=64 * GIB, swap_used_bytes=GIB,
    swap_total_bytes=8 * GIB, swap_in_bytes_per_s=0.0, swap_out_bytes_per_s=0.0,
)  # fmt: skip
SERVER = ProcessTree(10, "llama-server", cpu_cores=1.5, command=("llama-server", "-ngl", "99"))
ON_TIME = SchedulingDelay(0.0, 5.0)
UNUSED = replace(GPU, utilisation=0.0)


def look(watch: Watch, seconds: int, gpus: Any = (GPU,), **changes: Any) -> set[str]:
    """A server at work for so long, on such a machine; the rules with an alert after it."""
    for _ in range(seconds):
        readings = {"process": SERVER, "host": HOST, "slots": working(int(watch.at)), "scheduling": ON_TIME, **changes}
        watch.look(1, gpu=Gpus(gpus) if isinstance(gpus, tuple) else gpus, **readings, health=OK)
    return watch.raised()


def throttled(*reasons: str) -> tuple[Gpu, ...]:
    return (replace(GPU, throttle_reasons=reasons),)


def gpu_left(mib: int) -> tuple[Gpu, ...]:
    return (replace(GPU, memory_free_bytes=mib * MIB),)


def left(mib: int, **changes: Any) -> Host:
    return replace(HOST, memory_used_bytes=64 * GIB - mib * MIB, **changes)


@pytest.mark.parametrize(
    ("gpus", "changes", "seconds", "expected"),
    [
        ((GPU,), {}, 60, None),
        # A GPU that no longer answers, one of several, and a driver that fails; without NVML none is lost.
        ((GPU, Gpu(1)), {}, 2, ("gpu_lost", CRITICAL, "GPU 1 no longer answers NVML, 1 others do")),
        (FailureKind.UNAVAILABLE, {}, 2, ("gpu_lost", CRITICAL, "the GPUs were there and NVML fails now")),
        # Unused, though meant to be used: by its flags, or because it was before.
        ((UNUSED,), {}, 20, None),
        ((UNUSED,), {}, 40, ("gpu_lost", WARNING, "it was started with 99 layers for it")),
        ((UNUSED,), {"process": replace(SERVER, command=("llama-server",))}, 40, ("gpu_lost", WARNING, "it used it")),
        ((UNUSED,), {"process": replace(SERVER, command=("x", "--gpu-layers=0"))}, 60, None),
        ((UNUSED,), {"process": replace(SERVER, cpu_cores=0.05)}, 60, None),
        ((UNUSED,), {"slots": IDLE}, 60, None),
        # How bad a throttle is depends on its reason; idle clocks and clocks that were set are none.
        (throttled("power cap"), {}, 8, None),
        (throttled("power cap"), {}, 12, ("gpu_throttled", NOTICE, "power cap at 61 °C, 250 W of 700 W")),
        (throttled("power cap", "thermal slowdown (software)"), {}, 12,
         ("gpu_throttled", WARNING, "GPU 0 (H200) is slowed down: thermal slowdown (software) at")),
        (throttled("hardware slowdown", "thermal slowdown (hardware)"), {}, 12,
         ("gpu_throttled", CRITICAL, "hardware slowdown, thermal slowdown (hardware)")),
        (throttled("idle", "application clocks"), {}, 12, None),
        (throttled("hardware slowdown"), {"slots": IDLE}, 12, None),
        # Little memory left, on the server's GPU and on the machine, of which 5 % may be plenty.
        (gpu_left(300), {}, 10, None),
        (gpu_left(200), {}, 10, ("memory_pressure", WARNING, "GPU 0 (H200) has 200 MiB of 80.0 GiB left")),
        (gpu_left(30), {}, 10, ("memory_pressure", CRITICAL, "GPU 0")),
        ((GPU, replace(gpu_left(0)[0], index=1, processes=(GpuProcess(11, GIB),))), {}, 10, None),
        ((GPU,), {"host": left(1800)}, 10, ("memory_pressure", WARNING, "is left on the machine")),
        ((GPU,), {"host": left(1024)}, 10, ("memory_pressure", CRITICAL, "is left on the machine")),
        ((GPU,), {"host": left(40 * 1024, memory_total_bytes=1024 * GIB)}, 10, None),
        # Swap that moves all the time.
        ((GPU,), {"host": replace(HOST, swap_in_bytes_per_s=2e6)}, 8, None),
        ((GPU,), {"host": replace(HOST, swap_in_bytes_per_s=2e6)}, 40, ("memory_pressure", WARNING, "MiB/s move")),
        # No CPU, because of other programs and not of its own threads, and not for a moment; or none for specdash.
        ((GPU,), {"process": replace(SERVER, cpu_wait=0.7, cpu_cores=0.3), "host": replace(HOST, cpu_utilisation=1.0)},
         20, ("cpu_starved", NOTICE, "gets no CPU for 70 % of the time")),
        ((GPU,), {"process": replace(SERVER, cpu_wait=0.7, cpu_cores=1.9), "host": replace(HOST, cpu_utilisation=1.0)},
         20, None),
        ((GPU,), {"process": replace(SERVER, cpu_wait=0.1, cpu_cores=0.3), "host": replace(HOST, cpu_utilisation=1.0)},
         20, None),
        ((GPU,), {"scheduling": SchedulingDelay(2.0, 5.0)}, 8, ("cpu_starved", WARNING, "too busy for specdash")),
    ],
)  # fmt: skip
def test_what_is_raised_on_such_a_machine_and_is_over_with_it(
    gpus: Any, changes: dict[str, Any], seconds: int, expected: tuple[str, AlertSeverity, str] | None
) -> None:
    watch = Watch(OF_MACHINE)
    assert look(watch, 5) == set()
    assert look(watch, seconds, gpus, **changes) == ({expected[0]} if expected else set())
    for alert in watch.state.alerts.picture().active:
        assert expected is not None
        assert (alert.severity, expected[2] in alert.summary) == (expected[1], True), alert.summary
    assert look(watch, 65) == set()


def test_no_gpu_is_lost_that_was_never_there_or_is_of_another_machine() -> None:
    assert look(Watch(OF_MACHINE), 40, FailureKind.UNAVAILABLE) == set()
    for gpus, subject in (((GPU,), "GPU 0"), ((GPU, replace(GPU, index=1)), "")):
        watch = Watch(OF_MACHINE)
        look(watch, 5, gpus)
        look(watch, 5, FailureKind.UNAVAILABLE)
        assert watch.found("gpu_lost").subject == subject, "named where it is the only one"
    watch = Watch(OF_MACHINE)
    watch.retarget(url="http://gpu-box:8080")
    tell(watch.state, 0.0, health=OK)
    assert look(watch, 30, (replace(GPU, memory_free_bytes=0), Gpu(1)), host=left(100)) == set()


def test_every_reason_in_the_table_is_one_of_the_collectors() -> None:
    assert set(THROTTLES) <= {name for _, name in THROTTLE_REASONS}


# Memory, of the log and the proxy


OF_MEMORY = only("memory", "context_overflow")
FIND_SLOT = b"find_slot: non-consecutive token position 750 after 323 for sequence 0 with 308 new tokens\n"
CUDA_MALLOC = (
    b"ggml_backend_cuda_buffer_type_alloc_buffer: allocating 10240.00 MiB on device 0: cudaMalloc failed: out of memory"
)
NO_ROOM = b"srv  decode: failed to find free space in the KV cache, retrying with smaller batch size, off = 0\n"
SMALLER = (("LLAMA_ARG_UBATCH", "256"),)
IMAGE = b"srv  process_chun: encoding image slice...\n"
SHIFTED = b"slot update_slots: id  0 | task 1 | slot context shift, n_keep = 0, n_left = 255, n_discard = 127\n"
TEXT, SEES, UNKNOWN = ("llama-server", "-m", "x.gguf"), ("llama-server", "-m", "x.gguf", "--mmproj", "y.gguf"), ()


def logged(log: bytes, **sources: Any) -> Watch:
    """Half a minute of life, and the log's lines read amid it."""
    watch, life = Watch(OF_MEMORY), {"process": process(), "slots": IDLE, "health": OK, **sources}
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
    watch = Watch(OF_MEMORY)
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
