"""What the real dashboard costs with NVML on, beside the same without it, and how it looks."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gpu.checks.nvml import working
from gpu.report import Check
from specdash.collect.gpu import LIBRARY

if TYPE_CHECKING:
    from gpu.kit import Kit, Server
    from gpu.report import Report

MODEL_GB = 8.0
SIZE = (120, 36)
SETTLE_S, DRY_SETTLE_S = 8.0, 3.0
WINDOW_S, DRY_WINDOW_S = 30.0, 6.0
"""Over which the cost is measured."""
MOST_OF_A_CORE = 3.0
"""Percent that NVML may add: it is asked seven questions a second at most."""
FILES = ("gpu-dashboard.svg", "gpu-panel.svg")
NOTE_S = 6.0
PICTURE_S = 20.0
"""Within which the panel tells of the GPU, on the busiest machine too."""
ZOOM = (b"7", b"7", b"z")
"""Hide and show the machine's panel, which makes it the last one; then zoom it."""


@dataclass(frozen=True, slots=True)
class TerminalCost:
    """Of a program on a terminal, over a window of time."""

    cpu_percent: float
    """Of one core."""
    rss_mb: float
    bytes_per_s: float
    """Written to the terminal."""


class Dashboards:
    """The dashboard on one server, on terminals of their own: as the machine is, and as if it had no NVML."""

    def __init__(self, kit: Kit, server: Server) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests"))
        from support.pseudo_terminal import PseudoTerminal

        words = [
            sys.executable,
            "-m",
            "specdash",
            "watch",
            "--url",
            server.url,
            "--log",
            str(server.log),
            "--window",
            "1m",
        ]
        environments = {"with NVML": kit.environment(kit.home("watch"))}
        if not kit.cpu:
            environments["without NVML"] = kit.environment(kit.home("watch-bare"), without_nvml(kit.work))
        self.terminals: dict[str, Any] = {
            name: PseudoTerminal(words, env=env, size=SIZE) for name, env in environments.items()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for terminal in self.terminals.values():
            terminal.press(b"q")
            terminal.read(1.0)
            terminal.__exit__()

    def read(self, seconds: float) -> None:
        """Let all of them draw."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda terminal: terminal.read(seconds), self.terminals.values()))

    def cost(self, seconds: float) -> dict[str, TerminalCost]:
        """Of each, over the same time."""
        with ThreadPoolExecutor() as pool:
            found = pool.map(lambda terminal: _cost(terminal, seconds), self.terminals.values())
            return dict(zip(self.terminals, found, strict=True))


def without_nvml(folder: Path) -> dict[str, str]:
    """An environment in which NVML cannot be opened: an empty file stands before the driver's library."""
    hidden = folder / "no-nvml"
    hidden.mkdir(parents=True, exist_ok=True)
    (hidden / LIBRARY).write_bytes(b"")

    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, (str(hidden), os.environ.get("LD_LIBRARY_PATH"))))}


def _cost(terminal: Any, seconds: float) -> TerminalCost:
    import psutil

    process = psutil.Process(terminal.process.pid)
    before, written, began = process.cpu_times(), len(terminal.written), time.monotonic()
    terminal.read(seconds)
    after, took = process.cpu_times(), time.monotonic() - began
    cpu = (after.user + after.system - before.user - before.system) / took
    return TerminalCost(
        round(100 * cpu, 2), round(process.memory_info().rss / 1e6, 1), round((len(terminal.written) - written) / took)
    )


