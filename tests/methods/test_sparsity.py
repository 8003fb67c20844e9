"""Layer-wise sparsity against a sort of all weights; the share of directions that a mask leaves out."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch

from tests.support.parity import batches
from zobench import Engine, EngineConfig, RunSpec, models
from zobench.methods import make, sparsity, thresholds
from zobench.models import weights

SHARES = (0.0, 0.1, 0.93)


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
    return {name: float((magnitude < edge).mean()) for name, magnitude in magnitudes.items()}


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("trainable", [None, "layers.1."])
def test_a_layers_sparsity_is_its_share_of_the_smallest_weights(share, trainable):
    model = model_of(trainable=trainable)
    source = Normals(model)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    shares = sparsity.layer_sparsity(model, source, share)
    expected = sorted_shares(source.values, names, share)
    assert list(shares) == names
    for name in names:  # a bin of the histogram is a thousandth of a magnitude wide, and it holds whole elements
        assert shares[name] == pytest.approx(expected[name], abs=1.5e-3 + 1 / source.values[name].numel())
    sizes = {name: source.values[name].numel() for name in names}
    assert sum(shares[name] * sizes[name] for name in names) == pytest.approx(share * sum(sizes.values()), rel=1e-9)
    if share:
        assert len(set(shares.values())) > 10


def test_zeros_are_pruned_in_equal_shares():
    """As a new adapter's are: half of it is zeros, and pruning a fifth must not hold all of them back."""
    model = model_of()
    source = Normals(model, zeros=5)
    names = list(source.values)
    zeros = sum(source.values[name].numel() for name in names[:5])
    everything = sum(value.numel() for value in source.values.values())
    share = 0.5 * zeros / everything
    shares = sparsity.layer_sparsity(model, source, share)
    assert [shares[name] for name in names] == pytest.approx([0.5] * 5 + [0.0] * (len(names) - 5))


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


@pytest.mark.parametrize(
    ("definition", "mode"),
    [("as-written", {"placement": "resident"}), ("as-shipped", {"noise": "counter", "slots": 2})],
)
def test_the_share_of_weights_that_stay_is_the_definitions(definition, mode):
    """As written a tensor's share s of magnitude pruning stays, as shipped Phi(s); another share of it each step."""
    spec = spec_of(0.4, definition).replace(lr=1e-1, eps=1e-2, seed=5)
    model = models.build("opt-tiny", "fp32")
    start = weights.RandomWeights(model, 3)
    shares, limits = sparsity.layer_sparsity(model, start, 0.4), thresholds(spec, model, start)
    with Engine(model, EngineConfig(**mode), weights=start, thresholds=limits) as engine:
        method, before, stayed = make(spec), dict(engine.named_tensors()), []
        for batch in batches("opt-tiny", count=2):
            assert abs(method.step(engine, batch).projected_grad) > 1e-2
            after = dict(engine.named_tensors())
            # torch noise leaves the rounding of MeZO's three moves on what was perturbed, far less than an update
            stayed.append({name: (after[name] - before[name]).abs() < 1e-6 for name in after})
            before = after
    for name, pruned in shares.items():
        share = pruned if definition == "as-written" else 0.5 * (1 + math.erf(pruned / math.sqrt(2)))
        count = stayed[0][name].numel()
        spread = 4.5 * math.sqrt(share * (1 - share) / count) + 2e-3  # few updates are below 1e-6 by themselves
        for mask in stayed:
            assert mask[name].double().mean().item() == pytest.approx(share, abs=spread)
    big = max(shares, key=lambda name: stayed[0][name].numel())
    assert (stayed[0][big] != stayed[1][big]).double().mean() > 0.2
