"""RoBERTa, a masked language model: parity with a plain MeZO loop, and losses and scores at the masks."""

import functools
import types

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForMaskedLM

from tests.support.parity import engine_of, materialised
from tests.support.reference import draw_seeds, mezo, perturb, z_of
from tests.support.streams import batches_of
from zobench import ZOSGD, Engine, EngineConfig, Point, RunSpec, models
from zobench.data.batch import IGNORED, Batch, Choices
from zobench.engine.backprop import Backprop
from zobench.engine.base import BASE
from zobench.engine.passes.head import Head
from zobench.models import weights

pytestmark = pytest.mark.usefixtures("small_tiles")

NAME, STEPS, EPS, LR, RUN_SEED, CLOSE = "roberta-tiny", 20, 1e-3, 1e-3, 7, 1e-5
TORCH = {
    "resident": {"placement": "resident"},
    "one slot": {"slots": 1},
    "three slots": {"slots": 3},
    "disk, no fused update": {"tier": "disk", "fused_update": False},
}
COUNTER = {
    f"{granularity}, {place}": {"noise": "counter", "granularity": granularity, **config}
    for granularity in ("block", "linear", "tile")
    for place, config in (
        ("resident", {"placement": "resident"}),
        ("disk", {"tier": "disk", "slots": 2}),
        ("pageable, K=4", {"writeback_every": 4}),
        ("partly resident, K=inf", {"resident_blocks": 1, "writeback_every": "inf"}),
    )
}
MASK, WORDS = 127, (40, 41)
SENTENCES = (([0, 5, 9, 77, MASK, 8, 2], 0), ([0, 17, MASK, 2], 1), ([0, 99, 98, 97, 96, MASK, 2], 1))


def batches(kind="ragged"):
    return batches_of(RunSpec(model=NAME, batch_size=3, seq_len=17, data=kind, seed=1), STEPS)


def run(mode, dtype="fp32", kind="ragged", decay=0.0):
    with engine_of(NAME, dtype, **mode) as engine:
        method = ZOSGD(lr=LR, eps=EPS, seed=RUN_SEED, weight_decay=decay)
        steps = [method.step(engine, batch) for batch in batches(kind)]
        return [s.loss for s in steps], [s.projected_grad for s in steps], dict(engine.named_tensors())


@functools.cache
def reference(dtype, kind, decay):
    """(losses, projected gradients, weights) of a plain loop on the model's own loss: labels are not shifted.

    In 16 bits the model's own loss is of 16 bits too; here, as with causal models, it is in float32.
    """
    model = materialised(NAME, dtype)
    if dtype != "fp32":
        own = model.forward

        def forward(labels, **inputs):
            logits = own(**inputs).logits.float()
            return types.SimpleNamespace(loss=functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))

        model.forward = forward
    losses, gs = mezo(model, batches(kind), draw_seeds(RUN_SEED, STEPS), eps=EPS, lr=LR, wd=decay)
    return losses, gs, dict(model.named_parameters())


@pytest.mark.parametrize("mode", TORCH)
@pytest.mark.parametrize(
    ("dtype", "kind", "decay"), [("fp32", "ragged", 0.0), ("fp32", "random", 0.1), ("bf16", "ragged", 0.1)]
)
def test_engine_equals_plain_mezo(dtype, kind, decay, mode):
    losses, gradients, final = reference(dtype, kind, decay)
    mine = run(TORCH[mode], dtype, kind, decay)
    assert (mine[0], mine[1]) == (losses, gradients)
    assert mine[2].keys() == final.keys()
    assert all(torch.equal(mine[2][key], final[key]) for key in final)
    assert len(set(gradients)) == STEPS


def gather(left, loss="choice"):
    """One row per sentence, one candidate per word, all at its mask."""
    width = max(len(ids) for ids, _ in SENTENCES) + 1
    rows, masks, places = [], [], []
    for n, (ids, _) in enumerate(SENTENCES):
        padding = width - len(ids)
        first = padding if left else 0
        rows.append([1] * first + ids + [1] * (padding - first))
        masks.append([0] * first + [1] * len(ids) + [0] * (padding - first))
        places += [[n, first + ids.index(MASK)]] * len(WORDS)
    count = len(SENTENCES)
    ids = torch.tensor(rows)
    choices = Choices(
        places=torch.tensor(places),
        tokens=torch.tensor(WORDS * count),
        owners=torch.arange(len(WORDS) * count),
        groups=torch.arange(count).repeat_interleave(len(WORDS)),
        answers=torch.tensor([len(WORDS) * n + right for n, (_, right) in enumerate(SENTENCES)]),
        loss=loss,
    )
    return Batch(ids, torch.full_like(ids, IGNORED), torch.tensor(masks), choices)


@torch.inference_mode()
def naive_scores(model):
    """(sentences, words), from the model's own logits of one sentence at a time."""
    found = []
    for ids, _ in SENTENCES:
        logits = model(input_ids=torch.tensor([ids])).logits[0, ids.index(MASK)]
        found.append(logits.double().log_softmax(-1)[list(WORDS)])
    return torch.stack(found)


