"""Where the tokenizer of a run's model lies: in the folder of its weights, or on the hub. Nothing is loaded."""

from __future__ import annotations

from pathlib import Path

from zobench.models.variants import of, weights_place
from zobench.runspec import RunSpec

FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""One of these is in every folder that holds a tokenizer."""


def tokenizer_place(spec: RunSpec) -> tuple[str, str]:
    """(the folder or hub id, why it is that one). Raises ``ValueError``, one line, if there can be none."""
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
    where = f"{folder} has none of {', '.join(FILES)}" if folder else "it is on no hub"
    raise ValueError(
        f"{tokenizer_asker(spec)} needs the tokenizer of {spec.model}, but {where}; {tokenizer_remedy(spec)}"
    )


def tokenizer_asker(spec: RunSpec) -> str:
    """What of ``spec`` needs a tokenizer, as an error names it: its task, or the text of a run without one."""
    return f"`data={spec.data}`" if spec.task == "none" else f"`task={spec.task}`"


def tokenizer_remedy(spec: RunSpec) -> str:
    """What helps who has no tokenizer for it."""
    return "put its tokenizer.json there" if spec.config_hash else "give weights_path=FOLDER with its tokenizer.json"
