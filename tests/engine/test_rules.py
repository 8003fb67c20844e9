"""Rules with state, sparse directions, parts and frozen weights: every engine mode against plain loops."""

from statistics import NormalDist

import pytest
import torch

from tests.support.reference import g_of, plain_loss
from tests.support.slopes import directions
from tests.support.streams import batches_of
from zobench import Engine, EngineConfig, Entry, Point, RunSpec, models
from zobench.engine.directions import general
from zobench.engine.directions import noise as noise_module
from zobench.engine.directions.noise import MASK
from zobench.engine.updates.rules import Momentum
from zobench.models import weights

EPS, LR, STEPS = 1e-3, 1e-3, 6
MODES = {
    "resident": {"placement": "resident"},
    "pageable": {},
    "one slot": {"slots": 1},
    "disk": {"tier": "disk"},
    "no fused update": {"fused_update": False},
}
CUTS = {
    "resident linear": {"placement": "resident", "granularity": "linear"},
    "linear": {"granularity": "linear"},
    "tile": {"granularity": "tile", "tier": "disk"},
}


def build(name="opt-tiny", dtype="fp32", frozen=(), tied=True):
    model = models.build(name, dtype, tied)
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(not any(word in key for word in frozen))
    return model


def batches(name="opt-tiny", count=STEPS):
    return batches_of(RunSpec(model=name, batch_size=2, seq_len=13, seed=1), count)


def z_along(noise):
    """(model, seed) -> z of the trainable parameters, by name."""
    return lambda model, seed: dict(directions(model, noise, seed))


def run(model, config, seeds, *, queries=1, **options):
    """Losses, weights and state of a few steps of two-point estimates, all that is committed with ``options``' rule."""
    losses = []
    with Engine(model, EngineConfig(**config), weights=weights.RandomWeights(model, 3), **options) as engine:
        for step, batch in enumerate(batches()):
            mine = seeds[step * queries : (step + 1) * queries]
            found = engine.probe(batch, [Point(s, c) for s in mine for c in (EPS, -EPS)])
            pairs = list(zip(found[::2], found[1::2], strict=True))
            engine.commit([
                Entry(step=step, seed=s, g=g_of(a, b, EPS) / queries, lr=LR, weight_decay=0.1)
                for s, (a, b) in zip(mine, pairs, strict=True)
            ])  # fmt: skip
            losses += found
        return losses, dict(engine.named_tensors()), dict(engine.state_tensors())


def decayed(name):
    return not any(word in name for word in ("bias", "layer_norm", "layernorm"))


@torch.inference_mode()
def plain(model, seeds, z_for, *, moved=lambda name: True, queries=1, momentum=True, in_place=True):
    """The same steps in a plain loop on a materialised model."""
    weights.materialise(model, weights.RandomWeights(model, 3), "cpu")
    own = {name: p for name, p in model.named_parameters() if p.requires_grad and moved(name)}
    states = {name: torch.zeros(p.shape) for name, p in own.items()}
    losses = []
    for step, batch in enumerate(batches()):
        mine, estimate = seeds[step * queries : (step + 1) * queries], {}
        for seed in mine:
            z = z_for(model, seed)
            pair, base = [], {name: p.clone() for name, p in own.items()}
            for delta in (EPS, -2 * EPS, EPS) if in_place else (EPS, -EPS):
                for name, p in own.items():
                    if in_place:
                        p.copy_(p + z[name] * delta)
                    elif delta > 0:
                        p.copy_(base[name] + delta * z[name])
                    else:
                        p.copy_(2 * base[name] - p)
                if len(pair) < 2:
                    pair.append(plain_loss(model, batch))
            if not in_place:
                for name, p in own.items():
                    p.copy_(base[name])
            g = g_of(*pair, EPS) / queries
            for name in own:
                estimate[name] = estimate.get(name, 0) + g * z[name].float()
            losses += pair
        for name, p in own.items():
            states[name].mul_(0.9 if momentum else 0.0).add_(estimate[name])
            p.copy_(p - LR * (states[name] + (0.1 if decayed(name) else 0.0) * p))
    return losses, {name: p.clone() for name, p in model.named_parameters()}, states


SEEDS = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]


def close(mine, expected, tolerance):
    assert mine[0] == pytest.approx(expected[0], abs=tolerance)
    for found, wanted in zip(mine[1:], expected[1:], strict=True):
        assert found.keys() >= wanted.keys() or {k.split("#")[0] for k in found} == set(wanted)
        for key, tensor in found.items():
            reference = wanted[key.split("#")[0]]
            assert (tensor - reference).abs().max() <= 20 * tolerance * max(1.0, float(reference.abs().max())), key


@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_a_rule_with_state_is_the_same_in_every_mode_and_equals_a_plain_loop(noise, queries):
    z_for = z_along(noise)
    reference = plain(build(), SEEDS, z_for, queries=queries, in_place=noise == "torch")
    modes = MODES if noise == "torch" else MODES | CUTS
    runs = {
        key: run(build(), {"noise": noise, **mode}, SEEDS, queries=queries, rule=Momentum())
        for key, mode in modes.items()
    }
    for key, mine in runs.items():
        close(mine, reference, 1e-4)
        if key in MODES:  # cut blocks sum their products in another order
            first = runs["resident"]
            assert mine[0] == first[0], key
            assert all(torch.equal(mine[n][k], first[n][k]) for n in (1, 2) for k in first[n]), key
    some = runs["resident"][2]
    assert len(some) == len(dict(build().named_parameters()))
    assert all(state.abs().max() > 0 for state in some.values())