def naive_loss(model, loss):
    scores, rights = naive_scores(model), torch.tensor([right for _, right in SENTENCES])
    picked = (scores if loss == "lm" else scores.log_softmax(-1))[torch.arange(len(rights)), rights]
    return -picked.mean().item()


@pytest.mark.parametrize("loss", ["choice", "lm"])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("mode", [*TORCH, *COUNTER])
def test_losses_and_scores_at_the_masks_are_those_of_the_models_own_logits(mode, left, loss):
    config, batch = (TORCH | COUNTER)[mode], gather(left, loss)
    with engine_of(NAME, **config) as engine:
        mine = engine.probe(batch, (Point(11, 1e-2), Point(11, -1e-2), BASE))
        scores = engine.scores(batch)
    expected = []
    for scale in (1e-2, -1e-2, 0.0):
        model = materialised(NAME)
        if mode in TORCH:
            perturb(model, 11, 1.0, scale)
        else:
            for n, p in enumerate(model.parameters()):
                p.data = p.data + scale * z_of(11, n, p)
        expected.append(naive_loss(model, loss))
    assert mine == pytest.approx(expected, abs=CLOSE)
    assert max(expected) - min(expected) > 10 * CLOSE
    assert scores.tolist() == pytest.approx(naive_scores(materialised(NAME)).flatten().tolist(), abs=CLOSE)


def test_the_head_sees_only_the_masks_and_what_comes_before_it_runs_once(monkeypatch):
    with engine_of(NAME, placement="resident") as engine:
        dense, seen, judged = engine.model.lm_head.dense, [], []
        folded, logits = dense.forward, Head.logits
        monkeypatch.setattr(dense, "forward", lambda x: seen.append(tuple(x.shape)) or folded(x))
        monkeypatch.setattr(Head, "logits", lambda own, x, *w: judged.append(tuple(x.shape)) or logits(own, x, *w))
        batch = gather(left=False)
        engine.probe(batch, (Point(1, EPS), Point(1, -EPS)))
        monkeypatch.setattr(dense, "forward", folded)
    assert seen == [(2 * len(SENTENCES), batch.input_ids.shape[1], 64)]
    assert judged == [(len(WORDS) * len(SENTENCES), 64)] * 2


def own_loss(model, batch):
    return model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels).loss


def test_gradients_are_those_of_the_models_own_loss():
    model, batch = materialised(NAME), batches()[0]
    expected = own_loss(model, batch)
    expected.backward()
    with Backprop(materialised(NAME), EngineConfig(placement="resident")) as engine:
        assert engine.backward(batch) == pytest.approx(expected.item(), abs=CLOSE)
        mine = dict(engine.model.named_parameters())
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(mine[name].grad, parameter.grad, rtol=1e-4, atol=1e-6)
        assert engine.backward(gather(left=False)) == pytest.approx(naive_loss(model, "choice"), abs=CLOSE)
        scores = engine.scores(gather(left=False))
        assert scores.tolist() == pytest.approx(naive_scores(model).flatten().tolist(), abs=CLOSE)


@pytest.mark.parametrize("noise", ["torch", "counter"])
@pytest.mark.parametrize("choices", [True, False])
def test_the_forward_derivative_is_the_difference_of_losses(choices, noise):
    batch, model = gather(left=False) if choices else batches()[0], materialised(NAME)
    with engine_of(NAME, noise=noise) as engine:
        loss, slope = engine.tangent(batch, 11)
        above, below = engine.probe(batch, (Point(11, EPS), Point(11, -EPS)))
    expected = naive_loss(model, "choice") if choices else own_loss(model, batch).item()
    assert loss == pytest.approx(expected, abs=CLOSE)
    assert slope == pytest.approx((above - below) / (2 * EPS), rel=2e-2, abs=1e-2)


def test_a_saved_checkpoint_is_the_trained_model_and_can_be_trained_on(tmp_path):
    with engine_of(NAME, tier="disk") as engine:
        method = ZOSGD(lr=LR, eps=EPS, seed=RUN_SEED)
        for batch in batches()[:3]:
            method.step(engine, batch)
        engine.save_pretrained(tmp_path)
        scores = engine.scores(gather(left=False))
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert naive_scores(loaded).flatten().tolist() == pytest.approx(scores.tolist(), abs=CLOSE)
    assert loaded.lm_head.decoder.weight is loaded.get_input_embeddings().weight
    model = models.build(NAME, "fp32")
    with Engine(model, EngineConfig(), weights=weights.PretrainedWeights(tmp_path, model)) as again:
        assert torch.equal(again.scores(gather(left=False)), scores)


def test_an_untied_model_is_refused_because_nothing_uses_its_second_bias():
    config = models.build_config(NAME)
    config.tie_word_embeddings = False
    with pytest.raises(ValueError, match="RobertaLMHead") as error:
        Engine(AutoModelForMaskedLM.from_config(config), EngineConfig())
    assert str(error.value) == (
        "RobertaLMHead must hold no parameters but its head's, but got bias, which nothing uses; "
        "build the model with tied embeddings"
    )
