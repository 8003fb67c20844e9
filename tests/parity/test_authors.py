"""MeZO's published program beside the engine: loss, projected gradient and all weights equal with ``==``.

The program is not ours to copy. ``ZOBENCH_MEZO_DIR`` names a checkout of princeton-nlp/MeZO, whose four ``zo_*``
methods are taken from its trainer as they stand. Without it tests/engine/test_parity.py alone compares: with a plain
loop, written from that text.
"""

import ast
import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.parity import STEPS, batches, materialised
from tests.support.reference import draw_seeds
from zobench import ZOSGD, Batch, Engine, EngineConfig, models
from zobench.models import weights

PROGRAM = os.environ.get("ZOBENCH_MEZO_DIR")
METHODS = ("zo_perturb_parameters", "zo_forward", "zo_step", "zo_update")
LR, SEED = 1e-3, 7
MODES: dict[str, dict[str, Any]] = {
    "resident": {"placement": "resident"},
    "offload": {"placement": "offload", "tier": "pageable"},
    "disk": {"placement": "offload", "tier": "disk"},
}


@functools.cache
def program() -> dict[str, Any]:
    """The four methods of the published trainer, compiled from its file without importing what it imports."""
    assert PROGRAM is not None
    source = (Path(PROGRAM) / "large_models" / "trainer.py").read_text()
    (trainer,) = (
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "OurTrainer"
    )
    wanted: list[ast.stmt] = [
        node for node in trainer.body if isinstance(node, ast.FunctionDef) and node.name in METHODS
    ]
    assert len(wanted) == len(METHODS)
    space: dict[str, Any] = {"torch": torch, "np": SimpleNamespace(random=SEEDS)}
    exec(compile(ast.Module(wanted, []), "trainer.py", "exec"), space)
    return {name: space[name] for name in METHODS}


class Seeds:
    """In place of ``np.random``: the seeds of zobench's own generator, which is another (by design)."""

    following = 0

    def randint(self, high: int) -> int:
        assert high == 10**9
        return self.following


SEEDS = Seeds()


class Published(SimpleNamespace):
    """What the four methods need of the trainer around them; none of it computes."""

    def __init__(self, model: nn.Module, eps: float, decay: float) -> None:
        bound = {name: functools.partial(function, self) for name, function in program().items()}
        arguments = SimpleNamespace(
            zo_eps=eps, weight_decay=decay, non_diff=False, n_gpu=1, gradient_accumulation_steps=1
        )
        super().__init__(
            **bound, model=model, args=arguments, lr_scheduler=SimpleNamespace(step=lambda: None),
            _get_learning_rate=lambda: LR, _prepare_inputs=lambda batch: batch,
            compute_loss_context_manager=torch.inference_mode, compute_loss=lambda model, batch: model(**batch).loss,
        )  # fmt: skip

    def step(self, batch: Batch, seed: int) -> tuple[float, float]:
        SEEDS.following = seed
        loss = self.zo_step(self.model, inputs(batch)).item()
        self.zo_update(self.model)
        return loss, self.projected_grad


def inputs(batch: Batch) -> dict[str, Any]:
    """A batch as a model's own forward takes it."""
    return {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "labels": batch.labels}


class Recorded(Engine):
    """An engine that keeps the losses of its last probe: a step tells only their mean."""

    losses: list[float]

    def probe(self, *args: Any, **kw: Any) -> list[float]:
        self.losses = super().probe(*args, **kw)
        return self.losses


def data(name: str, padded: bool) -> list[Batch]:
    return batches(name, "ragged" if padded else "random")


@functools.cache
def theirs(name: str, dtype: str, eps: float, padded: bool) -> tuple[Any, Any]:
    """(loss at +eps and g of each step, final weights) of the program."""
    model = materialised(name, dtype, None)
    trainer = Published(model, eps, 0.1 if padded else 0.0)
    seeds = draw_seeds(SEED, STEPS)
    steps = [trainer.step(batch, seed) for batch, seed in zip(data(name, padded), seeds, strict=True)]
    return steps, {key: tensor.data for key, tensor in model.named_parameters()}


@pytest.mark.skipif(not PROGRAM, reason="ZOBENCH_MEZO_DIR names no checkout of MeZO")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("eps", [1e-2, 5e-3, 1e-3, 1e-4])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["opt-tiny", "llama-tiny"])
def test_engine_equals_the_program(name: str, dtype: str, eps: float, padded: bool, mode: str) -> None:
    steps, final = theirs(name, dtype, eps, padded)
    model = models.build(name, dtype)
    with Recorded(model, EngineConfig(**MODES[mode]), weights=weights.RandomWeights(model, 3)) as engine:
        method = ZOSGD(lr=LR, eps=eps, seed=SEED, weight_decay=0.1 if padded else 0.0)
        mine = []
        for batch in data(name, padded):
            result = method.step(engine, batch)
            mine.append((engine.losses[0], result.projected_grad))
        tensors = dict(engine.named_tensors())
    assert mine == steps
    assert tensors.keys() == final.keys()
    assert all(torch.equal(tensors[key], final[key]) for key in final)
    assert len({g for _, g in mine}) > STEPS // 2  # a loop that never moved would agree with itself
