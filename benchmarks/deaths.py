"""What clients feel of applies, and of deaths in the middle of one.

`LLAMA_BIN=… python benchmarks/deaths.py [applies|deaths|tune …]` prints JSON. `specdash up` runs the real llama-server
with a tiny model and the proxy; three clients stream turns through the proxy all the time. `applies` changes a setting
forty times. `deaths` ends the command with SIGKILL after each of its steps, and the runner, which `up` starts again; a
client is served again with its next piece. `tune` ends a tune on the service at its second start.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from specdash.backend.demo import env_text, proxy_env_text  # noqa: E402
from specdash.backend.journal import read_records  # noqa: E402
from specdash.backend.launch import free_port  # noqa: E402
from specdash.control.connection import runners  # noqa: E402
from specdash.core.changes import ApplyStep  # noqa: E402
from specdash.core.paths import applies_file, apply_journal_file, trial_file  # noqa: E402
from specdash.system.files import file_digest  # noqa: E402
from support.asking import healthy  # noqa: E402
from support.waiting import until  # noqa: E402

APPLIES, TUNES, CLIENTS, LIMIT_S = 40, 5, 3, 90.0
STEPS = [str(step) for step in ApplyStep][:12]
HELD = STEPS[4:10]  # after these, clients wait in the proxy, and nothing is upstream
TURN = {"model": "m", "max_tokens": 60, "stream": True, "messages": [{"role": "user", "content": "count the lanterns"}]}


class Client(threading.Thread):
    """Streams turns; the moment of each piece and error is kept."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.turns, self.over = port, 0, False
        self.pieces: list[float] = []
        self.errors: list[tuple[float, str]] = []
        self.start()

    def run(self) -> None:
        while not self.over:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
            ended, status = False, "no answer"
            try:
                connection.request("POST", "/v1/messages", json.dumps(TURN), {"content-type": "application/json"})
                answer = connection.getresponse()
                status = f"HTTP {answer.status}, cut off"
                while answer.status == 200 and (line := answer.readline()):
                    self.pieces.append(time.monotonic())
                    ended = ended or b"message_stop" in line
            except (OSError, http.client.HTTPException) as error:
                status = repr(error)
            connection.close()
            self.turns += ended
            if not ended:
                self.errors.append((time.monotonic(), status))
                time.sleep(0.2)


class House:
    """The stack in a home of its own."""

    def __init__(self, home: Path) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "SPECDASH_", "LLAMA_", "PROXY_"))}
        self.env = {**kept, "HOME": str(home), "SPECDASH_SETTLE_TIME": "1"}
        backend, proxy = free_port("127.0.0.1"), free_port("127.0.0.1")
        folder = home / ".config/specdash"
        folder.mkdir(parents=True)
        self.file = folder / "llama-server.env"
        text = env_text(port=backend, log=home / "server.log", spec_types=("draft-simple",), engine="llama-server")
        self.file.write_text(f"{text}LLAMA_BIN={os.environ['LLAMA_BIN']}\nLLAMA_START_BASELINE=0\n", encoding="utf-8")
        upstream = f"http://127.0.0.1:{backend}"
        (folder / "proxy.env").write_text(proxy_env_text(port=proxy, upstream=upstream, events=home / "events.jsonl"))
        self.up = self.command("up", stderr=subprocess.DEVNULL)
        until(lambda: self.status() and healthy(upstream) and healthy(f"http://127.0.0.1:{proxy}"), LIMIT_S)
        self.clients = [Client(proxy) for _ in range(CLIENTS)]
        until(lambda: all(client.turns for client in self.clients), LIMIT_S)

    def command(self, *words: str, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
        command = [sys.executable, "-u", "-m", "specdash", *words]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.DEVNULL, stderr=stderr, text=True)

    def status(self) -> dict[str, Any]:
        return next((status for _, status in runners(self.env)), {})

    def at_rest(self) -> bool:
        """Whether nothing is pending, and the engine runs what the file says."""
        time.sleep(0.05)
        now, left = self.status(), (apply_journal_file(self.env), trial_file(self.env))
        is_quiet = now and now["change"] is None and now["trial"] is None and not any(file.exists() for file in left)
        return bool(is_quiet) and now["env_digest"] == file_digest(str(self.file))

    def served(self, since: float) -> float:
        """Seconds until every client has got a piece, once they have."""
        firsts = [next((at for at in list(client.pieces) if at > since), 0.0) for client in self.clients]
        return max(firsts) - since if all(firsts) else 0.0

    def errors(self, since: float) -> list[str]:
        return [why for client in self.clients for at, why in client.errors if at > since]


