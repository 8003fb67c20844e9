"""The model that a run uses: how it differs from the published one (tying, positions), and what it cannot have."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from zobench.models import identity
from zobench.models.build import build_config
from zobench.models.inspection import config_of, inspected, values_of
from zobench.models.registry import Model, get, is_registered
from zobench.models.source import folder, identified, is_read_where_it_lies
from zobench.runspec import SEQ_LEN, RunSpec
from zobench.runspec.kinds import GRANULARITIES

_ALSO = ("activation_function", "hidden_act", "attention_bias", "mlp_bias", "enable_bias")
"""Keys of a configuration that decide the loss beside the values that the registry states, where a family has it."""
PACKED = (".weight_packed", ".weight_scale")
"""How the names of quantised matrices and of their scales end in safetensors (:mod:`zobench.models.stored`)."""
MOST_EXTENDED = 8
"""The most times its published positions that a model with random weights may be given, where that is more than the
papers' usual 2048: they measure OPT at four times its own, so twice that."""


def of(spec: RunSpec) -> Model:
    """The model of ``spec``, registered or not. Raises ``ValueError`` for one that is not known here."""
    if spec.config_hash:
        return inspected(spec)
    return get(spec.model) if is_registered(spec.model) else inspected(identified(spec))


def is_known(spec: RunSpec) -> bool:
    """Whether the sizes of a stored run's model can be had here: a plug-in may be gone, and a folder."""
    try:
        return of(spec) is not None
    except (ValueError, OSError):
        return False


def weights_place(spec: RunSpec) -> str:
    """The folder or hub id of the spec's pretrained weights and of its tokenizer; "" if there is none."""
    if spec.config_hash:
        return str(folder(spec.model_path, spec.weights == "pretrained", is_read_where_it_lies(spec)))
    return spec.weights_path or of(spec).hub_id


def check(spec: RunSpec) -> None:
    """Raises ``ValueError`` if the spec asks of its model what it does not have: positions, blocks, or weights."""
    architecture = of(spec)
    if spec.seq_len > position_count(spec):
        most = position_count(spec)
        extended = f", and random ones may be added up to {most}" if most > architecture.max_positions else ""
        longer = ", or weights=random" if architecture.learned_positions and not extended else ""
        raise ValueError(
            f"`seq_len <= {most}` must hold for {architecture.name}, but got seq_len={spec.seq_len}; the model has "
            f"{architecture.max_positions} positions{extended}: use --set seq_len={most} or less{longer}"
        )
    architecture.check_tying(spec.tie_embeddings)
    if not GRANULARITIES[spec.granularity].is_block and not architecture.all_linear:
        raise ValueError(
            f"`granularity=block` must hold for {architecture.name}, whose matrices are not all in linear layers, but "
            f"got granularity={spec.granularity}; use granularity=block"
        )
    if spec.resident_blocks > architecture.layers:
        raise ValueError(
            f"`resident_blocks <= {architecture.layers}` must hold for {architecture.name}, but got "
            f"resident_blocks={spec.resident_blocks}; use engine=resident to keep all blocks"
        )
    if spec.weights_path:
        _check_folder(architecture.name, spec.tie_embeddings, spec.weights_path)
    if spec.weights == "pretrained" and not weights_place(spec):
        remedy = "or use weights=random" if spec.task == "none" else "with its weights and its tokenizer"
        raise ValueError(
            f"`weights=pretrained` needs a checkpoint, but none of {architecture.name} is on the hub; "
            f"give weights_path=FOLDER {remedy}"
        )


@functools.cache
def _check_folder(name: str, tied: bool | None, folder: str) -> None:
    """Raises ``ValueError``, one line, if ``folder`` has a config.json that differs from the registered model's. A
    folder without one is not refused."""
    path = Path(folder).expanduser()
    if not (path / "config.json").is_file():
        return
    wanted, kind = get(name), identity.read_config(path)["model_type"]
    if kind != wanted.model_type:
        differs = [f"model_type={kind} and not {wanted.model_type}"]
    else:
        registered, stored = (values_of(config) for config in (build_config(name), config_of(path)[0]))
        stated = [*wanted.settings(None, None), *(key for key in _ALSO if key in registered)]
        free = {"tie_word_embeddings"} if tied is not None else set()  # which a run may decide itself
        keys = [key for key in stated if key not in free and not key.endswith("_token_id")]  # ids change no loss
        differs = [
            f"{key}={stored.get(key)} and not {registered[key]}" for key in keys if stored.get(key) != registered[key]
        ]
    if differs:
        raise ValueError(
            f"`weights_path` must hold {wanted.name}, but {folder}/config.json has {', '.join(differs)}; "
            f"use --model {folder}"
        )


def checked(spec: RunSpec, device: str) -> RunSpec:
    """The spec as it runs on ``device`` ("cpu" or "cuda..."), with its model's own name: the one way from what was
    asked for to what is run. A spec checks its own fields; this, what the model and then the device cannot have.

    Raises ``ValueError`` with the constraint, the value and the remedy.
    """
    spec = identified(spec)
    check(spec)
    return spec.resolve(device)


def position_count(spec: RunSpec) -> int:
    """Positions of the model that ``spec`` runs: a learned table of random values is as long as the sequences need."""
    architecture = of(spec)
    if architecture.learned_positions and spec.weights != "pretrained":
        most = max(MOST_EXTENDED * architecture.max_positions, SEQ_LEN)
        return max(architecture.max_positions, min(spec.seq_len, most))
    return architecture.max_positions


def variant(spec: RunSpec) -> tuple[Model, bool | None, int]:
    """(model, tying, positions) of the model that ``spec`` runs, as the counts of sizes take them."""
    return of(spec), spec.tie_embeddings, position_count(spec)


def differences(spec: RunSpec) -> list[str]:
    """The differences of the model that ``spec`` runs from the published one, which a reader of its result should
    know."""
    published, used = of(spec).max_positions, position_count(spec)
    if used == published:
        return []
    return [
        f"the position table was extended from {published} to {used} positions with random values: {spec.model} was "
        f"published with {published} (the papers that report longer sequences do not say what they did)"
    ]


def stored_width(spec: RunSpec) -> float | None:
    """Bytes of a block's weight in the files in which the blocks of ``spec`` rest; None if these are not quantised, or
    if the blocks rest elsewhere."""
    if spec.weights != "pretrained" or not is_read_where_it_lies(spec):
        return None
    folder = Path(weights_place(spec))
    if (file := folder / identity.GGUF).is_file():
        return float(identity.remembered("widths", [file], lambda: str(_of_gguf(file))))
    if not (folder / identity.CONFIG).is_file() or not identity.read_config(folder).get("quantization_config"):
        return None
    files = sorted(file for file in folder.glob("*.safetensors") if file.is_file())
    return sum(map(_packed_bytes, files)) / of(spec).all_blocks


def _of_gguf(file: Path) -> float:
    from gguf import GGUFReader

    reader: Any = GGUFReader(str(file))
    inside = [tensor for tensor in reader.tensors if tensor.name.startswith("blk.")]
    return sum(int(tensor.n_bytes) for tensor in inside) / sum(int(tensor.n_elements) for tensor in inside)


def _packed_bytes(file: Path) -> int:
    """Bytes of quantised matrices in a file; vectors beside them are too few to count."""
    entries, _ = identity.header(file)
    spans = (entry["data_offsets"] for name, entry in entries.items() if name.endswith(PACKED))
    return sum(end - begin for begin, end in spans)
