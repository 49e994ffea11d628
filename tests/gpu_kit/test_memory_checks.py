"""The kit's checks of memory and doctor: what they read, that they fail where they should, and the dry run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpu import loading
from gpu.checks import doctor, fit
from gpu.kit import Kit, free_port
from gpu.loading import MIB, buffers, with_context
from gpu.report import Report, Result
from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from specdash.cli.main import main
from specdash.llama.gguf import read_facts
from support.engines import llama_server_binary
from support.faulty_nvml import FaultyNvml

if TYPE_CHECKING:
    from collections.abc import Callable


LOG = """\
0.1 I load_tensors:   CPU_Mapped model buffer size =     0.20 MiB
0.1 I load_tensors:        CUDA0 model buffer size =   100.00 MiB
0.2 I llama_context:  CUDA_Host  output buffer size =     4.00 MiB
0.2 I llama_kv_cache:      CUDA0 KV buffer size =    12.00 MiB
0.2 I llama_kv_cache:      CUDA0 KV buffer size =     3.00 MiB
0.3 I sched_reserve:      CUDA0 compute buffer size =    50.00 MiB
0.3 I sched_reserve:  CUDA_Host compute buffer size =     8.00 MiB
0.4 I load_tensors:        CUDA0 model buffer size =    10.00 MiB
0.5 I llama_context:  CUDA_Host  output buffer size =     1.00 MiB
0.5 I llama_kv_cache:      CUDA0 KV buffer size =     2.00 MiB
0.6 I sched_reserve:      CUDA0 compute buffer size =    20.00 MiB
0.7 I sched_reserve:      CUDA0 compute buffer size =    40.00 MiB
"""
"""With a draft whose graph is reserved again; the format is that of llama-context.cpp b11434."""
SMI = """\
#!/bin/sh
case "$1" in
--query-gpu*) echo "NVIDIA H200, 575.1, 81920, 9.0" ;;
*) echo "| NVIDIA-SMI 575.1    Driver Version: 575.1    CUDA Version: 12.8 |" ;;
esac
"""


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report(tmp_path / "report.json", "x", "x")


def _failures(report: Report) -> list[str]:
    return [finding.what for finding in report.findings if finding.result is Result.FAILED]


def test_buffers_are_added_up_by_part_and_a_graph_reserved_again_counts_once() -> None:
    found = buffers(LOG)
    assert found.gpu == {"weights": 110 * MIB, "KV cache": 17 * MIB, "compute": 90 * MIB}
    assert found.host == {"weights": int(0.2 * MIB), "output": 5 * MIB, "compute": 8 * MIB}


def test_a_model_can_be_said_to_be_trained_on_more(tmp_path: Path) -> None:
    source = bundled_model(TARGET_MODEL)
    longer = read_facts(with_context(source, tmp_path / "longer.gguf", 1 << 22))
    assert longer.context_length == 1 << 22
    assert longer.tensors == read_facts(source).tensors
    with pytest.raises(ValueError, match="no context_length"):
        with_context(_written(tmp_path / "other", "GGUF"), tmp_path / "none.gguf", 1)


@pytest.mark.parametrize(
    ("part", "ours", "real", "holds"),
    [
        ("weights", 100, 100, True),
        ("weights", 98, 100, False),
        ("KV cache", 102, 100, False),
        ("compute", 145, 100, True),
        ("compute", 80, 100, False),
        ("compute", 160, 100, False),
    ],
)
def test_a_part_fails_where_it_is_not_what_loaded(part: str, ours: int, real: int, holds: bool, report: Report) -> None:
    fit._judge_part(report, part, part, ours * MIB, real * MIB)
    assert bool(_failures(report)) is not holds


@pytest.mark.parametrize(("taken", "holds"), [(10_000, True), (12_000, False), (7_000, False)])
def test_the_whole_fails_where_the_gpu_gave_more_or_much_less(taken: int, holds: bool, report: Report) -> None:
    fit._judge_whole(report, "x", {"gpus": 1, "needed_bytes": 10_000 * MIB}, taken * MIB)
    assert bool(_failures(report)) is not holds


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What doctor says on an injected H200, with a scripted nvidia-smi on PATH."""
    nvml = FaultyNvml()
    nvml.values.update({"nvmlSystemGetCudaDriverVersion": 12080, "nvmlDeviceGetCudaComputeCapability": (9, 0)})
    monkeypatch.setattr("specdash.collect.gpu._import_nvml", lambda: nvml)
    _written(tmp_path / "bin" / "nvidia-smi", SMI).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert main(["doctor", "--json", "--url", f"127.0.0.1:{free_port()}"]) == 4
    return json.loads(capsys.readouterr().out)