@contextmanager
def built() -> Iterator[House]:
    """A stack, gone afterwards."""
    with tempfile.TemporaryDirectory() as home:
        house = House(Path(home))
        try:
            yield house
        finally:
            for client in house.clients:
                client.over = True
            house.up.terminate()
            house.up.wait(LIMIT_S)


def spread(values: list[float]) -> list[float]:
    """Median and worst."""
    return [round(statistics.median(values), 2), round(max(values), 2)]


def applies() -> dict[str, Any]:
    """Good applies, one after the other."""
    gaps: list[float] = []
    with built() as house:
        began, known = time.monotonic(), sum(client.turns for client in house.clients)
        for number in range(APPLIES):
            since = time.monotonic()
            house.command("apply", "--yes", f"LLAMA_DRAFT_MAX={5 + number % 3}").communicate(timeout=LIMIT_S)
            for client in house.clients:
                pieces = [since, *(moment for moment in client.pieces if moment > since)]
                gaps.append(max((late - early for early, late in pairwise(pieces)), default=0.0))
        records = read_records(applies_file(house.env))[-APPLIES:]
        applied, turns = sum(r.outcome == "applied" for r in records), sum(c.turns for c in house.clients) - known
        down, held = ([getattr(r, name) or 0.0 for r in records] for name in ("downtime_s", "longest_stall_s"))
        seconds = {"downtime_s": spread(down), "held_s": spread(held), "gap_s": spread(gaps)}
        return {"applied": applied, "turns": turns, "errors": house.errors(began), **seconds}


def killed(house: House, pid: int, what: str) -> tuple[float, float, int]:
    """A process ends: seconds until all are served, and until rest; what clients saw of errors."""
    since = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    until(lambda: house.served(since), LIMIT_S)
    until(house.at_rest, LIMIT_S)
    found = house.served(since), time.monotonic() - since, len(house.errors(since))
    print(what, *found, file=sys.stderr, flush=True)
    return found


def deaths() -> dict[str, Any]:
    """One of the command and one of the runner after each step; `up` waits longer from death to death of a runner."""
    found: dict[str, Any] = {}
    for victim in ("client", "runner"):
        rows = []
        for step in STEPS[victim == "client" :]:
            with built() as house:
                command = house.command("apply", "--yes", "LLAMA_DRAFT_MAX=5")
                assert step == "lock" or any(line.startswith(f"  {step} ") for line in command.stderr or ())
                pid = command.pid if victim == "client" else house.status()["runner_pid"]
                rows.append((step in HELD, *killed(house, pid, f"{victim} {step}")))
                command.communicate(timeout=LIMIT_S)
        held, other = (sum(row[3] for row in rows if row[0] is wanted) for wanted in (True, False))
        served, rest = spread([row[1] for row in rows]), spread([row[2] for row in rows])
        found[victim] = {"served_s": served, "at_rest_s": rest, "errors_while_held": held, "errors_else": other}
    return found


def tune() -> dict[str, Any]:
    """A tune on the service ends at its second start."""
    with built() as house:
        original, rows = house.file.read_bytes(), []
        for number in range(TUNES):
            command = house.command("tune", "--yes", "--busy-ok", "--no-check", "--each", "2", "--tokens", "32")
            until(lambda: b"# On trial (tune, 2," in house.file.read_bytes(), LIMIT_S)
            rows.append(killed(house, command.pid, f"tune {number}"))
            command.communicate(timeout=LIMIT_S)
            assert house.file.read_bytes() == original
    return {"back_s": spread([max(row[:2]) for row in rows]), "errors": sum(row[2] for row in rows)}


if __name__ == "__main__":
    for part in (applies, deaths, tune):
        if part.__name__ in sys.argv[1:] or not sys.argv[1:]:
            print(json.dumps({part.__name__: part(), "load": os.getloadavg()[0]}), flush=True)
