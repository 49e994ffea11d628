"""A state for screens: deterministic pictures of many situations, with charts that are pure functions of time."""

# ruff: noqa: E501  the sample log lines are as long as the server prints them

import math
from collections.abc import Callable

from msgspec.structs import replace

from specdash.core.log_facts import LogLine
from specdash.core.readings import Gpu, Host, ProcessTree, ReadingStatus, Source
from specdash.insight.charts import Metric
from specdash.insight.picture import (
    Acceptance,
    BackendPicture,
    BackendState,
    GpuPicture,
    LogPicture,
    MeasuredFigure,
    Picture,
    ProxyPicture,
    SlotPhase,
    SlotPicture,
    SourcePicture,
    SpeculationPicture,
    SpeedUpPicture,
    WarningPicture,
)
from specdash.insight.request import ServedRequest
from tui.fake_alerts import PAYING, alerts, alerts_none, alerts_past, estimated, hurting, notice
from tui.fake_proxy import gone_proxy, held_proxy, hostile_proxy, proxy_picture, uap_proxy
from tui.fake_views import VIEW_SCENES

GIB = 1024**3
YOUNG_S = 40.0

PER_POSITION = (0.91, 0.84, 0.77, 0.69, 0.6, 0.52, 0.44, 0.37)
LONG_PER_POSITION = tuple(0.97 * 0.955**i for i in range(64))

FIND_SLOT = WarningPicture(
    "find_slot_non_consecutive",
    "find_slot: non-consecutive token position",
    "warning",
    412,
    18.0,
    3600.0,
    3.0,
    "find_slot: non-consecutive token position 15 after 14 for sequence 0 with 512 new tokens",
    "Normal for image requests and for recurrent memory; otherwise a sign of a broken prompt cache.",
)
CANCELLED = WarningPicture(
    "request_cancelled",
    "request cancelled by the client",
    "notice",
    7,
    0.0,
    3000.0,
    340.0,
    "srv  stop: cancel task, id_task = 4711",
)
CLAMPED = WarningPicture(
    "draft_clamped",
    "draft longer than the batch",
    "warning",
    3,
    0.0,
    3000.0,
    900.0,
    "draft size 64 exceeds max 16, truncating",
)
CUDA = WarningPicture(
    "cuda_error",
    "CUDA error",
    "error",
    2,
    2.0,
    9.0,
    4.0,
    "CUDA error: an illegal memory access was encountered",
    "The process is about to abort: look at the log's last lines, then restart the server.",
)

LOG_LINES = (
    "slot launch_slot_: id  0 | task 4712 | processing task, is_child = 0",
    "slot update_slots: id  0 | task 4712 | new prompt, n_ctx_slot = 32768, n_keep = 0, task.n_tokens = 5123",
    "slot update_slots: id  0 | task 4712 | prompt processing progress, n_tokens = 2048, batch.n_tokens = 2048, progress = 0.40",
    "find_slot: non-consecutive token position 15 after 14 for sequence 0 with 512 new tokens",
    "slot print_timing: id  1 | task 4699 | prompt eval time =    1043.22 ms /  3810 tokens (    0.27 ms per token,  3652.16 tokens per second)",
    "slot print_timing: id  1 | task 4699 | eval time =    8211.90 ms /   512 tokens (   16.04 ms per token,    62.35 tokens per second)",
    "slot print_timing: id  1 | task 4699 | draft acceptance rate = 0.68421 (  364 accepted /   532 generated)",
    "srv  update_slots: decode failed: no free space in the KV cache, retrying with a smaller batch size n_batch = 1024",
    "slot      release: id  1 | task 4699 | stop processing: n_tokens = 4322, truncated = 0",
    "srv  log_server_r: done request: POST /v1/chat/completions 127.0.0.1 200",
)


def known(value: float, window_s: float | None = 300.0) -> MeasuredFigure:
    """A fresh figure."""
    return MeasuredFigure(value, ReadingStatus.KNOWN, Source.METRICS, window_s, 0.5)


def held(value: float, age_s: float) -> MeasuredFigure:
    """A figure of an idle server."""
    return MeasuredFigure(value, ReadingStatus.STALE, Source.METRICS, 300.0, age_s)


