"""Rules with state, sparse directions and frozen weights: the same in every mode of the engine.

That each step is its formula is in tests/methods/test_newer.py, of resident and offloaded blocks.
"""

from statistics import NormalDist
from typing import Any

import pytest
import torch

from tests.support.parity import batches_of
from tests.support.reference import g_of
from tests.support.watched import before
from zobench import Engine, EngineConfig, Entry, Point, RunSpec, models
from zobench.engine.directions import general
from zobench.engine.directions import noise as noise_module
from zobench.engine.updates.rules import Momentum
from zobench.engine.weights import tiers
from zobench.models import weights

EPS, LR = 1e-3, 1e-3
SHARE = NormalDist().inv_cdf(0.7)
MODES = {"pageable": {}, "one slot": {"slots": 1}, "disk": {"tier": "disk"}, "no fused update": {"fused_update": False}}
CUTS = {
    "resident linear": {"placement": "resident", "granularity": "linear"},
    "linear": {"granularity": "linear"},
    "tile": {"granularity": "tile", "tier": "disk"},
}


def build(frozen=()):
    model = models.build("opt-tiny", "fp32")
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(not any(word in key for word in frozen))
    return model


def batches(count=6):
    return batches_of(RunSpec(model="opt-tiny", batch_size=2, seq_len=13, seed=1), count)


def run(config, frozen=(), queries=2, **options):
    """Losses, weights and state of a few steps of two-point estimates, all that is committed with ``options``' rule."""
    losses, model = [], build(frozen)
    with Engine(model, EngineConfig(**config), weights=weights.RandomWeights(model, 3), **options) as engine:
        for step, batch in enumerate(batches()):
            seeds = range(11 + step * queries, 11 + (step + 1) * queries)
            losses_of_points = engine.probe(batch, [Point(seed, c) for seed in seeds for c in (EPS, -EPS)])
            pairs = zip(losses_of_points[::2], losses_of_points[1::2], strict=True)
            engine.commit([
                Entry(step=step, seed=seed, g=g_of(a, b, EPS) / queries, lr=LR, weight_decay=0.1)
                for seed, (a, b) in zip(seeds, pairs, strict=True)
            ])  # fmt: skip
            losses += losses_of_points
        return losses, dict(engine.named_tensors()), dict(engine.state_tensors())


@pytest.mark.parametrize("kind", ["rule", "sparse"])
@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_rules_with_state_and_sparse_directions_are_the_same_in_every_mode(noise, kind):
    names = [name for name, _ in build().named_parameters() if "fc1.weight" in name or "embed_tokens" in name]
    options: dict[str, Any] = {"rule": Momentum()} if kind == "rule" else {"thresholds": dict.fromkeys(names, SHARE)}
    losses, tensors, state = run({"placement": "resident", "noise": noise}, **options)
    assert len(state) == (len(tensors) if kind == "rule" else 0)
    assert all(per_tensor.abs().max() > 0 for per_tensor in state.values())
    for mode in MODES.values():
        mine = run({"noise": noise, **mode}, **options)
        assert mine[0] == losses, mode
        for part, wanted in zip(mine[1:], (tensors, state), strict=True):
            assert part.keys() == wanted.keys()
            assert all(torch.equal(part[key], wanted[key]) for key in wanted), mode
    for mode in CUTS.values() if noise == "counter" else ():  # cut blocks sum their products in another order
        mine = run({"noise": noise, **mode}, **options)
        assert mine[0] == pytest.approx(losses, abs=1e-4)
        for key, tensor in mine[1].items():
            torch.testing.assert_close(tensor, tensors[key], rtol=0, atol=2e-3 * float(tensors[key].abs().max()))


