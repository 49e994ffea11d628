"""Headers of model files that are read once for every state of a file."""

from pathlib import Path

import pytest

from specdash.llama.gguf import GgufError, read_facts
from support import gguf_files as files

TENSORS = {f"blk.{n}.attn_q.weight": (0, (256, 4)) for n in range(5)}


def test_a_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    path = files.write_gguf(tmp_path / "model.gguf", "llama", {}, TENSORS)
    assert read_facts(str(path)).architecture == "llama"
    files.write_gguf(tmp_path / "other.gguf", "qwen2", {}, TENSORS).replace(path)
    assert read_facts(str(path)).architecture == "qwen2"


def test_a_part_that_went_away_is_missed_at_once(tmp_path: Path) -> None:
    first = files.write_gguf(tmp_path / "big.gguf", "llama", {}, TENSORS, parts=2)
    assert read_facts(str(first)).parts == 3
    (tmp_path / "big-00002-of-00003.gguf").unlink()
    with pytest.raises(GgufError, match="1 of them missing"):
        read_facts(str(first))
