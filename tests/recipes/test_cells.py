"""Every cell of every runner and campaign that ships, on a CPU and on CUDA: a spec that nothing refuses, and a model,
an engine and a method that take a step, built tiny."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.own_model import changes_for, packages
from zobench import cost, models, programs, recipes
from zobench.cost.budget import price
from zobench.data.batch import stream
from zobench.data.tasks.file import task_of
from zobench.data.tasks.prompts import form_of
from zobench.parallel.mesh import Mesh
from zobench.recipes import campaign, matrix
from zobench.runspec import RunSpec
from zobench.training.assemble import tuner

TINY = {
    "opt": "opt-tiny", "qwen3": "qwen3-tiny", "llama": "llama-tiny", "mistral": "llama-tiny", "roberta": "roberta-tiny",
}  # fmt: skip
"""Model type -> the model that is built instead: 64 wide, three blocks. LLaMA's code is Mistral's without a window."""
UNBUILT = (
    "model", "model_path", "config_hash", "weights_hash", "name", "weights_path", "task", "task_file", "aligned",
    "shots", "train_size", "dev_size", "test_size", "eval_every", "truncate", "length_grouping", "packed", "program",
    "device_memory", "parts", "survival", "seed", "eps", "lr", "gpus", "nodes", "parallel", "transfers", "exact",
    "checkpoint", "checkpoint_every",
)  # fmt: skip
"""Fields that change nothing of what one process builds for a step; :func:`refusal` judges them."""


def shipped(folder: Path) -> Iterator[tuple[str, RunSpec]]:
    """(the file and the device or part, a cell) of all runners and campaigns."""
    for name in recipes.names("runners"):
        path = recipes.find("runners", name)
        for device in ("cpu", "cuda"):
            for cell in matrix.load(path, device, changes_for(path, folder), price=price).cells:
                yield f"{name} on {device}", cell
    for name in recipes.names("campaigns"):
        read = campaign.load(recipes.find("campaigns", name))
        for part in read.on(read.device, price):
            assert not part.obstacle
            for cell in part.cells:
                yield f"{name}, part {part.part.name}", cell


def tiny(cell: RunSpec) -> RunSpec:
    """``cell`` on the CPU, of a small model of the same class, with few tokens: what is built stays what it is."""
    kept = {key: value for key, value in cell.to_dict().items() if key not in UNBUILT}
    if cell.config_hash:  # a package's, whose folder is tiny already
        model = {key: cell.value(key) for key in ("model", "model_path", "config_hash")}
    else:
        model = {"model": "opt350-tiny" if cell.model == "OPT-350M" else TINY[models.of(cell).model_type]}
    small = {
        **model,
        "weights": "shared" if cell.weights == "shared" else "random", "device": "cpu",
        "tier": "pageable" if cell.tier == "pinned" else cell.tier, "seq_len": 16, "steps": 1, "warmup": 0,
        "batch_size": cell.options.get("shards", 2), "queries": cell.queries if cell.options else min(cell.queries, 2),
        "zo_layers": min(cell.zo_layers, 1), "sparsity": 0.5 if cell.sparsity else 0.0,
    }  # fmt: skip
    return RunSpec.from_dict(kept | small)


def refusal(cell: RunSpec, folder: Path) -> str:
    """Why a plan would skip the cell on any machine, or "". ``folder`` stands for the tiny model's weights, which
    runners ask for by ``--set weights_path=``; authors' programs are added by hand, so they are not asked."""
    if cell.model == "opt-mini" and cell.weights == "pretrained":
        cell = cell.replace(weights_path=str(folder))
    try:
        models.check(cell)
        cost.unpriced(cell)
        if cell.task != "none":
            form_of(task_of(cell), aligned=cell.aligned, masked=models.of(cell).masked)
        if cell.program == "zobench":
            programs.check(cell)
    except ValueError as error:
        return str(error)
    places = {(mesh.shard, mesh.sign) for mesh in (Mesh.of(cell, rank) for rank in range(cell.gpus))}
    return "" if len(places) == cell.gpus else f"{cell.gpus} ranks have {len(places)} places"


def test_nothing_refuses_a_shipped_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages(tmp_path, monkeypatch)
    cells = list(shipped(tmp_path))
    assert len(cells) > 2000
    assert {"SmolLM2-135M", "Gemma-3-270M"} <= {cell.model for _, cell in cells}
    assert [(where, cell.label, why) for where, cell in cells if (why := refusal(cell, tmp_path))] == []


@pytest.mark.slow
def test_every_shipped_cell_takes_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages(tmp_path, monkeypatch, layers=3)
    first_of: dict[RunSpec, str] = {}
    for where, cell in shipped(tmp_path):
        first_of.setdefault(tiny(cell), f"{where}: {cell.label}")
    failed = {}
    for spec, name in first_of.items():
        try:
            with tuner(spec) as built:
                built.method.step(built.engine, next(stream(spec, built.engine.model.config.vocab_size, 1)))
        except Exception as error:  # all that fail are told at once
            failed[name] = f"{type(error).__name__}: {error}"
    assert len(first_of) > 100
    assert failed == {}
