"""What specdash projects against what really loads, part by part, and the largest context that fits."""

from __future__ import annotations

import contextlib
import time
import urllib.error
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpu.loading import (
    MIB,
    buffers,
    own_bytes,
    projected,
    small_card,
    started,
    used_gpu_bytes,
    why_it_ended,
    with_context,
)
from gpu.report import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from gpu.kit import Kit, Server
    from gpu.report import Report

LONG = 1 << 22
"""Tokens that the widened models say they were trained on, so that memory is what limits."""
LEAST_COMPUTE, MOST_COMPUTE = 0.9, 1.5
"""What docs/gguf.md promises of the compute buffers."""
EXACT = 0.005
"""Of weights, caches and states: CUDA pads the last row of a quantised tensor, and the log has two decimals."""
BELOW, ABOVE = 0.03, 0.15
"""The whole may be this share below what the GPU gave away, and above it; and so many MiB, for what CUDA takes for
itself, which differs between drivers."""
SLACK = 256 * MIB
PROMPT_S = 5.0


@dataclass(frozen=True, slots=True)
class Case:
    """One way of loading. `keys` are those of an env file."""

    name: str
    model: str = "target"
    draft: str | None = None
    types: str = "none"
    keys: dict[str, str] = field(default_factory=dict)
    always: bool = False
    """In the dry run too."""


_DRAFTED = {"model": "target", "draft": "draft", "types": "draft-simple"}
CASES = (
    Case("one slot, f16", always=True),
    Case("four slots", keys={"LLAMA_PARALLEL": "4", "LLAMA_CTX_SIZE": "65536"}),
    Case("q8_0", keys={"LLAMA_ARG_CACHE_TYPE_K": "q8_0", "LLAMA_ARG_CACHE_TYPE_V": "q8_0"}, always=True),
    Case("q4_0", keys={"LLAMA_ARG_CACHE_TYPE_K": "q4_0", "LLAMA_ARG_CACHE_TYPE_V": "q4_0"}),
    Case("flash attention off", keys={"LLAMA_ARG_FLASH_ATTN": "off", "LLAMA_CTX_SIZE": "16384"}),
    Case("ubatch 2048, four slots", keys={"LLAMA_PARALLEL": "4", "LLAMA_ARG_UBATCH": "2048"}, always=True),
    Case("half of the layers", keys={"LLAMA_GPU_LAYERS": "3"}),
    Case("no layers", keys={"LLAMA_GPU_LAYERS": "0"}),
    Case("with a draft", **_DRAFTED, always=True),  # type: ignore[arg-type]  # names of fields
    Case("draft on the CPU", **_DRAFTED, keys={"LLAMA_ARG_N_GPU_LAYERS_DRAFT": "0"}),  # type: ignore[arg-type]
    Case("draft of 16 tokens, four slots", **_DRAFTED, keys={"LLAMA_DRAFT_MAX": "16", "LLAMA_PARALLEL": "4"}),  # type: ignore[arg-type]
    Case("MTP", "mtp", None, "draft-mtp"),
    Case("EAGLE-3", "eagle3-target", "eagle3", "draft-eagle3"),
    Case("DFlash", "dflash-target", "dflash", "draft-dflash"),
)
FITTED = (
    Case("one slot, f16", always=True),
    Case("q8_0", keys={"LLAMA_ARG_CACHE_TYPE_K": "q8_0", "LLAMA_ARG_CACHE_TYPE_V": "q8_0"}),
    Case("with a draft", **_DRAFTED, always=True),  # type: ignore[arg-type]
    Case("draft on the CPU", **_DRAFTED, keys={"LLAMA_ARG_N_GPU_LAYERS_DRAFT": "0"}),  # type: ignore[arg-type]
    Case("MTP", "mtp", None, "draft-mtp"),
)


def run_parts(kit: Kit, report: Report) -> None:
    """Each part of the projection against the engine's own log, and the whole against what the GPU gave away."""
    _each(kit, report, CASES, _parts)


def run_largest(kit: Kit, report: Report) -> None:
    """The largest context that fits."""
    _each(kit, report, FITTED, _largest)


def _each(kit: Kit, report: Report, cases: Iterable[Case], measure: Callable[[Kit, Report, Case], None]) -> None:
    for case in cases:
        if kit.cpu and not case.always:
            continue
        with _told(report, case.name):
            measure(kit, report, case)


