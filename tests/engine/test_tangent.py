"""Engine.tangent against the directional derivative that backward-mode differentiation of the plain model gives."""

import pytest
import torch

from tests.support.slopes import MASK, MODELS, SEED, choosing, derivative, directions, engine_of, filled, padded
from zobench import Entry

CLOSE = {"rel": 1e-4, "abs": 1e-6}


@pytest.mark.parametrize("kind", ["causal", "choice", "lm"])
@pytest.mark.parametrize("noise", ["torch", "counter"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_directional_derivative(name, tied, noise, kind):
    batch = padded() if kind == "causal" else choosing(kind)
    model = filled(name, tied)
    expected = derivative(model, batch, dict(directions(model, noise)))
    with engine_of(name, tied, placement="resident", noise=noise) as engine:
        loss, slope = engine.tangent(batch, SEED)
        assert loss == pytest.approx(expected[0], **CLOSE)
        assert slope == pytest.approx(expected[1], **CLOSE)
        assert slope != pytest.approx(engine.tangent(batch, SEED + 1)[1], rel=1e-2)


@pytest.mark.parametrize("every", [1, 2, "inf"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_pending_updates_come_first(tied, every):
    model = filled("opt-tiny", tied)
    entries = [Entry(step=n, seed=20 + n, g=3.0, lr=1e-2) for n in range(3)]
    with torch.no_grad():
        for entry in entries:
            for name, z in directions(model, "counter", entry.seed):
                model.get_parameter(name).sub_(z, alpha=entry.lr * entry.g)
    expected = derivative(model, padded(), dict(directions(model, "counter")))
    with engine_of("opt-tiny", tied, noise="counter", writeback_every=every) as engine:
        for entry in entries:
            engine.commit([entry])
            slope = engine.tangent(padded(), SEED)
        assert slope == pytest.approx(expected, **CLOSE)
        behind = {unit.applied for unit in engine.units}
        assert behind == {{1: 3, 2: 2, "inf": 0}[every]}  # written back as often as the configuration says


@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_sparse_directions_are_those_of_a_probe(noise):
    """u = z(seed) where z(seed + 10**9) >= t, else 0; a parameter without a threshold keeps all of z."""
    model = filled("opt-tiny")
    limits = {name: 0.5 for name, _ in model.named_parameters() if "fc" in name or "embed_tokens" in name}
    masks = dict(directions(model, noise, SEED + MASK))
    along = {
        name: torch.where(masks[name] >= limits.get(name, -torch.inf), z, 0.0) for name, z in directions(model, noise)
    }
    expected = derivative(model, padded(), along)
    with engine_of("opt-tiny", noise=noise, thresholds=limits) as engine:
        assert engine.tangent(padded(), SEED) == pytest.approx(expected, **CLOSE)


SIXTEEN = {"bf16": ("bf16", "none"), "fp16": ("fp16", "none"), "to bf16": ("fp32", "bf16"), "to fp16": ("fp32", "fp16")}


@pytest.mark.parametrize("mode", SIXTEEN)
@pytest.mark.parametrize("name", MODELS)
def test_sixteen_bits_are_close(name, mode):
    """The weights and z are rounded in the reference too; each product of the pass is rounded here alone."""
    dtype, autocast = SIXTEEN[mode]
    model = filled(name).to({"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype])
    generator = torch.Generator().manual_seed(SEED)
    along = {name: torch.empty_like(p).normal_(generator=generator) for name, p in model.named_parameters()}
    expected = derivative(model.float(), padded(), along)
    with engine_of(name, dtype=dtype, autocast=autocast) as engine:
        loss, slope = engine.tangent(padded(), SEED)
        assert loss == pytest.approx(expected[0], rel=1e-3)
        assert slope == pytest.approx(expected[1], abs=0.4 if "bf16" in mode else 0.1)
