"""QZO and QES: steps of integer weights against plain loops and NumPy, wherever the weights rest."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.parity import batches_of
from tests.support.reference import draw_seeds, g_of, own_loss, plain_loss, z_of
from zobench import RunSpec, models
from zobench.engine.updates.steps import WholeSteps, edges
from zobench.models import weights
from zobench.schemes import apply
from zobench.training.assemble import empty_model, tuner

STEPS, SEED, GROUP = 4, 11, 64
QZO = {"method": "qzo", "lr": 1e-5, "eps": 1e-3, "options": {"group": GROUP, "clip": 4.0}}
QES = {"method": "qes", "lr": 0.02, "eps": 0.3, "queries": 3, "noise": "counter", "options": {"group": GROUP}}


def spec_of(**settings):
    return RunSpec(model="opt-tiny", seq_len=17, batch_size=3, seed=SEED, data="ragged", **settings).resolve("cpu")


def data(spec):
    return batches_of(spec, STEPS)


def run(spec):
    """(losses, g, final tensors, the journal)."""
    with tuner(spec) as built:
        done = [built.method.step(built.engine, batch) for batch in data(spec)]
        tensors = dict(built.engine.named_tensors())
        return [ran.loss for ran in done], [ran.gradients for ran in done], tensors, list(built.engine.local.journal)


class Integers:
    """A plain model whose blocks' matrices are codes times scales, cut as the definition says, in NumPy."""

    def __init__(self, spec):
        self.model = models.build("opt-tiny", "fp32")
        weights.materialise(self.model, weights.RandomWeights(self.model, spec.seed), "cpu")
        self.codes, self.scales, largest = {}, {}, 2 ** (spec.option("bits") - 1) - 1
        for name, layer in self.model.named_modules():
            if ".layers." in name and isinstance(layer, torch.nn.Linear):
                groups = layer.weight.detach().numpy().reshape(-1, GROUP)
                scale = torch.from_numpy(np.abs(groups).max(1, keepdims=True) / np.float32(largest)).bfloat16().float()
                self.codes[name] = torch.from_numpy(np.rint(groups / scale.numpy()).clip(-largest, largest))
                self.scales[name] = scale

    def loss(self, batch, codes=None, scales=None, by=plain_loss):
        for name, layer in self.model.named_modules():
            if name in self.codes:
                value = (codes or self.codes)[name] * (scales or self.scales)[name]
                layer.weight.data = value.view(layer.weight.shape)
        return by(self.model, batch)


@torch.inference_mode()
def plain_qzo(spec, least):
    """As its program: the scales are moved in place, layer by layer, from one generator; g is cut, scales end."""
    model, eps, losses, gs = Integers(spec), spec.eps, [], []

    def perturb(seed, factor):
        torch.manual_seed(seed)
        for name, scale in model.scales.items():
            model.scales[name] = scale + factor * torch.normal(mean=0, std=1, size=scale.size()) * eps

    for seed, batch in zip(draw_seeds(SEED, STEPS), data(spec), strict=True):
        perturb(seed, 1)
        plus = model.loss(batch, by=own_loss)
        perturb(seed, -2)
        minus = model.loss(batch, by=own_loss)
        perturb(seed, 1)
        g = g_of(plus, minus, eps)
        torch.manual_seed(seed)
        for name, scale in model.scales.items():
            z = torch.normal(mean=0, std=1, size=scale.size())
            cut = min(max(-spec.option("clip"), g), spec.option("clip"))
            model.scales[name] = torch.clamp(scale - spec.lr * (cut * z), min=least)
        losses.append((plus + minus) / 2)
        gs.append((g,))
    return losses, gs, model


@pytest.mark.parametrize(("definition", "least"), [("as-written", 0.0), ("as-shipped", 1e-7)])
@pytest.mark.parametrize("bits", [4, 8])
def test_qzo_is_its_programs_loop_bit_for_bit(bits, definition, least):
    """With a learning rate that takes scales to their end, and a clip that some g pass."""
    size, clip = {4: (1e-3, 4.0), 8: (6e-5, 70.0)}[bits]
    options = {"group": GROUP, "clip": clip, "bits": bits}
    spec = spec_of(
        **QZO | {"lr": size * 4 / clip, "eps": size, "options": options, "definition": definition, "noise": "torch"}
    )
    losses, gs, plain = plain_qzo(spec, least)
    mean_losses, slopes, tensors, _ = run(spec)
    assert (mean_losses, slopes) == (losses, gs)
    assert any(abs(g) > clip for (g,) in gs)
    assert any(abs(g) < clip for (g,) in gs)
    for name, scale in plain.scales.items():
        assert torch.equal(tensors[f"{name}.scales"], scale), name
    ended = torch.cat([scale.flatten() for scale in plain.scales.values()]) == least
    assert 0 < ended.float().mean() < 1


