"""MeZO's published program beside the engine: loss, projected gradient and all weights equal with ``==``.

The program is not ours to copy. ``ZOBENCH_MEZO_DIR`` names a checkout of princeton-nlp/MeZO, whose four ``zo_*``
methods are taken from its trainer as they stand; without it a reference of ours, written from that text, is compared
alone.
"""

from __future__ import annotations

import ast
import functools
import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from zobench import ZOSGD, Batch, Engine, EngineConfig, RunSpec, models
from zobench.data.tokens import stream
from zobench.models import weights

PROGRAM = os.environ.get("ZOBENCH_MEZO_DIR")
METHODS = ("zo_perturb_parameters", "zo_forward", "zo_step", "zo_update")
STEPS, LR, SEED = 20, 1e-3, 7
MODES: dict[str, dict[str, Any]] = {
    "resident": {"placement": "resident"},
    "offload": {"placement": "offload", "tier": "pageable"},
    "disk": {"placement": "offload", "tier": "disk"},
}


class Reference:
    """A MeZO trainer, from the text of the program: ``step`` gives (loss at +eps, g) and moves the model's weights."""

    def __init__(self, model: nn.Module, eps: float, decay: float) -> None:
        self.model, self.eps, self.decay = model, eps, decay

    @torch.inference_mode()
    def step(self, batch: Batch, seed: int) -> tuple[float, float]:
        plus, minus = (self._looked(batch, seed, scale) for scale in (1, -2))
        self._perturb(seed, 1)
        g = ((plus - minus) / (2 * self.eps)).item()  # float32 tensors until here
        self._move(seed, lambda w, z, name: w - LR * (g * z + self.decay * w if decays(name) else g * z))
        return plus.item(), g

    def _looked(self, batch: Batch, seed: int, scale: int) -> Tensor:
        self._perturb(seed, scale)
        loss: Tensor = self.model(**inputs(batch)).loss
        return loss

    def _perturb(self, seed: int, scale: int) -> None:
        self._move(seed, lambda w, z, name: w + scale * z * self.eps)

    def _move(self, seed: int, move: Any) -> None:
        torch.manual_seed(seed)
        for name, tensor in self.model.named_parameters():
            z = torch.normal(mean=0, std=1, size=tensor.shape, dtype=tensor.dtype)
            tensor.data = move(tensor.data, z, name)


def decays(name: str) -> bool:
    """Whether MeZO's weight decay reaches a parameter."""
    return not any(word in name for word in ("bias", "layer_norm", "layernorm"))


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


def batches(name: str, padded: bool) -> list[Batch]:
    spec = RunSpec(model=name, batch_size=3, seq_len=17, data="ragged" if padded else "random", seed=1)
    config = models.build_config(name)
    return list(itertools.islice(stream(spec, config.vocab_size, config.pad_token_id), STEPS))


def drawn() -> list[int]:
    generator = np.random.default_rng(SEED)
    return [int(generator.integers(10**9)) for _ in range(STEPS)]


@functools.cache
def theirs(kind: type[Reference | Published], name: str, dtype: str, eps: float, padded: bool) -> tuple[Any, Any]:
    """(loss at +eps and g of each step, final weights) of a program."""
    model = models.build(name, dtype)
    weights.materialise(model, weights.RandomWeights(model, 3), "cpu")
    trainer = kind(model, eps, 0.1 if padded else 0.0)
    steps = [trainer.step(batch, seed) for batch, seed in zip(batches(name, padded), drawn(), strict=True)]
    return steps, {key: tensor.data for key, tensor in model.named_parameters()}


programs = pytest.mark.parametrize(
    "kind",
    [
        Reference,
        pytest.param(
            Published, marks=pytest.mark.skipif(not PROGRAM, reason="ZOBENCH_MEZO_DIR names no checkout of MeZO")
        ),
    ],
)


@programs
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("eps", [1e-2, 5e-3, 1e-3, 1e-4])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["opt-tiny", "llama-tiny"])
def test_engine_equals_the_program(
    name: str, dtype: str, eps: float, padded: bool, mode: str, kind: type[Reference | Published]
) -> None:
    steps, final = theirs(kind, name, dtype, eps, padded)
    model = models.build(name, dtype)
    with Recorded(model, EngineConfig(**MODES[mode]), weights=weights.RandomWeights(model, 3)) as engine:
        method = ZOSGD(lr=LR, eps=eps, seed=SEED, weight_decay=0.1 if padded else 0.0)
        mine = []
        for batch in batches(name, padded):
            result = method.step(engine, batch)
            mine.append((engine.losses[0], result.projected_grad))
        tensors = dict(engine.named_tensors())
    assert mine == steps
    assert tensors.keys() == final.keys()
    assert all(torch.equal(tensors[key], final[key]) for key in final)
    assert len({g for _, g in mine}) > STEPS // 2  # a loop that never moved would agree with itself
