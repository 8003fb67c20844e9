"""Engine.tangent against the directional derivative that backward-mode differentiation of the plain model gives."""

import weakref

import pytest
import torch
from torch.autograd import forward_ad

from tests.support.slopes import MASK, MODELS, SEED, choosing, derivative, directions, engine_of, filled, padded
from zobench import Entry, Point

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


MODES = {
    "pageable": {},
    "disk": {"tier": "disk"},
    "one slot": {"slots": 1},
    "one block resident": {"resident_blocks": 1},
    "nothing overlaps": {"overlap": False, "reusable_memory": False, "fused_update": False},
}


@pytest.mark.parametrize("noise", ["torch", "counter"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_offloaded_equals_resident(name, mode, noise):
    """Also after updates, some of which no unit has seen when the tangent asks for its weights."""
    found = []
    for config in ({"placement": "resident"}, MODES[mode]):
        with engine_of(name, noise=noise, **config) as engine:
            steps = []
            for step in range(3):
                steps.append(engine.tangent(padded(), SEED + step))
                engine.commit([Entry(step=step, seed=SEED + step, g=steps[-1][1], lr=1e-3, weight_decay=0.1)])
            found.append((steps, engine.evaluate(padded()), dict(engine.named_tensors())))
    (resident, loss, tensors), (offloaded, other_loss, others) = found
    assert offloaded == resident
    assert other_loss == loss
    assert all(torch.equal(others[key], tensors[key]) for key in tensors)
    assert len({slope for _, slope in resident}) == 3


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
            found = engine.tangent(padded(), SEED)
        assert found == pytest.approx(expected, **CLOSE)
        behind = {unit.applied for unit in engine.units}
        assert behind == {{1: 3, 2: 2, "inf": 0}[every]}  # written back as often as the configuration says


@pytest.mark.parametrize("config", [{"placement": "resident"}, {}, {"noise": "counter"}, {"wire": "bf16"}], ids=str)
def test_weights_stay_as_they_are(config):
    with engine_of("opt-tiny", **config) as engine:
        before = dict(engine.named_tensors())
        engine.tangent(padded(), SEED)
        after = dict(engine.named_tensors())
        assert all(torch.equal(after[key], before[key]) for key in before)
        used = dict(engine.model.named_parameters())
        streamed = {item.name for unit in engine.blocks for item in unit.fields}
        assert all(used[name].is_meta == (name in streamed) for name in used)
        with forward_ad.dual_level():
            assert all(forward_ad.unpack_dual(parameter).tangent is None for parameter in used.values())
        assert engine.probe(padded(), [Point(SEED, 1e-3)]) != [engine.evaluate(padded())]


def some(name):
    """As with an adapter: most is frozen, the table and one block wholly."""
    return "q_proj" in name or ("norm" in name and "layers.1." not in name)


@pytest.mark.parametrize("config", [{"placement": "resident"}, {}, {"noise": "counter"}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_frozen_parameters_have_no_tangent(name, config):
    model = filled(name, train=some)
    expected = derivative(model, padded(), dict(directions(model, config.get("noise", "torch"))))
    with engine_of(name, train=some, **config) as engine:
        assert engine.tangent(padded(), SEED) == pytest.approx(expected, **CLOSE)


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


@pytest.mark.parametrize("config", [{"placement": "resident"}, {}, {"noise": "counter"}], ids=str)
def test_one_unit_has_directions_at_a_time(config, monkeypatch):
    alive, seen = [], []
    with engine_of("opt-tiny", **config) as engine:
        draw = engine.arithmetic.direction

        def counted(seed, unit, tensors):
            seen.append(sum(tensor() is not None for tensor in alive))
            alive.extend(map(weakref.ref, tensors))
            draw(seed, unit, tensors)

        monkeypatch.setattr(engine.arithmetic, "direction", counted)
        engine.tangent(padded(), SEED)
        assert len(alive) > 3 * 16
        assert set(seen) == {0}
        assert not any(tensor() is not None for tensor in alive)


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


def test_inside_inference_mode():
    with engine_of("opt-tiny", placement="resident") as engine:
        outside = engine.tangent(padded(), SEED)
        with torch.inference_mode():
            assert engine.tangent(padded(), SEED) == outside


def test_what_it_refuses():
    with (
        engine_of("opt-tiny", noise="counter", granularity="linear") as engine,
        pytest.raises(
            ValueError, match="needs granularity=block, because whole modules are differentiated, but got gr"
        ),
    ):
        engine.tangent(padded(), SEED)
