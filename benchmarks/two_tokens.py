"""Whether decode as two-token completions of a speculating server tell it is decode without speculation.

`python benchmarks/two_tokens.py [--trials N] [--case NAME] [--engine BINARY] [--json FILE]` runs, for each case, one
server with speculation and one without, of the same models, and asks them in turn: four rounds of two-token completions
of the one, eight of the other, and so on. So the machine's drift is in both. The models are the demo's, or tiny ones,
with feed-forward layers widened by zeros until decode costs milliseconds. The table has, for each case, context and
concurrency, the median step of either, what is taken off for the draft model's own pass, the error of what is left, and
in how many trials the interval of the measure and that of the truth had a value in common.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests"), str(HERE.parent / "tools")]

from specdash.backend.baseline import (  # noqa: E402
    STEP_ROUNDS,
    BaselineCell,
    BaselineEffort,
    MeasuredServer,
    StepAsking,
    StepTimes,
    step_of,
)
from specdash.backend.child import Child  # noqa: E402
from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model  # noqa: E402
from specdash.backend.launch import free_port, plan_from_file  # noqa: E402
from specdash.control.apply.steps import healthy  # noqa: E402
from specdash.llama.gguf import read_one_file  # noqa: E402
from specdash.llama.widening import Dimensions, resize  # noqa: E402
from specdash.system.stats import median  # noqa: E402
from specdash.system.text import markdown_table  # noqa: E402
from support import tiny_models  # noqa: E402
from support.tiny_models.hybrids import write_qwen35  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

CONTEXTS = (128, 512, 2048)
SLOTS = (1, 4)
TURN = 4
"""Rounds of one server before the other one's turn."""
READ_S = 60.0
START_S = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """A way to speculate, and the models that it is tried on."""

    name: str
    chain: str
    models: Callable[[Path], dict[str, str]]


def wide_demo(directory: Path, draft: Path | None = None, rows: int = 16384) -> dict[str, str]:
    """The demo's target with wide feed-forward layers, and its draft."""
    target = directory / "target.gguf"
    wide(bundled_model(TARGET_MODEL), target, rows)
    return {"LLAMA_MODEL": str(target), "LLAMA_DRAFT_MODEL": str(draft or bundled_model(DRAFT_MODEL))}


def never_right(directory: Path) -> dict[str, str]:
    """A draft whose every word is wrong."""
    made = tiny_models.build(directory)
    target = directory / "wide.gguf"
    wide(made["target"], target, 8192)
    return {"LLAMA_MODEL": str(target), "LLAMA_DRAFT_MODEL": str(made["draft-bad"])}


def hybrid(directory: Path, *, heads_too: bool) -> dict[str, str]:
    """A recurrent model, whose states are kept in checkpoints; `heads_too`: it drafts by itself."""
    target = directory / "wide.gguf"
    wide(write_qwen35(directory / "hybrid.gguf", heads_too=heads_too), target, 4096)
    draft = {} if heads_too else {"LLAMA_DRAFT_MODEL": str(tiny_models.build(directory)["draft"])}
    return {"LLAMA_MODEL": str(target), **draft}


def wide(source: Path, target: Path, rows: int) -> None:
    """The model with so many feed-forward rows."""
    facts = read_one_file(source)
    layers = (facts.number("block_count") or 0) - (facts.number("nextn_predict_layers") or 0)
    resize(source, target, Dimensions(layers, rows, context=8192))


CASES = (
    Case("draft-simple", "draft-simple", wide_demo),
    Case("ngram-mod", "ngram-mod", wide_demo),
    Case("ngram-simple", "ngram-simple", wide_demo),
    Case("never matches", "draft-simple", never_right),
    Case("MTP", "draft-mtp", partial(hybrid, heads_too=True)),
    Case("checkpoints", "draft-simple", partial(hybrid, heads_too=False)),
)


