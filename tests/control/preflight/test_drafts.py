"""Model files, drafts and sizes. test_agreement asks the real server about the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from control.preflight.conftest import Check


def _draft(models: dict[str, str], name: str, kind: str, **more: str) -> dict[str, str]:
    return {"LLAMA_DRAFT_MODEL": models[name], "LLAMA_SPEC_TYPE": kind, **more}


def test_a_fitting_draft_has_no_finding(backend: Check, models: dict[str, str]) -> None:
    found = backend(_draft(models, "draft", "draft-simple,ngram-mod", LLAMA_DRAFT_MAX="64"))
    assert not found.errors
    assert [row.rule for row in found.warnings] == ["no-effect"] * 0


def test_a_misfit_names_the_first_token_that_differs(backend: Check, models: dict[str, str]) -> None:
    row = backend(_draft(models, "other-word", "draft-simple")).one("vocabulary")
    assert row.key == "LLAMA_DRAFT_MODEL"
    assert "token 280 is '▁zebra', in the model '▁large'; the server would run without speculation" in row.message


@pytest.mark.parametrize("content", [b"", b"not a model", b"GGUF", None])
@pytest.mark.parametrize("key", ["LLAMA_MODEL", "LLAMA_DRAFT_MODEL", "LLAMA_ARG_MMPROJ"])
def test_a_file_that_is_no_model_is_one_error(
    key: str, content: bytes | None, backend: Check, models: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "x.gguf"
    if content is not None:
        path.write_bytes(content)
    wanted = _draft(models, "draft", "draft-simple")
    found = backend({**wanted, key: str(path)})
    assert [(row.rule, row.key) for row in found.errors] == [("file", key)]
    assert str(path) in found.errors[0].message


def test_a_truncated_model_says_so(backend: Check, models: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    data = Path(models["llama"]).read_bytes()
    path.write_bytes(data[: len(data) // 2])
    row = backend({"LLAMA_MODEL": str(path)}).one("file")
    assert "truncated" in row.message
    assert row.fix == "download it again"


@pytest.mark.parametrize(("name", "key"), [("model", "LLAMA_MODEL"), ("spec-draft-model", "LLAMA_DRAFT_MODEL")])
@pytest.mark.parametrize("missing", ["general.architecture", "llama.block_count"])
def test_a_model_without_what_llama_cpp_requires_of_its_header_is_refused(
    name: str, key: str, missing: str, backend: Check, models: dict[str, str], tmp_path: Path
) -> None:
    """The key is renamed in the file, so that every offset stays what it was."""
    path = tmp_path / "m.gguf"
    path.write_bytes(
        Path(models["draft"]).read_bytes().replace(missing.encode(), missing.replace("l", "x").encode(), 1)
    )
    wanted = {"LLAMA_DRAFT_MODEL": models["draft"], "LLAMA_SPEC_TYPE": "draft-simple", key: str(path)}
    found = backend(wanted)
    assert [(row.rule, row.key) for row in found.errors] == [("file-kind", key)], name
    assert f"no {missing}" in found.errors[0].message or "no None.block_count" in found.errors[0].message


def test_a_file_that_is_mended_is_seen_at_once(backend: Check, models: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x")
    assert backend({"LLAMA_MODEL": str(path)}).errors
    path.write_bytes(Path(models["llama"]).read_bytes())
    assert not backend({"LLAMA_MODEL": str(path)}).errors


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_an_error(backend: Check, models: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    path.chmod(0)
    assert "cannot be read" in backend({"LLAMA_MODEL": str(path)}).one("file").message


@pytest.mark.parametrize("chain", ["draft-simple,draft-mtp", "draft-simple,draft-eagle3", "draft-dflash,draft-dspark"])
def test_several_types_that_share_one_draft_model_are_refused(
    chain: str, backend: Check, models: dict[str, str]
) -> None:
    row = backend(_draft(models, "draft", chain)).one("settings")
    assert (row.severity, row.key) == ("error", "LLAMA_SPEC_TYPE")
    assert "share one draft model" in row.message


def test_a_draft_larger_than_its_target_is_told_with_what_may_have_been_swapped(
    backend: Check, models: dict[str, str]
) -> None:
    swapped = {"LLAMA_MODEL": models["draft"], "LLAMA_DRAFT_MODEL": models["llama"], "LLAMA_SPEC_TYPE": "draft-simple"}
    row = backend(swapped).one("draft-size")
    assert (row.severity, row.key) == ("warning", "LLAMA_DRAFT_MODEL")
    assert "exchange LLAMA_DRAFT_MODEL and LLAMA_MODEL" in row.fix
    assert not backend(_draft(models, "draft", "draft-simple")).of("draft-size")


def test_a_draft_that_cannot_draft_by_itself_is_told_its_type(backend: Check, models: dict[str, str]) -> None:
    row = backend(_draft(models, "eagle3", "draft-simple")).one("draft-architecture")
    assert (row.severity, row.fix) == ("warning", "set LLAMA_SPEC_TYPE=draft-eagle3")


@pytest.mark.parametrize(("kind", "longest", "effective"), [("draft-dflash", "8", "7"), ("draft-dspark", "9", "8")])
def test_a_draft_longer_than_its_block_names_what_counts(
    kind: str, longest: str, effective: str, backend: Check, models: dict[str, str]
) -> None:
    draft = kind.removeprefix("draft-")
    row = backend(_draft(models, draft, kind, LLAMA_DRAFT_MAX=longest)).one("block-size")
    assert (row.severity, row.key) == ("warning", "LLAMA_DRAFT_MAX")
    assert f"{effective} counts" in row.message
    assert not backend(_draft(models, draft, kind, LLAMA_DRAFT_MAX=effective)).of("block-size")


def test_block_drafts_of_two_kinds_load_each_others_type_and_are_told_their_own(
    backend: Check, models: dict[str, str]
) -> None:
    row = backend(_draft(models, "dspark", "draft-dflash")).one("draft-architecture")
    assert (row.severity, row.fix) == ("warning", "set LLAMA_SPEC_TYPE=draft-dspark")
    row = backend(_draft(models, "dflash", "draft-dspark")).one("draft-architecture")
    assert (row.severity, row.fix) == ("warning", "set LLAMA_SPEC_TYPE=draft-dflash")


def test_a_threshold_for_a_draft_without_a_confidence_head_is_an_error(backend: Check, models: dict[str, str]) -> None:
    wanted = _draft(models, "dspark-unsure", "draft-dspark")
    row = backend({**wanted, "LLAMA_DRAFT_P_MIN": "0.5"}).one("confidence-head")
    assert (row.severity, row.key, row.fix.partition(",")[0]) == (
        "error",
        "LLAMA_DRAFT_P_MIN",
        "set LLAMA_DRAFT_P_MIN=0",
    )
    assert not backend({**wanted, "LLAMA_DRAFT_P_MIN": "0"}).errors
    assert not backend({**_draft(models, "dspark", "draft-dspark"), "LLAMA_DRAFT_P_MIN": "0.5"}).errors


def test_recurrent_layers_are_told_where_checkpoints_replay(backend: Check, models: dict[str, str]) -> None:
    mamba = {"LLAMA_MODEL": models["mamba"], "LLAMA_SPEC_TYPE": "ngram-mod"}
    assert backend(mamba).one("checkpoints").severity == "info"
    rolls_back = {"LLAMA_MODEL": models["qwen35-mtp"], "LLAMA_SPEC_TYPE": "draft-mtp"}
    assert not backend(rolls_back).of("checkpoints")
    assert backend({**rolls_back, "LLAMA_SPEC_TYPE": "ngram-mod"}).of("checkpoints")
    assert not backend({"LLAMA_SPEC_TYPE": "ngram-mod"}).of("checkpoints")


def test_heads_of_the_model_beside_a_draft_without_are_an_error(backend: Check, models: dict[str, str]) -> None:
    wanted = {**_draft(models, "draft", "draft-mtp"), "LLAMA_MODEL": models["qwen35-mtp"]}
    assert backend(wanted).one("nextn-layers").fix == "remove LLAMA_DRAFT_MODEL: the model has its own"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"LLAMA_CTX_SIZE": "511"}, "leaves a slot 511 tokens (the engine rounds up to 512)"),
        ({"LLAMA_CTX_SIZE": "4096", "LLAMA_PARALLEL": "16"}, "shared out to 16 slots, leaves a slot 256"),
        ({"LLAMA_CTX_SIZE": "40000"}, "above the 32768 tokens"),
        ({"LLAMA_CTX_SIZE": "70000", "LLAMA_PARALLEL": "2"}, "above the 32768 tokens"),
    ],
)
def test_a_context_too_small_or_too_large_is_a_warning(wanted: dict[str, str], said: str, backend: Check) -> None:
    row = backend(wanted).one("context")
    assert row.severity == "warning"
    assert said in row.message


@pytest.mark.parametrize(
    "wanted",
    [
        {"LLAMA_CTX_SIZE": "0"},
        {"LLAMA_CTX_SIZE": "65536", "LLAMA_PARALLEL": "2"},
        {"LLAMA_CTX_SIZE": "2048", "LLAMA_PARALLEL": "8", "LLAMA_ARG_KV_UNIFIED": "1"},
    ],
)
def test_a_context_that_fits_its_slots_has_no_finding(wanted: dict[str, str], backend: Check) -> None:
    assert not backend(wanted).of("context")


def test_automatic_slots_are_told(backend: Check) -> None:
    assert "4 slots" in backend({"LLAMA_PARALLEL": "-1"}).one("parallel").message


def test_a_draft_of_a_shorter_context_is_a_warning(backend: Check, models: dict[str, str]) -> None:
    row = backend(_draft(models, "short", "draft-simple")).one("draft-context")
    assert "trained on 1024 tokens, a slot has 4096" in row.message


def test_a_quantised_value_cache_without_flash_attention_names_both_keys(backend: Check) -> None:
    row = backend({"LLAMA_ARG_CACHE_TYPE_V": "q8_0", "LLAMA_ARG_FLASH_ATTN": "off"}).one("cache-type")
    assert row.key == "LLAMA_ARG_CACHE_TYPE_V"
    assert "LLAMA_ARG_FLASH_ATTN=off" in row.message


def test_files_that_are_no_models_are_checked_too(backend: Check, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for key in ("LLAMA_ARG_CHAT_TEMPLATE_FILE", "LLAMA_API_KEY_FILE", "LLAMA_ARG_SSL_CERT_FILE"):
        for path, said in (("absent", "no such file"), ("empty", "is empty"), ("", "is a directory")):
            row = backend({key: str(tmp_path / path)}).one("file")
            assert (row.key, said in row.message) == (key, True)


def test_a_flag_lost_with_unreadable_arguments_silences_what_depends_on_it(backend: Check) -> None:
    found = backend({"LLAMA_EXTRA_ARGS": "--host 127.0.0.1 'x", "LLAMA_HOST": "192.0.2.1"})
    assert not found.of("host")
    assert backend({"LLAMA_EXTRA_ARGS": "'x", "LLAMA_HOST": "192.0.2.1"}).of("host")
