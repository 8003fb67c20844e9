"""RoBERTa, a masked language model: losses and scores at the masks."""

import pytest
import torch
from transformers import AutoModelForMaskedLM

from tests.support.parity import engine_of, materialised
from tests.support.reference import perturb, z_of
from zobench import Engine, EngineConfig, Point, models
from zobench.data.batch import IGNORED, Batch, Choices
from zobench.engine.base import BASE

pytestmark = pytest.mark.usefixtures("small_tiles")

NAME, CLOSE = "roberta-tiny", 1e-5
MODES = {
    "resident": {"placement": "resident"},
    "one slot": {"slots": 1},
    "disk, no fused update": {"tier": "disk", "fused_update": False},
    "counter, resident": {"noise": "counter", "placement": "resident"},
    "counter, tiles on disk": {"noise": "counter", "granularity": "tile", "tier": "disk", "slots": 2},
    "counter, partly resident": {"noise": "counter", "resident_blocks": 1, "writeback_every": "inf"},
}
MASK, WORDS = 127, (40, 41)
SENTENCES = (([0, 5, 9, 77, MASK, 8, 2], 0), ([0, 17, MASK, 2], 1), ([0, 99, 98, 97, 96, MASK, 2], 1))


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
    losses = []
    for ids, _ in SENTENCES:
        logits = model(input_ids=torch.tensor([ids])).logits[0, ids.index(MASK)]
        losses.append(logits.double().log_softmax(-1)[list(WORDS)])
    return torch.stack(losses)


def naive_loss(model, loss):
    scores, rights = naive_scores(model), torch.tensor([right for _, right in SENTENCES])
    picked = (scores if loss == "lm" else scores.log_softmax(-1))[torch.arange(len(rights)), rights]
    return -picked.mean().item()


@pytest.mark.parametrize("loss", ["choice", "lm"])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_losses_and_scores_at_the_masks_are_those_of_the_models_own_logits(mode, left, loss):
    batch = gather(left, loss)
    with engine_of(NAME, **mode) as engine:
        mine = engine.probe(batch, (Point(11, 1e-2), Point(11, -1e-2), BASE))
        scores = engine.scores(batch)
    expected = []
    for scale in (1e-2, -1e-2, 0.0):
        model = materialised(NAME)
        if "noise" not in mode:
            perturb(model, 11, 1.0, scale)
        else:
            for n, p in enumerate(model.parameters()):
                p.data = p.data + scale * z_of(11, n, p)
        expected.append(naive_loss(model, loss))
    assert mine == pytest.approx(expected, abs=CLOSE)
    assert max(expected) - min(expected) > 10 * CLOSE
    assert scores.tolist() == pytest.approx(naive_scores(materialised(NAME)).flatten().tolist(), abs=CLOSE)


def test_an_untied_model_is_refused_because_nothing_uses_its_second_bias():
    config = models.build_config(NAME)
    config.tie_word_embeddings = False
    with pytest.raises(ValueError, match="RobertaLMHead must hold no parameters but its head's, but got bias, which"):
        Engine(AutoModelForMaskedLM.from_config(config), EngineConfig())
