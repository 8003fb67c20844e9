"""Update rules: each against its formula in NumPy or torch's own optimiser; precision; independence of the cut."""

import itertools

import numpy as np
import pytest
import torch

from zobench.engine.updates.rules import Adam, Momentum, Sign, TorchAdam

REFINED = Adam(is_refined=True)
RULES = [Sign(), Momentum(0.5), Adam(), REFINED, TorchAdam()]
LR, COUNT, STEPS = 3e-2, 1037, 12
HALVES = [torch.bfloat16, torch.float16]


def estimates(steps=STEPS, scale=1.0):
    """float32 (steps, COUNT): large ones first and small ones after, so that v falls too; some exactly zero."""
    z = np.random.default_rng(5).standard_normal((steps, COUNT)).astype(np.float32)
    z *= np.float32(scale) * np.where(np.arange(steps) % 4 == 0, 10, 0.1).astype(np.float32)[:, None]
    z[:, :7] = 0
    return z


def start(dtype=torch.float32):
    return torch.from_numpy(np.random.default_rng(6).standard_normal(COUNT).astype(np.float32)).to(dtype)


def states_of(rule, dtype=torch.float32, count=COUNT):
    return [torch.zeros(count, dtype=rule.state_dtype(dtype)) for _ in rule.states]


def run(rule, dtype=torch.float32, decay=0.0, ghats=None):
    weights, states = start(dtype), states_of(rule, dtype)
    for step, estimate in enumerate(estimates() if ghats is None else ghats):
        rule.apply(weights, torch.from_numpy(estimate.copy()), states, lr=LR, weight_decay=decay, step=step)
    return weights, states


def root(values):
    return torch.from_numpy(values).sqrt().numpy()


def float32_formula(rule, decay, ghats):
    """(weights, states): NumPy rounds each product, sum and quotient to float32. The root is torch's, whose last bit
    differs from NumPy's in one of 150 numbers."""
    f, w = np.float32, start().numpy()
    m, v = np.zeros(COUNT, f), np.zeros(COUNT, f)
    for t, ghat in enumerate(ghats, 1):
        if isinstance(rule, Sign):
            update = np.sign(ghat)
        elif isinstance(rule, Momentum):
            update = m = f(rule.beta) * m + ghat
        else:
            older, m = v, f(0.9) * m + f(1 - 0.9) * ghat
            v = f(0.999) * v + f(1 - 0.999) * (m * m if rule == REFINED else ghat * ghat)
            if rule == REFINED:
                update = m / root(v + f(1e-8))
            elif isinstance(rule, Adam):
                update = m / root(np.maximum(v, older) + f(1e-8))
            else:
                update = m / f(1 - 0.9**t) / (root(v / f(1 - 0.999**t)) + f(1e-8))
        w = w - f(LR) * (update + f(decay) * w if decay else update)
    return w, {Sign: [], Momentum: [m]}.get(type(rule), [m, v])


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_each_operation_rounds_on_its_own(rule, decay):
    """No fused multiply-add, which not every processor has: the same bits as NumPy."""
    weights, states = run(rule, decay=decay)
    expected, expected_states = float32_formula(rule, decay, estimates())
    assert (weights.numpy() == expected).all()
    assert all((state.numpy() == value).all() for state, value in zip(states, expected_states, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_torch_adam_is_the_optimiser_of_torch(dtype):
    """In float32 to rounding; in 16 bits torch rounds between operations, so to a few ulps of each update."""
    ghats = estimates(scale=1.0)
    weights, states = run(TorchAdam(), dtype, ghats=ghats)
    theirs = start(dtype).requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=LR, foreach=False)
    for estimate in ghats:
        theirs.grad = torch.from_numpy(estimate).to(dtype)
        optimizer.step()
    kept = optimizer.state[theirs]
    assert states[0].dtype == states[1].dtype == dtype == kept["exp_avg"].dtype
    tolerance = 1e-6 if dtype is torch.float32 else STEPS * LR * 4 * torch.finfo(dtype).eps + 4 * torch.finfo(dtype).eps
    if dtype is not torch.float16:  # whose eps of 1e-8 is zero there, so that torch divides zero by zero
        torch.testing.assert_close(weights.float(), theirs.detach().float(), rtol=tolerance, atol=tolerance)
    for state, name in zip(states, ("exp_avg", "exp_avg_sq"), strict=True):
        torch.testing.assert_close(state.float(), kept[name].float(), rtol=STEPS * tolerance, atol=STEPS * tolerance)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("dtype", HALVES)
def test_the_update_is_rounded_once(rule, dtype):
    """One step in 16 bits is the same step in float32 from the same weights and state, rounded at the end."""
    narrow, narrow_states = run(rule, dtype, 0.3, ghats=estimates(1))
    wide, wide_states = start(dtype).float(), states_of(rule, torch.float32)
    rule.apply(wide, torch.from_numpy(estimates(1)[0]), wide_states, lr=LR, weight_decay=0.3, step=0)
    assert torch.equal(narrow, wide.to(dtype))
    for narrow_state, state in zip(narrow_states, wide_states, strict=True):
        assert torch.equal(narrow_state, state.to(narrow_state.dtype))


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_bits_do_not_depend_on_how_the_weights_are_cut(rule, dtype):
    """An offloaded unit, a tile or a resident tensor: pieces of any length and alignment give the same bits."""
    whole, whole_states = run(rule, dtype, 0.3)
    weights, states = start(dtype), states_of(rule, dtype)
    edges = [0, 1, 8, 29, 64, 333, 1000, COUNT]
    for step, estimate in enumerate(estimates()):
        for first, last in itertools.pairwise(edges):
            piece = torch.from_numpy(estimate[first:last].copy())
            pieces = [state[first:last] for state in states]
            rule.apply(weights[first:last], piece, pieces, lr=LR, weight_decay=0.3, step=step)
    assert torch.equal(weights, whole)
    assert all(torch.equal(a, b) for a, b in zip(states, whole_states, strict=True))
