"""What a backend refuses of its model files before it starts an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.backend.auto import check
from specdash.backend.settings import settings_from_env
from specdash.core.errors import ExitCode, InputError
from support import gguf_files as files
from support import tiny_models as tiny

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (files.write_projector, "is a multimodal projector, no model; load it beside its model with LLAMA_ARG_MMPROJ"),
        (files.write_adapter, "is a LoRA adapter, no model"),
        (tiny.write_dspark, r"is a draft \(DSpark\), no model; name it as LLAMA_DRAFT_MODEL"),
    ],
)
def test_a_file_of_the_wrong_kind_is_named_as_what_it_is(
    write: Callable[[Path], Path], said: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "x.gguf")
    with pytest.raises(InputError, match=f"LLAMA_MODEL={path}: {said}") as caught:
        check(settings_from_env({"LLAMA_MODEL": str(path)}))
    assert caught.value.exit_code is ExitCode.BAD_INPUT


def test_a_missing_part_stops_it_before_an_engine_is_started(tmp_path: Path) -> None:
    tensors = {f"blk.{n}.attn_q.weight": (0, (256, 4)) for n in range(5)}
    first = files.write_gguf(tmp_path / "big.gguf", "llama", {}, tensors, parts=2)
    (tmp_path / "big-00002-of-00003.gguf").unlink()
    with pytest.raises(InputError, match=r"LLAMA_MODEL: model .* big-00002-of-00003\.gguf|1 of them is not there"):
        check(settings_from_env({"LLAMA_MODEL": str(first)}))
