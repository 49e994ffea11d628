"""Real model files, an env file of its own, and a check that needs no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from specdash.backend import engines, plan
from specdash.backend.launch import free_port
from specdash.backend.plan import Circumstances, judge
from specdash.backend.rules import values
from specdash.core.changes import Role
from support import tiny_models as tiny

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from specdash.core.errors import Finding
    from specdash.core.readings import Gpus

    Check = Callable[..., "Found"]


class Found:
    """Findings, to be asked by rule."""

    def __init__(self, rows: tuple[Finding, ...]) -> None:
        self.rows = rows

    def of(self, rule: str) -> list[Finding]:
        return [row for row in self.rows if row.rule == rule]

    def one(self, rule: str) -> Finding:
        rows = self.of(rule)
        assert len(rows) == 1, [row.line for row in self.rows]
        return rows[0]

    @property
    def errors(self) -> list[Finding]:
        return [row for row in self.rows if row.severity == "error"]

    @property
    def warnings(self) -> list[Finding]:
        return [row for row in self.rows if row.severity == "warning"]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of tiny models by name."""
    folder = tmp_path_factory.mktemp("models")
    texts = list(tiny.TOKENS)
    texts[280] = "▁zebra"
    first = list(tiny.TOKENS)
    first[3] = "<other>"
    made: dict[str, Path] = {
        "llama": tiny.write_llama(folder / "llama.gguf", layers=3),
        "draft": tiny.write_llama(folder / "draft.gguf", wrong_every=8),
        "mamba": tiny.write_mamba(folder / "mamba.gguf", layers=3),
        "mamba-draft": tiny.write_mamba(folder / "mamba-draft.gguf", wrong_every=8),
        "lfm2": tiny.write_lfm2(folder / "lfm2.gguf"),
        "lfm2-draft": tiny.write_lfm2(folder / "lfm2-draft.gguf", wrong_every=8),
        "qwen35": tiny.write_qwen35(folder / "qwen35.gguf", heads_too=False),
        "qwen35-mtp": tiny.write_qwen35(folder / "qwen35-mtp.gguf", heads_too=True),
        "dflash": tiny.write_dflash(folder / "dflash.gguf"),
        "dspark": tiny.write_dspark(folder / "dspark.gguf"),
        "dspark-unsure": tiny.write_dspark(folder / "dspark-unsure.gguf", confident=False),
        "dflash-deep": tiny.write_dflash(folder / "dflash-deep.gguf", reads=(0, 5)),
        "eagle3": tiny.write_eagle3(folder / "eagle3.gguf"),
        "eagle3-wide": tiny.write_eagle3(folder / "eagle3-wide.gguf", target_width=256),
        "other-word": tiny.write_variant(folder / "other-word.gguf", tokens=texts),
        "other-start": tiny.write_variant(folder / "other-start.gguf", tokens=first),
        "longer": tiny.write_variant(folder / "longer.gguf", tokens=[*tiny.TOKENS, *(f"<x{n}>" for n in range(64))]),
        "too-long": tiny.write_variant(
            folder / "too-long.gguf", tokens=[*tiny.TOKENS, *(f"<x{n}>" for n in range(160))]
        ),
        "no-bos": tiny.write_variant(folder / "no-bos.gguf", add_bos=False),
        "adds-eos": tiny.write_variant(folder / "adds-eos.gguf", add_eos=True),
        "bos-2": tiny.write_variant(folder / "bos-2.gguf", bos=2),
        "no-vocabulary": tiny.write_variant(folder / "no-vocabulary.gguf", tokenizer="none"),
        "heads-of-16": tiny.write_variant(folder / "heads-of-16.gguf", heads=8),
        "short": tiny.write_variant(folder / "short.gguf", context=1024),
    }
    return {name: str(path) for name, path in made.items()}


def cuda_order(*uuids: str) -> Callable[[Mapping[str, str]], tuple[str, ...]]:
    """CUDA on a machine where it numbers the GPUs in this order, which is not NVML's."""

    def visible(env: Mapping[str, str]) -> tuple[str, ...]:
        shown = env.get("CUDA_VISIBLE_DEVICES")
        found: list[str] = []
        for word in shown.split(",") if shown is not None else uuids:
            match = [uuid for number, uuid in enumerate(uuids) if word and word in (str(number), uuid)]
            if not match:
                break  # as CUDA does: a device that is not there hides those behind it
            found += match
        return tuple(found)

    return visible


class Machine:
    """What the judgement finds on the machine: no GPU, and an engine that is not asked."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._real = engines.find_engine, engines.listed_names
        self.gpus(None)
        self.asks_engine(asks=False)

    def gpus(self, seen: Gpus | None, cuda: Callable[[Mapping[str, str]], tuple[str, ...]] | None = None) -> None:
        """NVML sees these, and CUDA numbers them so."""
        self._patch.setattr(engines, "nvml_gpus", lambda: seen)
        self._patch.setattr(engines, "cuda_gpus", cuda or cuda_order("GPU-0", "GPU-1"))

    def asks_engine(self, *, asks: bool = True) -> None:
        """Whether the engine is found and asked."""
        find, names = self._real if asks else (lambda *_: None, lambda *_: frozenset())
        self._patch.setattr(plan, "find_engine", find)
        self._patch.setattr(values, "listed_names", names)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine that `context` is on."""
    return Machine(monkeypatch)


@pytest.fixture
def context(tmp_path: Path, machine: Machine) -> Circumstances:
    """An env file that is not there yet, no service, no GPU, and no question to the engine."""
    return Circumstances(tmp_path / "x.env", base={"HOME": str(tmp_path)})


@pytest.fixture
def backend(context: Circumstances, models: dict[str, str], machine: Machine) -> Check:
    """Check a backend: the llama model on a free port, with changes; keyword arguments go to the context, and `gpus`
    are the machine's."""

    def run(wanted: dict[str, str] | None = None, *, gpus: Gpus | None = None, **more: Any) -> Found:
        if gpus is not None:
            machine.gpus(gpus)
        values = {"LLAMA_MODEL": models["llama"], "LLAMA_CTX_SIZE": "4096", "LLAMA_PORT": str(free_port("127.0.0.1"))}
        values |= wanted or {}
        return Found(judge(Role.BACKEND, values, replace(context, **more)))

    return run


@pytest.fixture
def proxy(context: Circumstances) -> Check:
    """Check a proxy on a free port, with changes; keyword arguments go to the context."""

    def run(wanted: dict[str, str] | None = None, **more: Any) -> Found:
        values = {"PROXY_PORT": str(free_port("127.0.0.1")), **(wanted or {})}
        return Found(judge(Role.PROXY, values, replace(context, **more)))

    return run
