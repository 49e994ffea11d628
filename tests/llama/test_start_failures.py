"""Why a server ended, or runs without speculation: from what real ones printed."""

# ruff: noqa: E501 - lines as the servers wrote them

import re
from pathlib import Path

import pytest

from specdash.llama.log import TABLE
from specdash.llama.log.forms import ServerEnd
from specdash.llama.start_failures import OF_LINES, explain, out_of_memory, unspoken

LOGS = Path(__file__).parents[1] / "data" / "logs"

ENDED = {
    "flag_bogus_type": (1, "spec_type_unknown"),
    "flag_dflash_plain": (-6, "dflash_wrong_draft"),
    "flag_draftmax": (1, "argument_removed"),
    "flag_spec_ngram_size_n": (1, "argument_removed"),
    "flag_env_draft_max": (1, "argument_removed"),
    "flag_md_missing": (1, "draft_missing"),
    "flag_nmax0": (-6, "n_max_zero"),
    "flag_nmax_neg": (1, "argument_value"),
    "flag_synth_both": (1, "synthetic"),
    "flag_synth_nospec": (1, "synthetic"),
    "flag_synth_rates_badn": (1, "synthetic"),
    "flag_synth_rates_incr": (1, "synthetic"),
    "flag_unknown_flag": (1, "argument_unknown"),
    "llama_mambadraft_lv4": (-6, "recurrent_draft"),
}
"""Real logs of servers that ended by themselves, with exit code and cause."""
WITHOUT = {"flag_draftsimple_nomd", "flag_vocab_mismatch"}
"""Real logs of servers that ran without the speculation that they were asked for: `log_golden.json` has the causes."""
EXCERPTS = {"field_samples_older_builds"}
"""Lines of many servers, which no server wrote together."""
SILENT = {
    "draft_no_type_lv3": "draft_without_type",
    "flag_chain_none": "none_in_chain",
}
HEALTHY = sorted(file.stem for file in LOGS.glob("*.log") if file.stem not in {*ENDED, *WITHOUT, *EXCERPTS})


