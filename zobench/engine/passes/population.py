"""A population: several points, each of which looks at a batch of its own, all in one pass over the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from zobench.data.batch import Batch
from zobench.engine.base import EngineConfig, Point
from zobench.engine.passes.drive import Drive, Driven, drive_to_head
from zobench.engine.passes.head import Objective
from zobench.engine.passes.loss import on_cpu
from zobench.engine.passes.products import RowForwards


class PassingEngine(Protocol):
    """An engine on which a population is looked at."""

    model: nn.Module
    config: EngineConfig
    drive: Drive

    @property
    def rows(self) -> RowForwards:
        """The forwards of its model, one point per row. Raises ``ValueError`` where its points share directions."""

    def passing(self, points: Sequence[Point], rows: int) -> AbstractContextManager[None]:
        """Inside, the model is driven once, on ``rows`` rows at each of ``points``."""


class Population:
    """The members at ``points`` of an engine whose directions are
    :class:`~zobench.engine.directions.factors.IndependentLowRank`.

    Each method is one pass: it takes a batch for each member, all of one width, and gives what each member makes of its
    own. A batch that has fewer rows than another repeats some. This is what a reward is computed from.
    """

    def __init__(self, engine: PassingEngine, points: Sequence[Point]) -> None:
        self._engine, self._forwards, self._points = engine, engine.rows, tuple(points)

    def __len__(self) -> int:
        return len(self._points)

    @torch.inference_mode()
    def losses(self, batches: Sequence[Batch]) -> list[float]:
        """Each member's mean loss on its batch."""
        return [float(objective.loss(judged)) for objective, judged in self._judged(batches)]

    @torch.inference_mode()
    def scores(self, batches: Sequence[Batch]) -> list[Tensor]:
        """The score of each of a batch's candidates, float32 (c,) on the CPU."""
        return [objective.scores(judged) for objective, judged in self._judged(batches, scored=True)]

    @torch.inference_mode()
    def next_logits(self, batches: Sequence[Batch]) -> list[Tensor]:
        """The logits after each row's last token, float32 (rows, vocabulary) on the CPU; padding is on the left."""
        with self._drive(batches) as driven:
            logits = on_cpu(self._forwards.next_logits(driven))
        each = logits.split(len(logits) // len(self))
        return [member_logits[: len(batch.input_ids)] for member_logits, batch in zip(each, batches, strict=True)]

    def _judged(self, batches: Sequence[Batch], scored: bool = False) -> list[tuple[Objective, Tensor]]:
        """Each member's objective, and what that is made from."""
        model, device = self._engine.model, self._engine.config.device
        objectives = [Objective(model, batch, device, scored=scored) for batch in batches]
        with self._drive(batches) as driven:
            judged = map(on_cpu, self._forwards.judge_each(driven, objectives))
            return list(zip(objectives, judged, strict=True))

    @contextmanager
    def _drive(self, batches: Sequence[Batch]) -> Iterator[Driven]:
        """Inside, the model has been called on all batches, up to its head."""
        ids, mask, rows = _together(batches, len(self))
        device = self._engine.config.device
        with self._engine.passing(self._points, rows):
            yield drive_to_head(
                self._engine.drive, self._engine.model, ids.to(device), None if mask is None else mask.to(device)
            )


def _together(batches: Sequence[Batch], members: int) -> tuple[Tensor, Tensor | None, int]:
    """All tokens (members * rows, width), their mask, and the rows of each member. Raises ``ValueError`` where there is
    not one batch for each member, or where they differ in width."""
    widths = sorted({batch.input_ids.shape[1] for batch in batches})
    if len(batches) != members or len(widths) > 1:
        raise ValueError(
            f"`batches` must be one for each of {members} points, of one width, but got {len(batches)} of widths "
            f"{widths}; cut one batch with Batch.shard"
        )
    rows = max(len(batch.input_ids) for batch in batches)
    wanted = [torch.arange(rows) % len(batch.input_ids) for batch in batches]
    ids = torch.cat([batch.input_ids[rows_of] for batch, rows_of in zip(batches, wanted, strict=True)])
    if all(batch.attention_mask is None for batch in batches):
        return ids, None, rows
    masks = [
        torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask for batch in batches
    ]
    return ids, torch.cat([mask[rows_of] for mask, rows_of in zip(masks, wanted, strict=True)]), rows


Reward = Callable[[Population, Sequence[Batch]], Sequence[float]]
"""The number that each member of a population deserves for its batch; more is better. The function may look as often as
it likes: each look is a pass. Among several ranks it must look equally often on all, whatever it sees."""