@contextlib.contextmanager
def _told(report: Report, what: str) -> Iterator[None]:
    """What goes wrong in one case does not end the others."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        report.failed(f"{what}: could be measured", note=f"{type(error).__name__}: {error}"[-1500:])


def _files(kit: Kit, case: Case, gigabytes: float) -> tuple[Path, Path | None] | None:
    """The model, of that size, and the draft, both said to be trained on `LONG`; None where the kit lacks them."""
    wanted = [name for name in (case.model, case.draft) if name is not None]
    if not all(kit.model(name).exists() for name in wanted):
        return None
    # The small files are changed, and widened then: a copy of a large one takes seconds.
    long = replace(kit, kit=kit.work / "long", work=kit.work / "long")
    for name in wanted:
        with_context(kit.model(name), long.model(name), LONG)
    return long.model(case.model, gigabytes), None if case.draft is None else long.model(case.draft)


def _env(kit: Kit, home: Path, case: Case, model: Path, draft: Path | None, **more: object) -> Path:
    keys: dict[str, object] = {
        "LLAMA_MODEL": model,
        "LLAMA_CTX_SIZE": 32768,
        "LLAMA_PARALLEL": 1,
        "LLAMA_SPEC_TYPE": case.types,
        "LLAMA_GPU_LAYERS": 0 if kit.cpu else "all",
        "LLAMA_ARG_N_GPU_LAYERS_DRAFT": 0 if kit.cpu else "all",
        "LLAMA_ARG_FIT": "off",
        "LLAMA_ARG_CACHE_RAM": 0,
        "LLAMA_LOG_VERBOSITY": 4,
        **case.keys,
        **more,
    }
    if draft is not None:
        keys["LLAMA_DRAFT_MODEL"] = draft
    return kit.env_file(home, "backend.env", **keys)


def _parts(kit: Kit, report: Report, case: Case) -> None:
    files = _files(kit, case, 1)
    if files is None:
        report.skipped(f"{case.name}: what loads is what was projected", "the kit has no such model")
        return
    home, (model, draft) = kit.home("fit"), files
    env_file = _env(kit, home, case, model, draft)
    projection = projected(kit, home, env_file, case.types, model, draft)
    before = used_gpu_bytes()
    with started(kit, home, env_file, model, "fit") as server:
        real = buffers(server.log.read_text("utf-8", "replace"))
        loaded = used_gpu_bytes()
        _prompt(kit, server, 4096)
        after = used_gpu_bytes()
    side, told = ("host", real.host) if kit.cpu else ("gpu", real.gpu)
    for part in ("weights", "KV cache", "recurrent state", "compute"):
        ours = sum(row[f"{side}_bytes"] for row in projection["memory"]["parts"] if row["what"] == part)
        _judge_part(report, f"{case.name}: {part}", part, ours, told.get(part, 0))
    if before is None or loaded is None or after is None:
        report.skipped(f"{case.name}: the GPU gave what was projected", "needs a GPU")
        return
    _judge_whole(report, case.name, projection, after - before)
    report.figure(f"{case.name}: CUDA's own", round((loaded - before - sum(told.values())) / MIB), "MiB")
    report.figure(f"{case.name}: more after a prompt", round((after - loaded) / MIB), "MiB")


def _judge_part(report: Report, what: str, part: str, ours: int, real: int) -> None:
    if not ours and not real:
        return
    if part == "compute":
        least, most = LEAST_COMPUTE * real - MIB, MOST_COMPUTE * real + MIB
    else:
        least, most = real * (1 - EXACT) - MIB / 10, real * (1 + EXACT) + MIB / 10
    note = f"{ours / real:.3f} of it" if real else ""
    report.judge(what, least <= ours <= most, round(ours / MIB, 2), round(real / MIB, 2), "MiB", note)


def _judge_whole(report: Report, name: str, projection: Any, taken: int) -> None:
    ours = projection["needed_bytes"] if projection["gpus"] else projection["memory"]["gpu_bytes"]
    holds = taken * (1 - BELOW) - SLACK <= ours <= taken * (1 + ABOVE) + SLACK
    report.judge(f"{name}: all of it, with CUDA's own", holds, round(ours / MIB), round(taken / MIB), "MiB")


def _largest(kit: Kit, report: Report, case: Case) -> None:
    """The context that is said to fit, one that is said not to, and between them what really does."""
    # The compute buffer of a widened model is large, too: with 1 GB of weights it is 2.5 GB.
    files = _files(kit, case, 0.25)
    if files is None:
        report.skipped(f"{case.name}: the largest context fits", "the kit has no such model")
        return
    home, (model, draft) = kit.home("fit"), files
    # Weights in memory of its own count against a limit; mapped ones do not.
    more = {"LLAMA_ARG_LOAD_MODE": "none", "LLAMA_ARG_THREADS": 1} if kit.cpu else {}
    room = 400 if kit.cpu else 4096
    own = _own_bytes(kit, home, case, model, draft, more) if kit.cpu else 0
    with small_card(kit, room, own) as small:

        def ask(context: int, *words: str) -> Any:
            free = ("--free-mib", str(room)) if kit.cpu else ()
            env_file = _env(small, home, case, model, draft, **more, LLAMA_CTX_SIZE=context)
            return projected(kit, home, env_file, case.types, model, draft, *free, *words)

        def starts(context: int, prompt: bool = False) -> str:
            """Empty, or why it did not start or answer."""
            env_file = _env(small, home, case, model, draft, **more, LLAMA_CTX_SIZE=context)
            try:
                with started(small, home, env_file, model, "fit-largest") as server:
                    tokens = _prompt(kit, server, int(0.6 * context) if prompt else 64)
                    if prompt:
                        report.figure(f"{case.name}: tokens of the prompt it answered", tokens, "tokens")
            except RuntimeError as error:
                return why_it_ended(error)
            except (OSError, urllib.error.HTTPError) as error:
                return f"{type(error).__name__}: {error}"
            return ""

        fitting = ask(0, "--fit")
        said, free = int(fitting["largest_ctx_size"] or 0), int(fitting["free_bytes"])
        why = starts(said, prompt=True)
        if not report.judge(
            f"{case.name}: the largest context that is said to fit loads and answers", not why, said, note=why
        ):
            return
        if said + 256 > LONG:
            report.skipped(f"{case.name}: one step more fails", "the model's own context ends before the memory does")
            return
        steps = [ask(context)["needed_bytes"] for context in (said, 2 * said)]
        per_token = (steps[1] - steps[0]) / said
        # All that is free goes to the cache, and what is set aside for CUDA as well: that cannot fit.
        too_large = _step(said + (free - steps[0] + 512 * MIB * (not kit.cpu) + 64 * MIB) / per_token)
        why = starts(too_large)
        report.judge(f"{case.name}: a context beyond all that is free fails", bool(why), too_large, note=why)
        if not kit.cpu:
            _warned(kit, report, home, case, _env(kit, home, case, model, draft, LLAMA_CTX_SIZE=too_large), "warning")
            certain = too_large
            while _certain(ask(certain)) <= free and 2 * certain <= LONG:
                certain *= 2
            if _certain(ask(certain)) > free:
                _warned(kit, report, home, case, _env(kit, home, case, model, draft, LLAMA_CTX_SIZE=certain), "error")
        true = _bisect(said, too_large, lambda context: not starts(context))
        report.figure(f"{case.name}: largest context said", said, "tokens")
        report.figure(f"{case.name}: largest context that really starts", true, "tokens")
        report.figure(f"{case.name}: said of true", round(said / true, 3), "", f"{free / MIB:.0f} MiB were free")
        needed = ask(true)["needed_bytes"]
        share = needed / free
        # Above 1 it was said not to fit, and did; far below it something was forgotten.
        report.judge(
            f"{case.name}: projected need of the true largest, of what is free",
            0.93 <= share <= 1.1,
            round(share, 3),
            1,
        )
        headroom = (free * fitting["headroom"] - steps[0] + said * per_token) / (free - steps[0] + said * per_token)
        report.judge(
            f"{case.name}: said of true is what the headroom leaves, or more", said / true >= 0.93 * headroom - 0.02,
            round(said / true, 3), round(headroom, 3),
        )  # fmt: skip


def _own_bytes(kit: Kit, home: Path, case: Case, model: Path, draft: Path | None, more: dict[str, Any]) -> int:
    """What the engine's process takes in main memory beside what is projected."""
    env_file = _env(kit, home, case, model, draft, **more, LLAMA_CTX_SIZE=4096)
    projection = projected(kit, home, env_file, case.types, model, draft)
    with started(kit, home, env_file, model, "fit-own") as server:
        _prompt(kit, server, 64)
        return max(own_bytes(server) - int(projection["memory"]["host_bytes"]), 0)