def run(kit: Kit, report: Report) -> None:
    """Idle, then decoding; then the pictures."""
    settle, window = (DRY_SETTLE_S, DRY_WINDOW_S) if kit.cpu else (SETTLE_S, WINDOW_S)
    model = kit.model("target") if kit.cpu else kit.model("target", MODEL_GB)
    drafting = ("--spec-type", "draft-simple", "-md", str(kit.model("draft")), "--spec-draft-n-max", "4", "-ngld", "99")
    flags = ("-ngl", "99", "-c", "8192", "-np", "2", "--metrics", *drafting, *(("-t", "1") if kit.cpu else ()))
    with kit.server(model, *flags, name="dashboard") as server, Dashboards(kit, server) as shown:
        shown.read(settle)
        costs = {"idle server": shown.cost(window)}
        with working(server, lambda at: at.complete("The first word of the story was", 256, ignore_eos=True)):
            shown.read(settle / 2)
            costs["decoding server"] = shown.cost(window)
            pictures = [_picture(kit, shown, ())]
            # The note that the picture is saved shall not be in the next one.
            shown.read(0.0 if kit.cpu else NOTE_S)
            pictures.append(_picture(kit, shown, ZOOM))
    for state, found in costs.items():
        _tell(kit, report, state, found, window)
    _tell_pictures(kit, report, pictures)
    if not kit.cpu:
        hidden = "libnvidia-ml" in shown.terminals["without NVML"].text
        report.judge("the dashboard to compare with had no NVML", hidden, hidden)


def _tell(kit: Kit, report: Report, state: str, found: dict[str, TerminalCost], window: float) -> None:
    for name, cost in found.items():
        measured = {"cpu": cost.cpu_percent, "rss": cost.rss_mb, "terminal": cost.bytes_per_s}
        name = "no GPU" if kit.cpu else name
        report.figure(
            f"the dashboard's cost at 120x36, {state}, {name}",
            measured,
            "% of a core, MB, bytes/s",
            f"over {window:g} s",
        )
    if kit.cpu:
        report.skipped(f"what NVML adds, {state}", "needs a GPU")
        return
    more = found["with NVML"].cpu_percent - found["without NVML"].cpu_percent
    memory = found["with NVML"].rss_mb - found["without NVML"].rss_mb
    report.judge(f"what NVML adds, {state}", more < MOST_OF_A_CORE, round(more, 2), MOST_OF_A_CORE, "% of a core")
    report.figure(f"memory that NVML adds, {state}", round(memory, 1), "MB")


def _picture(kit: Kit, shown: Dashboards, keys: tuple[bytes, ...]) -> Path | None:
    """The screen as the user's own key saves it, once the panel tells of the GPU; the last one where it never does."""
    terminal = shown.terminals["with NVML"]
    folder = kit.home("watch") / "state" / "specdash" / "screenshots"
    before = set(folder.glob("*.svg")) if folder.exists() else set()
    for key in keys:
        terminal.press(key)
        shown.read(1.0)
    last: Path | None = None
    until = time.monotonic() + PICTURE_S
    while time.monotonic() < until:
        terminal.press(b"s")
        shown.read(1.5)
        new = set(folder.glob("*.svg")) - before if folder.exists() else set()
        if new:
            last = max(new, key=lambda path: path.stat().st_mtime)
            if tells_of_gpu(kit, text_of(last.read_text(encoding="utf-8"))):
                break
    return last


def tells_of_gpu(kit: Kit, text: str) -> bool:
    """Its figures; without a GPU, why there are none."""
    return LIBRARY in text if kit.cpu else "GPU0" in text and "VRAM" in text


def _tell_pictures(kit: Kit, report: Report, pictures: list[Path | None]) -> None:
    for name, picture in zip(FILES, pictures, strict=True):
        if picture is None:
            report.failed(f"{name} is saved by the dashboard's own key", f"no file within {PICTURE_S:g} s")
            continue
        text = text_of(picture.read_text(encoding="utf-8"))
        told = tells_of_gpu(kit, text)
        what = "says why there is no GPU" if kit.cpu else "shows the GPU and its memory"
        report.judge(f"{name}: the panel {what}", told, told, note="" if told else text[-4000:])
        if not kit.cpu:
            report.judge(f"{name}: and no reason for its absence", LIBRARY not in text)
        shutil.copyfile(picture, kit.out / name)


def text_of(svg: str) -> str:
    """The words in a picture of the screen."""
    return unescape(re.sub(r"<[^>]*>", "", svg)).replace("\u00a0", " ")


CHECK = Check("gpu_dashboard", "the dashboard's cost with NVML, and how it looks", run, 130.0)
