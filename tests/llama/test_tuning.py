"""Base or instruct: what the file says, and nothing that it does not."""

from pathlib import Path
from typing import Any

import pytest

from specdash.llama.gguf import read_facts
from specdash.llama.model_facts import tuning_of
from support.gguf_files import write_model


@pytest.mark.parametrize(
    ("values", "template", "verdict", "reason"),
    [
        ({"general.finetune": "Instruct"}, True, "instruct", "general.finetune is 'Instruct'"),
        ({"general.finetune": "it"}, False, "instruct", "general.finetune is 'it'"),
        ({"general.finetune": "Base"}, True, "base", "it has a chat template, as some base models do"),
        ({"general.finetune": "pt"}, False, "base", "general.finetune is 'pt'"),
        ({"general.name": "Qwen3 8B Base"}, True, "base", "general.name is 'Qwen3 8B Base'"),
        ({"general.name": "Gemma 4 31b It"}, False, "instruct", "general.name is 'Gemma 4 31b It'"),
        ({"general.name": "Meta-Llama-3-8B-Instruct"}, True, "instruct", "general.name is"),
        (
            {"general.finetune": "Coder-Instruct", "general.name": "Db Base"},
            True,
            "instruct",
            "'Db Base', which says base",
        ),
        ({"general.finetune": "abliterated"}, True, "instruct", "it has a chat template"),
        ({"general.name": "Llama 3 8B"}, False, "unknown", "it has no chat template"),
        ({"general.name": "Databases for everyone"}, False, "unknown", "it has no chat template"),
        ({"general.base_model.0.name": "Qwen3 8B Base"}, True, "instruct", "it has a chat template"),
        ({"general.base_model.0.name": "Qwen3 8B Instruct"}, False, "unknown", "it has no chat template"),
        ({}, True, "instruct", "it has a chat template"),
        ({}, False, "unknown", "it has no chat template"),
    ],
)
def test_names_decide_then_the_chat_template(
    values: dict[str, Any], template: bool, verdict: str, reason: str, tmp_path: Path
) -> None:
    tuning, because = tuning_of(read_facts(write_model(tmp_path / "m.gguf", values=values, template=template)))
    assert tuning == verdict
    assert any(reason in name for name in because), because


def test_the_size_in_the_name_of_a_t5_model_says_nothing(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", architecture="t5", values={"general.name": "Flan T5 Base"})
    assert tuning_of(read_facts(path))[0] == "unknown"
