"""How soon a start that went wrong is named: from the engine's start to the verdict, in the record and the picture.

`python benchmarks/start_check.py [ROUNDS]` prints a table and JSON. `specdash backend run` starts real llama-servers
whose arguments are changed behind its back, so that nothing predicts what they do; a real hub watches the address.
"engine" counts from the start of the engine's process, "command" from that of `specdash backend run`. A server that
ends has no picture: its "record" is the end of the command, with the cause in its last line.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from specdash.backend.launch import free_port  # noqa: E402
from specdash.collect.hub import Hub  # noqa: E402
from specdash.core.records import Drafting, RunRecord  # noqa: E402
from specdash.core.target import Target  # noqa: E402
from specdash.insight.state import TargetState  # noqa: E402
from specdash.system.processes import age_s  # noqa: E402
from support import tiny_models  # noqa: E402
from support.start_checks import behind_our_back  # noqa: E402

ROUNDS = 5
LIMIT_S = 60.0
DECIDED = (Drafting.FAILED, Drafting.YES)


class Run:
    """One start, watched until it is decided. Times are seconds; None where there was none."""

    def __init__(self, folder: Path, words: str) -> None:
        port, state = free_port("127.0.0.1"), folder / "state"
        models = folder.parent / "models"
        values = {
            "LLAMA_MODEL": models / "target.gguf",
            "LLAMA_DRAFT_MODEL": models / "draft.gguf",
            "LLAMA_SPEC_TYPE": "draft-simple",
            "LLAMA_CTX_SIZE": 4096,
            "LLAMA_THREADS": 1,
            "LLAMA_PORT": port,
            "LLAMA_BIN": behind_our_back(folder, words)["LLAMA_BIN"],
        }
        env_file = folder / "backend.env"
        env_file.write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")
        self.env = {**os.environ, "XDG_STATE_HOME": str(state)}
        self.records = state / "specdash" / "run"
        self.picture: float | None = None
        self.record: float | None = None
        self.command = 0.0
        self.said = ""
        self._watch(port, [sys.executable, "-m", "specdash", "backend", "run", "--env-file", str(env_file)])

    def _watch(self, port: int, command: list[str]) -> None:
        target = Target(f"http://127.0.0.1:{port}")
        state, moved = TargetState(target), threading.Event()

        def on_target(known: Target) -> None:
            state.retarget(known)
            moved.set()

        sinks = [state.apply, lambda _: moved.set()]
        with Hub(target, sinks, on_target=on_target, gpu=False, env=self.env):
            began = time.monotonic()
            process = subprocess.Popen(command, env=self.env, stderr=subprocess.PIPE, text=True)
            engine: float | None = None
            while process.poll() is None and time.monotonic() - began < LIMIT_S:
                moved.wait(0.01)
                moved.clear()
                now = time.monotonic()
                found = self._read()
                if found is not None and engine is None:
                    engine = now - (age_s(found.pid) or 0.0)
                check = found.start_check if found is not None else None
                if check is not None and check.drafting in DECIDED and self.record is None and engine is not None:
                    self.record, self.said = now - engine, f"{check.drafting} because {check.because}"
                if state.picture(now, time.time()).views.drafting.state in DECIDED and self.picture is None:
                    self.picture = now - engine if engine is not None else None
                if self.record is not None and self.picture is not None:
                    break
            self.command = time.monotonic() - began
            ended = process.poll() is not None
            process.terminate()
            errors = process.communicate(timeout=30)[1]
            if ended:
                self.said = errors.splitlines()[-1].partition("cause: ")[2]

    def _read(self) -> RunRecord | None:
        for file in self.records.glob("*.json"):
            try:
                return RunRecord.from_json(file.read_text(encoding="utf-8"))
            except OSError:
                continue
        return None


def main() -> int:
    """Measure and print; 1 when a start was named later than after 3 s."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    rows: list[tuple[str, list[Run]]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "models").mkdir()
        tiny_models.build(folder / "models")
        other = list(tiny_models.TOKENS)
        other[280] = "▁zebra"
        bad = tiny_models.write_variant(folder / "models" / "other.gguf", tokens=other)
        mamba = folder / "models" / "mamba.gguf"
        for case, words in (
            ("speculates", ""),
            ("another vocabulary", f"-md {bad}"),
            ("exit: no prediction layers", "--spec-type draft-mtp"),
            ("abort at the first request: n-max 0", "--spec-draft-n-max 0"),
            ("abort at the first rejection: recurrent draft", f"-md {mamba} --spec-draft-n-max 8"),
        ):
            runs = []
            for number in range(rounds):
                place = folder / f"{case.split(':')[0].replace(' ', '-')}-{number}-{len(rows)}"
                place.mkdir()
                runs.append(Run(place, words))
            rows.append((case, runs))
    print(f"{'start':48} {'record':>16} {'picture':>16} {'command':>16}   (median, worst; s)")
    out = []
    for case, runs in rows:
        cells = {key: [getattr(run, key) for run in runs] for key in ("record", "picture", "command")}
        known = {key: [value for value in values if value is not None] for key, values in cells.items()}
        shown = [f"{statistics.median(v):.2f} {max(v):.2f}" if v else "--" for v in known.values()]
        print(f"{case:48} {shown[0]:>16} {shown[1]:>16} {shown[2]:>16}   {runs[0].said[:90]}")
        out.append({"start": case, **cells, "said": runs[0].said})
    print(json.dumps(out))
    latest = max(entry for row in out for entry in (row["picture"] if any(row["picture"]) else row["command"]) if entry)
    return 0 if latest < 3.0 else 1


if __name__ == "__main__":
    sys.exit(main())