@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_frozen_weights_are_not_moved_and_not_written_back(noise, monkeypatch):
    frozen, sizes = ("fc1", "fc2", "embed", "self_attn.k_proj", "layers.1."), {}
    note = lambda tier, block, slot, *_: sizes.update({block: slot.numel()})  # noqa: E731
    before(monkeypatch.setattr, tiers.DiskTier, "offload", note)
    mine = run({"noise": noise, "tier": "disk"}, frozen)
    resident, source = run({"noise": noise, "placement": "resident"}, frozen), weights.RandomWeights(build(), 3)
    assert mine[0] == resident[0]
    for name, tensor in mine[1].items():
        assert torch.equal(tensor, resident[1][name])
        start = torch.empty_like(tensor)
        source.fill(name, start)
        assert torch.equal(tensor, start) == any(word in name for word in frozen), name
    assert set(sizes) == {0, 2}  # block 1 is all frozen
    per_tensor = {
        name: p.nbytes for name, p in build(frozen).named_parameters() if "layers.0." in name and p.requires_grad
    }
    assert sum(per_tensor.values()) <= sizes[0] < sum(per_tensor.values()) + 8192


class PlainMomentum:
    """:class:`Momentum` as docs/extending.md writes a rule: a class of nobody's."""

    states = ("m",)
    state_dtype, apply, change, beta = Momentum.state_dtype, Momentum.apply, Momentum.change, Momentum.beta


def test_a_rule_needs_no_base_class():
    for mode in ({"placement": "resident"}, {"noise": "counter", "slots": 1}):
        (losses, *_), (wanted, *_) = run(mode, rule=PlainMomentum()), run(mode, rule=Momentum())
        assert losses == wanted


def test_a_rule_with_state_refuses_what_would_lose_it():
    for options in ({"wire": "bf16"}, {"writeback_every": 4, "noise": "counter"}):
        with pytest.raises(ValueError, match="a rule with state needs wire=none and writeback_every=1"):
            Engine(build(), EngineConfig(**options), weights=weights.RandomWeights(build(), 3), rule=Momentum())


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_entries_of_one_step_keep_their_own_rates(noise, sparse):
    """SGD takes entry by entry, whatever steps they belong to: each with its own lr and weight decay."""
    runs = []
    for steps in ((0, 0, 0), (0, 1, 2)):
        thresholds = {"model.decoder.layers.1.fc1.weight": 0.5} if sparse else None
        model = build()
        with Engine(
            model, EngineConfig(noise=noise), weights=weights.RandomWeights(model, 3), thresholds=thresholds
        ) as engine:
            engine.commit([
                Entry(step=step, seed=7 + n, g=2.0 - n, lr=10.0 ** -(n + 1), weight_decay=0.2 * n)
                for n, step in enumerate(steps)
            ])  # fmt: skip
            runs.append(dict(engine.named_tensors()))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


@pytest.mark.parametrize("extra", ["rule", "sparse"])
@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_pieces_of_tensors_and_tiles_of_the_head_change_no_bit(noise, extra, monkeypatch):
    """Tensors larger than a piece, as real ones are: their state, z and mask are taken from the same place."""
    names = [name for name, _ in build().named_parameters()]
    options = {"rule": Momentum()} if extra == "rule" else {"thresholds": dict.fromkeys(names, 0.3)}

    def steps(**config):
        model, losses, source = build(), [], weights.RandomWeights(build(), 3)
        with Engine(model, EngineConfig(noise=noise, **config), weights=source, **options) as engine:
            for step, batch in enumerate(batches(count=3)):
                losses += engine.probe(batch, [Point(step, c) for c in (0.1, -0.1)])
                engine.commit(
                    [Entry(step=step, seed=n, g=1.0 + n, lr=1e-2, weight_decay=0.1) for n in (step, step + 9)]
                )
            return losses, dict(engine.named_tensors()), dict(engine.state_tensors())

    whole = steps()
    monkeypatch.setattr(general, "CHUNK", 100)
    monkeypatch.setattr(noise_module, "CHUNK", 1 << 10)
    pieces = steps(logits_bytes=4 * 26 * 10)  # ten rows of the vocabulary at once
    assert pieces[0] == pytest.approx(whole[0], abs=1e-5)
    for piece, wanted in zip(pieces[1:], whole[1:], strict=True):
        assert all(torch.equal(piece[key], wanted[key]) for key in wanted)
