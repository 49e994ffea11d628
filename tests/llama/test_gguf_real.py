"""What is said of a file against the real llama-server and its libraries."""

import ctypes
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from specdash.llama.architectures import DIFFUSION, HYBRID, KNOWN, RECURRENT, STATE_ROLLBACK
from specdash.llama.gguf import FILE_TYPES, TENSOR_TYPES, GgufError, read_facts, read_one_file
from specdash.llama.memory import ModelLoad, fit_context, slots_of, together
from specdash.llama.model_facts import describe
from support import gguf_files as files
from support import tiny_models as tiny
from support.engines import llama_server_binary
from support.native_server import bodies, try_out
from support.tiny_models import automaton, hybrids

pytestmark = [pytest.mark.llama_server, pytest.mark.slow]
COMMON = {"LLAMA_ARG_CTX_SIZE": "1024", "LLAMA_ARG_N_PARALLEL": "1", "LLAMA_ARG_FIT": "off"}


def _library(name: str) -> Any:
    path = Path(llama_server_binary()).resolve().parent / name
    if not path.exists():
        pytest.skip(f"the engine has no {name} beside it")
    return ctypes.CDLL(str(path))


def test_architectures_and_their_memory_are_those_of_the_library() -> None:
    library = _library("libllama.so")
    try:
        name_of = library._Z13llm_arch_name8llm_arch
        judges = [
            getattr(library, symbol)
            for symbol in (
                "_Z21llm_arch_is_recurrentRK8llm_arch",
                "_Z18llm_arch_is_hybridRK8llm_arch",
                "_Z29llm_arch_supports_rs_rollbackRK8llm_arch",
                "_Z21llm_arch_is_diffusionRK8llm_arch",
            )
        ]
    except AttributeError:
        pytest.skip("another build: these functions have other names")
    name_of.restype = ctypes.c_char_p
    found: dict[str, list[bool]] = {}
    for number in range(1000):
        name = name_of(number)
        if name is None or name == b"(unknown)":
            break
        for judge in judges:
            judge.restype = ctypes.c_bool
        found[name.decode()] = [bool(judge(ctypes.byref(ctypes.c_int(number)))) for judge in judges]
    assert set(found) - {"clip"} == KNOWN
    told = [{name for name, row in found.items() if row[at]} for at in range(4)]
    assert told == [set(RECURRENT), set(HYBRID), set(STATE_ROLLBACK), set(DIFFUSION)]


def test_tensor_types_are_those_of_the_library() -> None:
    library = _library("libggml-base.so")
    library.ggml_type_name.restype = ctypes.c_char_p
    library.ggml_blck_size.restype = ctypes.c_int64
    library.ggml_type_size.restype = ctypes.c_size_t
    for kind, known in TENSOR_TYPES.items():
        assert library.ggml_type_name(kind).decode().upper() == known.name.upper()
        assert (library.ggml_blck_size(kind), library.ggml_type_size(kind)) == (known.per_block, known.block_bytes)


MODELS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda path: tiny.write_llama(path, layers=3),
    "mamba": tiny.write_mamba,
    "heads": lambda path: tiny.write_qwen35(path, heads_too=True),
    "gemma3": files.write_gemma3,
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_said_of_a_model_is_what_the_server_says(name: str, tmp_path: Path) -> None:
    path = MODELS[name](tmp_path / "m.gguf")
    answers = bodies({**COMMON, "LLAMA_ARG_MODEL": str(path)}, tmp_path, ("/props", "/v1/models"))
    found = describe(read_facts(path))
    meta = answers["/v1/models"]["data"][0]["meta"]
    assert (found.parameters, found.size) == (meta["n_params"], meta["size"])
    assert (found.vocabulary, found.context, found.width) == (meta["n_vocab"], meta["n_ctx_train"], meta["n_embd"])
    assert found.chat_template == bool(answers["/props"]["chat_template"])


