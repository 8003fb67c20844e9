"""How much of the intended updates survives rounding: the weights' actual change against the sum of lr * g * z."""

from __future__ import annotations

import torch
from torch import Tensor

from zobench.engine.directions.general import General
from zobench.engine.interface import LocalEngine
from zobench.engine.weights.blocks import Unit
from zobench.kernels import Span
from zobench.runspec.kinds import NOISES

SAMPLE = 1 << 16
"""Elements of each tensor that are watched, from its first on."""


class Survival:
    """Watches the first elements of every trainable tensor from now on, as the next probe would use them; not those of
    the word embedding and the head.

    Needs noise=counter, whose z can be made for any elements, and SGD's update. Weight decay is no part of what is
    intended.
    """

    def __init__(self, engine: LocalEngine) -> None:
        if NOISES[engine.config.noise].in_place:
            raise ValueError("`survival` needs noise=counter, but got noise=torch; its z cannot be made for a sample")
        if engine.rule is not None:
            raise ValueError(
                f"`survival` needs an update of lr * g * z, but got the rule {type(engine.rule).__name__}; use "
                "survival=false"
            )
        self._engine = engine
        self._from = len(engine.journal)
        self._before = self._sample()

    @torch.inference_mode()
    def share(self) -> float:
        """<change, intended> / <intended, intended> over all watched elements: 1 if every update is in the weights,
        0 if all were lost; NaN if none was asked for."""
        entries, after = self._engine.journal[self._from :], self._sample()
        general = General(None, self._engine.thresholds)
        along = squared = 0.0
        for tensor_id, (unit, before) in self._before.items():
            intended, z = torch.zeros_like(before), torch.empty(before.shape, dtype=torch.float32)
            for entry in filter(unit.moves, entries):
                general.direction(entry.seed, Span(tensor_id), z)
                intended.sub_(z.double(), alpha=entry.lr * entry.g)
            along += float((after[tensor_id][1] - before).dot(intended))
            squared += float(intended.dot(intended))
        return along / squared if squared else float("nan")

    @torch.inference_mode()
    def _sample(self) -> dict[int, tuple[Unit, Tensor]]:
        """The watched elements, float64 on the CPU, and their unit, by tensor."""
        watched: dict[int, tuple[Unit, Tensor]] = {}

        def look(unit: Unit, tensors: list[Tensor]) -> None:
            for item, tensor in zip(unit.fields, tensors, strict=True):
                if item.trainable and item.start == 0:
                    watched[item.tensor_id] = unit, tensor.reshape(-1)[:SAMPLE].double().cpu()

        self._engine.visit(look)
        return watched
