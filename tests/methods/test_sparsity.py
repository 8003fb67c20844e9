"""Layer-wise sparsity against a sort of all weights; the share of directions that a mask leaves out."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch

from zobench import RunSpec, models
from zobench.methods import sparsity, thresholds

SHARES = (0.0, 0.1, 0.5, 0.93)


def spec_of(share, definition="as-written"):
    return RunSpec(model="opt-tiny", method="zo-sgd-sparse", sparsity=share, definition=definition)


class Normals:
    """Weights whose scale rises from tensor to tensor, so that each has a share of its own; some of them zeros."""

    def __init__(self, model, zeros=0):
        self.values = {}
        generator = torch.Generator().manual_seed(4)
        for n, (name, p) in enumerate(model.named_parameters()):
            self.values[name] = (torch.randn(p.shape, generator=generator) * 1.05**n).to(p.dtype)
            if n < zeros:
                self.values[name].zero_()

    def fill(self, name, out, first=0):
        out.copy_(self.values[name][first : first + out.shape[0]])


def model_of(dtype="fp32", trainable=None):
    model = models.build("opt-tiny", dtype)
    for name, p in model.named_parameters():
        p.requires_grad_(trainable is None or trainable in name)
    return model


def sorted_shares(values, names, share):
    """Name -> share below the smallest magnitude that is not pruned, by a sort; no two magnitudes may be equal."""
    magnitudes = {name: values[name].float().abs().flatten().double().numpy() for name in names}
    everything = np.sort(np.concatenate(list(magnitudes.values())))
    edge = everything[round(share * len(everything))]
    return {name: float((own < edge).mean()) for name, own in magnitudes.items()}


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("trainable", [None, "layers.1."])
def test_a_layers_sparsity_is_its_share_of_the_smallest_weights(share, trainable):
    model = model_of(trainable=trainable)
    source = Normals(model)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    found = sparsity.layer_sparsity(model, source, share)
    expected = sorted_shares(source.values, names, share)
    assert list(found) == names
    for name in names:  # a bin of the histogram is a thousandth of a magnitude wide, and it holds whole elements
        assert found[name] == pytest.approx(expected[name], abs=1.5e-3 + 1 / source.values[name].numel())
    sizes = {name: source.values[name].numel() for name in names}
    assert sum(found[name] * sizes[name] for name in names) == pytest.approx(share * sum(sizes.values()), rel=1e-9)
    if share:
        assert len(set(found.values())) > 10


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_it_is_exact_for_16_bit_weights(dtype):
    """Many are equal: those at the edge are pruned in equal parts everywhere, so that the whole has its share."""
    model = model_of(dtype)
    source, share = Normals(model), 0.3
    magnitudes = {name: v.double().abs().flatten().numpy() for name, v in source.values.items()}
    everything = np.sort(np.concatenate(list(magnitudes.values())))
    edge = everything[int(share * len(everything))]
    rest = (share * len(everything) - (everything < edge).sum()) / (everything == edge).sum()
    found = sparsity.layer_sparsity(model, source, share)
    for name, own in magnitudes.items():
        assert found[name] == pytest.approx((own < edge).mean() + rest * (own == edge).mean(), abs=1e-12)


def test_zeros_are_pruned_in_equal_shares():
    """As a new adapter's are: half of it is zeros, and pruning a fifth must not hold all of them back."""
    model = model_of()
    source = Normals(model, zeros=5)
    names = list(source.values)
    zeros = sum(source.values[name].numel() for name in names[:5])
    everything = sum(value.numel() for value in source.values.values())
    share = 0.5 * zeros / everything
    found = sparsity.layer_sparsity(model, source, share)
    assert [found[name] for name in names] == pytest.approx([0.5] * 5 + [0.0] * (len(names) - 5))


def test_pieces_do_not_matter(monkeypatch):
    model = model_of()
    source = Normals(model)
    whole = sparsity.layer_sparsity(model, source, 0.4)
    monkeypatch.setattr(sparsity, "CHUNK", 100)
    seen = []
    fill = source.fill
    source.fill = lambda name, out, first=0: (seen.append(out.numel()), fill(name, out, first))
    assert sparsity.layer_sparsity(model, source, 0.4) == whole
    assert max(seen) <= 256  # a row of the widest matrix at least, 100 elements otherwise
    assert sum(seen) == 2 * sum(p.numel() for p in model.parameters())  # two passes


def test_thresholds_of_both_definitions():
    model = model_of()
    source = Normals(model)
    shares = sparsity.layer_sparsity(model, source, 0.4)
    assert 0 < min(shares.values()) < 0.3 < 0.5 < max(shares.values()) < 1
    written = thresholds(spec_of(0.4), model, source)
    assert written == {name: NormalDist().inv_cdf(share) for name, share in shares.items()}
    assert thresholds(spec_of(0.4, "as-shipped"), model, source) == shares
    assert set(thresholds(spec_of(0.0), model, source).values()) == {-math.inf}
    assert sparsity.mask_thresholds({"w": 1.0}, "as-written") == {"w": math.inf}
    assert thresholds(RunSpec(model="opt-tiny"), model, source) is None