def start(stack: ExitStack, directory: Path, models: dict[str, str], chain: str, slots: int, binary: str) -> str:
    """The address of a server of these settings, until the stack ends."""
    directory.mkdir()
    values = {key: value for key, value in models.items() if chain.startswith("draft-simple") or "DRAFT" not in key}
    values |= {
        "LLAMA_PORT": str(free_port("127.0.0.1")), "LLAMA_CTX_SIZE": str(4096 * slots), "LLAMA_PARALLEL": str(slots),
        "LLAMA_THREADS": "1", "LLAMA_SPEC_TYPE": chain, "LLAMA_KV_UNIFIED": "0",
        **({"LLAMA_ENGINE": "llama-server", "LLAMA_BIN": binary} if binary else {"LLAMA_ENGINE": "xllamacpp"}),
    }  # fmt: skip
    if "DRAFT" not in "".join(values) or chain == "none":
        values.pop("LLAMA_DRAFT_MODEL", None)
    file, log = directory / "backend.env", directory / "server.log"
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")
    plan = plan_from_file(str(file))
    child = Child.start(plan.argv, plan.environment(), output=stack.enter_context(log.open("wb")))
    stack.callback(child.stop, 5.0)
    deadline = time.monotonic() + START_S
    while not healthy(plan.settings.url):
        if child.exited() or time.monotonic() > deadline:
            raise RuntimeError(f"the server with {chain} does not start: {log.read_text()[-600:]}")
        time.sleep(0.05)
    return plan.settings.url


def trials(case: Case, slots: int, count: int, contexts: tuple[int, ...], binary: str) -> list[dict[str, Any]]:
    """Each trial of one case: the direct figure, and what two tokens tell."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        directory = Path(place)
        models = case.models(directory)
        without = start(stack, directory / "off", models, "none", slots, binary)
        with_it = start(stack, directory / "on", models, case.chain, slots, binary)
        off = stack.enter_context(MeasuredServer(without))
        speculating = stack.enter_context(MeasuredServer(with_it))
        asking, plain = (StepAsking(server, BaselineEffort(), lambda _: None) for server in (speculating, off))
        for context in contexts:
            cell = BaselineCell(context, slots)
            about: dict[str, Any] = {"case": case.name, "context": context, "slots": slots}
            problem = asking.read(cell, READ_S) or plain.read(cell, READ_S)
            if problem:
                rows.append({**about, "left_out": problem})
                continue
            for number in range(count):
                times, without_it = StepTimes(), StepTimes()
                for _ in range(STEP_ROUNDS // TURN):
                    for _ in range(TURN):
                        asking.round(cell, times, drafts=asking.reads_draft_model is not False)
                    for _ in range(2 * TURN):
                        plain.round(cell, without_it, drafts=False)
                step = step_of(times, reads_along=asking.reads_draft_model is not False)
                truth = step_of(without_it, reads_along=False)
                if step is None or truth is None:
                    rows.append({**about, "left_out": "too few steps"})
                    continue
                rows.append({
                    **about, "trial": number, "direct": truth.value, "two_tokens": step.value, "low": step.low,
                    "high": step.high, "error": truth.value / step.value - 1,
                    "covered": step.low <= truth.high and truth.low <= step.high,
                    "steps": times.plain, "direct_steps": without_it.plain,
                    "draft_token_ms": (times.draft_token_s or 0.0) * 1000,
                })  # fmt: skip
    return rows


def table_of(rows: list[dict[str, Any]]) -> str:
    """The rows by case, context and slots, in milliseconds: medians of the trials, of "two tokens" of all steps."""
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for entry in rows:
        groups.setdefault((entry["case"], entry["slots"], entry["context"]), []).append(entry)
    lines = [("case", "slots", "context", "without speculation", "two tokens", "drafting one", "corrected", "error",
              "interval", "held")]  # fmt: skip
    for (name, slots, context), group in groups.items():
        known = [entry for entry in group if "direct" in entry]
        head = (name, str(slots), str(context))
        if not known:
            lines.append((*head, *["--"] * 6, group[0]["left_out"]))
            continue
        truth = median(entry["direct"] for entry in known) or 0.0
        raw = median(step for entry in known for step in entry["steps"]) or 0.0
        drafting = median(entry["draft_token_ms"] for entry in known) or 0.0
        corrected = median(entry["two_tokens"] for entry in known) or 0.0
        width = median((entry["high"] / entry["low"]) ** 0.5 - 1 for entry in known) or 0.0
        lines.append((
            *head, f"{truth:.2f}", f"{raw:.2f}", f"{drafting:.2f}", f"{corrected:.2f}",
            f"{(corrected / truth - 1) * 100:+.1f} %", f"±{width * 100:.0f} %",
            f"{sum(entry['covered'] for entry in known)} of {len(known)}",
        ))  # fmt: skip
    return markdown_table(lines)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--slots", type=int, action="append")
    parser.add_argument("--context", type=int, action="append")
    parser.add_argument("--engine", default="", metavar="BINARY", help="a llama-server (default: xllamacpp)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if args.case and case.name not in args.case:
            continue
        for slots in args.slots or SLOTS:
            made = trials(case, slots, args.trials, tuple(args.context or CONTEXTS), args.engine)
            rows += made
            print(table_of(made), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(table_of(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
