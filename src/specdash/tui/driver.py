"""Textual's driver of terminals, without a second reader of the keys."""

from __future__ import annotations

from textual.drivers.linux_driver import LinuxDriver


class TerminalDriver(LinuxDriver):
    """Begins again only after it was suspended itself.

    Textual's own begins again at every SIGCONT, which a terminal also sends when it goes away: a second thread then
    reads the same keys, and only one of the two is ever ended.
    """

    def _sigcont_application(self, *signalled: object) -> None:
        if self._must_signal_resume:
            super()._sigcont_application(*signalled)
