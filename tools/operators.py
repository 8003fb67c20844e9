"""Prices what a program issues on the meta device, operator by operator, as a GPU would take it.

Views and fresh memory cost nothing; a product what :class:`~zobench.cost.roofline.Roofline` says, attention its
operations, a draw its numbers, everything else the bytes that it reads and writes; each a kernel's own seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from zobench import kernels
from zobench.cost.hardware import Gpu
from zobench.cost.roofline import Roofline
from zobench.measure.ledger import AsCuda, Watch

FREE = frozenset({
    "view", "t", "transpose", "expand", "slice", "select", "unsqueeze", "squeeze", "permute", "detach", "alias",
    "as_strided", "_unsafe_view", "unbind", "split", "_reshape_alias", "empty", "empty_like", "new_empty",
    "lift_fresh", "narrow", "reshape", "split_with_sizes", "empty_strided",
})  # fmt: skip
"""Operators that launch nothing."""
PRODUCTS = frozenset({"mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_"})
ON_WEIGHTS = frozenset({"normal_", "mul_", "add_", "sub_", "add"})
"""What torch's noise issues, on weights that lie flat; only "add" writes elsewhere than to its first operand."""
GATHERS = frozenset({"embedding", "index_select", "index", "gather"})
"""Operators that read only as much of their operand as they make."""
ROW = 8
"""Numbers of a token from which on a tensor is an activation, and no norm's statistic of each head, which stays in a
cache."""
_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
PARTS = ("products", "attention", "passes", "noise", "kernels")


class Priced(Watch):
    """``seconds`` by :data:`PARTS` of what is issued on the meta device inside :meth:`running`, as ``gpu`` takes it.

    ``tokens`` of a forward tell activations from what is smaller. ``tf32``: products of 32 bits are made in that.
    """

    def __init__(self, gpu: Gpu, tokens: float, *, tf32: bool = False) -> None:
        super().__init__(self._operator)
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._kernel, self._tokens, self._tf32 = gpu.kernel, tokens, tf32
        self._gpu, self._price = gpu, Roofline(dataclasses.replace(gpu, kernel=0.0))
        self._judges = False

    @property
    def total(self) -> float:
        """Seconds of all parts."""
        return float(sum(self.seconds.values()))

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Inside, passes are those of a loss over logits."""
        self._judges = True
        try:
            yield
        finally:
            self._judges = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, what is issued is priced, and chosen as on a CUDA device."""
        with AsCuda(), kernels.watched(self._pass), self:
            yield

    def _operator(self, packet: str, given: list[Tensor], made: list[Tensor]) -> None:
        name = packet.rpartition(".")[2]
        if name in FREE or not any(tensor.is_meta for tensor in given or made):  # the host's, and copies of that
            return
        self.seconds["kernels"] += self._kernel
        if name in PRODUCTS:
            self._product(given[-2], given[-1])
            if given[0].numel() == made[0].numel() and len(given) > 2:  # what it is added to; a bias is broadcast
                self.seconds["products"] += self._price.passes(given[0].nbytes, 0)
        elif "attention" in name:
            self._attention(given[0])
        elif name == "normal_":
            self.seconds["noise"] += self._price.normals(given[0].numel(), given[0].element_size())
        elif name in ON_WEIGHTS and given[0].dim() == 1:
            self.seconds["noise"] += self._price.passes(
                sum(tensor.nbytes for tensor in given) + (name != "add") * given[0].nbytes, 0
            )
        else:
            new = [tensor for tensor in made if all(tensor is not other for other in given)]
            nbytes = 2 * sum(tensor.nbytes for tensor in new) if name in GATHERS else self._moved(name, given, new)
            self.seconds["passes"] += self._price.losses(nbytes) if self._judges else self._price.passes(nbytes, 0)

    def _product(self, left: Tensor, right: Tensor) -> None:
        rows, inner = left.shape[-2:]
        count = left.numel() // (rows * inner)
        precision = "tf32" if self._tf32 and left.dtype == torch.float32 else _NAMES[left.dtype]
        self.seconds["products"] += self._price.product(rows, inner, right.shape[-1], precision, count)

    def _attention(self, query: Tensor) -> None:
        rows, heads, tokens, width = query.shape
        precision = "tf32" if self._tf32 and query.dtype == torch.float32 else _NAMES[query.dtype]
        pairs = rows * heads * tokens**2 * width  # half of the scores: it is causal
        self.seconds["attention"] += 2 * pairs / self._gpu.attention(precision)

    def _moved(self, name: str, given: list[Tensor], new: list[Tensor]) -> int:
        """Bytes of activations that an operator reads and writes; any other operand that is smaller is broadcast."""
        largest = max((tensor.numel() for tensor in new), default=0)
        whole = 1 if name in ("cat", "mean") else largest
        least = max(whole, ROW * self._tokens)
        return sum(tensor.nbytes for tensor in (*given, *new) if tensor.numel() >= least)

    def _pass(self, issued: kernels.Pass) -> None:
        """A pass of the counter kernels."""
        drawn = issued.drawn * issued.elements / self._gpu.normals_per_second(issued.width, counter=True)
        self.seconds["noise"] += max(drawn, self._price.passes(issued.elements * issued.width * issued.moved, 0))
        self.seconds["kernels"] += self._kernel
