"""Every way to speculate on every kind of tiny model: speed, acceptance, and tokens a decode, against none.

`python benchmarks/speculation_matrix.py [--engine E] [--n-gpu-layers N] [--slots N] [--tokens N] [--rounds N]
[--only WORD] [--set KEY=VALUE] [--json]` prints a table. The models draft as `tests/support/tiny_models` builds them:
acceptance is the same wherever it runs, and `counted` says whether the engine's counters are those that the successor
tables make certain. Speeds are those of models of a few hundred thousand parameters: they tell what a draft, a replay
and a step cost beside each other, and not what a model of use would gain. Right before each combination the same model
is measured without speculation, because a machine that others use is faster now and slower then.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from specdash.system.http import ask  # noqa: E402
from support import matrix  # noqa: E402
from support.engines import engine_env, running_backend  # noqa: E402

if TYPE_CHECKING:
    from support.engines import RunningBackend
    from support.matrix import Cell

_DECODES = re.compile(r"^llamacpp:n_decode_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    """One combination. Rates are tokens per second of one request, lengths tokens."""

    target: str
    draft: str
    types: str
    rollback: str
    tokens_per_second: float
    speedup: float | None
    acceptance: float | None
    mean_accepted_length: float | None
    effective_length: float | None
    counted: bool | None


@dataclass(frozen=True, slots=True)
class Seen:
    """What one round of requests gave."""

    rate: float
    tokens: int
    drafted: tuple[tuple[int, int], ...]
    decodes: int


def decodes(backend: RunningBackend) -> int:
    """Decode calls of the target so far."""
    found = _DECODES.search(ask(backend.url, "/metrics", timeout=10).body.decode())
    return int(float(found.group(1))) if found else 0


def one_round(backend: RunningBackend, prompts: list[list[int]], tokens: int, slots: int) -> Seen:
    """Ask each prompt, `slots` at once."""

    def generate(prompt: list[int], slot: int) -> dict[str, Any]:
        wanted = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "id_slot": slot, "cache_prompt": False}
        timings: dict[str, Any] = ask(backend.url, "/completion", body=wanted, timeout=300).json["timings"]
        return timings

    before = decodes(backend)
    with ThreadPoolExecutor(slots) as pool:
        told = list(pool.map(generate, prompts, cycle(range(slots))))
    spent = sum(entry["predicted_ms"] for entry in told) / 1000
    generated = sum(entry["predicted_n"] for entry in told)
    drafted = tuple((entry.get("draft_n", 0), entry.get("draft_n_accepted", 0)) for entry in told)
    return Seen(generated / spent, generated, drafted, decodes(backend) - before)


def rounds(env: dict[str, str], prompts: list[list[int]], tokens: int, args: argparse.Namespace) -> list[Seen]:
    """Start a server and ask it `args.rounds` times."""
    more = dict(text.split("=", 1) for text in args.set)
    if args.n_gpu_layers is not None:
        more["LLAMA_N_GPU_LAYERS"] = more["LLAMA_DRAFT_N_GPU_LAYERS"] = str(args.n_gpu_layers)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_backend({**env, **engine_env(args.engine), **more}, Path(folder)) as backend,
    ):
        backend.wait_checked()
        return [one_round(backend, prompts, tokens, args.slots) for _ in range(args.rounds)]


def rate_without(cell: Cell, files: dict[str, Path], args: argparse.Namespace) -> float:
    """Tokens per second of its model when it does not speculate, after the same prompts."""
    env = {**matrix.Cell(cell.target, None, ()).env(files, args.slots), "LLAMA_SPEC_TYPE": "none"}
    return statistics.median(seen.rate for seen in rounds(env, cell.prompts(), args.tokens, args))


def measured(cell: Cell, files: dict[str, Path], args: argparse.Namespace) -> Row:
    """One combination."""
    without = rate_without(cell, files, args)
    found = rounds(cell.env(files, args.slots), cell.prompts(), args.tokens, args)
    drafted, accepted = (sum(pair[place] for seen in found for pair in seen.drafted) for place in (0, 1))
    rate = statistics.median(seen.rate for seen in found)
    known = cell.known(args.tokens)
    steps = sum(counts.steps for counts in known) * args.rounds
    prompts = len(cell.prompts()) * args.rounds
    exact = not (args.slots > 1 and cell.depends_on_order)
    calls = sum(seen.decodes for seen in found) - prompts
    return Row(
        target=cell.target.name,
        draft=cell.draft.name if cell.draft is not None else "",
        types=",".join(kind.name for kind in cell.types),
        rollback=str(cell.rollback),
        tokens_per_second=rate,
        speedup=rate / without,
        acceptance=accepted / drafted if drafted else None,
        mean_accepted_length=1 + accepted / steps if steps and exact else None,
        effective_length=sum(seen.tokens for seen in found) / calls if calls and args.slots == 1 else None,
        counted=found[0].drafted == tuple((counts.drafted, counts.accepted) for counts in known) if exact else None,
    )


def table(rows: list[Row]) -> str:
    """As Markdown."""

    def text(value: float | None, form: str) -> str:
        return "--" if value is None else format(value, form)

    heads = [
        "target",
        "draft",
        "types",
        "rollback",
        "tok/s",
        "speed-up",
        "acceptance",
        "length",
        "tokens/decode",
        "counted",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|---|---:|---:|---:|---:|---:|---|"]
    for row in rows:
        cells = (
            row.target,
            row.draft,
            row.types,
            row.rollback,
            text(row.tokens_per_second, ".0f"),
            text(row.speedup, ".2f"),
            text(row.acceptance, ".1%"),
            text(row.mean_accepted_length, ".2f"),
            text(row.effective_length, ".2f"),
            {True: "as known", False: "OTHERWISE", None: "--"}[row.counted],
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Measure and print; 1 when the engine counted otherwise than it must."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("xllamacpp", "llama-server"), default="llama-server")
    parser.add_argument("--n-gpu-layers", type=int, help="of the model and of the draft")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="combinations whose name has this in it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another key of the env file")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files = matrix.write_models(Path(folder))
        for cell in matrix.cells():
            if args.only not in cell.name:
                continue
            rows.append(measured(cell, files, args))
            print(f"{cell.name}: {rows[-1].tokens_per_second:.0f} tok/s", file=sys.stderr, flush=True)
    print(json.dumps([asdict(row) for row in rows], indent=1) if args.json else table(rows))
    return int(any(row.counted is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
