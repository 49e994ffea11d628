"""SVG screenshot to PNG, for looking at what was built: `python tests/tui/svg_to_png.py SCENE WIDTH HEIGHT OUT.png
[KEYS...]`.

Needs cairosvg and DejaVu Sans Mono, neither of which specdash needs.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def convert(svg: str, out: Path) -> None:
    """Write the PNG."""
    import cairosvg  # type: ignore[import-not-found, import-untyped, unused-ignore]

    from specdash.tui.export import portable_svg

    out.write_bytes(cairosvg.svg2png(bytestring=portable_svg(svg).encode(), output_width=1600))


async def shoot(scene: str, width: int, height: int, keys: list[str], theme: str | None, *, ascii_only: bool) -> str:
    """The screen of one scene as SVG."""
    from specdash.tui.app import Dashboard
    from specdash.tui.widgets.alerts import AlertDetail
    from tui.fake_alerts import SPECS
    from tui.fake_state import FakeState

    AlertDetail.specs = SPECS  # type: ignore[method-assign, assignment]
    app = Dashboard(
        FakeState(scene),
        clock=lambda: 10_000.0,
        wall=lambda: 1_790_000_000.0,
        theme=theme or "night",
        ascii_only=ascii_only,
        demo=False,
    )
    async with app.run_test(size=(width, height)) as pilot:
        await pilot.pause()
        if keys:
            await pilot.press(*keys)
        await pilot.pause(0.3)
        return app.export_screenshot(title="specdash")


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    chosen = next((a.removeprefix("--theme=") for a in sys.argv if a.startswith("--theme=")), None)
    picture = asyncio.run(
        shoot(
            arguments[0],
            int(arguments[1]),
            int(arguments[2]),
            arguments[4:],
            chosen,
            ascii_only="--ascii" in sys.argv,
        )
    )
    convert(picture, Path(arguments[3]))
