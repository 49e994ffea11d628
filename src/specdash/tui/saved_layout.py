"""How a dashboard looked, kept for the next start: at its end, and under names of the user's."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING

from specdash.core.config import COMMAND_LINE
from specdash.core.errors import UsageError
from specdash.core.records import JsonRecord
from specdash.system import files
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from specdash.core.config import Resolved

_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ScreenLayout(JsonRecord):
    """How a dashboard looks. What names nothing (any more) is left out when it is taken up; None: as it is."""

    screen: str = "overview"
    """`action_table.FooterScreen`."""
    window: str | None = None
    """A key of `config.WINDOWS_S`."""
    theme: str | None = None
    panels: dict[str, bool] | None = None
    """The overview's panels that were switched on or off, by `layout.PanelId`."""
    zoomed: str | None = None


@dataclass(frozen=True, slots=True)
class SavedLayouts(JsonRecord):
    """What the file holds."""

    last: ScreenLayout | None = None
    named: dict[str, ScreenLayout] = field(default_factory=dict)


class LayoutStore:
    """The file of layouts. `problem` says in a line that it cannot be read; it then counts as empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        self.saved = self._read()

    def first(self, settings: Mapping[str, Resolved]) -> ScreenLayout | None:
        """How a dashboard begins: as the setting `layout` names it, else as the last one ended. A window or theme that
        the user sets holds against the last one's, and on the command line also against a named one's. Raises
        `UsageError` for a name that there is not."""
        name, origin = settings["layout"].value, settings["layout"].origin
        named = self.saved.named
        if name is not None and name not in named:
            there = f"saved ones: {', '.join(named)}" if named else "none is saved; the command palette saves them"
            raise UsageError(f"layout {name!r} ({origin}): there is no such layout; {there}")
        layout = self.saved.last if name is None else named[name]
        if layout is None:
            return None
        origins = {of: settings[of].origin for of in ("window", "theme")}
        given = {of for of, at in origins.items() if at.startswith(COMMAND_LINE) or (name is None and at != "default")}
        window, theme = (None if of in given else getattr(layout, of) for of in ("window", "theme"))
        return replace(layout, window=window, theme=theme)

    def keep_last(self, began: ScreenLayout, ended: ScreenLayout) -> None:
        """Keep how a dashboard looked at its end; window and theme only where they were changed on the screen. Nothing
        where the disk does not take it."""
        last = self.saved.last or ScreenLayout()
        window = ended.window if ended.window != began.window else last.window
        theme = ended.theme if ended.theme != began.theme else last.theme
        with suppress(OSError):
            self.keep(replace(ended, window=window, theme=theme))

    def keep(self, layout: ScreenLayout, name: str | None = None) -> None:
        """Keep a layout as the last one or under a name; what another dashboard has written meanwhile stays, and a file
        that cannot be read is put aside. Raises OSError."""
        saved = self._read()
        if self.problem:
            with suppress(FileNotFoundError):
                files.put(self.path, self.path.with_suffix(".damaged"))
        if name is None:
            self.saved = SavedLayouts(layout, saved.named)
        else:
            self.saved = SavedLayouts(saved.last, {**saved.named, name: layout})
        files.save(self.path, self.saved.to_json().encode())
        self.problem = ""

    def _read(self) -> SavedLayouts:
        try:
            saved = SavedLayouts.from_json(files.read_bounded(self.path, _MOST_BYTES))
            self.problem = "" if saved is not None else f"saved layouts are ignored: {self.path} is damaged"
        except FileNotFoundError:
            return SavedLayouts()
        except OSError as error:
            saved, self.problem = None, f"saved layouts are ignored: {self.path}: {error.strerror}"
        return saved or SavedLayouts()
