"""First-order steps on several devices: with torch's FSDP each keeps a share of every weight, gradient and state.

ZO-Bench's table 4 counts the GPUs that an optimizer needs; FO-SGD and FO-Adam need more than one, over which weights,
gradients and state must then be spread. Each rank backpropagates through its shard of the batch. A block's weights are
gathered while it computes, its gradients are averaged over the ranks and cut into shares again.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from zobench.data.batch import Batch
from zobench.engine.backprop import Backprop
from zobench.engine.base import EngineConfig
from zobench.engine.passes.loss import counted
from zobench.models import blocks as find_blocks
from zobench.models.weights import Weights
from zobench.parallel.world import World, group, peer_errors


class ShardedBackprop(Backprop):
    """:class:`~zobench.engine.backprop.Backprop` over the ranks of ``world``: gradients are those of one device on the
    whole batch, up to the rounding of sums. All ranks make the same calls; an evaluation is each rank's of all rows."""

    def __init__(self, world: World, model: nn.Module, config: EngineConfig, **more: Any) -> None:
        self.world = world
        super().__init__(model, config, **more)

    def backward(self, batch: Batch, scale: float = 1.0) -> float:
        """See :class:`Backprop`: the mean loss of the whole batch, by what each shard's loss counts."""
        mesh = self.world.mesh
        shards = [batch.shard(number, mesh.shards) for number in range(mesh.shards)]
        counts = [counted(self.model, shard) for shard in shards]
        with _naming_the_lost(), warnings.catch_warnings():
            # of blocks whose output is a view, lest it is changed in place: transformers' models do not
            warnings.filterwarnings("ignore", "FSDP2-wrapped module")
            total = sum(counts)
            share = counts[mesh.shard] * mesh.shards / max(1, total)
            loss = self._descend(shards[mesh.shard], scale, share)  # FSDP takes the mean over the ranks
        losses = self.world.gather(torch.tensor([loss], dtype=torch.float64))[:, 0].tolist()
        rows = [(count, shard_loss) for count, shard_loss in zip(counts, losses, strict=True) if count]
        return sum(count * shard_loss for count, shard_loss in rows) / total if total else math.nan

    def gradient_norm(self) -> float:
        square = sum(
            float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2 for gradient in self._gradients()
        )
        return math.sqrt(float(self.world.sum(torch.tensor([square], dtype=torch.float64))))

    def shared(self, values: Any) -> list[int]:
        return self.world.from_first(values)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """See :class:`Backprop`; all ranks ask at the same time."""
        for name, tensor in super().named_tensors():
            yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def _gradients(self) -> list[Tensor]:
        return [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in super()._gradients()]

    def _put_on_device(self, model: nn.Module, weights: Weights | None) -> None:
        """Each rank keeps its share of one tensor after another, so that none ever holds all of them."""
        if weights is None:
            raise ValueError("sharded gradients need weights to fill the shares from, but got none; give weights=")
        device, buffers = self.config.device, dict(model.named_buffers())
        kind = device.partition(":")[0]
        joined = group(tuple(range(self.world.mesh.shards)), "nccl" if kind == "cuda" else "gloo", "gradients")
        mesh = DeviceMesh.from_group(joined, kind)
        for block in find_blocks(model):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh, reshard_after_forward=False)
        model.to_empty(device=device)
        for name, buffer in buffers.items():
            owner, _, key = name.rpartition(".")
            model.get_submodule(owner)._buffers[key] = buffer.to(device)
        for name, parameter in model.named_parameters():
            assert isinstance(parameter, DTensor)
            values = torch.empty(parameter.shape, dtype=parameter.dtype)
            weights.fill(name, values)
            share = distribute_tensor(
                values.to(device), parameter.device_mesh, parameter.placements, src_data_rank=None
            )
            with torch.no_grad():
                parameter.to_local().copy_(share.to_local())


@contextmanager
def _naming_the_lost() -> Iterator[None]:
    """Inside, a lost rank raises :class:`~zobench.parallel.world.PeerGoneError`; other errors stay what they are."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        with peer_errors():
            raise
