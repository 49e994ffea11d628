"""GPU memory against what NVML says is free. The GPUs are injected; tests/llama holds the reckoning itself."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from specdash.backend.plan import plan
from specdash.backend.rules import machine
from specdash.core.readings import Gpu, GpuProcess, Gpus
from specdash.llama.gguf import read_facts
from specdash.llama.memory import ALL_LAYERS, GPU_OVERHEAD, ModelLoad, estimate, slots_of
from specdash.system.text import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backend.judgement.conftest import Check
    from specdash.backend.plan import Circumstances

GIB = 1024**3
ALL = {"LLAMA_GPU_LAYERS": "all"}


def _free(*sizes: int, used: int = 0, processes: tuple[GpuProcess, ...] | None = ()) -> dict[str, Any]:
    # The driver's own share is neither used nor free.
    gpus = Gpus(tuple(Gpu(n, None, f"GPU-{n}", None, None, used, size + used + GIB, size, processes=processes)
                      for n, size in enumerate(sizes)))  # fmt: skip
    return {"gpus": gpus}


@pytest.fixture(scope="session")
def needed(models: dict[str, str]) -> int:
    """Bytes that the model of these tests certainly takes."""
    found = estimate(read_facts(models["llama"]), ModelLoad(4096, slots_of(1), gpu_layers=ALL_LAYERS))
    assert found is not None
    return found.gpu_certain


@pytest.fixture
def child() -> Iterator[int]:
    """A process of this one that lives as long as the test."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.kill()
    process.communicate(timeout=10)


def test_what_the_running_service_holds_will_be_free(backend: Check, needed: int, child: int) -> None:
    held = (GpuProcess(child, needed + 2 * GPU_OVERHEAD),)
    others = _free(0, used=8 * GIB, processes=held)
    assert backend(ALL, **others).one("gpu-memory").severity == "error"
    assert backend(ALL, **others, own_pids=frozenset({child})).one("gpu-memory").severity == "info"
    # The process that the manager knows is the parent of the one on the GPU.
    assert backend(ALL, **others, own_pids=frozenset({os.getpid()})).one("gpu-memory").severity == "info"


@pytest.mark.parametrize("held", [None, (), "its own", (GpuProcess(2**31 - 1, 8 * GIB),)])
def test_where_nvml_does_not_tell_what_the_service_holds_it_is_no_error(
    held: tuple[GpuProcess, ...] | str | None, backend: Check, child: int
) -> None:
    """As in a container, where it shows no process, or numbers of the host."""
    processes = (GpuProcess(child, None),) if isinstance(held, str) else held
    full = _free(0, used=8 * GIB, processes=processes)
    assert backend(ALL, **full, own_pids=frozenset({child})).one("gpu-memory").severity == "warning"


def test_what_the_driver_reserves_is_not_free(backend: Check, needed: int) -> None:
    gpu = Gpu(0, None, "GPU-0", None, None, 0, 8 * GIB, needed - 1, processes=())
    assert backend(ALL, gpus=Gpus((gpu,))).one("gpu-memory").severity == "error"


@pytest.mark.parametrize(("limit", "kept"), [("16", 16), ("0", 0), ("8192", 50), ("-1", 50)])
def test_on_a_cpu_the_context_that_fits_leaves_room_for_the_prompt_cache(
    limit: str, kept: int, models: dict[str, str], context: Circumstances, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most half of it: llama.cpp lowers the limit itself where memory runs out."""

    def fitting(mib: int, limit: str) -> int:
        monkeypatch.setattr(machine, "free_in_main", lambda _: mib * MIB)
        return machine.fitting_context(
            plan({"LLAMA_MODEL": models["llama"], "LLAMA_ARG_CACHE_RAM": limit}, context),
        )

    assert 0 < fitting(100, limit) == fitting(100 - kept, "0")
    assert fitting(100_000, limit) == read_facts(models["llama"]).context_length
