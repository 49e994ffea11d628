"""Host and backend process as lines, and the panel that shows them under the GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.readings import Source
from specdash.insight.charts import Metric
from specdash.tui.formatting import UNKNOWN, bar, clean, decimal, percent, size, size_pair
from specdash.tui.layout import PanelId
from specdash.tui.spans import BLANK, Line, Span
from specdash.tui.widgets.chart import Chart
from specdash.tui.widgets.gpu import BAR_REST, gpu_lines
from specdash.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from specdash.core.observations import Host, ProcessTree
    from specdash.tui.view import View

_CHART_LEAST = 4


class MachinePanel(Panel):
    """GPUs, host, backend process; a chart of the GPU's (or else the CPU's) use where there is room."""

    def __init__(self) -> None:
        super().__init__(PanelId.MACHINE)
        self.gpu_chart = Chart(Metric.GPU_UTILISATION, "machine")
        self.cpu_chart = Chart(Metric.CPU, "machine")

    def key_figure(self, view: View) -> Line:
        """GPU use where there is a GPU, else CPU use."""
        gpus = view.picture.gpu.gpus
        used = [gpu.utilisation for gpu in gpus if gpu.utilisation is not None]
        if used:
            return (("GPU ", "dim"), (percent(sum(used) / len(used)), "text bold"))
        host = view.picture.host
        value = percent(host.cpu_utilisation) if host is not None else UNKNOWN
        return (("CPU ", "dim"), (value, "text bold" if value != UNKNOWN else "dim"))

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """Text first; what height is left goes to the chart."""
        ascii_only = view.glyphs.ascii_only
        lines = gpu_lines(view.picture.gpu, width, ascii_only=ascii_only)
        lines += process_lines(view, width)
        lines += host_lines(view.picture.host, width, ascii_only=ascii_only)
        left = height - len(lines)
        chart = self.gpu_chart if view.picture.gpu.gpus else self.cpu_chart
        gap = [BLANK] if left > _CHART_LEAST else []
        return [*lines, *gap, *chart.lines(view, width, left - len(gap))]


def labelled_bar(label: str, fraction: float | None, text: str, width: int, *, ascii_only: bool) -> Line:
    """`CPU  ███░░░  34 %  8 cores`: a label, a short bar, and words."""
    room = max(min(width - BAR_REST, 16), 0)
    filled, rest = bar(fraction, room, ascii_only=ascii_only)
    value: Span = (f"{percent(fraction):>6} ", "text" if fraction is not None else "dim")
    return ((f"{label:<5}", "dim"), (filled, "machine track"), (rest, "faint track"), value, (" " + text, "dim"))


def host_lines(host: Host | None, width: int, *, ascii_only: bool) -> list[Line]:
    """CPU, memory, and disk and swap in one line."""
    if host is None:
        return [(("host not observed yet", "dim"),)]
    cores = f"{host.cpu_count} cores" if host.cpu_count else ""
    load = f"load {decimal(host.load_1m, 1)}" if host.load_1m is not None else ""
    memory = _share(host.memory_used_bytes, host.memory_total_bytes)
    lines = [
        labelled_bar("CPU", host.cpu_utilisation, " ".join(filter(None, (load, cores))), width, ascii_only=ascii_only),
        labelled_bar(
            "RAM", memory, size_pair(host.memory_used_bytes, host.memory_total_bytes), width, ascii_only=ascii_only
        ),
    ]
    rest: list[Span] = [("disk ", "dim"), (size(host.disk_free_bytes), "text"), (" free", "dim")]
    if host.swap_total_bytes:
        swapping = (_share(host.swap_used_bytes, host.swap_total_bytes) or 0.0) > 0.1
        rest += [
            ("  swap ", "dim"),
            (size_pair(host.swap_used_bytes, host.swap_total_bytes), "warn" if swapping else "text"),
        ]
    return [*lines, tuple(rest)]


def _share(used: float | None, total: float | None) -> float | None:
    return used / total if used is not None and total else None


def process_lines(view: View, width: int) -> list[Line]:
    """The backend's process and its children, or why they are not seen."""
    process: ProcessTree | None = view.picture.backend.process
    if process is None:
        return [(("proc ", "dim"), (view.why(Source.PROCESS, "the server's process is not known"), "dim"))]
    cores = "--" if process.cpu_cores is None else decimal(process.cpu_cores, 2)
    spans: list[Span] = [
        ("proc ", "dim"),
        (clean(process.name or "server", 18), "text"),
        (f" {process.pid}  " if width >= 48 else "  ", "dim"),
        (cores, "text"),
        (" cores  ", "dim"),
        (size(process.memory_bytes), "text"),
    ]
    if width >= 60 and process.threads is not None:
        spans.append((f"  {process.threads} threads", "dim"))
    return [tuple(spans)]
