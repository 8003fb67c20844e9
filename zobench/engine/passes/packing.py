"""Packing: the rows of a batch as one row of tokens without padding, where each common beginning of rows stands once.

A step's products are over the tokens of a batch, so padding costs as much as text, and so does a prompt that is
repeated for each candidate. Packed, every distinct beginning of a row is computed once; attention alone sees the rows
again, each as the path of its tokens. A causal model's output at a token depends on the tokens before it alone, so
the losses are those of the padded batch but for the order in which products add.
"""

from __future__ import annotations

import copy
import json
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from zobench.data.batch import IGNORED, Batch, Choices
from zobench.engine.base import EngineConfig
from zobench.engine.passes import attention
from zobench.engine.passes.drive import Drive, call, plain
from zobench.engine.shrink import shrunk, special_tokens
from zobench.engine.twin import is_held
from zobench.models import is_masked

ATTENTION = "zobench_packed"
"""The name of :func:`attend` among transformers' attention functions."""
CLOSE = 1e-4
"""How far packed and unpacked logits of a twin, which are about 1, may be apart in float32."""
WINDOWS = ("sliding_window", "attention_chunk_size", "window_size", "local_attention")
"""Fields of a configuration that bound how far attention looks back, in tokens."""

_VERDICTS: dict[tuple[object, ...], str] = {}


@dataclass(frozen=True, eq=False, slots=True)
class RowLayout:
    """The places of the packed tokens in the rows. Of t tokens and r rows, the longest with l tokens: ``paths`` (r *
    l,) the packed token at each place of each row, behind a row's end its first token; ``places`` (t,) one place of
    each token among r * l; ``rows`` r. All int64."""

    paths: Tensor
    places: Tensor
    rows: int

    def unpacked(self, tensor: Tensor) -> Tensor:
        """(b, heads, t, width) as rows (b * r, heads, l, width)."""
        b, heads, _, width = tensor.shape
        rows = tensor.index_select(2, self.paths).view(b, heads, self.rows, -1, width)
        return rows.transpose(1, 2).reshape(b * self.rows, heads, -1, width)

    def together(self, tensor: Tensor) -> Tensor:
        """Rows (b * r, l, heads, width) as (b, t, heads, width)."""
        heads, width = tensor.shape[2:]
        return tensor.reshape(-1, len(self.paths), heads, width).index_select(1, self.places)


_LAYOUT: ContextVar[RowLayout] = ContextVar("the layout of the batch that a model is being called on")


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Causal attention among the tokens of each row, as transformers calls attention functions: ``query`` (b, heads, t,
    width), ``key`` and ``value`` (b, key heads, t, width); the output is (b, t, heads, width)."""
    layout = _LAYOUT.get()
    window = options.get("sliding_window")
    if window is not None and len(layout.paths) > window * layout.rows:
        raise ValueError(f"packed rows must be no longer than attention reaches, {window} tokens; use packed=false")
    query, key, value = layout.unpacked(query), layout.unpacked(key), layout.unpacked(value)
    options["is_causal"] = True  # a row ends with what its tokens do not see
    output, _ = attention.attend(module, query, key, value, None, **options)
    return layout.together(output), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attend)


@dataclass(frozen=True, eq=False, slots=True)
class PackedBatch:
    """A batch of one row: its choices name the packed tokens. ``positions`` (1, t): of each token in its row, for all
    copies of the batch where it is observed what follows them, which it is of models that are not :func:`is_held`.
    ``kernels``: of attention among the rows."""

    batch: Batch
    positions: Tensor
    layout: RowLayout
    kernels: attention.Choice = ()

    def drive(self, model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """A :class:`~zobench.engine.passes.drive.Drive` over copies (k, t) of the packed row."""
        token = _LAYOUT.set(self.layout)
        try:
            with attention.using(self.kernels), attention.replaced(model, ATTENTION):
                positions = self.positions.expand(len(input_ids), -1) if is_held(model) else self.positions
                return call(model, input_ids=input_ids, position_ids=positions)
        finally:
            _LAYOUT.reset(token)


def packed(batch: Batch, device: torch.device | str = "cpu", kernels: attention.Choice = ()) -> PackedBatch | None:
    """``batch`` packed, on ``device``; None where it has no choices, which say all that a loss reads of it, or where
    padding is not at the rows' ends."""
    if batch.choices is None:
        return None
    mask = torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask
    first = mask.argmax(1)
    if not bool((mask.diff(dim=1).ne(0).sum(1) <= 1 + (first > 0)).all()) or not bool(mask.any(1).all()):
        return None
    numbers: dict[tuple[int, int], int] = {}
    depths: list[int] = []
    rows: list[list[int]] = []
    for ids, start, length in zip(batch.input_ids.tolist(), first.tolist(), mask.sum(1).tolist(), strict=True):
        row, before = [], -1
        for depth, token in enumerate(ids[start : start + length]):
            number = numbers.setdefault((before, token), len(depths))
            if number == len(depths):
                depths.append(depth)
            row.append(before := number)
        rows.append(row)
    longest = max(map(len, rows))
    paths = torch.tensor([row + row[:1] * (longest - len(row)) for row in rows])
    places = torch.empty(len(depths), dtype=torch.int64)
    for number, row in enumerate(rows):
        places[row] = torch.arange(number * longest, number * longest + len(row))
    at = batch.choices.places
    tokens = paths[at[:, 0], at[:, 1] - first[at[:, 0]]]
    choices = replace(batch.choices, places=torch.stack([torch.zeros_like(tokens), tokens], dim=1))
    ids = torch.tensor([[token for _, token in numbers]])
    layout = RowLayout(paths.flatten().to(device), places.to(device), len(rows))
    whole = Batch(ids, torch.full_like(ids, IGNORED), None, choices)
    return PackedBatch(whole, torch.tensor([depths]).to(device), layout, kernels)


