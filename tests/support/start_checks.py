"""Settings of backends whose start is looked at."""

from collections.abc import Mapping
from pathlib import Path

from support.engines import llama_server_binary


def behind_our_back(directory: Path, *words: str) -> dict[str, str]:
    """A llama-server that gets more arguments than we know of, so that nothing predicts what it does."""
    path = directory / "wrapped-llama-server"
    real, more = llama_server_binary(), " ".join(words)
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*|*--help*) exec {real} "$@";; esac\nexec {real} "$@" {more}\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    return {"LLAMA_ENGINE": "llama-server", "LLAMA_BIN": str(path)}


def drafting(models: Mapping[str, Path], **more: str) -> dict[str, str]:
    """The tiny target and its draft, with the runner's probe."""
    return {
        "LLAMA_MODEL": str(models["target"]),
        "LLAMA_CTX_SIZE": "4096",
        "LLAMA_SPEC_TYPE": "draft-simple",
        "LLAMA_DRAFT_MODEL": str(models["draft"]),
        "LLAMA_START_PROBE": "1",
        "LLAMA_START_BASELINE": "0",
        "LLAMA_THREADS": "1",
        **more,
    }
