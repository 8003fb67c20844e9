"""Every class that transformers maps to a causal or a masked language model: is what the engine computes equal to what
transformers computes, is it refused in one line, or is it wrong?

``python -m tools.families docs/families.md`` writes the table; with model types or classes after the file, only
those rows.
"""

import collections
import functools
import itertools
import json
import multiprocessing
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

from zobench import Batch, Engine, EngineConfig, Point, models
from zobench.cost import choices, hardware
from zobench.engine.shrink import shrunk, special_tokens
from zobench.machine.texts import first_line
from zobench.programs import cell
from zobench.recipes import matrix
from zobench.result import Outcome
from zobench.runspec import RunSpec
from zobench.training.assemble import tuner

MAPPINGS = {"causal": MODEL_FOR_CAUSAL_LM_MAPPING, "masked": MODEL_FOR_MASKED_LM_MAPPING}
EQUAL, REFUSED, WRONG, CRASHED, NOT_BUILT = "equal", "refused", "wrong", "crashed", "not built"
VERDICTS = (WRONG, CRASHED, REFUSED, NOT_BUILT, EQUAL)
"""As they are listed."""
CLOSE = 2e-5
SEED, EPS = 5, 1e-2
HOW: tuple[dict[str, Any], ...] = ({}, {"heads": 4}, {"layers": False})
"""Ways to make a configuration small, of which the first that works is taken."""
LIMIT = 300
"""Seconds of a class."""
LARGEST = 200_000_000
ROPE = {"rope_type": "default", "rope_theta": 1e4}
OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"num_hidden_layers": 2, "attn_layer_indices": [1]},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "cohere_compass_text": {"rope_parameters": dict.fromkeys(("full_attention", "sliding_attention"), ROPE)},
    "dbrx": {"attn_config": {"clip_qkv": 8.0, "kv_n_heads": 4, "rope_theta": 1e4}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "gemma3n_text": {
        "num_hidden_layers": 5, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 16, "hidden_size": 64,
        "num_attention_heads": 4, "head_dim": 16, "intermediate_size": 96,
    },
    "granitemoehybrid": {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"]},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
    "perceiver": {"num_latents": 8, "d_latents": 32, "d_model": 32, "num_self_attends_per_block": 2,
        "num_self_attention_heads": 2, "num_cross_attention_heads": 2, "qk_channels": 32, "v_channels": 32,
        "max_position_embeddings": 7,
    },
    "qwen4_exp_text": {
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 64,
        "indexer_compress_ratio": 4,
    },
    "reformer": {"axial_pos_embds": False},
    "ReformerModelWithLMHead": {"axial_pos_embds": False, "is_decoder": True},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"], "hidden_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 96, "mamba_dt_rank": 4,
    },
    "zamba2": {
        "num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"], "hidden_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 96, "n_mamba_heads": 2,
    },
}  # fmt: skip
"""Of a class or a model type: what its default configuration, which cannot be built or called, lacks."""


SHIFTED = {
    f"{name}ForCausalLM"
    for name in (
        "Bart", "BigBirdPegasus", "Blenderbot", "BlenderbotSmall", "CpmAnt", "MBart", "Marian", "Mvp", "PLBart",
        "Pegasus", "TrOCR", "Whisper",
    )
}  # fmt: skip
"""Classes that take the labels of the next tokens, because their loss moves no labels."""


Losses = Sequence[Sequence[float]]
"""For each batch the losses at W, W + eps z and W - eps z."""
Build = Callable[[], Any]
"""Makes the same model each time."""


@dataclass(frozen=True)
class Row:
    """What one class came to: ``verdict`` of a model in memory, ``folder`` of the same one read from a folder."""

    kind: str
    model_type: str
    name: str
    verdict: str
    folder: str
    reason: str = ""


def class_of(kind: str, config: Any) -> tuple[str, Any, Any]:
    """(kind, configuration class, model class): the model's module alone is imported."""
    model = MAPPINGS[kind][config]
    return kind, config, model[0] if isinstance(model, tuple) else model


