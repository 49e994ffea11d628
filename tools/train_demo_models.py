"""Train the target and the draft model that ship with specdash, and write their GGUF files and model card.

``python tools/train_demo_models.py`` takes about 20 minutes on two cores and repeats exactly.
``--minutes 2 --out /tmp/models`` makes a quick, worse pair; ``--measure-only`` measures the pair in ``--out`` again.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import sys
import time
from dataclasses import asdict, replace
from itertools import pairwise
from math import inf
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "src" / "specdash" / "backend" / "models"
VOCABULARY_SIZE = 1024
CONTEXT = 4096
ROPE_BASE = 10000.0
#: How ``--minutes`` is divided: the target's phases, its continuations, the draft.
TARGET_SHARES = (0.5, 0.17)
CONTINUATION_SHARE = 0.08
DRAFT_SHARE = 0.25
CONTINUATION_COUNT = 3840
CONTINUATION_LENGTH = 256
#: A cautious pace, to fit ``--minutes``.
CONTINUATIONS_PER_SECOND = 20
POSITIONS = (0, 256, 512, 1024, 2048, 4095)


def log(message: str) -> None:
    """One line of progress, with the time since the start."""
    print(f"{time.monotonic() - _STARTED:6.0f}s {message}", flush=True)


_STARTED = time.monotonic()


def train(options: argparse.Namespace) -> None:
    """Make both models and the card in ``options.out``."""
    import torch

    from demo_models import card, corpus, export, training, vocabulary
    from demo_models.network import Llama, Shape

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    documents = corpus.build(options.seed)
    words = vocabulary.train(documents.code, VOCABULARY_SIZE)
    kinds = [words.encode(kind) for kind in (documents.code, documents.chat, documents.pattern)]
    log(f"corpus of {sum(len(document) for kind in kinds for document in kind)} tokens")

    def fitted(phase: training.Phase, share: float) -> training.Phase:
        minutes = None if options.minutes is None else options.minutes * share
        return replace(phase, steps=max(1, round(phase.steps * options.scale)), minutes=minutes)

    target = Llama(Shape(VOCABULARY_SIZE, 192, 4, 3, 512, CONTEXT, ROPE_BASE))
    runs = []
    for index, (phase, share) in enumerate(zip(training.TARGET_PHASES, TARGET_SHARES, strict=True)):
        checkpoint = options.checkpoints / f"target-{index}.pt" if options.checkpoints else None
        if checkpoint and checkpoint.exists():
            saved = torch.load(checkpoint)
            target.load_state_dict(saved["weights"])
            runs.append(training.Outcome(**saved["outcome"]))
            continue
        windows = training.Windows(kinds, options.seed + index)
        runs.append(training.train_target(target, windows, fitted(phase, share), log))
        if checkpoint:
            torch.save({"weights": target.state_dict(), "outcome": asdict(runs[-1])}, checkpoint)

    torch.manual_seed(options.seed)
    windows = training.Windows(kinds, options.seed + len(runs))
    by_clock = inf if options.minutes is None else options.minutes * 60 * CONTINUATION_SHARE * CONTINUATIONS_PER_SECOND
    count = max(training.GENERATED_BATCH, round(min(CONTINUATION_COUNT * options.scale, by_clock)))
    own = training.continuations(target, windows, count, CONTINUATION_LENGTH, log)
    draft = Llama(Shape(VOCABULARY_SIZE, 128, 2, 2, 256, CONTEXT, ROPE_BASE))
    draft_run = training.train_draft(draft, target, windows, own, fitted(training.DRAFT_PHASE, DRAFT_SHARE), log)
    log(f"same greedy choice on the target's continuations: {training.agreement(draft, target, own[:64]):.3f}")

    options.out.mkdir(parents=True, exist_ok=True)
    paths = [options.out / f"demo-{role}.gguf" for role in ("target", "draft")]
    about = "Tiny code-shaped model of the specdash project, for demonstrations of speculative decoding"
    export.write(target, words, paths[0], "specdash demo target", about)
    export.write(draft, words, paths[1], "specdash demo draft", about)
    losses = training.loss_by_position(target, windows, POSITIONS, 32)
    facts = card.Training(
        seed=options.seed,
        corpus_tokens=windows.token_count,
        python=platform.python_version(),
        torch=torch.__version__,
        losses_by_position=[(a, b, x) for (a, b), x in zip(pairwise(POSITIONS), losses, strict=True)],
        models=(
            card.Trained("target", paths[0], target, runs),
            card.Trained("draft", paths[1], draft, [draft_run]),
        ),
    )
    card.write(facts, options.out / "MODEL_CARD.md")


def main() -> int:
    """Parse the command line, train, measure."""
    sys.path.insert(0, str(Path(__file__).parent))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=MODELS, help="folder for the files (default: the package's)")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="multiply every phase's steps by this")
    parser.add_argument("--minutes", type=float, help="stop earlier, after about this long; not reproducible")
    parser.add_argument(
        "--checkpoints", type=Path, help="folder to keep and reuse the target's weights after each phase"
    )
    parser.add_argument("--engine-python", default=sys.executable, help="interpreter that has xllamacpp, for measuring")
    parser.add_argument("--measure-only", action="store_true", help="only measure the files in --out again")
    options = parser.parse_args()
    if not options.measure_only:
        train(options)
    if options.engine_python == sys.executable and importlib.util.find_spec("xllamacpp") is None:
        log("xllamacpp is not installed here: acceptance not measured (see --engine-python)")
        return 0
    from demo_models import card

    card.measure(options.out / "MODEL_CARD.md", options.engine_python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
