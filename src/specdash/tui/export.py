"""The screen that the user asks to be saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.paths import state_dir
from specdash.system.text import file_timestamp

if TYPE_CHECKING:
    from pathlib import Path

    from textual.app import App


def save_screen(app: App[None], folder: Path | None, wall: float) -> None:
    """Save what is seen at the moment `wall` as SVG in a folder (None: the state directory's), and say where."""
    path = (folder or state_dir() / "screenshots") / f"specdash-{file_timestamp(wall)}.svg"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(app.export_screenshot(title="specdash"), encoding="utf-8")
    except OSError as error:
        app.notify(f"cannot save {path}: {error.strerror}", severity="error", markup=False)
    else:
        home = path.home()
        shown = f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
        app.notify(f"saved {shown}", markup=False)
