"""The demo models: two GGUF files that ship inside the package and speculate for real on llama.cpp."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest
from gguf import GGUFReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = ("demo-target.gguf", "demo-draft.gguf")


@pytest.fixture(scope="module")
def models() -> Iterator[Path]:
    """The folder of the models, found the way the installed program finds it."""
    with ExitStack() as stack:
        yield stack.enter_context(resources.as_file(resources.files("specdash.backend") / "models"))


@pytest.fixture(scope="module")
def headers(models: Path) -> tuple[GGUFReader, GGUFReader]:
    target, draft = (GGUFReader(models / name) for name in NAMES)
    return target, draft


def field(reader: GGUFReader, key: str) -> Any:
    found = reader.get_field(key)
    assert found is not None, key
    return found.contents()


def test_the_package_carries_both_models_and_their_card_in_under_four_megabytes(models: Path) -> None:
    sizes = [(models / name).stat().st_size for name in NAMES]
    assert all(sizes)
    assert sum(sizes) < 4_000_000
    assert "PSF-2.0" in (models / "MODEL_CARD.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_the_card_names_the_digest_and_the_size_of_the_file_it_describes(models: Path, name: str) -> None:
    content = (models / name).read_bytes()
    row = next(r for r in (models / "MODEL_CARD.md").read_text(encoding="utf-8").splitlines() if f"`{name}`" in r)
    assert f"`{hashlib.sha256(content).hexdigest()}`" in row
    assert f"| {len(content):,} |" in row


def test_the_draft_has_the_targets_vocabulary_and_is_the_smaller_model(headers: tuple[GGUFReader, GGUFReader]) -> None:
    target, draft = headers
    for key in ("model", "pre", "tokens", "merges", "token_type", "eos_token_id", "bos_token_id", "add_bos_token"):
        assert field(draft, f"tokenizer.ggml.{key}") == field(target, f"tokenizer.ggml.{key}"), key
    parameters = [sum(int(t.n_elements) for t in reader.tensors) for reader in headers]
    assert parameters[1] * 2 < parameters[0]