def test_doctor_says_of_a_gpu_what_nvidia_smi_says(told: Any, report: Report) -> None:
    doctor.judge_gpus(report, told["gpu"], doctor.smi_gpus(), doctor.smi_cuda())
    doctor.judge_advice(report, told, cpu=False)
    assert len(report.findings) == 9
    assert not _failures(report)


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        (lambda gpu: gpu.update(driver="1.0"), "doctor names the driver"),
        (lambda gpu: gpu.update(cuda="11.0"), "doctor names the driver's CUDA version"),
        (lambda gpu: gpu.update(count=2), "doctor names as many GPUs"),
        (lambda gpu: gpu["devices"][0].update(memory_bytes=1 << 30), "doctor names its memory"),
        (lambda gpu: gpu["devices"][0].update(compute="8.0"), "doctor names its compute capability"),
        (lambda gpu: gpu["devices"][0].update(name="T4"), "doctor names the GPU"),
    ],
)
def test_what_doctor_gets_wrong_is_a_failure(
    change: Callable[[dict[str, Any]], None], failure: str, told: Any, report: Report
) -> None:
    change(told["gpu"])
    doctor.judge_gpus(report, told["gpu"], doctor.smi_gpus(), doctor.smi_cuda())
    assert _failures(report) == [failure]


def test_an_engine_that_doctor_takes_for_another_is_a_failure(report: Report) -> None:
    listed = "Available devices:\n  CUDA0: NVIDIA H200 (143156 MiB, 142000 MiB free)\n"
    device = {"name": "CUDA0", "description": "NVIDIA H200", "total_bytes": 143156 * MIB, "free_bytes": 1}
    right = {"cuda_build": True, "evidence": "", "devices": [device], "uses_gpu": True, "verdict": ""}
    doctor.judge_engine(report, right, listed, 1)
    assert not _failures(report)
    doctor.judge_engine(report, {**right, "devices": [], "uses_gpu": False}, listed, 1)
    assert len(_failures(report)) == 2


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    """The bundled models under the kit's names, as small as they are."""
    made = Kit(tmp_path / "kit", tmp_path / "work", tmp_path, Path(llama_server_binary()), cpu=True, scale=0.02)
    (tmp_path / "kit" / "models").mkdir(parents=True)
    (tmp_path / "kit" / "models" / "target.gguf").symlink_to(bundled_model(TARGET_MODEL))
    (tmp_path / "kit" / "models" / "draft.gguf").symlink_to(bundled_model(DRAFT_MODEL))
    for size in ("0.25", "1"):
        long = tmp_path / "work" / "long" / "models" / f"target-{size}gb.gguf"
        with_context(bundled_model(TARGET_MODEL), long, fit.LONG)
    return made


@pytest.mark.llama_server
@pytest.mark.slow
def test_a_projection_that_forgets_the_cache_fails_on_the_real_engine(
    kit: Kit, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = loading.projected

    def forgetful(*words: Any) -> Any:
        said = whole(*words)
        for row in said["memory"]["parts"]:
            if row["what"] == "KV cache":
                row["host_bytes"] //= 2
        return said

    monkeypatch.setattr(fit, "projected", forgetful)
    fit._parts(kit, report, fit.CASES[0])
    assert _failures(report) == [f"{fit.CASES[0].name}: KV cache"]


@pytest.mark.engine
@pytest.mark.slow
def test_the_other_engine_loads_what_is_projected_too(kit: Kit, tmp_path: Path) -> None:
    home, model, log = kit.home("other"), bundled_model(TARGET_MODEL), tmp_path / "engine.log"
    keys = {"LLAMA_ENGINE": "xllamacpp", "LLAMA_BIN": "", "LLAMA_LOG_VERBOSITY": "4", "LLAMA_ARG_FIT": "off"}
    keys |= {"LLAMA_CTX_SIZE": "32768", "LLAMA_PARALLEL": "2", "LLAMA_SPEC_TYPE": "none"}
    file = kit.env_file(home, "backend.env", **keys, LLAMA_MODEL=model)
    said = loading.projected(kit, home, file, "none", model, None)["memory"]
    words = [sys.executable, "-m", "specdash", "backend", "run", "--env-file", str(file), "--log-file", str(log)]
    process = subprocess.Popen(words, env=kit.environment(home), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            if log.exists() and "compute buffer size" in log.read_text("utf-8", "replace"):
                break
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.1)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    real = buffers(log.read_text("utf-8", "replace")).host
    ours = {row["what"]: row["host_bytes"] for row in said["parts"]}
    assert ours["KV cache"] == real["KV cache"]
    assert abs(ours["weights"] - real["weights"]) < MIB / 10
    assert 0.9 * real["compute"] < ours["compute"] < 1.5 * real["compute"]


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
