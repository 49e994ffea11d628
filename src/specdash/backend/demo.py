"""The demo's backend: the bundled models, and the env file that runs them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from specdash.core.errors import UsageError

TARGET_MODEL = "demo-target.gguf"
DRAFT_MODEL = "demo-draft.gguf"
SPEC_TYPES = ("draft-simple", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "none")
"""What the bundled models can do; the other types need heads or drafts of a special kind."""
DRAFT_TYPE = "draft-simple"
DRAFT_LENGTH = 4
CONTEXT = 16384
SLOTS = 4


def bundled_model(name: str) -> Path:
    """Path of a bundled model."""
    return Path(str(resources.files("specdash.backend") / "models" / name))


def parse_spec_types(text: str) -> tuple[str, ...]:
    """A comma chain of spec types that the bundled models can run; raises `UsageError`."""
    types = tuple(part.strip() for part in text.split(",") if part.strip())
    for kind in types:
        if kind not in SPEC_TYPES:
            choices = ", ".join(SPEC_TYPES)
            raise UsageError(f"--spec-type {kind}: the bundled models cannot run it; choose from {choices}, or a chain")
    if not types:
        raise UsageError(f"--spec-type wants one of {', '.join(SPEC_TYPES)}, or a comma chain")
    return types


def env_text(*, port: int, log: Path, spec_types: tuple[str, ...], engine: str, slots: Path | None = None) -> str:
    """The env file of the demo's backend; `slots` is a directory that slots may be saved to."""
    values = {
        "LLAMA_ENGINE": engine,
        "LLAMA_MODEL": str(bundled_model(TARGET_MODEL)),
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
    }
    if slots is not None:
        values["LLAMA_SLOT_SAVE_PATH"] = str(slots)
    if DRAFT_TYPE in spec_types:
        values["LLAMA_DRAFT_MODEL"] = str(bundled_model(DRAFT_MODEL))
        values["LLAMA_DRAFT_MAX"] = str(DRAFT_LENGTH)
    return "".join(f'{key}="{value}"\n' for key, value in values.items())


def proxy_env_text(*, port: int, upstream: str, events: Path) -> str:
    """The env file of the demo's proxy."""
    values = {
        "LLAMA_CPP_BASE": f"{upstream}/v1",
        "PROXY_HOST": "127.0.0.1",
        "PROXY_PORT": str(port),
        "PROXY_EVENTS_FILE": str(events),
    }
    return "".join(f'{key}="{value}"\n' for key, value in values.items())