class Packer:
    """How an engine calls ``model`` on batches: as they are, by ``drive``, or packed where ``config`` asks for it and
    rows are no longer than attention reaches. Raises ``ValueError`` where that is asked for in vain: see :func:`check`,
    and a tuning scheme must put nothing before the tokens."""

    def __init__(self, model: nn.Module, config: EngineConfig, drive: Drive) -> None:
        self._config, self._reach = config, 0.0
        self.drive = attention.driven(drive, config.attention)
        if config.packed:
            if drive is not plain:
                raise ValueError(
                    "`packed` needs a scheme that puts nothing before the tokens, but got a prompt or a prefix; use "
                    "packed=false"
                )
            check(model)
            self._reach = reach(model)

    def driven(self, batch: Batch) -> tuple[Batch, Drive]:
        """The batch that the model is called on for ``batch``, and what calls it."""
        if not self._config.packed or not isinstance(batch, Batch):
            return batch, self.drive
        config, fits = self._config, batch.input_ids.shape[1] <= self._reach
        whole = packed(batch, config.device, config.attention) if fits else None
        return (batch, self.drive) if whole is None else (whole.batch, whole.drive)


def reach(model: nn.Module) -> float:
    """How many tokens back a token of the model sees, at least: rows up to this length can be packed."""
    config: Any = model.config
    values = [getattr(part, name, None) for part in attention.parts(config) for name in WINDOWS]
    return min((value for value in values if isinstance(value, int) and value > 0), default=float("inf"))


def check(model: nn.Module) -> None:
    """Raises ``ValueError``, one line, unless the model gives the same logits packed and row by row. Asked of a small
    twin of it, once per class and configuration."""
    config: Any = model.config
    try:
        small = shrunk(config)
    except Exception:  # of a configuration's own checks: then it is tried as it is
        small = config
    key = (type(model), json.dumps(small.to_dict(), sort_keys=True, default=str))
    if key not in _VERDICTS:
        _VERDICTS[key] = _verdict(model, small)
    if _VERDICTS[key]:
        raise ValueError(_VERDICTS[key])


def _verdict(model: nn.Module, config: Any) -> str:
    """Why the model cannot be packed, or ""."""
    name, remedy = type(model).__name__, "use packed=false"
    if is_masked(model):
        return f"`packed` needs a causal model, but {name} sees what follows a token; {remedy}"
    try:
        difference = _largest_difference(type(model), config)
    except Exception as error:  # whatever a model's own code raises where it is called as it was not written for
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"`packed` needs a model that takes position_ids, but {name} does not run so ({reason}); {remedy}"
    if difference > CLOSE:
        return (
            f"`packed` needs a model whose attention transformers can replace, but packed logits of {name} are "
            f"{difference:.1e} from those of its rows; {remedy}"
        )
    return ""


@torch.no_grad()
def _largest_difference(kind: Any, config: Any) -> float:
    """Between the logits of three rows with common beginnings, packed, with every kernel, and each by itself."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(0)
        twin = kind._from_config(copy.deepcopy(config), dtype=torch.float32).eval()
        for tensor in twin.parameters():
            tensor.add_(torch.randn_like(tensor), alpha=0.05)
    text = config.get_text_config()
    words = [token for token in range(text.vocab_size) if token not in special_tokens(text)][:16]
    rows = [[words[(3 * n + n * n) % len(words)] for n in range(7)] for _ in range(3)]
    rows[1][4], rows[2] = words[1], rows[2][:3]
    ids, mask = torch.full((3, 7), words[0]), torch.zeros(3, 7, dtype=torch.int64)
    for number, row in enumerate(rows):
        ids[number, 7 - len(row) :], mask[number, 7 - len(row) :] = torch.tensor(row), 1
    whole = packed(replace(_scored(ids), attention_mask=mask))
    assert whole is not None
    paths, alone = whole.layout.paths.view(3, -1), [call(twin, input_ids=torch.tensor([row]))[0] for row in rows]
    largest = 0.0
    for kernel in attention.KERNELS:
        each = replace(whole, kernels=((len(paths[0]), kernel),))
        together = each.drive(twin, whole.batch.input_ids, None)[0]
        differences = [row - together[paths[number, : len(row)]] for number, row in enumerate(alone)]
        largest = max(largest, *(float(rows.abs().max()) for rows in differences))
    return largest


def _scored(ids: Tensor) -> Batch:
    """A batch whose one candidate is the last token."""
    first = torch.zeros(1, dtype=torch.int64)
    return Batch(ids, ids, None, Choices(torch.tensor([[0, ids.shape[1] - 1]]), ids[:1, -1], first, first, first))
