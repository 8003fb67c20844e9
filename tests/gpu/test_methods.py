"""Every method and scheme on a CUDA device: the same resident and offloaded, and near what a CPU computes."""

import itertools

import pytest
import torch

from zobench import RunSpec, models
from zobench.data.batch import Batch, Choices
from zobench.data.tokens import stream
from zobench.finetune.assemble import tuner
from zobench.runspec import METHODS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STATEFUL = [kind.name for kind in METHODS.own() if kind.travelling_states]
EXTRA = {"zo-sgd-sparse": {"sparsity": 0.3}, "hybrid": {"zo_layers": 2}}


def spec(method, device, **changes):
    fixed = {"model": "opt-tiny", "seq_len": 17, "batch_size": 3, "lr": 1e-4, "eps": 1e-3, "method": method}
    return RunSpec(**(fixed | EXTRA.get(method, {}) | changes)).resolve(device)


def run(what, steps=4):
    """(losses, gradients, final weights, scores of a last batch of choices)."""
    config = models.build_config(what.model)
    data = list(itertools.islice(stream(what, config.vocab_size, config.pad_token_id), steps))
    with tuner(what) as built:
        done = [built.method.step(built.engine, batch) for batch in data]
        scores = built.engine.scores(choices(data[0]))
        final = {name: tensor.cpu() for name, tensor in built.engine.named_tensors()}
    return [step.loss for step in done], [step.projected_grad for step in done], final, scores


def choices(batch):
    """Two candidates of one token each per row, at its last place."""
    rows = len(batch.input_ids)
    places = torch.tensor([[row, batch.input_ids.shape[1] - 1] for row in range(rows) for _ in range(2)])
    tokens = torch.tensor([7, 9] * rows)
    groups, answers = torch.arange(2 * rows) // 2, torch.arange(rows) * 2
    return Batch(
        batch.input_ids, batch.labels, batch.attention_mask,
        Choices(places, tokens, torch.arange(2 * rows), groups, answers),
    )  # fmt: skip


@pytest.mark.parametrize("noise", ["torch", "counter"])
@pytest.mark.parametrize("method", [kind.name for kind in METHODS.own() if not kind.backpropagates])
def test_every_zeroth_order_method_is_the_same_resident_and_offloaded(method, noise):
    resident = run(spec(method, "cuda:0", noise=noise, engine="resident"))
    for tier in ("pinned", "disk"):
        offloaded = run(spec(method, "cuda:0", noise=noise, engine="offload", tier=tier))
        assert offloaded[:2] == resident[:2]
        assert torch.equal(offloaded[3], resident[3])
        assert all(torch.equal(offloaded[2][name], tensor) for name, tensor in resident[2].items())


@pytest.mark.parametrize("method", [*STATEFUL, "zo-sgd-sign", "forward-grad"])
def test_counter_noise_gives_what_a_cpu_gives(method):
    here = run(spec(method, "cuda:0", noise="counter"))
    there = run(spec(method, "cpu", noise="counter"))
    assert here[0] == pytest.approx(there[0], abs=1e-3)
    torch.testing.assert_close(here[3], there[3], atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("changes", [{}, {"autocast": "bf16"}, {"autocast": "fp16"}, {"checkpointing": True}], ids=str)
@pytest.mark.parametrize("method", [kind.name for kind in METHODS.own() if kind.backpropagates])
def test_backpropagation_gives_what_a_cpu_gives(method, changes):
    here, there = run(spec(method, "cuda:0", **changes)), run(spec(method, "cpu"))
    close = 2e-3 if changes.get("autocast", "none") == "none" and method != "hybrid" else 5e-2
    assert here[0][0] == pytest.approx(there[0][0], abs=close)
    assert here[0] != [here[0][0]] * len(here[0])


@pytest.mark.parametrize("scheme", ["lora", "prefix", "prompt"])
@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_every_scheme_is_the_same_resident_and_offloaded(scheme, noise):
    resident = run(spec("zo-sgd", "cuda:0", scheme=scheme, noise=noise, engine="resident"))
    offloaded = run(spec("zo-sgd", "cuda:0", scheme=scheme, noise=noise, engine="offload", tier="pinned"))
    assert offloaded[:2] == resident[:2]
    assert all(torch.equal(offloaded[2][name], tensor) for name, tensor in resident[2].items())
