"""`make type-screenshots`: the overview on a real engine for every way to speculate, as SVG, for docs/speculation/.

Each picture is of a tiny model of tests/support with a draft that has every eighth word wrong. Needs the `dev` extra.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import sys
import time
from pathlib import Path

from make_screenshots import OUT, TESTS, shoot
from specdash.cli.demo import private_directory
from specdash.collect.discover import target_for_url
from specdash.collect.hub import Hub
from specdash.core.speculation import NO_SPECULATION, SPEC_TYPES
from specdash.insight.state import TargetState

SIZE = (120, 36)
SECONDS = 25.0
CHAIN = "ngram-mod,draft-mtp"
TARGET_OF = {"draft-mtp": "heads", CHAIN: "heads"}
DRAFT_OF = {
    "draft-simple": "small",
    "draft-eagle3": "eagle3",
    "draft-dflash": "dflash",
    "draft-dspark": "dspark",
}


def main() -> int:
    """Draw all, or those named."""
    names = [NO_SPECULATION, *(spec_kind.name for spec_kind in SPEC_TYPES), CHAIN]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT / "types")
    parser.add_argument("--only", choices=names, action="append")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of traffic before the picture")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.only or names:
        svg = picture(name, args.seconds)
        path = args.out / f"{'chain' if name == CHAIN else name}.svg"
        path.write_text(svg, encoding="utf-8")
        print(path)
    return 0


def picture(name: str, seconds: float) -> str:
    """The overview while this type drafts."""
    sys.path.insert(0, str(TESTS))
    from support.engines import engine_env, running_backend
    from support.matrix import DRAFTS, TARGETS

    with private_directory() as directory:
        target = TARGETS[TARGET_OF.get(name, "plain")].write(directory / "target.gguf")
        env = engine_env("llama-server") | {
            "LLAMA_MODEL": str(target),
            "LLAMA_SPEC_TYPE": name,
            "LLAMA_CTX_SIZE": "8192",
            "LLAMA_PARALLEL": "2",
            "LLAMA_LOG_VERBOSITY": "4",
        }
        if name in DRAFT_OF:
            env["LLAMA_DRAFT_MODEL"] = str(DRAFTS[DRAFT_OF[name]].write(directory / "draft.gguf"))
        if name.startswith("draft-"):
            env["LLAMA_DRAFT_MAX"] = "7"
        with running_backend(env, directory / "run") as backend:
            there = {**os.environ, "XDG_STATE_HOME": str(backend.state)}
            watched = target_for_url(backend.url, there)
            state = TargetState(watched)
            with Hub(watched, [state.apply], on_target=state.retarget, env=there):
                until = time.monotonic() + seconds
                for turn in itertools.count():
                    backend.complete(prompt(turn), 160)
                    if time.monotonic() > until:
                        break
                return asyncio.run(shoot(state, None, None, *SIZE, (), "night"))


def prompt(turn: int) -> str:
    """Words of the fixture's sentence, longer and shorter, so that there is something to look up and something new."""
    from support.tiny_models import SENTENCE

    words = list(SENTENCE * 6)
    draw = random.Random(turn)
    start = draw.randrange(len(SENTENCE))
    return " ".join(words[start : start + 40 + draw.randrange(200)])


if __name__ == "__main__":
    sys.exit(main())
