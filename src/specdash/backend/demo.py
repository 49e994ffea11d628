"""The demo's backend: the bundled models, and the env file that runs them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from specdash.core.errors import NotWrittenError
from specdash.system import files

TARGET_MODEL = "demo-target.gguf"
DRAFT_MODEL = "demo-draft.gguf"
DRAFT_TYPE = "draft-simple"
DRAFT_LENGTH = 4
WIDE_ROWS = 32_768
"""Feed-forward rows of the demo's target, 512 as it is bundled; all that are added are zero, so the text is the same.
A token then takes 5 to 7 ms on one core, not 0.3, against some 0.25 of the draft: the proportion of real pairs."""
WIDE_DRAFT_LENGTH = 3
"""llama.cpp's CPU kernels verify four tokens at once for little more than one; a fifth costs a pass of its own."""
CONTEXT = 16384
SLOTS = 4


def bundled_model(name: str) -> Path:
    """Path of a bundled model."""
    return Path(str(resources.files("specdash.backend") / "models" / name))


def widened_target(directory: Path) -> Path:
    """The target at the cost that a real one has against its draft, written into `directory`. The file is sparse: 81 MB
    long, some 5 MB of disk where the file system knows holes, 81 MB of memory once it is read. Raises
    `NotWrittenError`."""
    from specdash.llama.widening import widen

    path = directory / TARGET_MODEL
    with files.writing(path, NotWrittenError):
        widen(bundled_model(TARGET_MODEL), path, WIDE_ROWS)
    return path


def env_text(
    *, port: int, log: Path, spec_types: tuple[str, ...], engine: str, slots: Path | None = None,
    target: Path | None = None,
) -> str:  # fmt: skip
    """The env file of the demo's backend; `slots` is a directory that slots may be saved to, `target` the model where
    it is not the bundled one."""
    values = {
        "LLAMA_ENGINE": engine,
        "LLAMA_MODEL": str(target or bundled_model(TARGET_MODEL)),
        "LLAMA_ALIAS": "specdash-demo",
        "LLAMA_HOST": "127.0.0.1",
        "LLAMA_PORT": str(port),
        "LLAMA_CTX_SIZE": str(CONTEXT),
        "LLAMA_PARALLEL": str(SLOTS),
        "LLAMA_THREADS": "1",
        "LLAMA_SPEC_TYPE": ",".join(spec_types),
        "LLAMA_LOG_FILE": str(log),
        "LLAMA_LOG_VERBOSITY": "4",
        "LLAMA_LOG_MAX_MIB": "64",
        "LLAMA_ARG_CACHE_RAM": "128",
        # The demo measures on an engine of its own, and two measurements would disturb each other.
        "LLAMA_START_BASELINE": "0",
    }
    if slots is not None:
        values["LLAMA_SLOT_SAVE_PATH"] = str(slots)
    if DRAFT_TYPE in spec_types:
        values["LLAMA_DRAFT_MODEL"] = str(bundled_model(DRAFT_MODEL))
        values["LLAMA_DRAFT_MAX"] = str(DRAFT_LENGTH if target is None else WIDE_DRAFT_LENGTH)
    return _lines(values)


def proxy_env_text(*, port: int, upstream: str, events: Path) -> str:
    """The env file of the demo's proxy."""
    base, place = f"{upstream}/v1", {"PROXY_HOST": "127.0.0.1", "PROXY_PORT": str(port)}
    return _lines({"LLAMA_CPP_BASE": base, **place, "PROXY_EVENTS_FILE": str(events)})


def _lines(values: dict[str, str]) -> str:
    return "".join(f'{key}="{value}"\n' for key, value in values.items())