@pytest.mark.parametrize("sigma", [0.05, 1.0])
def test_one_normal_number_rounds_as_a_draw_and_a_coin_do(sigma):
    """The law of sigma u rounded up with the chance of its fraction, sampled by the definition."""
    draws, count = np.random.default_rng(1), 400_000
    x = sigma * draws.standard_normal(count)
    wanted = np.floor(x) + (draws.random(count) < x - np.floor(x))
    u = torch.from_numpy(draws.standard_normal(count).astype(np.float32))
    steps = WholeSteps(sigma, 8, 0.9).shape(u, u, (), math.inf).numpy()
    for step in range(-4, 5):
        share = (wanted == step).mean()
        assert (steps == step).mean() == pytest.approx(share, abs=5 * math.sqrt((share + 1e-5) / count))
    assert steps.std() == pytest.approx(wanted.std(), rel=0.02)
    assert list(edges(sigma)) == sorted(edges(sigma))


def rounded_at_random(u, sigma):
    return sum((u >= edge).astype(float) - (u <= -edge) for edge in edges(sigma))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("definition", ["as-written", "as-shipped"])
def test_qes_is_its_formula(definition, bits):
    """Three directions with their mirror images, on the codes of a model, in NumPy; residual and bounds included."""
    spec = spec_of(**QES | {"lr": 0.6, "options": {**QES["options"], "bits": bits}, "definition": definition})
    losses, slopes, tensors, journal = run(spec)
    plain, half = Integers(spec), 2 ** (bits - 1)
    codes = {name: q.numpy().astype(np.float64) for name, q in plain.codes.items()}
    residual = {name: np.zeros_like(q) for name, q in codes.items()}
    apply(spec, model := empty_model(spec))
    ids = {name: number for number, (name, _) in enumerate(model.named_parameters())}
    draws = np.random.default_rng(SEED)
    inside = lambda q: (q >= -half) & (q < half)  # noqa: E731
    blocked = changed = 0
    for step, batch in enumerate(data(spec)):
        seeds = [int(draws.integers(10**9)) for _ in range(3)]
        zs = [
            {n: rounded_at_random(z_of(s, ids[f"{n}.codes"], plain.codes[n]).numpy(), spec.eps) for n in codes}
            for s in seeds
        ]
        pairs = []
        for z in zs:
            pair = []
            for sign in (1, -1):
                there = {n: np.where(inside(q + sign * z[n]), q + sign * z[n], q) for n, q in codes.items()}
                pair.append(plain.loss(batch, {n: torch.from_numpy(q.astype(np.float32)) for n, q in there.items()}))
            pairs.append(pair)
        assert losses[step] == pytest.approx(np.mean(pairs), rel=1e-6)
        differences = np.array([plus - minus for plus, minus in pairs])
        assert slopes[step] == pytest.approx(differences / (2 * spec.eps), abs=1e-5)
        c = np.array([entry.g for entry in journal if entry.step == step])
        scores = ((slopes[step] - np.mean(slopes[step])) / (np.std(slopes[step]) + 1e-8)).clip(-3, 3)
        np.testing.assert_allclose(c, scores, rtol=1e-6)
        for n, q in codes.items():
            estimate = sum(
                g * z[n] * (inside(q + z[n]).astype(float) + inside(q - z[n])) for g, z in zip(c, zs, strict=True)
            )
            x = 0.9 * residual[n] - spec.lr * estimate / spec.eps
            d = np.where(inside(q + np.rint(x)), np.rint(x), 0)
            blocked, changed = blocked + int((d != np.rint(x)).sum()), changed + int((d != 0).sum())
            residual[n] = (x - d).clip(-1.5, 1.5).astype(np.float16 if definition == "as-shipped" else np.float32)
            codes[n] = q + d
    for n, q in codes.items():
        assert (tensors[f"{n}.codes"].numpy() != q).mean() < 1e-3, n  # a float64 x may round to another whole number
    assert changed > 10_000
    assert blocked > 100 if bits == 4 else blocked > 0


@pytest.mark.parametrize("case", [QZO, QES], ids=["qzo", "qes"])
def test_what_is_saved_loads_as_transformers_own(case, tmp_path):
    spec = spec_of(**case)
    with tuner(spec) as built:
        for batch in data(spec):
            built.method.step(built.engine, batch)
        built.scheme.save(tmp_path / "own", built.engine.named_tensors())
        losses = [built.engine.evaluate(batch) for batch in data(spec)]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "own", dtype=torch.float32).eval()
    with torch.inference_mode():
        assert [own_loss(loaded, batch) for batch in data(spec)] == pytest.approx(losses, rel=1e-6)