def slots() -> tuple[SlotPicture, ...]:
    """Four slots in all phases."""
    return (
        SlotPicture(0, SlotPhase.PREFILL, 4712, True, 32768, 2048, 2048, 0, 0, None, 0.40, 3651.0, None),
        SlotPicture(1, SlotPhase.DECODE, 4709, True, 32768, 12904, 3810, 9000, 341, 171, 0.67, 61.8, 0.71),
        SlotPicture(2, SlotPhase.DECODE, 4711, True, 32768, 801, 640, 0, 161, None, None, 44.2, 0.58),
        SlotPicture(3, SlotPhase.IDLE, None, True, 32768, 5120),
    )


def requests() -> tuple[ServedRequest, ...]:
    """Finished requests of the log, one of them cancelled."""
    done = [
        ServedRequest(
            1, 4699, prompt_cached=0, processed_tokens=3810, prompt_ms=1043.2, decode_tokens=512, decode_ms=8211.9,
            draft_generated=532, draft_accepted=364, ended_age_s=4.0,
        )
    ]  # fmt: skip
    done += [
        ServedRequest(
            i % 4,
            4698 - i,
            prompt_cached=64 * i,
            processed_tokens=120 + 731 * i % 9000,
            prompt_ms=50.0 + 190.0 * i,
            decode_tokens=90 + 61 * i,
            decode_ms=1800.0 + 999.0 * i,
            draft_generated=300,
            draft_accepted=300 * (80 - 3 * i) // 100,
            ended_age_s=16.0 + 37.0 * i,
        )
        for i in range(14)
    ]
    done[2] = ServedRequest(2, 4697, ended_age_s=53.0, processed_tokens=851, prompt_cached=64, cancelled=True)
    return tuple(done)


def speculation() -> SpeculationPicture:
    """Speculation that pays."""
    return SpeculationPicture(
        active=True,
        types=("draft-simple",),
        parameters=(("n-max", "8"), ("n-min", "0"), ("p-min", "0.75")),
        draft_tokens_total=1_204_331,
        accepted_tokens_total=771_020,
        verification_steps_total=228_110,
        mean_accepted_length=4.41,
        accepted_per_position=tuple(int(228_110 * share) for share in PER_POSITION),
        acceptance_per_position_window=PER_POSITION,
        acceptance_per_position_lifetime=tuple(share - 0.03 for share in PER_POSITION),
        acceptance=Acceptance(known(0.672), known(0.640, None), known(0.71, 10.0)),
        tokens_per_decode=known(3.87),
    )


def gpu_picture() -> GpuPicture:
    """One warm GPU."""
    gpu = Gpu(
        0,
        "NVIDIA GeForce RTX 4090",
        utilisation=0.87,
        memory_used_bytes=int(21.3 * GIB),
        memory_total_bytes=24 * GIB,
        power_watts=312.0,
        power_limit_watts=450.0,
        temperature_celsius=71.0,
        throttle_reasons=(),
    )
    return GpuPicture((gpu,), None, ReadingStatus.KNOWN)


def busy_picture(now: float, wall: float, window_s: float) -> Picture:
    """A live server with work."""
    sources = tuple(SourcePicture(source, ReadingStatus.KNOWN, 0.4) for source in Source)
    backend = BackendPicture(
        url="http://127.0.0.1:8080",
        state=BackendState.LIVE,
        engine="llama-server b11549",
        model="Qwen3-Coder-30B-A3B-Q4_K_M",
        n_ctx=32768,
        uptime_s=11_530.0,
        prefill=known(3651.0),
        decode=known(106.0),
        requests_processing=3.0,
        requests_deferred=1.0,
        requests_finished=4_699,
        requests_cancelled=7,
        slots=slots(),
        speculation=speculation(),
        sources=sources,
        process=ProcessTree(4242, "llama-server", wall - 11_530.0, 1.92, int(3.2 * GIB), 21),
    )
    log = LogPicture(
        "/var/log/llama.log", ReadingStatus.KNOWN, "", 88_412, 12, (FIND_SLOT, CLAMPED, CANCELLED), requests()
    )
    host = Host(0.34, 16, 3.1, int(12.4 * GIB), 64 * GIB, 0, 8 * GIB, 211 * GIB, 931 * GIB)
    return Picture(now, wall, window_s, backend, log, gpu_picture(), host, proxy_picture(wall), speedup=PAYING)


def _backend(picture: Picture, **changes: object) -> Picture:
    return replace(picture, backend=replace(picture.backend, **changes))


