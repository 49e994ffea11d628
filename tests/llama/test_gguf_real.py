"""What a file is called, against the real llama-server and its libraries."""

import ctypes
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from specdash.llama.architectures import DIFFUSION, HYBRID, KNOWN, RECURRENT, STATE_ROLLBACK
from specdash.llama.gguf import GgufError, read_facts, read_one_file
from specdash.llama.model_facts import describe
from support import gguf_files as files
from support import tiny_models as tiny
from support.engines import llama_server_binary
from support.gguf_files import header, pair, tensor
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
    judged = [{name for name, row in found.items() if row[at]} for at in range(4)]
    assert judged == [set(RECURRENT), set(HYBRID), set(STATE_ROLLBACK), set(DIFFUSION)]


MODELS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda path: tiny.write_llama(path, layers=3),
    "mamba": tiny.write_mamba,
    "heads": lambda path: tiny.write_qwen35(path, heads_too=True),
    "gemma3": files.write_gemma3,
}


@pytest.mark.parametrize("name", MODELS)
def test_the_facts_of_a_model_are_what_the_server_says(name: str, tmp_path: Path) -> None:
    path = MODELS[name](tmp_path / "m.gguf")
    answers = bodies({**COMMON, "LLAMA_ARG_MODEL": str(path)}, tmp_path, ("/props", "/v1/models"))
    found = describe(read_facts(path))
    meta = answers["/v1/models"]["data"][0]["meta"]
    assert (found.parameters, found.size) == (meta["n_params"], meta["size"])
    assert (found.vocabulary, found.context, found.width) == (meta["n_vocab"], meta["n_ctx_train"], meta["n_embd"])
    assert found.chat_template == bool(answers["/props"]["chat_template"])


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


DAMAGED = (
    *(header(version=number) for number in (1, 4, 3 << 24)),
    header(pairs=[pair("", 0, b"\1")]),
    header(tensors=[tensor("a", [8], 0, 0), tensor("b", [8], 0, 64)]),
    header(tensors=[tensor("a", [32], 31, 0)]),
)
"""Another version, another byte order, a key without a name, a gap before a tensor, a type that was removed."""


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
    for data in (*(found + bytes(999) for found in DAMAGED), *(_mutated(seed, end, random) for _ in range(1500))):
        path.write_bytes(data)
        handle = library.gguf_init_from_file(str(path).encode(), _Parameters(True, None))
        if handle:
            library.gguf_free(handle)
        try:
            facts, words = read_one_file(path), ""
        except GgufError as error:
            facts, words = None, str(error)
        # The library compares no lengths, and refuses more: what the engine names itself when it loads the model.
        if "truncated, " in words or bool(handle) < (facts is not None):
            continue
        assert bool(handle) == (facts is not None), words
        agreed[bool(handle)] += 1
    assert min(agreed[True], agreed[False]) > 100


def _wide_heads(path: Path) -> Path:
    """Prediction layers of a model of twice the width."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (hybrids, automaton):
            patch.setattr(module, "WIDTH", 2 * tiny.WIDTH)
        return tiny.write_qwen35(path, heads_too=True)


PAIRS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Path], bool]] = {
    "no layer inputs": (files.write_gemma3, tiny.write_eagle3, False),
    "the last layer's output": (MODELS["llama"], lambda path: tiny.write_dflash(path, reads=(0, 3)), False),
    "its output, for EAGLE-3": (MODELS["llama"], lambda path: tiny.write_eagle3(path, reads=(0, 1, 3)), True),
    "the last layer's input": (MODELS["llama"], lambda path: tiny.write_dflash(path, reads=(0, 2)), True),
    "another width": (lambda path: tiny.write_qwen35(path, heads_too=False), _wide_heads, False),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_draft_that_its_target_cannot_serve_is_refused(name: str, tmp_path: Path) -> None:
    write_model, write_draft, fits = PAIRS[name]
    model, draft = write_model(tmp_path / "model.gguf"), write_draft(tmp_path / "draft.gguf")
    judged = describe(read_facts(model), read_facts(draft)).pair
    assert judged is not None
    settings = {"LLAMA_ARG_MODEL": str(model), "LLAMA_ARG_SPEC_DRAFT_MODEL": str(draft)}
    outcome = try_out({**COMMON, **settings, "LLAMA_ARG_SPEC_TYPE": judged.spec_type}, tmp_path)
    assert outcome.answered == judged.fits == fits, outcome.log[-1500:]
    assert fits or ("the server would abort" in judged.misfits[0].said) == ("GGML_ASSERT" in outcome.log)
