"""NVML behind one small class: a reading is a value, or None together with a note that says why."""

from __future__ import annotations

import importlib
from typing import Any


class Nvml:
    """NVIDIA's management library, opened once. Losing it, or any part of it, never raises.

    ``module`` replaces ``pynvml`` in tests. ``notes`` collects one line per thing that was not available.
    """

    def __init__(self, module: Any | None = None) -> None:
        self.notes: list[str] = []
        self._module = self._open(module)

    def _open(self, module: Any | None) -> Any | None:
        try:
            module = module if module is not None else importlib.import_module("pynvml")
        except ImportError:
            self.notes.append("NVML: not available (nvidia-ml-py is not installed)")
            return None
        try:
            module.nvmlInit()
        except module.NVMLError as error:
            self.notes.append(f"NVML: not available ({_reason(error)})")
            return None
        return module

    @property
    def available(self) -> bool:
        return self._module is not None

    def ask(self, what: str, function: str, *arguments: Any) -> Any | None:
        """Returns what NVML's ``function`` returns, or None and leaves one note about ``what``."""
        if self._module is None:
            return None
        try:
            return getattr(self._module, function)(*arguments)
        except (self._module.NVMLError, AttributeError) as error:  # AttributeError: an older nvidia-ml-py
            self.note(what, _reason(error))
            return None

    def note(self, what: str, reason: str) -> None:
        """Records once that ``what`` is not available."""
        line = f"NVML {what}: not available ({reason})"
        if line not in self.notes:
            self.notes.append(line)

    def handle(self, uuid: str) -> Any | None:
        """The device with this UUID: NVML counts devices differently from CUDA, so an index would name another one."""
        return self.ask("device", "nvmlDeviceGetHandleByUUID", full_uuid(uuid))

    def handles(self) -> list[Any]:
        """All devices this machine shows, in NVML's order."""
        count = self.ask("devices", "nvmlDeviceGetCount") or 0
        handles = (self.ask("device", "nvmlDeviceGetHandleByIndex", index) for index in range(count))
        return [handle for handle in handles if handle is not None]


def full_uuid(uuid: str) -> str:
    """``uuid`` as NVML spells it: torch leaves out the ``GPU-`` in front."""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _reason(error: Exception) -> str:
    return "this nvidia-ml-py lacks the call" if isinstance(error, AttributeError) else str(error).lower().rstrip(".")