def idle(picture: Picture) -> Picture:
    """Nothing to do: figures are held, not zero."""
    calm = replace(
        speculation(),
        acceptance=Acceptance(held(0.672, 412.0), known(0.640, None), MeasuredFigure()),
        tokens_per_decode=held(3.87, 412.0),
        acceptance_per_position_window=None,
    )
    free = tuple(SlotPicture(i, SlotPhase.IDLE, None, True, 32768, 0) for i in range(4))
    return _backend(
        replace(picture, log=replace(picture.log, warnings=())),
        speculation=calm,
        slots=free,
        requests_deferred=0.0,
        prefill=held(3651.0, 433.0),
        decode=held(106.0, 412.0),
    )


def down(picture: Picture) -> Picture:
    """Nobody listens on the port any more."""
    reason = "connection refused on 127.0.0.1:8080 for 42 s: the server is not running. Start it, or look at the log's last lines below."
    gone = tuple(SourcePicture(source, ReadingStatus.STALE, 42.0, "connection refused") for source in Source)
    stale = replace(
        speculation(), acceptance=Acceptance(held(0.672, 42.0), held(0.64, 42.0)), tokens_per_decode=held(3.87, 42.0)
    )
    return _backend(
        replace(picture, log=replace(picture.log, warnings=(CUDA, *picture.log.warnings))),
        state=BackendState.DOWN,
        reason=reason,
        speculation=stale,
        slots=None,
        uptime_s=None,
        prefill=held(3651.0, 42.0),
        decode=held(106.0, 42.0),
        sources=gone,
        process=None,
    )


def _blank(picture: Picture, state: BackendState, reason: str, why: str) -> Picture:
    sources = tuple(SourcePicture(source, ReadingStatus.UNKNOWN, None, why) for source in Source)
    backend = BackendPicture(url="http://127.0.0.1:8080", state=state, reason=reason, sources=sources)
    return replace(
        picture,
        backend=backend,
        log=LogPicture(reason="no log: name one with --log FILE"),
        gpu=GpuPicture(),
        speedup=SpeedUpPicture(),
    )


def loading(picture: Picture) -> Picture:
    """The model is on its way into memory."""
    reason = "the server is loading its model; requests are answered 503 until it is done."
    blank = _blank(picture, BackendState.LOADING, reason, "the server is loading its model")
    return _backend(blank, model="Qwen3-Coder-30B-A3B-Q4_K_M")


def unauthorized(picture: Picture) -> Picture:
    """The server wants a key."""
    reason = "the server answers 401: it wants an API key. Name the variable with --api-key-env NAME or a file with --api-key-file FILE."
    return _blank(picture, BackendState.UNAUTHORIZED, reason, "401 from /metrics")


def stale(picture: Picture) -> Picture:
    """Nothing fresh for twelve seconds."""
    old = tuple(SourcePicture(source, ReadingStatus.STALE, 12.0, "no answer in time") for source in Source)
    return _backend(
        picture,
        state=BackendState.STALE,
        reason="no answer for 12 s, though the port still accepts connections: the server hangs or the machine is overloaded.",
        sources=old,
        prefill=held(3651.0, 12.0),
        decode=held(106.0, 12.0),
    )


def storm(picture: Picture) -> Picture:
    """1,161,371 find_slot lines."""
    wave = replace(FIND_SLOT, count=1_161_371, per_minute=312_440.0, last_age_s=0.1)
    return replace(picture, log=replace(picture.log, lines=1_161_990, warnings=(wave, CLAMPED, CANCELLED)))


def no_gpu(picture: Picture) -> Picture:
    """A machine without NVML."""
    return replace(picture, gpu=GpuPicture((), "no NVML: libnvidia-ml.so.1 is not installed", ReadingStatus.UNKNOWN))


def long_draft(picture: Picture) -> Picture:
    """64 draft positions."""
    deep = replace(
        speculation(),
        types=("draft-simple", "ngram-mod"),
        acceptance_per_position_window=LONG_PER_POSITION,
        acceptance_per_position_lifetime=LONG_PER_POSITION,
    )
    return _backend(picture, speculation=deep)


def not_speculating(picture: Picture) -> Picture:
    """A draft model that did not load."""
    off = SpeculationPicture(
        active=False,
        types=("draft-simple",),
        problem="the draft model could not be loaded: vocabularies differ. Use a draft of the same tokenizer.",
    )
    return _backend(picture, speculation=off)


HOSTILE = "[red]not markup[/red] [link=x]y[/] \x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J\r\n\tタブ 日本語 e\u0301\u0301\u0301 \u202eoverride \udcff\x00\x9b31m"


