"""A GGUF file as a folder of transformers: converted once, through transformers' own reader, and kept; or described,
its weights left where they are."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zobench.machine.files import locked
from zobench.machine.texts import first_line, reporting
from zobench.models import cache, identity

MAGIC = b"GGUF"


def converted(file: Path) -> Path:
    """The folder of what ``file`` holds: its model in float32 as safetensors, and its tokenizer.

    The first call converts it, which takes about 40 s for 135 M parameters on 2 cores, and says so on stderr; another
    process that wants the same file waits. Raises ``ValueError`` for a file that is no GGUF or of an architecture that
    transformers cannot read, and ``ImportError`` without the package ``gguf``.
    """
    return _kept(file, "", _convert)


def described(file: Path) -> Path:
    """A folder with the configuration and the tokenizer of what ``file`` holds, and a link to the file: its weights are
    read where they lie. Raises as :func:`converted`."""
    return _kept(file, "-as-it-lies", _describe)


def _kept(file: Path, suffix: str, make: Callable[[Path, Path], None]) -> Path:
    """The folder that ``make`` fills, if it is not there, whole or not at all."""
    with file.open("rb") as opened:
        if opened.read(4) != MAGIC:
            raise ValueError(f"{file} must be a GGUF file, but does not begin as one; download it again")
    folder = cache.root() / "models" / f"{file.stem}-{identity.file_hash(file)}{suffix}"
    if _leads(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f".{folder.name}.lock")):
        if not _leads(folder):
            shutil.rmtree(folder, ignore_errors=True)  # its link led to a file that was moved
            if importlib.util.find_spec("gguf") is None:
                raise ImportError(
                    f"{file.name} needs the package gguf, but it is not installed; pip install 'zobench[gguf]'"
                )
            _make(file, folder, make)
    return folder


def _leads(folder: Path) -> bool:
    """Whether the folder is there, and what its link leads to, if it has one."""
    link = folder / identity.GGUF
    return folder.is_dir() and (link.exists() or not link.is_symlink())


def _make(file: Path, folder: Path, make: Callable[[Path, Path], None]) -> None:
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        with _without_bars():
            make(file, temporary)
            _write_tokenizer(file, temporary)
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _convert(file: Path, folder: Path) -> None:
    begin, target = time.monotonic(), cache.root() / "models" / f"{file.stem}-{identity.file_hash(file)}"
    _say(f"{file.name}: converting it to safetensors, once; they will be in {target}")
    with reporting(_say, f"{file.name}: converting"):
        _write_model(file, folder)
    _say(f"{file.name}: converted in {time.monotonic() - begin:.0f} s")


def _describe(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with refusing(file), torch.device("meta"):
        identity.check_layers(config := AutoConfig.from_pretrained(str(file.parent), gguf_file=file.name))
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    (folder / identity.GGUF).symlink_to(file.resolve())


@contextmanager
def refusing(file: Path) -> Iterator[None]:
    """Turns whatever transformers' reader raises inside the block into a ``ValueError`` of one line."""
    try:
        yield
    except Exception as error:  # on a file that was cut off it fails with whatever its place is
        if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:  # not the file's fault
            raise
        raise ValueError(
            f"transformers must be able to read {file.name}, but cannot ({first_line(error)}); download it again, or "
            "give the model's folder of safetensors"
        ) from error


@contextmanager
def _without_bars() -> Iterator[None]:
    """Hides transformers' own progress bars inside the block: a line of zobench's says what happens."""
    from transformers import modeling_gguf_pytorch_utils
    from transformers.utils import logging as transformers_logging

    reader: Any = modeling_gguf_pytorch_utils
    logging: Any = transformers_logging
    shown, bar = logging.is_progress_bar_enabled(), reader.tqdm
    logging.disable_progress_bar()
    reader.tqdm = lambda items, **_: items
    try:
        yield
    finally:
        reader.tqdm = bar
        if shown:
            logging.enable_progress_bar()


def _write_model(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with refusing(file):
        identity.check_layers(AutoConfig.from_pretrained(str(file.parent), gguf_file=file.name))
        read: Any = AutoModelForCausalLM.from_pretrained(
            str(file.parent), gguf_file=file.name, dtype=torch.float32, output_loading_info=True
        )
    model, report = read
    if absent := sorted(report["missing_keys"]):  # transformers would draw them at random
        raise ValueError(f"{file.name} must hold all tensors of its model, but lacks {absent[0]}; download it again")
    model.hf_quantizer, model.is_quantized = None, False  # it was quantised in the file, and is not any more
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)


def _write_tokenizer(file: Path, folder: Path) -> None:
    """Writes the file's tokenizer. Without one the model can still be measured; a run with a task says what it
    lacks."""
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name).save_pretrained(folder)
    except (ValueError, OSError, ImportError, NotImplementedError, KeyError) as error:
        _say(f"{file.name}: its tokenizer cannot be read ({first_line(error)})")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