def _lines(name: str) -> list[str]:
    return (LOGS / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()


def _asked(name: str) -> dict[str, str]:
    """The speculation parameters in the command of a log."""
    words = _lines(name)[0].split()
    found = {"spec-draft-model": words[words.index("-md") + 1]} if "-md" in words else {}
    return {**found, "spec-type": words[words.index("--spec-type") + 1]} if "--spec-type" in words else found


@pytest.mark.parametrize("name", ENDED)
def test_the_log_of_a_server_that_ended_names_its_cause(name: str) -> None:
    code, wanted = ENDED[name]
    found = explain(_lines(name), code)
    assert found is not None
    assert (found.id, found.ends) == (wanted, ServerEnd.EXIT if code == 1 else ServerEnd.ABORT)
    assert found.fix
    assert "{" not in found.because + found.fix


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_log_is_not_explained(name: str) -> None:
    assert explain(_lines(name), None) is None
    assert explain(_lines(name), 0) is None


@pytest.mark.parametrize("name", SILENT)
def test_what_no_log_says_is_known_from_the_parameters(name: str) -> None:
    found = unspoken(_asked(name))
    assert found is not None
    assert found.id == SILENT[name]


@pytest.mark.parametrize("name", ["draft_simple_lv4", "qwen35_mtp_np2_lv4", "llama_none_lv4"])
def test_parameters_that_speculate_or_ask_for_none_give_no_reason(name: str) -> None:
    assert unspoken(_asked(name)) is None


def test_none_counts_wherever_it_is_in_a_chain() -> None:
    found = unspoken({"spec-type": "none,draft-simple", "spec-draft-model": "d.gguf"})
    assert found is not None
    assert found.id == "none_in_chain"


def test_a_type_without_its_draft_is_named_where_the_log_is_silent() -> None:
    found = unspoken({"spec-type": "ngram-mod,draft-dflash"})
    assert found is not None
    assert found.because == "draft-dflash needs a draft model, and none is given"


SAID = {
    "draft_broken": (
        1,
        (
            "0.00.100.000 E llama_model_load: error loading model: tensor 'token_embd.weight' data is not within the file "
            "bounds, model is corrupted or incomplete\n0.00.200.000 E srv    load_model: failed to load draft model, 'd.gguf'"
        ),
    ),
    "model_broken": (
        1,
        (
            "0.00.004.493 E llama_model_load: error loading model: tensor 'token_embd.weight' data is not within the "
            "file bounds, model is corrupted or incomplete\n0.00.004.639 E srv    load_model: failed to load model, 't.gguf'"
        ),
    ),
    "model_missing": (
        1,
        (
            "0.00.004.122 E gguf_init_from_file: failed to open GGUF file 'nope.gguf' (No such file or directory)\n"
            "0.00.004.131 E srv    load_model: failed to load model, 'nope.gguf'"
        ),
    ),
    "mtp_no_heads": (1, "0.00.011.215 E srv    load_model: failed to create MTP context"),
    "eagle3_wrong_draft": (
        None,
        (
            "0.00.014.875 E srv    load_model: failed to initialize speculative decoding context: draft model is "
            "not eagle3 (expected 3 extract layers, got 0)"
        ),
    ),
    "draft_extra_tokens": (
        -6,
        "/b/llama.cpp/common/common.cpp:2216: get_sub_batch: failed to add token 322 at index 3",
    ),
    "draft_of_other_model": (-6, "/b/src/llama-context.cpp:1242: GGML_ASSERT(lid <= model.hparams.n_layer()) failed"),
    "device_unknown": (1, 'error while handling argument "--device": invalid device: CUDA0'),
    "bind_failed": (1, "0.00.010.000 E srv  start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080"),
    "lookup_cache_failed": (
        -6,
        "0.00.011.444 E spec common_specu: failed to open static lookup cache: /nope[New LWP 13581]",
    ),
    "gpu_memory": (
        1,
        (
            "0.00.100.000 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 10240.00 MiB on device 0: cudaMalloc failed: "
            "out of memory\n0.00.200.000 E srv llama_server: exiting due to model loading error"
        ),
    ),
    "gpu_out_of_memory": (-6, "CUDA error: out of memory\n  current device: 0, in function alloc at a.cu:1"),
    "cuda_error": (-6, "CUDA error: an illegal memory access was encountered"),
    "compute_buffer_failed": (
        1,
        "0.00.100.000 E llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers",
    ),
    "alloc_failed": (
        1,
        "0.00.100.000 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
    ),
    "exception": (
        -6,
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  vocab is not set",
    ),
    "batch_index_error": (
        None,
        "0.00.100.000 E srv operator(): got exception: speculative batch index 3 is not inside the current sub-batch [4, 8)",
    ),
    "killed": (-9, ""),
    "wrong_cpu": (132, "0.00.100.000 I srv  load_model: loading model 'x'"),
    "cannot_run": (
        127,
        "llama-server: error while loading shared libraries: libcudart.so.12: cannot open shared object",
    ),
    "other_exit": (1, "0.00.100.000 E srv  main: something new went wrong"),
}


@pytest.mark.parametrize("wanted", SAID)
def test_each_way_to_fail_is_told_apart(wanted: str) -> None:
    code, text = SAID[wanted]
    found = explain(text.split("\n"), code)
    assert found is not None
    assert found.id == wanted
    assert "{" not in found.because + found.fix


@pytest.mark.parametrize(
    "line",
    [
        (
            "0.00.100.000 E llama_init_from_model: failed to initialize the context: dflash requires ctx_other to be set "
            "(this warning is normal during memory fitting)"
        ),
        "0.00.100.000 W operator(): failed to measure the memory of the extra model, fitting without it: failed",
    ],
)
def test_what_llama_cpp_calls_normal_is_no_cause(line: str) -> None:
    assert explain([line], 1) is None


def test_a_server_that_was_killed_did_not_end_of_its_vocabulary() -> None:
    found = explain(_lines("flag_vocab_mismatch"), -9)
    assert found is not None
    assert found.id == "killed"


def test_colours_and_json_do_not_hide_the_cause() -> None:
    coloured = "\x1b[34m0.00.011.215\x1b[0m \x1b[31mE \x1b[0msrv  load_model: failed to create MTP context"
    escaped = '{"type":"log","time":9,"level":"error","msg":"srv load_model: failed to create MTP context\\n"}'
    for line in (coloured, escaped):
        found = explain([line], 1)
        assert found is not None
        assert found.id == "mtp_no_heads"


def test_every_cause_can_be_said_and_captures_what_it_says() -> None:
    for found, cause in ((line_class, cause) for line_class in TABLE for cause in line_class.every_cause):
        wanted = set(re.findall(r"\{(\w+)\}", cause.because + cause.fix))
        for pattern in cause.patterns or found.patterns:
            given = set(re.findall(r"\{(\w+):", pattern))
            assert wanted <= given | {"types", "line"}, (cause.id, pattern)
        assert cause.fix, cause.id


def test_a_cause_belongs_to_one_class_of_lines() -> None:
    ids = [cause.id for cause in OF_LINES]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("line", "is_out"),
    [
        ("ggml_backend_cuda: allocating 512.00 MiB on device 0: cudaMalloc failed: out of memory", True),
        ("CUDA error: out of memory", True),
        ("llama_init_from_model: failed to allocate compute pp buffers", True),
        ("CUDA error: an illegal memory access was encountered", False),
        ("slot update_slots: id 0 | memory_seq_rm [0, end))", False),
    ],
)
def test_an_engine_without_memory_is_told_from_one_whose_log_names_memory(line: str, is_out: bool) -> None:
    assert out_of_memory(["loading", line]) is is_out
