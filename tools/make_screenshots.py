"""`make screenshots`: pictures of the real dashboard on the real demo, as SVG and PNG, at the three sizes that count.

The demo runs for a minute first, so that every panel has something to show. Needs cairosvg (in the `dev` extra), the
cairo library and DejaVu Sans Mono (Debian: libcairo2 fonts-dejavu-core).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from pathlib import Path

from specdash.backend.demo import DRAFT_TYPE
from specdash.cli.demo import private_directory, start_backend, start_proxy, start_traffic
from specdash.collect.hub import Hub
from specdash.control.supervisor import Supervisor
from specdash.insight.state import TargetState
from specdash.tui import plot
from specdash.tui.app import Dashboard
from specdash.tui.export import portable_svg

SIZES = ((80, 24), (120, 36), (200, 50))
SCREENS = {"demo": (), "proxy": ("p",)}
"""Each picture's name, and the keys that lead to it."""
WARM_UP_S = 75.0
WINDOW_S = 60.0
OUT = Path(__file__).resolve().parents[1] / "screenshots"


async def shoot(state: TargetState, width: int, height: int, keys: tuple[str, ...]) -> str:
    """The dashboard at one size, as SVG."""
    app = Dashboard(state, demo=True, theme="night")
    app.window_s = WINDOW_S
    async with app.run_test(size=(width, height)) as pilot:
        await pilot.pause(1.0)
        await pilot.press(*keys)
        await pilot.pause(2.0)
        return portable_svg(app.export_screenshot(title="specdash"))


def main() -> int:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S, help="seconds of traffic before the first picture")
    args = parser.parse_args()
    try:
        import cairosvg
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
        with Hub(target, [state.apply]):
            time.sleep(1.0)
            start_traffic(supervisor, target, None)
            time.sleep(args.warm_up)
            for (screen, keys), (width, height) in itertools.product(SCREENS.items(), SIZES):
                svg = asyncio.run(shoot(state, width, height, keys))
                name = args.out / f"{screen}-{width}x{height}"
                name.with_suffix(".svg").write_text(svg, encoding="utf-8")
                name.with_suffix(".png").write_bytes(cairosvg.svg2png(bytestring=svg.encode(), output_width=1600))
                print(f"{name}.svg and .png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
