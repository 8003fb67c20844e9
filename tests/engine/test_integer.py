"""Integers at rest: the grid against NumPy's, and the engine against a plain loop over the unpacked weights."""

import numpy as np
import pytest
import torch

from tests.support.fast import batches, taken_steps, unwritten_steps
from tests.support.parity import engine_of, materialised
from zobench import models
from zobench.engine.weights.blocks import Field, Unit, make_unit
from zobench.engine.weights.tiers import allocate
from zobench.engine.weights.wire import IntegerWire
from zobench.runspec.kinds import WIRES

KINDS = [name for name, kind in WIRES.items() if kind.is_read_only]


def on_the_grid(values, bits, group):
    """The values as a reader of them would have them, from the definition alone."""
    largest = 2 ** (bits - 1) - 1
    flat = np.zeros(-(-values.size // group) * group, np.float32)
    flat[: values.size] = values.ravel()
    flat = flat.reshape(-1, group)
    scale = torch.from_numpy(np.abs(flat).max(1, keepdims=True) / np.float32(largest)).bfloat16().float().numpy()
    whole = np.clip(np.rint(flat / np.where(scale == 0, 1, scale)), -largest, largest).astype(np.float32)
    return (whole * scale).ravel()[: values.size].reshape(values.shape)


def packed(unit: Unit, kind: str, fill):
    wire = IntegerWire(WIRES[kind])
    master, back, slot = allocate(unit.nbytes), allocate(unit.nbytes), allocate(wire.nbytes(unit))
    for item in unit.fields:
        fill(item.view(master))
    wire.encode(unit, master, slot)
    wire.decode(unit, slot, back)
    return master, back, slot


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrices_lie_on_the_grid_and_vectors_stay(kind, dtype, monkeypatch):
    monkeypatch.setattr("zobench.engine.weights.grid.CHUNK_ELEMENTS", 900)  # several chunks, the last one short
    shapes = (48, 96), (31, 17), (96,)  # the second fills no whole number of groups
    fields = [Field(f"p{n}", torch.Size(shape), dtype, 0, True, True, (), n) for n, shape in enumerate(shapes)]
    unit = make_unit("unit", torch.nn.Module(), fields)
    torch.manual_seed(0)
    master, back, slot = packed(
        unit,
        kind,
        lambda tensor: tensor.normal_().mul_(torch.logspace(-6, 3, len(tensor))[:, None] if tensor.dim() == 2 else 1.0),
    )
    for item in unit.fields:
        before, after = item.view(master), item.view(back)
        if len(item.shape) == 1:
            assert torch.equal(after, before)
            continue
        expected = torch.from_numpy(on_the_grid(before.float().numpy(), WIRES[kind].bits, WIRES[kind].group))
        assert torch.equal(after, expected.to(dtype))
        assert not torch.equal(after, before)
    assert not torch.equal(slot, torch.zeros_like(slot))


def unpacked(name, kind):
    """A model whose blocks' matrices are what ``kind`` makes of them, by NumPy."""
    model = materialised(name)
    for block in models.blocks(model):
        for parameter in block.parameters():
            if parameter.dim() == 2:
                grid = on_the_grid(parameter.detach().numpy(), WIRES[kind].bits, WIRES[kind].group)
                parameter.data.copy_(torch.from_numpy(grid))
    return model


AS_INTEGERS = {"noise": "counter", "writeback_every": "inf"}
PLACES = [
    {"tier": "pageable"},
    {"tier": "disk", "granularity": "linear"},
    {"tier": "disk", "resident_blocks": 0, "slots": 1, "consolidate_after": 3},
]


@pytest.mark.parametrize("place", PLACES, ids=["pageable", "linear on a disk", "one slot, beyond the consolidation"])
@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("name", ["opt-tiny", "qwen3-tiny"])
def test_a_run_equals_a_plain_loop_over_the_unpacked_weights(name, kind, place):
    model = unpacked(name, kind)
    data = batches(name, count=8)
    expected = unwritten_steps(model, data)
    with engine_of(name, wire=kind, **AS_INTEGERS, **place) as engine:
        assert taken_steps(engine, data) == expected
        tuned = dict(engine.named_tensors())
        engine.flush()  # nothing can be written into what rests
        assert all(unit.applied == 0 and not unit.changed for unit in engine.blocks)
        assert all(torch.equal(tensor, tuned[key]) for key, tensor in engine.named_tensors())
        assert engine.bytes_at_rest < {"int8": 0.4, "int4": 0.3}[kind] * 4 * sum(
            parameter.numel() for block in models.blocks(model) for parameter in block.parameters()
        )
