"""The checks on changes: what they judge, and their parts for a GPU on the real engine with an injected NVML."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gpu.checks import apply, energy, tune
from gpu.kit import Answer, Kit
from gpu.report import Report, Result
from specdash.backend import demo
from specdash.bench.compare.machine import MachineState
from specdash.system.processes import age_s
from support.engines import llama_server_binary
from support.faulty_nvml import FaultyNvml

GIB = 1 << 30
WATTS = 300
LOADS_S = 0.9
SHIM = """
import sys
import time
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

# The real module first, since the stand-in is made of it; whoever imports this one gets the stand-in.
spec = PathFinder.find_spec("pynvml", [one for one in sys.path if one != {here!r}])
sys.modules["pynvml"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["pynvml"])
sys.path.append({tests!r})
from support.faulty_nvml import FaultyNvml

nvml = FaultyNvml()
nvml.values["nvmlDeviceGetUtilizationRates"] = type("Rates", (), {{"gpu": 0, "memory": 0}})
nvml.values["nvmlDeviceGetPowerUsage"] = {watts} * 1000
nvml.values["nvmlDeviceGetTotalEnergyConsumption"] = lambda gpu: time.monotonic() * {watts} * 1000
sys.modules["pynvml"] = nvml
"""
"""A `pynvml` for the commands that a check starts: one GPU that takes the same power all the time."""


def metered(speed: float = 1.0) -> FaultyNvml:
    """A GPU of constant power, whose energy counter goes `speed` times as fast as it should."""
    nvml = FaultyNvml()
    nvml.values["nvmlDeviceGetPowerUsage"] = WATTS * 1000
    nvml.values["nvmlDeviceGetTotalEnergyConsumption"] = lambda _gpu: time.monotonic() * WATTS * 1000 * speed
    return nvml


@pytest.fixture
def bare(tmp_path: Path) -> Kit:
    """A kit of the bundled models, in any size, without an engine."""
    for folder in ("kit/models", "work/models", "out"):
        (tmp_path / folder).mkdir(parents=True)
    for name, bundled in (("target", demo.TARGET_MODEL), ("draft", demo.DRAFT_MODEL)):
        (tmp_path / f"kit/models/{name}.gguf").symlink_to(demo.bundled_model(bundled))
    for size in (apply.SIZE_GB, tune.SIZE_GB):
        (tmp_path / f"work/models/target-{size}gb.gguf").symlink_to(demo.bundled_model(demo.TARGET_MODEL))
    return Kit(tmp_path / "kit", tmp_path / "work", tmp_path / "out", tmp_path / "none", cpu=True, scale=0.02)


@pytest.fixture
def kit(bare: Kit) -> Kit:
    """The same with the real engine."""
    return replace(bare, llama_server=Path(llama_server_binary()))


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report(tmp_path / "check.json", "check", "a check")


def said(report: Report, result: Result) -> list[str]:
    return [finding.what for finding in report.findings if finding.result is result]


def test_power_is_averaged_over_time_and_not_over_looks() -> None:
    looks = [MachineState(at, watts=watts) for at, watts in ((0.0, 100.0), (1.0, 100.0), (1.1, 300.0), (5.0, 300.0))]
    assert energy.mean_watts(looks) == pytest.approx((100 + 20 + 3.9 * 300) / 5)
    assert energy.mean_watts([MachineState(0.0), MachineState(1.0)]) is None
    assert energy.mean_watts(looks[:1]) is None


def test_energy_of_some_seconds_is_counted_and_sampled() -> None:
    def ask() -> int:
        time.sleep(0.05)
        return 10

    spent = energy.spend(ask, 0.3, metered())
    assert spent.tokens >= 10
    assert spent.counted_joules == pytest.approx(WATTS * spent.seconds, rel=0.2)
    assert spent.sampled_joules == pytest.approx(WATTS * spent.seconds)
    assert spent.joules_per_token == pytest.approx((spent.counted_joules or 0) / spent.tokens)
    assert energy.spend(ask, 0.1, FaultyNvml(gpus=0)).joules_per_token is None


@pytest.mark.slow
@pytest.mark.llama_server
def test_counter_and_power_that_agree_pass_and_others_do_not(kit: Kit, report: Report) -> None:
    energy.measure(kit, report, metered(), window_s=1.0)
    assert not said(report, Result.FAILED)
    joules = [finding.measured for finding in report.findings if finding.unit == "J/token"]
    assert len(joules) == 2
    assert all(joule > 0 for joule in joules)
    wrong = replace(report, findings=[])
    energy.measure(kit, wrong, metered(1.2), window_s=1.0)
    assert len(said(wrong, Result.FAILED)) == 2
    assert all("agree" in name for name in said(wrong, Result.FAILED))


def test_a_driver_that_tells_no_energy_is_said_to(bare: Kit, report: Report) -> None:
    energy.measure(bare, report, FaultyNvml(gpus=0))
    assert said(report, Result.FAILED) == ["the driver tells the energy"]
    assert report.findings[0].note == "NVML shows no GPU"


def applied(*memory: float) -> apply.Seen:
    """An apply during which so many GiB were in use."""
    return apply.Seen(Answer(0, "", ""), {}, 0.0, tuple(int(value * GIB) for value in memory))


@pytest.mark.parametrize(
    ("memory", "failed"),
    [
        ((9, 1, 1, 5, 9), []),
        ((9, 1, 9.2), ["an apply leaves the GPU's memory as it was"]),
        ((9, 1, 9.5, 9), ["the old engine's memory is gone before the new one loads"]),
        ((9, 5, 9), ["an apply gives the whole model's memory back first"]),
    ],
)
def test_two_engines_at_once_and_memory_that_stays_are_seen(
    memory: tuple[float, ...], failed: list[str], bare: Kit, report: Report
) -> None:
    model = bare.model("target", apply.SIZE_GB)
    model.unlink()
    with model.open("wb") as file:
        file.truncate(8 * GIB)
    apply._judge_memory(bare, report, [applied(9, 1, 9), applied(*memory)])
    assert said(report, Result.FAILED) == failed


@pytest.mark.slow
@pytest.mark.llama_server
def test_applies_on_the_real_engine_with_memory_that_follows_its_processes(kit: Kit, report: Report) -> None:
    def used(_gpu: int) -> Any:
        """A GiB for every engine of ours; like a real one, it takes its memory a while after its start."""
        engines = 0
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or [""]
            ours = words[0] == str(kit.llama_server) and str(kit.work) in " ".join(words)
            # Its age by the kernel's ticks: the time of boot that psutil adds may be a second off.
            engines += ours and (age_s(process.pid) or 0.0) > LOADS_S
        return SimpleNamespace(used=GIB * (1 + engines), total=80 * GIB, free=GIB)

    nvml = FaultyNvml()
    nvml.values["nvmlDeviceGetMemoryInfo"] = used
    apply.measure(kit, report, nvml)
    assert not said(report, Result.FAILED)
    passed = said(report, Result.PASSED)
    assert "the old engine's memory is gone before the new one loads" in passed
    assert "nothing stays on the GPU once the services are gone" in passed
    assert "no request through the proxy failed" in passed
    assert "`applies --json` has what every apply said of itself" in passed


def told(*, improved: bool) -> dict[str, Any]:
    """As the tuner reports."""
    start = {"settings": [], "speed": 10.0, "against_the_start": None}
    slow = {"settings": [["A", "1"]], "speed": 9.0, "against_the_start": {"gain": -0.1, "low": -0.2, "high": 0.0}}
    fast = {"settings": [["A", "2"]], "speed": 11.0, "against_the_start": {"gain": 0.1, "low": -0.1, "high": 0.3}}
    outcome = {"improved": improved, "gain": 0.2, "low": 0.1, "high": 0.3}
    settings = [["LLAMA_DRAFT_MAX", ""], ["LLAMA_SPEC_TYPE", "none"]] if improved else []
    return {"boots": [start, slow, fast], "end": {"outcome": outcome, "settings": settings}}


def test_what_is_compared_is_what_the_tuner_recommends_or_the_fastest_others() -> None:
    found = tune.advice_of(told(improved=True))
    assert found is not None
    assert (found.words, found.gain) == ("LLAMA_DRAFT_MAX=,LLAMA_SPEC_TYPE=none", 0.2)
    found = tune.advice_of(told(improved=False))
    assert found is not None
    assert (found.improved, found.words, found.low) == (False, "A=2", -0.1)
    assert tune.advice_of({**told(improved=False), "boots": []}) is None


def test_intervals_agree_where_they_have_a_value_in_common() -> None:
    assert tune.overlap((0.0, 0.2), (0.2, 0.5))
    assert not tune.overlap((0.0, 0.2), (0.3, 0.5))
    assert not tune.overlap((0.3, 0.5), (0.0, 0.2))


@pytest.mark.slow
@pytest.mark.llama_server
@pytest.mark.timeout(300)
def test_tuning_for_tokens_per_joule_with_a_counter_ends_with_a_verdict(
    kit: Kit, report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim, tests = tmp_path / "shim", Path(__file__).parents[1]
    shim.mkdir()
    (shim / "pynvml.py").write_text(SHIM.format(here=str(shim), tests=str(tests), watts=WATTS), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(shim), *filter(None, [os.environ.get("PYTHONPATH")])]))
    # pynvml is imported only where the driver's library can be opened: any library will do.
    any_library = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line)
    (shim / "libnvidia-ml.so.1").symlink_to(any_library)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(shim))
    monkeypatch.setattr(tune, "ENERGY_S", 1.0)
    tune.tune_per_watt(kit, report, tune.settings_file(kit), tune.CPU, metered())
    # What is recommended from so little on a busy machine may be wrong; everything else may not.
    assert not [name for name in said(report, Result.FAILED) if "is one" not in name]
    assert "tune for per-watt ends with a verdict" in said(report, Result.PASSED)
    per_joule = next(finding for finding in report.findings if finding.what.startswith("per-watt at the start"))
    direct = next(finding for finding in report.findings if finding.what.startswith("joules a token at the start"))
    assert per_joule.unit == "tok/J"
    # Other prompts, and with the time of the prompts; millijoules would be a thousand times as many.
    assert 0.1 < per_joule.measured * direct.measured < 10