def classes() -> list[tuple[str, str, Any, Any]]:
    """(kind, model type, configuration class, model class) of both mappings, each once, in their order."""
    listed = [class_of(kind, config) for kind, mapping in MAPPINGS.items() for config in mapping]
    return list(dict.fromkeys((kind, config.model_type, config, model) for kind, config, model in listed))


def small_config(config_class: Any, model_class: Any, **how: Any) -> Any:
    """The configuration of a small model of the class; that of its language model alone, if there are others in it."""
    values = OVERRIDES.get(model_class.__name__, OVERRIDES.get(config_class.model_type, {}))
    config, wanted = config_class(**values), model_class.config_class
    inner = [getattr(config, name) for name in getattr(config_class, "sub_configs", {})]
    if not isinstance(config, wanted):
        config = next((part for part in inner if isinstance(part, wanted)), config)
    return shrunk(config, **how)


def build(config_class: Any, model_class: Any, **how: Any) -> Any:
    """A model with weights that are neither zeros nor ones."""
    with torch.device("meta"):
        whole = model_class._from_config(small_config(config_class, model_class, **how))
        size = sum(tensor.numel() for tensor in whole.parameters())
    if size > LARGEST:
        raise ValueError(f"it has {size} parameters with few layers too")
    torch.manual_seed(1)
    model = model_class._from_config(small_config(config_class, model_class, **how)).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(torch.randn_like(tensor), alpha=0.01)
    return model


def batches(model: Any) -> list[Batch]:
    """Two batches of words that the model knows: a whole one, and one with a padded row."""
    special, count = special_tokens(model.config), model.config.get_text_config().vocab_size or 90
    words = [token for token in range(4, min(count, 90)) if token not in special]
    ids = torch.tensor(words)[torch.arange(21) * 5 % len(words)].view(3, 7)
    mask, labels, padded = torch.ones_like(ids), ids.clone(), ids.clone()
    pad = getattr(model.config.get_text_config(), "pad_token_id", None)
    mask[1, :3], labels[1, :4], padded[1, :3] = 0, -100, pad if isinstance(pad, int) else 4
    return [Batch(ids, ids), Batch(padded, labels, mask)]


@torch.no_grad()
def model_loss(model: Any, batch: Batch) -> float:
    """The loss that the model itself computes of the batch."""
    labels = batch.labels
    if type(model).__name__ in SHIFTED:
        labels = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], 1)
    return float(model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=labels)["loss"])


@torch.no_grad()
def move(model: nn.Module, scale: float) -> None:
    """MeZO's perturbation, as its paper has it: one generator through all parameters."""
    generator = torch.Generator().manual_seed(SEED)
    for tensor in (tensor for tensor in model.parameters() if tensor.requires_grad):
        tensor.add_(torch.empty_like(tensor).normal_(generator=generator), alpha=scale)


def references(model: Any) -> Losses:
    """The model's own loss at W, W + eps z and W - eps z, of each batch."""
    data, losses = batches(model), []
    start = [tensor.detach().clone() for tensor in model.parameters()]
    for scale in (0.0, EPS, -EPS):
        move(model, scale)
        losses.append([model_loss(model, batch) for batch in data])
        with torch.no_grad():
            for tensor, old in zip(model.parameters(), start, strict=True):
                tensor.copy_(old)
    return list(zip(*losses, strict=True))


def engine_losses(build_model: Build, **config: Any) -> Losses:
    """An engine's loss at W, W + eps z and W - eps z, of each batch."""
    model = build_model()
    with Engine(model, EngineConfig(**config)) as engine:
        points = [Point(), Point(SEED, EPS), Point(SEED, -EPS)]
        return [tuple(engine.probe(batch, points)) for batch in batches(model)]


