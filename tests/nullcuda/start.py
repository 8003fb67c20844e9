"""What each process of the interpreter with a null GPU does first: loads the null libraries, arms torch and Triton.

Nothing is imported here that a process would not import by itself: torch and Triton are changed when they are loaded.
"""

import ctypes
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable
from types import ModuleType

LIBRARIES = os.path.join(sys.prefix, "lib")


def load_libraries() -> None:
    """Loads all of them: the loader takes a library that is there by its name, wherever torch would look for it."""
    names = [name for name in os.listdir(LIBRARIES) if ".so." in name and not name.endswith((".s", ".map"))]
    for name in sorted(names, key=lambda name: "cudart" not in name):
        ctypes.CDLL(os.path.join(LIBRARIES, name), mode=ctypes.RTLD_GLOBAL)


def arm_torch(torch: ModuleType) -> None:
    from tests.nullcuda import values

    values.begin()


def arm_triton(driver: ModuleType) -> None:
    from tests.nullcuda import launches

    launches.watch(driver)


ARMED: dict[str, Callable[[ModuleType], None]] = {"torch": arm_torch, "triton.backends.nvidia.driver": arm_triton}


class Finder(importlib.abc.MetaPathFinder):
    """Calls what ``ARMED`` says right after a module was loaded."""

    def find_spec(self, name, path=None, target=None):
        if name not in ARMED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def loaded(module: ModuleType) -> None:
                load(module)
                ARMED[name](module)

            spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


load_libraries()
os.environ["TRITON_LIBCUDA_PATH"] = LIBRARIES
sys.meta_path.insert(0, Finder())
