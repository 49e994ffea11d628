"""Clients that ask through the proxy of a rig without pause, while its backend is changed under them."""

import threading
from typing import Self

from support.deployment import Rig
from support.waiting import until


class Clients:
    """Threads that ask one turn after the other; `errors` must stay empty."""

    def __init__(self, rig: Rig, count: int = 3, patience_s: float = 60) -> None:
        self.errors: list[str] = []
        self.answers = 0
        self._rig = rig
        self._patience_s = patience_s
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]

    def _ask(self) -> None:
        while not self._ended.is_set():
            try:
                assert self._rig.ask()
                self.answers += 1
            except Exception as error:  # noqa: BLE001 - any of them is what must not be
                self.errors.append(repr(error))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        until(lambda: self.answers > 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(self._patience_s)