def distance(losses: Losses, references: Losses) -> float:
    """The largest difference of two losses of one batch at one point, as a share of losses above 1."""
    pairs = zip(itertools.chain(*losses), itertools.chain(*references), strict=True)
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in pairs)


def judge(kind: str, config_class: Any, model_class: Any) -> Row:
    """The row of one class."""
    names = kind, config_class.model_type, model_class.__name__
    errors = []
    for how in HOW:
        try:
            expected = references(build(config_class, model_class, **how))
            break
        except Exception as error:
            errors.append(error)
    else:
        return Row(*names, NOT_BUILT, NOT_BUILT, reason_of(errors[0]))
    again = functools.partial(build, config_class, model_class, **how)
    verdict, reason = _verdict(lambda: memory_distances(again, expected))
    folder, why = _verdict(lambda: folder_distances(again, expected))
    if folder != REFUSED or verdict != REFUSED:
        reason = "; ".join(f"{what}: {line}" for what, line in (("memory", reason), ("folder", why)) if line)
    return Row(*names, verdict, folder, reason)


def _verdict(distances: Callable[[], Mapping[str, float]]) -> tuple[str, str]:
    """(verdict, reason) of what is measured by ``distances``, by name."""
    try:
        measured = distances()
    except ValueError as error:
        lines = str(error).splitlines()
        return (REFUSED if len(lines) == 1 else CRASHED), lines[0]
    except Exception as error:
        traceback.print_exc()
        return CRASHED, reason_of(error)
    wrong = {name: value for name, value in measured.items() if not value <= CLOSE}
    return (WRONG, json.dumps(wrong)) if wrong else (EQUAL, "")


def memory_distances(again: Build, expected: Losses) -> dict[str, float]:
    """How far the losses of engines over a model in memory are from those ``expected``."""
    losses = {
        "resident": engine_losses(again, placement="resident"),
        "offload": engine_losses(again, slots=2),
        "counter resident": engine_losses(again, placement="resident", noise="counter"),
        "counter offload": engine_losses(again, slots=2, noise="counter"),
    }
    return {
        "resident": distance(losses["resident"], expected),
        "offload": distance(losses["offload"], expected),
        "counter": distance(losses["counter offload"], losses["counter resident"]),
        "counter at W": distance(_at_w(losses["counter resident"]), _at_w(expected)),
    }


def folder_distances(again: Build, expected: Losses) -> dict[str, float]:
    """The same of the model saved by transformers, planned, run and read from there; and of what an engine saves of it,
    read by transformers and by an engine. Raises ``ValueError`` with the line that a user sees."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = f"{folder}/model", f"{folder}/saved"
        again().save_pretrained(first)
        values = {"model": first, "seq_len": 7, "batch_size": 2, "warmup": 0, "weights": "pretrained", "dtype": "fp32"}
        try:
            choices.choices(values, choices.TargetMachine(gpu=hardware.load("rtx-4090"), host=64 << 30, disk=0))
            for engine in ("resident", "offload"):
                spec = matrix.single({**values, "engine": engine, "tier": "pageable", "steps": 1}, "cpu")
                result = cell.run(spec)
                if result.outcome is not Outcome.OK:
                    raise (RuntimeError if re.match(r"\w+Error: ", result.reason) else ValueError)(result.reason)
            losses = folder_losses(spec, second)
            loaded = type(again()).from_pretrained(second).eval()
            saved = matrix.single({**values, "model": second, "steps": 1}, "cpu")
            return {
                "folder": distance(losses, expected),
                "saved, by transformers": distance(
                    [[model_loss(loaded, batch)] for batch in batches(loaded)], _at_w(expected)
                ),
                "saved": distance(folder_losses(saved, f"{folder}/third"), expected),
            }
        except ValueError as error:
            raise ValueError(str(error).replace(f"{first}/", "").replace(first, "the folder")) from error


def folder_losses(spec: RunSpec, target: str) -> Losses:
    """The losses of the engine over a spec's folder, which is then saved to the folder ``target``."""
    with tuner(models.checked(spec, "cpu")) as built:
        points = [Point(), Point(SEED, EPS), Point(SEED, -EPS)]
        losses = [tuple(built.engine.probe(batch, points)) for batch in batches(built.engine.model)]
        built.engine.save_pretrained(target)
    return losses


