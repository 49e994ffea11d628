"""`specdash gguf`: exit codes, text of 80 columns, JSON, and files that are no models."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdash.cli.main import main
from support import gguf_files as files
from support import tiny_models as tiny
from support.outside import say


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("gguf")
    made = {
        "llama": tiny.write_llama(folder / "llama.gguf", layers=2),
        "mamba": tiny.write_mamba(folder / "mamba.gguf", layers=3),
        "heads": tiny.write_qwen35(folder / "heads.gguf", heads_too=True),
        "eagle3": tiny.write_eagle3(folder / "eagle3.gguf", reads=(0, 1, 3)),
        "dflash": tiny.write_dflash(folder / "dflash.gguf"),
        "base": files.write_model(folder / "base.gguf", values={"general.finetune": "Base"}, template=True),
        "silent": files.write_model(folder / "silent.gguf"),
    }
    return {name: str(path) for name, path in made.items()}


def _json(*words: str) -> tuple[int, Any]:
    code, out, _ = say("gguf", "--json", *words)
    return code, json.loads(out)


@pytest.mark.parametrize("name", ["llama", "mamba", "heads", "eagle3", "dflash", "base", "silent"])
def test_text_fits_80_columns(name: str, paths: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gguf", paths[name]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)


def test_the_text_says_what_the_file_is(paths: dict[str, str]) -> None:
    code, said, _ = say("gguf", paths["heads"])
    assert code == 0
    for words in ("tiny qwen35 (qwen35)", "F32", "hybrid, 4 layers; 1 prediction (nextn) layer", "trained on 32768"):
        assert words in said
    rows = {line.split()[0]: line for line in said.splitlines() if line.startswith(("draft-", "ngram-"))}
    assert rows["ngram-mod"].split("  ")[-1].strip() == "nothing"
    assert "checkpoint + replay" in rows["ngram-mod"]
    assert "state" in rows["draft-mtp"]


@pytest.mark.parametrize(
    ("name", "code", "tuning"),
    [("llama", 0, "instruct"), ("base", 1, "base"), ("silent", 0, "unknown"), ("dflash", 0, "unknown")],
)
def test_only_what_is_known_to_be_a_base_model_fails_the_instruct_check(
    name: str, code: int, tuning: str, paths: dict[str, str]
) -> None:
    found, said = _json(paths[name], "--check-instruct")
    assert (found, said["tuning"]) == (code, tuning)
    assert bool(said["failures"]) == bool(code)
    assert said["tuning_reasons"]
    assert main(["gguf", paths[name]]) == 0


@pytest.mark.parametrize(
    ("model", "draft", "code", "reason"),
    [
        ("llama", "llama", 0, ""),
        ("llama", "eagle3", 1, "it reads layer 3 of a model that has 2"),
        ("llama", "dflash", 0, ""),
        ("mamba", "dflash", 1, "it reads layer inputs, which mamba models do not give"),
        ("llama", "mamba", 1, "a recurrent draft (mamba) for an attention model"),
        ("llama", "silent", 1, "its tokenizer is 'gpt2', the model's 'llama'"),
    ],
)
def test_a_pair_that_does_not_fit_fails_with_the_reason(
    model: str, draft: str, code: int, reason: str, paths: dict[str, str]
) -> None:
    found, said = _json(paths[model], "--draft", paths[draft])
    assert found == code
    assert said["pair"]["fits"] == (code == 0)
    assert any(reason in line for line in said["failures"]) == bool(reason)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (files.write_projector, "is a multimodal projector, no model"),
        (files.write_adapter, "is a LoRA adapter, no model"),
        (files.write_imatrix, "is an importance matrix, no model"),
    ],
)
def test_what_is_no_model_is_described_and_refused(
    write: Callable[[Path], Path], said: str, paths: dict[str, str], tmp_path: Path
) -> None:
    path = str(write(tmp_path / "x.gguf"))
    code, out, err = say("gguf", path)
    assert code == 3
    assert said in err
    assert said.partition(",")[0].removeprefix("is a ").removeprefix("is an ") in out
    assert main(["gguf", paths["llama"], "--draft", path]) == 3


@pytest.mark.parametrize(
    ("content", "said"), [(None, "no such file"), (b"GGUF", "truncated inside its header"), (b"x", "no GGUF")]
)
def test_a_file_that_cannot_be_used_exits_3_in_one_line(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    if content is not None:
        path.write_bytes(content)
    for words in ([], ["--json"], ["--check-instruct"]):
        code, out, err = say("gguf", str(path), *words)
        assert code == 3
        assert out == ""
        assert err.count("\n") == 1
        assert said in err
        assert str(path) in err


def test_a_name_with_control_characters_is_not_written_to_the_terminal(tmp_path: Path) -> None:
    path = files.write_model(tmp_path / "x.gguf", values={"general.name": "a\x1b[2J\nb", "general.finetune": "it\x07"})
    code, out, _ = say("gguf", str(path))
    assert code == 0
    assert all(character.isprintable() or character == "\n" for character in out)


def test_a_type_that_is_none_is_bad_usage(paths: dict[str, str]) -> None:
    code, _, err = say("gguf", paths["llama"], "--spec-type", "magic")
    assert code == 2
    assert "--spec-type" in err
