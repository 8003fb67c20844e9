"""A stand-in for pynvml: one GPU whose readings a test sets, and whose calls a test makes fail."""

from types import SimpleNamespace


class NVMLError(Exception):
    pass


class FakeNvml:
    NVMLError = NVMLError

    def __init__(self, *, fail=(), init_error=None, processes=None, throttle=0x4):
        self.fail, self.init_error = set(fail), init_error
        self.process_bytes = {} if processes is None else processes
        self.throttle, self.energy, self.uuids = throttle, 1_000_000, []

    def nvmlInit(self):  # noqa: N802
        if self.init_error:
            raise NVMLError(self.init_error)

    def _answer(self, name, value):
        if name in self.fail or "all" in self.fail:
            raise NVMLError("Not Supported")
        return value

    def __getattr__(self, name):
        values = {
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetHandleByUUID": self._by_uuid,
            "nvmlDeviceGetName": lambda handle: "NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=5 * 10**9, total=150 * 10**9),
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
                SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.process_bytes.items()
            ],
            "nvmlDeviceGetPowerUsage": lambda handle: 250_000,
            "nvmlDeviceGetTotalEnergyConsumption": self._energy,
            "nvmlDeviceGetClockInfo": lambda handle, kind: 1500 + kind,
            "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: self.throttle,
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda handle: 4,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda handle: 5,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda handle: 8,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda handle: 16,
        }
        if name not in values:
            raise AttributeError(name)
        return lambda *arguments: self._answer(name, values[name](*arguments))

    def _by_uuid(self, uuid):
        self.uuids.append(uuid)
        return 0

    def _energy(self, handle):
        self.energy += 5_000
        return self.energy