def _at_w(losses: Losses) -> Losses:
    return [row[:1] for row in losses]


def reason_of(error: Exception) -> str:
    """The type of the error and the first line of its text, if it has one."""
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"


def _work(kind: str, config_class: Any, model_class: Any, pipe: Any) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    pipe.send(judge(kind, config_class, model_class))


def judged_in_process(kind: str, config_class: Any, model_class: Any) -> Row:
    """The same in a process of its own, which may crash or never end."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("forkserver")  # a fork of a process that computes has its broken threads
    context.set_forkserver_preload([__name__ if __name__ != "__main__" else "tools.families"])
    process = context.Process(target=_work, args=(kind, config_class, model_class, sender))
    process.start()
    sender.close()
    try:
        row = receiver.recv() if receiver.poll(LIMIT) else None
        reason = f"no answer in {LIMIT} s"
    except EOFError:
        row, reason = None, "its process ended"
    process.kill()
    process.join()
    return row or Row(kind, config_class.model_type, model_class.__name__, CRASHED, CRASHED, reason)


HEAD = """# Which models

Over every class that transformers {version} maps to a causal or a masked language model, at a small configuration: is
the engine's loss, and its losses at perturbed weights, that of transformers' own forward (to 2e-5), resident and
offloaded? "Memory" is a model that a program built. "Folder" is the same model saved with its config.json: planned, run
in both placements, read back, saved by zobench, and read again by transformers and by zobench. What is refused is
refused before anything runs, in the line that stands here, and comes first. "Not built" says nothing of zobench:
transformers itself did not build or call a small one with the configuration that was tried.
Made by `python -m tools.families docs/families.md`; `pytest -m sweep` holds it.

{counts}

| kind | model type | class | memory | folder | reason |
|---|---|---|---|---|---|
"""


def page(rows: Iterable[Row]) -> str:
    """The page docs/families.md with these rows, the worst first."""
    rows = sorted(rows, key=lambda row: (_rank(row), row.kind, row.model_type, row.name))
    lines = ["| " + " | ".join(str(cell).replace("|", "/") for cell in asdict(row).values()) + " |" for row in rows]
    memory, folder = (_counts(getattr(row, column) for row in rows) for column in ("verdict", "folder"))
    counts = f"Of {len(rows)} entries in memory: {memory}. As folders: {folder}."
    head = HEAD.format(version=transformers.__version__, counts=counts)
    return head + "\n".join(lines) + "\n"


def _rank(row: Row) -> int:
    """The worse of its two verdicts."""
    return min(VERDICTS.index(row.verdict), VERDICTS.index(row.folder))


def _counts(verdicts: Iterable[str]) -> str:
    counted = collections.Counter(verdicts)
    return ", ".join(f"{counted[verdict]} {verdict}" for verdict in sorted(counted))


def read(path: str | Path) -> list[Row]:
    """The rows of a page."""
    columns = r" \| ".join([r"^\| (causal|masked)", *[r"(.*?)"] * 4, r"(.*?) ?\|$"])
    return [Row(*row) for row in re.findall(columns, Path(path).read_text(), re.M)]


def main(out: str, *only: str) -> None:
    """Judges all classes, or of a page that is there the named ones again, and writes the page."""
    rows = [row for row in read(out) if row.model_type not in only and row.name not in only] if only else []
    for kind, model_type, config_class, model_class in classes():
        if only and model_type not in only and model_class.__name__ not in only:
            continue
        rows.append(judged_in_process(kind, config_class, model_class))
        print(*asdict(rows[-1]).values(), sep=" | ", flush=True)
    Path(out).write_text(page(rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
