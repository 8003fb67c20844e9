"""The tokenizer of a run's model: from the folder of its weights, or from the hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from zobench.machine.texts import first_line
from zobench.models.variants import of, weights_place
from zobench.runspec import RunSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")
"""One of these is in every folder that holds a tokenizer."""


def tokenizer_place(spec: RunSpec) -> tuple[str, str]:
    """(the folder or hub id of the tokenizer, why it is that one); nothing is loaded. Raises ``ValueError``, one line,
    if there can be none."""
    hub_id = of(spec).hub_id
    folder = weights_place(spec) if spec.config_hash else spec.weights_path
    local = Path(folder).expanduser()
    named = folder.count("/") == 1 and not folder.startswith(("/", ".", "~"))  # owner/name
    if folder and not named and not local.is_dir():
        raise ValueError(f"`weights_path` must be a folder or a name on the hub, but there is no {folder}; check it")
    if folder and (not local.is_dir() or any((local / name).is_file() for name in FILES)):
        return (str(local) if local.is_dir() else folder), "where the weights are"
    if hub_id:
        return hub_id, "because the weights' folder has none" if folder else "this model's on the hub"
    reason = f"{folder} has none of {', '.join(FILES)}" if folder else "it is on no hub"
    raise ValueError(f"{_asker(spec)} needs the tokenizer of {spec.model}, but {reason}; {_remedy(spec)}")


def load(spec: RunSpec) -> tuple[PreTrainedTokenizerBase, str]:
    """(the tokenizer, one line that says where it is from and why).

    Raises ``ValueError``, one line, if there is none to be had, or one with more tokens than the model knows.
    """
    from transformers import AutoTokenizer

    location, why = tokenizer_place(spec)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    except Exception as error:  # a package that is missing; of a damaged file whatever its place is
        raise ValueError(
            f"{_asker(spec)} needs the tokenizer of {spec.model}, but {location!r} gives none "
            f"({first_line(error)}); {_remedy(spec)}"
        ) from error
    vocabulary = of(spec).vocab
    if len(tokenizer) > vocabulary:
        raise ValueError(
            f"the tokenizer must have at most the {vocabulary} tokens of {spec.model}, but {location!r} has "
            f"{len(tokenizer)}; give this model's own"
        )
    return cast("PreTrainedTokenizerBase", tokenizer), f"tokenizer: {location}, {why}"


def _asker(spec: RunSpec) -> str:
    """Returns the part of ``spec`` that needs a tokenizer, as an error names it: its task, or the text of a run without
    one."""
    return f"`data={spec.data}`" if spec.task == "none" else f"`task={spec.task_name}`"


def _remedy(spec: RunSpec) -> str:
    """The end of an error about a missing tokenizer: what the user can do."""
    return "put its tokenizer.json there" if spec.config_hash else "give weights_path=FOLDER with its tokenizer.json"
