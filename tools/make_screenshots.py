"""`make screenshots`: pictures of the real dashboard on the real demo, as SVG and PNG, at the three sizes that count.

The demo runs for a minute first, so that every panel has something to show. Needs cairosvg (in the `dev` extra), the
cairo library and DejaVu Sans Mono (Debian: libcairo2 fonts-dejavu-core).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend.demo import DRAFT_TYPE
from specdash.cli.demo import (
    demo_deployment,
    demo_environment,
    private_directory,
    start_backend,
    start_proxy,
    start_traffic,
)
from specdash.collect.hub import Hub
from specdash.control.console import Console
from specdash.control.supervisor import Supervisor
from specdash.core.applies import Outcome
from specdash.core.changes import ChangeSet, Role
from specdash.core.readings import Source
from specdash.insight.state import TargetState
from specdash.tui import plot
from specdash.tui.app import Dashboard
from specdash.tui.export import portable_svg

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SIZES = ((80, 24), (120, 36), (200, 50))
SCREENS = {"demo": (), "proxy": ("p",), "tune": ("e", "A", "j", "enter", "8", "enter")}
"""Each picture's name, and the keys that lead to it."""
INCIDENTS = {"banner": (), "incidents": ("i",)}
"""Those that are drawn while the engine is stopped."""
STOPPED_S = 15.0
APPLIED = {"LLAMA_DRAFT_MAX": "6"}
"""What is applied after half of the traffic, so that there is a marker and a card to show."""
WARM_UP_S = 75.0
WINDOW_S = 60.0
OUT = Path(__file__).resolve().parents[1] / "screenshots"


async def shoot(state: TargetState, console: Console, width: int, height: int, keys: tuple[str, ...]) -> str:
    """The dashboard at one size, as SVG."""
    app = Dashboard(state, demo=True, theme="night", console=console)
    app.window_s = WINDOW_S
    async with app.run_test(size=(width, height)) as pilot:
        await pilot.pause(1.0)
        for key in keys:
            await pilot.press(key)
            await app.workers.wait_for_complete()
        await pilot.pause(2.0)
        return portable_svg(app.export_screenshot(title="specdash"))


def main() -> int:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S, help="seconds of traffic before the first picture")
    args = parser.parse_args()
    try:
        import cairosvg  # noqa: F401
    except (ImportError, OSError) as error:
        print(
            f"PNGs need cairosvg and the cairo library (Debian: libcairo2 fonts-dejavu-core): {error}", file=sys.stderr
        )
        return 1
    args.out.mkdir(parents=True, exist_ok=True)
    plot.load()
    with private_directory() as directory, Supervisor() as supervisor:
        target = start_proxy(supervisor, directory, start_backend(supervisor, directory, (DRAFT_TYPE,), "auto"))
        state = TargetState(target)
        env = demo_environment(directory)
        console = Console(
            lambda: demo_deployment(supervisor, directory, target), drain_timeout_s=60, health_timeout_s=60, env=env
        )
        with Hub(target, [state.apply], on_target=state.retarget, env=env):
            time.sleep(1.0)
            start_traffic(supervisor, target, None)
            time.sleep(args.warm_up / 2)
            running = console.start(console.plan(ChangeSet({Role.BACKEND: APPLIED})))
            running.join()
            if running.record is None or running.record.outcome is not Outcome.APPLIED:
                print(f"the apply before the pictures failed: {running.record or running.error}", file=sys.stderr)
                return 1
            time.sleep(args.warm_up / 2)
            draw(state, console, SCREENS, args.out)
            with stopped_engine(state):
                time.sleep(STOPPED_S)
                draw(state, console, INCIDENTS, args.out)
    return 0


def draw(state: TargetState, console: Console, screens: Mapping[str, tuple[str, ...]], out: Path) -> None:
    """These screens at all sizes, as SVG and PNG."""
    import cairosvg

    for (screen, keys), (width, height) in itertools.product(screens.items(), SIZES):
        svg = asyncio.run(shoot(state, console, width, height, keys))
        name = out / f"{screen}-{width}x{height}"
        name.with_suffix(".svg").write_text(svg, encoding="utf-8")
        name.with_suffix(".png").write_bytes(cairosvg.svg2png(bytestring=svg.encode(), output_width=1600))
        print(f"{name}.svg and .png")


@contextlib.contextmanager
def stopped_engine(state: TargetState) -> Iterator[None]:
    """The engine as a debugger or a full disk would leave it: there, and deaf."""
    process = state.value(Source.PROCESS)
    for pid in process.pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in process.pids:
            os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    sys.exit(main())