def hostile(picture: Picture) -> Picture:
    """Every text from outside tries to be something else."""
    bad = replace(FIND_SLOT, title=HOSTILE, sample=HOSTILE)
    picture = _backend(picture, model=HOSTILE, engine=HOSTILE, url="http://[red]::1[/]:80")
    picture = replace(picture, proxy=hostile_proxy(picture.wall, HOSTILE))
    return replace(picture, log=replace(picture.log, warnings=(bad, replace(CUDA, note=HOSTILE))))


def no_proxy(picture: Picture) -> Picture:
    """Nobody named a proxy."""
    return replace(picture, proxy=ProxyPicture())


def proxy_held(picture: Picture) -> Picture:
    """The proxy is held while the server restarts, and the server is away."""
    return replace(picture, proxy=held_proxy(picture.wall))


def proxy_gone(picture: Picture) -> Picture:
    """The proxy answered before, and does no more."""
    return replace(picture, proxy=gone_proxy(picture.wall))


def proxy_uap(picture: Picture) -> Picture:
    """A UAP proxy, which tells of one session, and has no events that can be read."""
    return replace(picture, proxy=uap_proxy())


def young(picture: Picture) -> Picture:
    """A server that has been watched for `YOUNG_S`."""
    return _backend(picture, uptime_s=YOUNG_S)


_SCENES: tuple[Callable[[Picture], Picture], ...] = (
    idle,
    down,
    loading,
    unauthorized,
    stale,
    storm,
    no_gpu,
    long_draft,
    not_speculating,
    young,
    hostile,
    no_proxy,
    proxy_held,
    proxy_gone,
    proxy_uap,
    alerts,
    alerts_past,
    alerts_none,
    notice,
    hurting,
    estimated,
    *VIEW_SCENES,
)
SCENES: dict[str, Callable[[Picture], Picture]] = {scene.__name__: scene for scene in _SCENES}


class FakeState:
    """A `State` that shows one scene; `moving` makes the figures change with time."""

    def __init__(
        self, scene: str = "busy", *, lines: tuple[str, ...] = LOG_LINES * 4, moving: bool = False, detail: str = ""
    ) -> None:
        self.scene = scene
        self.lines = [*lines, *([detail] if detail else [])]
        self.detail = detail
        self.moving = moving
        self.pictures = 0

    def picture(self, now: float, wall: float, window_s: float = 300.0) -> Picture:
        """The scene at `now`."""
        self.pictures += 1
        picture = busy_picture(now, wall, window_s)
        if self.scene != "busy":
            picture = SCENES[self.scene](picture)
        if self.moving:
            decode = known(106.0 + 20 * math.sin(now / 7))
            picture = _backend(picture, decode=decode, prefill=known(3000 + 900 * math.sin(now / 11)))
        return picture

    def columns(self, metric: Metric, now: float, window_s: float, count: int) -> list[float | None]:
        """A curve per metric, with a gap; aligned to whole columns of the clock as the real one is."""
        if self.scene in ("loading", "unauthorized") or (
            self.scene in ("not_speculating", "failed") and metric is Metric.ACCEPTANCE
        ):
            return [None] * count
        width = window_s / count
        last = math.floor(now / width)
        begin = count - math.ceil(YOUNG_S / width) if self.scene == "young" else 0
        end = count - (count // 5 if self.scene in ("down", "idle", "stale") else 0)
        columns = [
            None
            if count * 2 // 5 <= i < count * 9 // 20 or not begin <= i < end
            else _curve(metric, (last - count + 1 + i) * width)
            for i in range(count)
        ]
        if self.moving:
            columns[-1] = _curve(metric, now)
        return columns

    def log_lines(self, after: int = 0, limit: int = 1000) -> tuple[int, tuple[LogLine, ...]]:
        """The lines, numbered from 1."""
        newest = len(self.lines)
        return newest, tuple((line, line == self.detail) for line in self.lines[max(after, newest - limit) :])


def _curve(metric: Metric, at: float) -> float:
    wave = 0.5 + 0.28 * math.sin(at / 23.0) + 0.14 * math.sin(at / 5.3) + 0.06 * math.sin(at * 1.7)
    scale = {
        Metric.ACCEPTANCE: (0.35, 0.55),
        Metric.PREFILL: (900.0, 3300.0),
        Metric.DECODE: (60.0, 85.0),
        Metric.TOKENS_PER_DECODE: (1.8, 2.9),
        Metric.CPU: (0.1, 0.6),
        Metric.GPU_UTILISATION: (0.4, 0.58),
    }
    low, span = scale.get(metric, (0.0, 10.0))
    return low + span * wave
