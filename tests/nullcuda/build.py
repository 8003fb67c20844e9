"""Makes the interpreter whose GPU is null: ``python -m tests.nullcuda.build`` fetches, builds and prints its path.

It is a virtual environment over this one, with two things before it: the CUDA build of the same torch (PyPI's wheel,
526 MB, kept in the cache), and libraries made from ``src`` in place of CUDA's. What torch wants of them and ``src``
does not define returns 0. Every process of this interpreter runs ``start`` first.
"""

import functools
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections import defaultdict
from importlib import metadata
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "src"
CACHE = Path(os.environ.get("ZOBENCH_TEST_CACHE") or ROOT / ".cache").absolute() / "nullcuda"
VERSION = metadata.version("torch").partition("+")[0]
TORCH = CACHE / f"torch-{VERSION}-cp{sys.version_info.major}{sys.version_info.minor}"

PARTS = {
    "libcudart.so.13": ("memory", "streams", "devices", "kernels"),
    "libcuda.so.1": ("driver",),
    "libcublas.so.13": ("libraries",),
    "libcublasLt.so.13": ("libraries",),
    "libcudnn.so.9": ("libraries",),
    "libnccl.so.2": ("nccl",),
    "libnvidia-ml.so.1": ("nvml",),
}
"""Library -> the sources that define a part of it."""
BY_NAME = {
    "libnccl.so.2": r"nccl",
    "libcufile.so.0": r"cuFile",
    "libcusparseLt.so.0": r"cusparseLt",
    "libcurand.so.10": r"curand",
    "libcuda.so.1": r"cu(?!File)[A-Z]",
}
"""Libraries whose symbols carry no version, and how their names begin."""


def missing() -> str:
    """What this machine lacks to build it; empty if nothing."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return "the null CUDA runtime needs Linux on x86-64"
    if not shutil.which("gcc") or not shutil.which("nm"):
        return "the null CUDA runtime needs gcc and binutils"
    if importlib.util.find_spec("triton") is None:
        return "the null CUDA runtime needs triton, which brings CUDA's headers"
    if not (TORCH / "torch").is_dir():
        return "the null CUDA runtime needs the CUDA build of torch: run `make nullcuda` once"
    return ""


def fetch() -> None:
    """Unpacks the CUDA build of this torch into the cache, without what it requires. 526 MB, once."""
    with FileLock(CACHE.with_name("nullcuda.lock")):
        if (TORCH / "torch").is_dir():
            return
        partial = TORCH.with_name(f"{TORCH.name}.partial")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", str(partial)]
        subprocess.run([*pip, f"torch==={VERSION}"], check=True)  # === takes no other build, such as +cpu
        partial.rename(TORCH)


def interpreter() -> Path:
    """The interpreter, built if its sources changed. Raises ``RuntimeError`` with what is missing."""
    if lacks := missing():
        raise RuntimeError(lacks)
    text = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir())) + Path(__file__).read_bytes()
    folder = CACHE / hashlib.sha256(text + str((ROOT, sys.prefix)).encode()).hexdigest()[:12]
    with FileLock(CACHE.with_name("nullcuda.lock")):
        if not (folder / "done").exists():
            _build_libraries(folder / "lib")
            _make_environment(folder)
            (folder / "done").touch()
    return folder / "bin" / "python"


def _make_environment(folder: Path) -> None:
    venv.create(folder, symlinks=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    paths = [TORCH, ROOT, sysconfig.get_path("purelib")]
    (site / "nullcuda.pth").write_text("\n".join([*map(str, paths), "import tests.nullcuda.start", ""]))


def _build_libraries(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    headers = Path(str(importlib.util.find_spec("triton").origin)).parent / "backends" / "nvidia" / "include"
    for source in SOURCES.glob("*.c"):
        options = [
            "-O1",
            "-g",
            "-fPIC",
            "-w",
            f"-I{headers}",
            "-c",
            str(source),
            "-o",
            str(folder / f"{source.stem}.o"),
        ]
        _gcc(folder, *options)
    wanted = _wanted()
    for library in sorted(wanted.keys() | PARTS.keys()):
        _link(folder, library, wanted.get(library, {}))


def _wanted() -> dict[str, dict[str, str]]:
    """Library -> {symbol that torch wants of it: the version it is wanted in, or ""}."""
    libraries = sorted(map(str, (TORCH / "torch" / "lib").glob("*.so*")))
    listed = subprocess.run(["nm", "-D", "--undefined-only", *libraries], capture_output=True, text=True, check=True)
    wanted: dict[str, dict[str, str]] = defaultdict(dict, {library: {} for library in BY_NAME})
    for name, version in re.findall(r" U (\w+)(?:@+([\w.-]+))?$", listed.stdout, re.MULTILINE):
        if version == "NVSHMEM":
            wanted["libnvshmem_host.so.3"][name] = version
        elif version.startswith(("libcu", "libnv")):
            wanted[version][name] = version
        elif not version:
            for library, beginning in BY_NAME.items():
                if re.match(beginning, name):
                    wanted[library][name] = ""
    return wanted


def _link(folder: Path, library: str, wanted: dict[str, str]) -> None:
    """A library of the sources' functions and, for what they lack, of functions that return 0."""
    objects = [str(folder / f"{part}.o") for part in PARTS.get(library, ())]
    have = set[str]()
    if objects:
        listed = subprocess.run(["nm", "--defined-only", *objects], capture_output=True, text=True, check=True)
        have = set(re.findall(r" [TB] (\w+)$", listed.stdout, re.MULTILINE))
    empty = [f".globl {n}\n.type {n},@function\n{n}: xorl %eax, %eax\nret\n" for n in sorted(wanted.keys() - have)]
    assembly = folder / f"{library}.s"
    assembly.write_text("".join([".text\n", *empty, '.section .note.GNU-stack,"",@progbits\n']))
    options = ["-shared", "-o", str(folder / library), str(assembly), *objects, f"-Wl,-soname,{library}", "-lpthread"]
    if version := next(iter(wanted.values()), ""):
        script = folder / f"{library}.map"
        script.write_text(f"{version} {{ global: *; }};\n")
        options.append(f"-Wl,--version-script={script}")
    _gcc(folder, *options)


def _gcc(folder: Path, *options: str) -> None:
    done = subprocess.run(["gcc", *options], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"gcc failed:\n{done.stderr}")


@functools.cache
def libraries(prefix: str) -> tuple[Path, ...]:
    """The built libraries, the runtime first, which others use."""
    built = sorted(Path(prefix, "lib").glob("*.so.*"))
    return tuple(
        sorted((path for path in built if path.suffix not in (".s", ".map")), key=lambda p: "cudart" not in p.name)
    )


if __name__ == "__main__":
    fetch()
    print(interpreter())
