"""GPUs as lines: use, memory, power, temperature, and what throttles them; or why there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.readings import Status
from specdash.tui.formatting import bar, clean, percent, size_pair
from specdash.tui.spans import wrap

if TYPE_CHECKING:
    from specdash.core.observations import Gpu
    from specdash.insight.picture import GpuPicture
    from specdash.tui.spans import Line, Span

_HOT_CELSIUS = 85.0
_FULL = 0.97
BAR_REST = 30
"""Cells of a line beside its bar: label, percentage and words."""


def gpu_lines(picture: GpuPicture, width: int, *, ascii_only: bool) -> list[Line]:
    """Two lines a GPU; the second one says what limits it."""
    if not picture.gpus:
        reason = clean(picture.unavailable or "none found", 160).removeprefix("unavailable: ")
        texts = wrap(reason, max(width - 5, 10), 2)
        return [((("GPU  " if index == 0 else "     "), "dim"), (text, "dim")) for index, text in enumerate(texts)]
    stale = picture.status is Status.STALE
    lines: list[Line] = []
    for gpu in picture.gpus:
        lines += _one(gpu, width, stale=stale, ascii_only=ascii_only)
    return lines


def _one(gpu: Gpu, width: int, *, stale: bool, ascii_only: bool) -> list[Line]:
    role = "dim" if stale else "text"
    memory = (
        gpu.memory_used_bytes / gpu.memory_total_bytes if gpu.memory_used_bytes and gpu.memory_total_bytes else None
    )
    watts = f"{gpu.power_watts:.0f} W" if gpu.power_watts is not None else "-- W"
    if gpu.power_limit_watts is not None and width >= 44:
        watts = watts.replace(" W", f"/{gpu.power_limit_watts:.0f} W")
    celsius = f"{gpu.temperature_celsius:.0f} °C" if gpu.temperature_celsius is not None else "-- °C"
    hot = gpu.temperature_celsius is not None and gpu.temperature_celsius >= _HOT_CELSIUS
    room = max(min(width - BAR_REST, 16), 0)
    filled, rest = bar(gpu.utilisation, room, ascii_only=ascii_only)
    first: list[Span] = [
        (f"GPU{gpu.index} ", "dim"),
        (filled, "machine track"),
        (rest, "faint track"),
        (f"{percent(gpu.utilisation):>6} ", role),
        (f" {watts}  ", role),
        (celsius, "warn bold" if hot else role),
    ]
    full = memory is not None and memory >= _FULL
    second: list[Span] = [
        ("VRAM ", "dim"),
        (size_pair(gpu.memory_used_bytes, gpu.memory_total_bytes), "warn bold" if full else role),
    ]
    if gpu.throttle_reasons:
        second.append(("  " + clean(", ".join(gpu.throttle_reasons), 60), "warn"))
    elif gpu.name:
        second.append(("  " + clean(gpu.name, 40), "dim"))
    return [tuple(first), tuple(second)]