def _certain(projection: Any) -> int:
    """Bytes on the GPU without the estimated parts: above what is free, they are an error."""
    return sum(row["gpu_bytes"] for row in projection["memory"]["parts"] if not row["estimated"])


def _warned(kit: Kit, report: Report, home: Path, case: Case, env_file: Path, least: str) -> None:
    said = kit.specdash(home, "preflight", "--service", "backend", "--env-file", str(env_file), "--json").json()
    rows = [row for row in said["findings"] if row["rule"] in ("gpu-memory", "memory")]
    severities = [row["severity"] for row in rows]
    what = "refuses what surely does not fit" if least == "error" else "warns of the context that is too large"
    text = "; ".join(f"{row['severity']}: {row['message']}" for row in rows)
    holds = "error" in severities or least in severities
    report.judge(f"{case.name}: preflight {what}", holds, severities, least, note=text[:600])


def _step(context: float) -> int:
    return int(context) // 256 * 256


def _bisect(fits: int, fails: int, starts: Any) -> int:
    """The largest context that starts, to 2 % or a step."""
    while fails - fits > max(256, fits * 0.02):
        middle = max(_step((fits + fails) / 2), fits + 256)
        fits, fails = (middle, fails) if starts(middle) else (fits, middle)
    return fits


def _prompt(kit: Kit, server: Server, tokens: int) -> int:
    """Have a prompt answered, of `tokens` or of what takes about `PROMPT_S`; tokens that were taken. Raises OSError."""
    first = min(tokens, 256 if kit.cpu else 1024)
    began = time.monotonic()
    server.complete(_words(first), 8)
    rate = first / max(time.monotonic() - began, 0.001)
    wanted = min(tokens, 2048 if kit.cpu else int(rate * PROMPT_S))
    if wanted > first:
        server.complete(_words(wanted), 8)
    return max(wanted, first)


def _words(count: int) -> list[int]:
    return [300 + number * 7919 % 16 for number in range(count)]


CHECKS = (
    Check("projection", "what specdash projects of memory is what loads", run_parts, 120.0),
    Check("fit", "the largest context that is said to fit does, and is nearly the largest", run_largest, 180.0),
)