@pytest.mark.parametrize("number", [1, 15, 38])
def test_a_file_type_is_what_the_server_calls_it(number: int, tmp_path: Path) -> None:
    path = tiny.write_llama(tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    at = data.index(b"general.file_type") + len(b"general.file_type") + 4
    data[at : at + 4] = number.to_bytes(4, "little")
    path.write_bytes(bytes(data))
    answers = bodies({**COMMON, "LLAMA_ARG_MODEL": str(path)}, tmp_path, ("/props",))
    theirs = answers["/props"]["model_ftype"]
    words = {"Small": "S", "Medium": "M", "Large": "L", "MoE": "MOE", "all": ""}
    parts = [words.get(part, part) for part in theirs.split() if part not in ("-", "bpw", "mix")]
    ours = FILE_TYPES[number]
    assert ours in ("_".join(filter(None, parts)), parts[0], parts[-1]), theirs


REFUSED: dict[str, Callable[[Path], Path]] = {
    "a projector": files.write_projector,
    "a control vector": files.write_control_vector,
    "a draft alone": tiny.write_dspark,
    "an unknown architecture": lambda path: files.write_model(path, architecture="llama9"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_server_runs_nothing_that_is_called_no_model(name: str, tmp_path: Path) -> None:
    path = REFUSED[name](tmp_path / "m.gguf")
    outcome = try_out({**COMMON, "LLAMA_ARG_MODEL": str(path)}, tmp_path)
    assert not outcome.answered, outcome.log[-1500:]
    found = describe(read_facts(path))
    assert found.refusal is not None or not found.known_architecture


def _changed(path: Path, change: Callable[[bytearray], None]) -> Path:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(bytes(data))
    return path


def _second_offset(data: bytearray) -> None:
    # The description of output_norm.weight ends with its offset; eight bytes more make a gap.
    at = data.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8 + 4
    data[at : at + 8] = (int.from_bytes(data[at : at + 8], "little") + 32).to_bytes(8, "little")


def _empty_key(data: bytearray) -> None:
    at = data.index(b"general.name") - 8
    data[at : at + 8] = bytes(8)


def _removed_type(data: bytearray) -> None:
    at = data.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    data[at : at + 4] = (31).to_bytes(4, "little")


def _version(number: int, order: str = "little") -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[4:8] = number.to_bytes(4, order)  # type: ignore[arg-type]  # the order is one of two words

    return change


DAMAGED = {
    "a gap before a tensor": _second_offset,
    "a key without a name": _empty_key,
    "a type that was removed": _removed_type,
    "version 1": _version(1),
    "version 4": _version(4),
    "the other byte order": _version(3, "big"),
}


class _Parameters(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


NUMBERS = [0, 1, 2, 4, 8, 9, 12, 31, 32, 64, 127, 255, 2**16, 2**31, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1]


def _mutated(data: bytes, end: int, random: Random) -> bytes:
    """A header with one to three changes, and room behind it for tensors."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        at, way = random.randrange(4, end), random.random()
        if way < 0.4:
            changed[at] = random.randrange(256)
        elif way < 0.8:
            new = random.choice(NUMBERS).to_bytes(8, "little")[: random.choice([1, 2, 4, 8])]
            changed[at : at + len(new)] = new
        elif way < 0.9:
            del changed[at]
        else:
            changed.insert(at, random.randrange(256))
    return bytes(changed) + bytes(200_000)


def test_no_header_that_the_library_takes_is_refused_here(tmp_path: Path) -> None:
    library = _library("libggml-base.so")
    library.gguf_init_from_file.restype = ctypes.c_void_p
    library.gguf_init_from_file.argtypes = [ctypes.c_char_p, _Parameters]
    library.gguf_free.argtypes = [ctypes.c_void_p]
    values = {"general.alignment": 64, "x.numbers": [1, 2, 3], "x.texts": ["a", "b"], "x.half": 0.5, "x.yes": True}
    seed = files.write_model(tmp_path / "seed.gguf", values=values).read_bytes()
    end, random, path = seed.rindex(b"blk.0.attn_q.weight") + 70, Random(7), tmp_path / "mutated.gguf"
    agreed: Counter[bool] = Counter()
    damaged = [_changed(tiny.write_llama(path), change).read_bytes() for change in DAMAGED.values()]
    for data in (*damaged, *(_mutated(seed, end, random) for _ in range(1500))):
        path.write_bytes(data)
        handle = library.gguf_init_from_file(str(path).encode(), _Parameters(True, None))
        if handle:
            library.gguf_free(handle)
        try:
            facts, said = read_one_file(path), ""
        except GgufError as error:
            facts, said = None, str(error)
        # The library compares no lengths, and refuses more: what the engine names itself when it loads the model.
        if "truncated, " in said or bool(handle) < (facts is not None):
            continue
        assert bool(handle) == (facts is not None), said
        agreed[bool(handle)] += 1
    assert min(agreed[True], agreed[False]) > 100


def _limited(real: str, limit: int, directory: Path) -> Path:
    """A llama-server that may have `limit` bytes of address space, and whose threads have small stacks in it."""
    script = directory / "limited-llama-server"
    script.write_text(f'#!/bin/sh\nulimit -s 2048; ulimit -v {limit // 1024}\nexec "{real}" "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return script


def test_the_largest_context_that_fits_starts_and_a_step_more_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files.write_wide(tmp_path / "wide.gguf", layers=12)
    facts, real = read_facts(path), llama_server_binary()
    load = ModelLoad(1024, slots_of(1))
    least = together(facts, load)
    assert least is not None
    step = 256 * 12 * 4 * 512 * 2 * 2
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    more = {"THREADS": "1", "THREADS_HTTP": "1", "CACHE_RAM": "0"}
    common = {**COMMON, "LLAMA_ARG_MODEL": str(path), **{f"LLAMA_ARG_{name}": text for name, text in more.items()}}

    def starts(context: int, limit: int) -> bool:
        monkeypatch.setenv("LLAMA_BIN", str(_limited(real, limit, tmp_path)))
        return try_out({**common, "LLAMA_ARG_CTX_SIZE": str(context)}, tmp_path).answered

    low, high = 0, 2**33
    while high - low > step // 8:
        middle = (low + high) // 2
        low, high = (low, middle) if starts(1024, middle) else (middle, high)
    # What the process takes beside the model; now give it room for the model and 7.5 steps of context more.
    free = least.host + step * 7 + step // 2
    fits = fit_context(facts, load, int(free / 0.9), headroom=0.9)
    assert fits == 1024 + 7 * 256
    limit = high + free - least.host
    assert starts(fits, limit)
    assert not starts(fits + 256, limit)


def test_a_model_that_llama_cpp_split_is_read_whole_and_runs(tmp_path: Path) -> None:
    tool = Path(llama_server_binary()).with_name("llama-gguf-split")
    if not tool.exists():
        pytest.skip("the engine has no llama-gguf-split beside it")
    whole = tiny.write_llama(tmp_path / "whole.gguf", layers=3)
    command = [str(tool), "--split", "--split-max-tensors", "10", str(whole), str(tmp_path / "part")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    parts = sorted(tmp_path.glob("part-*.gguf"))
    found, model_facts = describe(read_facts(parts[0])), describe(read_facts(whole))
    assert (found.parts, found.parameters, found.size) == (len(parts), model_facts.parameters, model_facts.size)
    settings = {**COMMON, "LLAMA_ARG_MODEL": str(parts[0])}
    meta = bodies(settings, tmp_path, ("/v1/models",))["/v1/models"]["data"][0]["meta"]
    assert (found.parameters, found.size) == (meta["n_params"], meta["size"])
    with pytest.raises(GgufError, match="is part 2 of"):
        read_facts(parts[1])
    assert not try_out({**settings, "LLAMA_ARG_MODEL": str(parts[1])}, tmp_path).started
    parts[-1].unlink()
    assert not try_out(settings, tmp_path).started
    with pytest.raises(GgufError, match="of them missing"):
        read_facts(parts[0])


def test_prediction_layers_of_another_width_abort_the_server_as_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.write_qwen35(tmp_path / "model.gguf", heads_too=False)
    for module in (hybrids, automaton):
        monkeypatch.setattr(module, "WIDTH", 2 * tiny.WIDTH)
    wide = tiny.write_qwen35(tmp_path / "wide.gguf", heads_too=True)
    settings = {"LLAMA_ARG_MODEL": str(model), "LLAMA_ARG_SPEC_DRAFT_MODEL": str(wide)}
    outcome = try_out({**COMMON, **settings, "LLAMA_ARG_SPEC_TYPE": "draft-mtp"}, tmp_path)
    assert not outcome.started
    assert "GGML_ASSERT" in outcome.log
    pair = describe(read_facts(model), read_facts(wide)).pair
    assert pair is not None
    assert not pair.fits
    assert "the server would abort" in pair.misfits[0].said


LAYERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Path], bool]] = {
    "no layer inputs": (files.write_gemma3, tiny.write_eagle3, False),
    "the last layer's output": (MODELS["llama"], lambda path: tiny.write_dflash(path, reads=(0, 3)), False),
    "the last layer's output, for EAGLE-3": (
        MODELS["llama"],
        lambda path: tiny.write_eagle3(path, reads=(0, 1, 3)),
        True,
    ),
    "the last layer's input": (MODELS["llama"], lambda path: tiny.write_dflash(path, reads=(0, 2)), True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_draft_that_reads_what_its_target_does_not_give_is_refused(name: str, tmp_path: Path) -> None:
    write_model, write_draft, fits = LAYERS[name]
    model, draft = write_model(tmp_path / "model.gguf"), write_draft(tmp_path / "draft.gguf")
    pair = describe(read_facts(model), read_facts(draft)).pair
    assert pair is not None
    settings = {"LLAMA_ARG_MODEL": str(model), "LLAMA_ARG_SPEC_DRAFT_MODEL": str(draft)}
    outcome = try_out({**COMMON, **settings, "LLAMA_ARG_SPEC_TYPE": pair.spec_type}, tmp_path)
    assert outcome.answered == pair.fits == fits, outcome.log[-1500:]
