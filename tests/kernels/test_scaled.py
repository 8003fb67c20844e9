"""Eight bits with a scale for each row: the bits of the reference everywhere, and what e4m3 itself says."""

import dataclasses

import pytest
import torch

from tests.support.devices import ON_GPU
from tests.support.kernels import any_bits, interpreted, needs_triton, run_interpreted
from zobench.kernels import DTYPES, scaled
from zobench.kernels.base import E4M3_MAX, Packing, WireTensor


def placed(dtype, shapes):
    """A packing of tensors (rows, width), of which those of one row are not scaled; bytes of weights and slot."""
    pieces, weights, slot = [], 0, 0
    for rows, width in shapes:
        is_scaled, count = rows > 1, rows * width
        values = -(-count * (1 if is_scaled else dtype.itemsize) // 64) * 64
        pieces.append(WireTensor(weights, slot, slot + values if is_scaled else None, rows, width))
        weights += -(-count * dtype.itemsize // 64) * 64
        slot += values + (-(-4 * rows // 64) * 64 if is_scaled else 0)
    return Packing(dtype, pieces), weights, slot


SHAPES = {"aligned": [(3, 2048), (1, 48), (5, 32), (1, 1040)], "odd": [(4, 7), (1, 33), (2, 1500)]}


def ties():
    """Two rows of 448 and of all that lies halfway between two neighbours in e4m3, so that their scale is 1."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    row = torch.cat([codes[-1:], (codes[1:] + codes[:-1]) / 2, codes[-1:]])
    return torch.stack([row, -row])


def cases():
    """(packing, weights, bytes of the slot): ties, ordinary rows, and any bits: subnormals, infinities, NaN."""
    for dtype in DTYPES:
        packing, _, slot = placed(dtype, [(2, 128)])
        yield packing, ties().to(dtype).view(-1).view(torch.uint8), slot
        for shapes in SHAPES.values():
            packing, nbytes, slot = placed(dtype, shapes)
            count = nbytes // dtype.itemsize
            spread = torch.randn(count, generator=torch.Generator().manual_seed(1)) * torch.logspace(-9, 4, count)
            for weights in (spread.to(dtype), any_bits(dtype, count, 3)):
                yield packing, weights.view(torch.uint8), slot
            finite = any_bits(dtype, count, 4)
            yield packing, torch.where(finite.isfinite(), finite, torch.zeros_like(finite)).view(torch.uint8), slot


def agree(backend, device="cpu"):
    """Raises unless a back end packs and unpacks the reference's bits; where padding is, nothing is written."""
    for packing, weights, nbytes in cases():
        packed, unpacked = [], []
        for module, place in ((scaled, "cpu"), (backend, device)):
            slot = torch.full((nbytes,), 7, dtype=torch.uint8, device=place)
            tileless = dataclasses.replace(packing, tables={})
            module.pack(tileless, weights.to(place), slot)
            packed.append(slot.cpu())
            back = torch.full_like(weights, 9, device=place)
            module.unpack(tileless, packed[0].to(place), back)
            unpacked.append(back.cpu())
        for piece in packing.pieces:
            first, there = (scaled._views(packing, piece, unpacked[n], packed[n]) for n in range(2))
            torch.testing.assert_close(first[0], there[0], rtol=0, atol=0, equal_nan=True)
            if first[2] is not None:
                torch.testing.assert_close(first[2], there[2], rtol=0, atol=0, equal_nan=True)
            codes = [tileless[1].float() for tileless in (first, there)]
            torch.testing.assert_close(*codes, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_is_the_nearest_of_e4m3(dtype):
    """Against all 256 codes, read by torch; ties go to the even one."""
    packing, nbytes, slot = placed(dtype, [(4, 64)])
    weights = torch.randn(4, 64, generator=torch.Generator().manual_seed(2)).to(dtype)
    weights[:, 0] = torch.tensor([E4M3_MAX, -7.0, 1e-3, 0.0]).to(dtype)
    weights[3] = 0
    into = torch.zeros(slot, dtype=torch.uint8)
    scaled.pack(packing, weights.view(-1).view(torch.uint8), into)
    _, codes, scale = scaled._views(packing, packing.pieces[0], torch.zeros(nbytes, dtype=torch.uint8), into)
    assert torch.equal(scale[:3], weights[:3].float().abs().amax(1, keepdim=True) / E4M3_MAX)
    known = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    known = known[known.isfinite()]
    wanted = weights[:3].float() / scale[:3]
    nearest = (wanted[..., None] - known).abs().amin(-1)
    assert torch.equal((codes[:3].float() - wanted).abs(), nearest)
    assert not codes[3].float().any()


@needs_triton
@pytest.mark.slow
def test_triton_equals_the_reference_in_its_interpreter():
    run_interpreted(
        "from tests.kernels.test_scaled import agree; from zobench.kernels import scaled_gpu; agree(scaled_gpu)"
    )


@needs_triton
@pytest.mark.parametrize(
    "planted", ["", "_REBIAS = tl.constexpr(_REBIAS.value + 1)"], ids=["as it is", "ties to the odd"]
)
def test_every_code_and_every_input_of_16_bits_is_converted_as_torch_does(planted):
    """The kernels' own conversions, in the interpreter; the same operations compiled are each rounded to nearest even
    (test_ahead_of_time)."""
    plant = f"exec({planted!r}, vars(scaled_gpu)); " if planted else ""
    done = interpreted(f"from zobench.kernels import scaled_gpu; {plant}from tests.kernels import e4m3; e4m3.agree()")
    assert (done.returncode == 0) == (planted == ""), done.stderr[-3000:]
    assert not planted or "AssertionError" in done.stderr


class TestOnGpu:
    pytestmark = ON_GPU

    def test_triton_equals_the_reference(self):
        from zobench.kernels import scaled_gpu

        agree(scaled_gpu, "cuda")