def test_parts_are_known_after_a_probe():
    with Engine(build(), EngineConfig(), weights=weights.RandomWeights(build(), 3)) as engine:
        assert engine.parts == 5
        with pytest.raises(ValueError, match="needs a probe before it"):
            engine.commit([Entry(step=0, seed=1, g=1.0, lr=1.0, part=0)])


@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_a_sparse_direction_leaves_out_the_share_of_its_threshold(noise):
    threshold = NormalDist().inv_cdf(0.7)
    names = [name for name, _ in build().named_parameters() if "fc1.weight" in name or "embed_tokens" in name]

    def z_for(model, seed):
        base = z_along(noise)
        z, mask = base(model, seed), base(model, seed + MASK)
        for name in names:
            kept = mask[name] >= threshold
            assert abs(kept.float().mean() - 0.3) < 0.05
            z[name] = z[name] * kept
        return z

    reference = plain(build(), SEEDS, z_for, momentum=False, in_place=noise == "torch")
    thresholds = dict.fromkeys(names, threshold)
    modes = MODES if noise == "torch" else MODES | CUTS
    for mode in modes.values():
        mine = run(build(), {"noise": noise, **mode}, SEEDS, thresholds=thresholds)
        close(mine[:2], reference[:2], 1e-4)
    with pytest.raises(ValueError, match="must name trainable parameters, but got nothing"):
        Engine(build(), EngineConfig(), weights=weights.RandomWeights(build(), 3), thresholds={"nothing": 1.0})


@pytest.mark.parametrize("noise", ["torch", "counter"])
@pytest.mark.parametrize("mode", ["resident", "pageable", "disk"])
def test_frozen_weights_are_not_moved_and_not_written_back(mode, noise, monkeypatch):
    frozen = ("fc1", "fc2", "embed", "self_attn.k_proj", "layers.1.")
    z_for = z_along(noise)
    reference = plain(build(frozen=frozen), SEEDS, z_for, momentum=False, in_place=noise == "torch")
    model = build(frozen=frozen)
    sizes = {}

    def spy(tier, original):
        def offload(self, block, slot, first=0):
            sizes[block] = slot.numel()
            return original(self, block, slot, first)

        monkeypatch.setattr(tier, "offload", offload)

    from zobench.engine.weights import tiers

    for tier in (tiers.HostTier, tiers.DiskTier):
        spy(tier, tier.offload)
    mine = run(model, {"noise": noise, **MODES[mode]}, SEEDS)
    close(mine[:2], reference[:2], 1e-4)
    start = {name: torch.empty(p.shape) for name, p in build().named_parameters()}
    source = weights.RandomWeights(build(), 3)
    for name, tensor in start.items():
        source.fill(name, tensor)
        if any(word in name for word in frozen):
            assert torch.equal(mine[1][name], tensor), name
        else:
            assert not torch.equal(mine[1][name], tensor), name
    if mode != "resident":
        assert set(sizes) == {0, 2}  # block 1 is all frozen
        trained = sum(
            p.nbytes for n, p in build(frozen=frozen).named_parameters() if "layers.0." in n and p.requires_grad
        )
        whole = sum(p.nbytes for n, p in build().named_parameters() if "layers.0." in n)
        assert trained <= sizes[0] < trained + 8192 < whole


def test_a_rule_with_state_refuses_what_would_lose_it():
    for options in ({"wire": "bf16"}, {"writeback_every": 4, "noise": "counter"}):
        with pytest.raises(ValueError, match="a rule with state needs wire=none and writeback_every=1"):
            Engine(build(), EngineConfig(**options), weights=weights.RandomWeights(build(), 3), rule=Momentum())


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_entries_of_one_step_keep_their_own_rates(noise, sparse):
    """SGD takes entry by entry, whatever steps they belong to: each with its own lr and weight decay."""
    found = []
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
            found.append(dict(engine.named_tensors()))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("own", ["rule", "sparse"])
@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_pieces_of_tensors_and_tiles_of_the_head_change_no_bit(noise, own, monkeypatch):
    """Tensors larger than a piece, as real ones are: their state, z and mask are taken from the same place."""
    names = [name for name, _ in build().named_parameters()]
    options = {"rule": Momentum()} if own == "rule" else {"thresholds": dict.fromkeys(names, 0.3)}

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
    for found, wanted in zip(pieces[1:], whole[1:], strict=True):
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)


@pytest.mark.parametrize("config", [{"placement": "resident"}, {"tier": "disk"}], ids=["resident", "disk"])
@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_a_flush_after_every_step_changes_no_bit_of_weights_or_state(config, noise):
    runs = []
    for flushes in (False, True):
        model, losses = build(), []
        source = weights.RandomWeights(model, 3)
        with Engine(model, EngineConfig(noise=noise, **config), weights=source, rule=Momentum()) as engine:
            for step, batch in enumerate(batches(count=4)):
                losses += engine.probe(batch, [Point(step, EPS), Point(step, -EPS)])
                engine.commit([Entry(step=step, seed=step, g=1.0, lr=1e-2, weight_decay=0.1)])
                if flushes:
                    engine.flush()
            runs.append((losses, dict(engine.named_tensors()), dict(engine.state_tensors())))
    (losses, *tensors), (others, *expected) = runs
    assert losses == others
    for flushed, wanted in zip(expected, tensors, strict=True):
        assert all(torch.equal(flushed[key], wanted[key]) for key in wanted)
        assert any(tensor.any() for tensor in flushed.values())
