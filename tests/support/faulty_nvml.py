"""A stand-in for the `pynvml` module: GPUs that can be broken, since no healthy driver gives faults."""

from types import FunctionType, SimpleNamespace
from typing import Any

import pynvml


class FaultyNvml:
    """Behaves like `pynvml` with GPUs; `faults` maps a function name to the error that it raises."""

    NVMLError = pynvml.NVMLError
    nvmlMemory_v2 = pynvml.nvmlMemory_v2  # noqa: N815
    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM
    NVML_CLOCK_MEM = pynvml.NVML_CLOCK_MEM
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU

    def __init__(self, gpus: int = 1) -> None:
        self.gpus = gpus
        self.faults: dict[str, int] = {}
        self.lost: set[int] = set()
        self.calls: list[str] = []
        self.sessions = 0
        self.values: dict[str, Any] = {}
        """Answers instead of the usual ones, by function; one that differs between GPUs is a function of its index."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVMLError_"):
            return getattr(pynvml, name)
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            if name in self.faults:
                raise pynvml.NVMLError(self.faults[name])
            if arguments and arguments[0] in self.lost and name.startswith("nvmlDeviceGet"):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
            return self.answer(name, arguments, options)

        return call

    def answer(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if name in ("nvmlInit", "nvmlShutdown"):
            self.sessions += 1 if name == "nvmlInit" else -1
        if name == "nvmlDeviceGetMemoryInfo":
            assert options == {"version": pynvml.nvmlMemory_v2}
        if name in self.values:
            given = self.values[name]
            return given(*arguments) if isinstance(given, FunctionType) else given
        return {
            "nvmlDeviceGetCount": self.gpus,
            "nvmlSystemGetDriverVersion": "575.1",
            "nvmlDeviceGetHandleByIndex": arguments[0] if arguments else None,
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=75, memory=20),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=10 << 30, total=80 << 30, free=69 << 30),
            "nvmlDeviceGetPowerUsage": 250_500,
            "nvmlSystemGetCudaDriverVersion": 12080,
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetClockInfo": 1500,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
            "nvmlDeviceGetComputeRunningProcesses": [
                SimpleNamespace(pid=10, usedGpuMemory=1 << 30),
                SimpleNamespace(pid=11, usedGpuMemory=None),
            ],
        }.get(name)
