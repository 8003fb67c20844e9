"""MeZO and ZO2 are the same computation, bit for bit: every engine mode against a plain MeZO loop, with `==`."""

import functools

import pytest
import torch

from tests.support.devices import CUDA, HOST, on_devices
from tests.support.parity import EPS, LR, MODES, RUN_SEED, STEPS, batches, engine_of, materialised
from tests.support.reference import draw_seeds, mezo, own_loss
from zobench import ZOSGD

MODELS = ("opt-tiny", "opt350-tiny", "qwen3-tiny", "llama-tiny")


MODES_OF = {"cpu": MODES, CUDA: MODES | {"pageable": {"tier": "pageable"}}}


def batches_on(device, name, decay, rows):
    return [batch.to(device) for batch in batches(name, "ragged" if decay else "random", rows=rows)]


@functools.cache
def reference(device, name, dtype, tied, decay, eps=EPS, rows=1):
    """(losses, projected gradients, final weights, loss of the first batch at the final weights)."""
    model, data = materialised(name, dtype, tied, device), batches_on(device, name, decay, rows)
    losses, gradients = mezo(model, data, draw_seeds(RUN_SEED, STEPS), eps=eps, lr=LR, wd=decay)
    with torch.inference_mode():
        return losses, gradients, dict(model.named_parameters()), own_loss(model, data[0])


def engine_run(device, name, dtype, tied, decay, mode, eps=EPS, rows=1):
    data, place = batches_on(device, name, decay, rows), {} if "placement" in mode else {"tier": HOST[device]}
    with engine_of(name, dtype, tied, device=device, **place | mode) as engine:
        method = ZOSGD(lr=LR, eps=eps, seed=RUN_SEED, weight_decay=decay)
        steps = [method.step(engine, batch) for batch in data]
        final = engine.evaluate(data[0])
        engine.flush()
        return [s.loss for s in steps], [s.projected_grad for s in steps], dict(engine.named_tensors()), final


@pytest.mark.parametrize(("device", "mode"), on_devices(MODES_OF))
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", MODELS)
def test_engine_equals_plain_mezo(name, tied, dtype, decay, device, mode):
    losses, gradients, final_weights, final_loss = reference(device, name, dtype, tied, decay)
    mine = engine_run(device, name, dtype, tied, decay, MODES_OF[device][mode])
    assert mine[0] == losses
    assert mine[1] == gradients
    assert mine[2].keys() == final_weights.keys()
    assert all(torch.equal(mine[2][key].cpu(), final_weights[key].cpu()) for key in final_weights)
    assert mine[3] == final_loss
    assert len(set(gradients)) > STEPS // 2  # a loop that never moved would agree with itself


@pytest.mark.parametrize("mode", ["resident", "disk"])
@pytest.mark.parametrize("eps", [1e-2, 1e-4])
@pytest.mark.parametrize(
    ("name", "dtype", "decay"),
    [
        ("opt-tiny", "fp16", 0.0),
        ("llama-tiny", "bf16", 0.0),
        ("roberta-tiny", "fp32", 0.0),
        ("roberta-tiny", "fp32", 0.1),
    ],
)
def test_engine_equals_plain_mezo_on_three_rows_at_any_eps(name, dtype, decay, eps, mode):
    losses, gradients, final_weights, final_loss = reference("cpu", name, dtype, None, decay, eps, 3)
    run = engine_run("cpu", name, dtype, None, decay, MODES[mode], eps, 3)
    assert (run[0], run[1], run[3]) == (losses, gradients, final_loss)
    assert all(torch.equal(run[2][key], tensor) for key, tensor in final_weights.items())
