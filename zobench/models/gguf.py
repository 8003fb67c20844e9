"""A GGUF file as a folder of transformers: converted once, through transformers' own reader, and kept."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zobench.machine.errors import first_line
from zobench.machine.locks import locked
from zobench.models import cache, identity

MAGIC = b"GGUF"


def converted(file: Path) -> Path:
    """The folder of what ``file`` holds: its model in float32 as safetensors, and its tokenizer.

    The first call converts it, which takes about 40 s for 135 M parameters on 2 cores, and says so on stderr; another
    process that wants the same file waits. Raises ``ValueError`` for a file that is no GGUF or of an architecture that
    transformers cannot read, and ``ImportError`` without the package ``gguf``.
    """
    with file.open("rb") as opened:
        if opened.read(4) != MAGIC:
            raise ValueError(f"{file} must be a GGUF file, but does not begin as one; download it again")
    folder = cache.root() / "models" / f"{file.stem}-{identity.file_hash(file)}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f".{folder.name}.lock")):
        if not folder.is_dir():
            _convert(file, folder)
    return folder


def _convert(file: Path, folder: Path) -> None:
    """Makes ``folder`` whole or not at all."""
    if importlib.util.find_spec("gguf") is None:
        raise ImportError(f"{file.name} needs the package gguf, but it is not installed; pip install 'zobench[gguf]'")
    _say(f"{file.name}: converting it to safetensors, once; they will be in {folder}")
    begin, temporary = time.monotonic(), Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        with _without_bars():
            _write_model(file, temporary)
            _write_tokenizer(file, temporary)
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _say(f"{file.name}: converted in {time.monotonic() - begin:.0f} s")


@contextmanager
def _without_bars() -> Iterator[None]:
    """Inside, transformers shows no progress of its own: a line of ours says what happens."""
    from transformers import modeling_gguf_pytorch_utils
    from transformers.utils import logging as told

    reader: Any = modeling_gguf_pytorch_utils
    logging: Any = told
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
    from transformers import AutoModelForCausalLM

    try:
        read: Any = AutoModelForCausalLM.from_pretrained(
            str(file.parent), gguf_file=file.name, dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:  # on a file that was cut off the reader fails with whatever its place is
        raise ValueError(
            f"transformers must be able to read {file.name}, but cannot ({first_line(error)}); download it again, or "
            "give the model's folder of safetensors"
        ) from error
    model, told = read
    if absent := sorted(told["missing_keys"]):  # transformers would draw them at random
        raise ValueError(f"{file.name} must hold all tensors of its model, but lacks {absent[0]}; download it again")
    model.hf_quantizer, model.is_quantized = None, False  # it was quantised in the file, and is not any more
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)


def _write_tokenizer(file: Path, folder: Path) -> None:
    """Without one the model can still be measured; a run with a task says then what it lacks."""
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name).save_pretrained(folder)
    except (ValueError, OSError, ImportError, NotImplementedError, KeyError) as error:
        _say(f"{file.name}: its tokenizer cannot be read ({first_line(error)})")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
