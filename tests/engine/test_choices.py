"""Losses and scores over candidates, against the model's own full logits of one candidate at a time."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.parity import engine_of, materialised
from tests.support.reference import draw_seeds, perturb, replay, update, z_of
from zobench import ZOSGD, Entry, Point
from zobench.data.batch import IGNORED, Batch, Choices
from zobench.engine.base import BASE
from zobench.engine.passes.head import Head
from zobench.engine.passes.loss import candidate_scores, choice_loss, only_right

pytestmark = pytest.mark.usefixtures("small_tiles")

MODELS = ("opt-tiny", "qwen3-tiny", "llama-tiny")
EPS, SEED, CLOSE = 1e-3, 11, 1e-5
TORCH = ({"placement": "resident"}, {}, {"slots": 1, "overlap": False}, {"tier": "disk", "slots": 2})
COUNTER = tuple(
    {"noise": "counter", "granularity": granularity, **place}
    for granularity in ("block", "linear", "tile")
    for place in ({"placement": "resident"}, {"tier": "disk"}, {"writeback_every": "inf", "resident_blocks": 1})
)
# (context, candidates, the right one): candidates of one to four tokens, two to three of them
EXAMPLES = (
    ([5, 9, 77, 31, 8], [[40], [41]], 1),
    ([17, 6], [[50, 51, 52, 53], [60], [61, 62]], 0),
    ([99, 98, 97, 96, 95, 94, 93], [[7, 8], [9, 10, 11]], 1),
)
# one row for all candidates, which are one token each, predicted at one place
SHARED = (([5, 9, 77, 31, 8], [[40], [41], [42]], 1), ([17, 6, 21], [[50], [51]], 0))


def gather(examples, loss="choice", shared=False):
    """A batch padded on the left: one row per candidate, or with ``shared`` one per example."""
    texts = [context if shared else context + own for context, own, _ in each_candidate(examples)]
    texts = [text for n, text in enumerate(texts) if not shared or n in starts(examples)]
    width = max(map(len, texts)) + 1  # every row is padded
    ids = torch.tensor([[1] * (width - len(text)) + text for text in texts])
    mask = torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in texts])
    places, tokens, owners, groups = [], [], [], []
    for candidate, (_, own, example) in enumerate(each_candidate(examples)):
        groups.append(example)
        for n, token in enumerate(own):
            position = width - 1 if shared else width - len(own) + n - 1  # the one before it
            places.append([example if shared else candidate, position])
            tokens.append(token)
            owners.append(candidate)
    answers = [first + right for first, (_, _, right) in zip(starts(examples), examples, strict=True)]
    choices = Choices(*map(torch.tensor, (places, tokens, owners, groups, answers)), loss)
    return Batch(ids, torch.full_like(ids, IGNORED), mask, choices)


def each_candidate(examples):
    return [(context, own, n) for n, (context, candidates, _) in enumerate(examples) for own in candidates]


def starts(examples):
    return list(itertools.accumulate((len(candidates) for _, candidates, _ in examples[:-1]), initial=0))


@torch.inference_mode()
def naive_tokens(model, context, candidate):
    """The candidate's tokens' log-probabilities from a row of its own, without padding."""
    logits = model(input_ids=torch.tensor([context + candidate])).logits[0].double()
    return [logits[len(context) + n - 1].log_softmax(-1)[token].item() for n, token in enumerate(candidate)]


def naive_scores(model, examples):
    return [sum(own) / len(own) for own in (naive_tokens(model, c, own) for c, own, _ in each_candidate(examples))]


def naive_loss(model, examples, loss):
    if loss == "lm":
        tokens = [p for context, own, right in examples for p in naive_tokens(model, context, own[right])]
        return -sum(tokens) / len(tokens)
    total = 0.0
    for example in examples:
        scores = naive_scores(model, [example])
        total += math.log(sum(map(math.exp, scores))) - scores[example[2]]
    return total / len(examples)


def naive_at(name, examples, loss, seed, scale, noise):
    model = materialised(name)
    if noise == "torch":
        perturb(model, seed, 1.0, scale)
    else:
        for n, p in enumerate(model.parameters()):
            p.data = p.data + scale * z_of(seed, n, p)
    return naive_loss(model, examples, loss)


POINTS = (Point(SEED, EPS), Point(SEED, -EPS), BASE, Point(12, 0.1))


@pytest.mark.parametrize("noise", ["torch", "counter"])
@pytest.mark.parametrize("loss", ["choice", "lm"])
@pytest.mark.parametrize("shared", [False, True], ids=["a row each", "a shared place"])
@pytest.mark.parametrize("name", MODELS)
def test_losses_equal_each_other_and_nearly_the_naive_ones(name, shared, loss, noise):
    examples = SHARED if shared else EXAMPLES
    batch, found = gather(examples, loss, shared), {}
    for mode in TORCH if noise == "torch" else COUNTER:
        with engine_of(name, **mode) as engine:
            found.setdefault(mode.get("granularity"), []).append(engine.probe(batch, POINTS))
    expected = [naive_at(name, examples, loss, point.seed or 0, point.scale, noise) for point in POINTS]
    for same in found.values():
        assert all(losses == same[0] for losses in same)
        assert same[0] == pytest.approx(expected, abs=CLOSE)
        assert len(set(same[0])) == len(POINTS)


@pytest.mark.parametrize("mode", [TORCH[0], COUNTER[0]], ids=["in place", "pristine"])
@pytest.mark.parametrize("loss", ["choice", "lm"])
def test_small_chunks_of_tokens_or_vocabulary_change_the_loss_by_rounding_only(loss, mode):
    batch, found = gather(EXAMPLES, loss), []
    for logits_bytes in (1, 3000, 1 << 20):
        with engine_of(**mode, logits_bytes=logits_bytes) as engine:
            found.append(engine.probe(batch, POINTS))
    assert found[0] == pytest.approx(found[2], rel=1e-6)
    assert found[1] == pytest.approx(found[2], rel=1e-6)


@pytest.mark.parametrize(("loss", "tokens"), [("choice", 14), ("lm", 8)])
def test_the_head_sees_only_the_tokens_that_count(monkeypatch, loss, tokens):
    """Of the loss "lm" only the right candidates' tokens; of scores all."""
    with engine_of() as engine:
        seen, own = [], Head.logits
        monkeypatch.setattr(Head, "logits", lambda head, x, *rows: seen.append(x.shape[0]) or own(head, x, *rows))
        engine.probe(gather(EXAMPLES, loss), [BASE])
        assert seen == [tokens]
        engine.scores(gather(EXAMPLES, loss))
        assert seen == [tokens, 14]
        monkeypatch.undo()


ENTRIES = [Entry(step=n, seed=seed, g=30.0 * (-1) ** n, lr=1e-3) for n, seed in enumerate(draw_seeds(5, 4))]


@pytest.mark.parametrize("shared", [False, True], ids=["a row each", "a shared place"])
@pytest.mark.parametrize("mode", [*TORCH, *COUNTER], ids=str)
@pytest.mark.parametrize("name", ["opt-tiny", "llama-tiny"])
def test_scores_are_the_naive_ones_with_every_update_applied_and_change_nothing(name, mode, shared):
    examples, model = SHARED if shared else EXAMPLES, materialised(name)
    if mode.get("noise") == "counter":
        base = {key: p.data for key, p in model.named_parameters()}
        after = replay(model, base, [(e.seed, e.g, e.lr, 0.0) for e in ENTRIES])
        for key, p in model.named_parameters():
            p.data = after[key]
    else:
        for entry in ENTRIES:
            update(model, entry.seed, entry.g, entry.lr, 0.0)
    batch = gather(examples, shared=shared)
    with engine_of(name, **mode) as engine:
        before = engine.scores(batch)
        engine.commit(ENTRIES)
        scores = engine.scores(batch)
        assert torch.equal(engine.scores(batch), scores)
        assert (scores.dtype, scores.device.type, scores.shape) == (torch.float32, "cpu", batch.choices.groups.shape)
        assert scores.tolist() == pytest.approx(naive_scores(model, examples), abs=CLOSE)
        assert (scores - before).abs().max() > 100 * CLOSE  # the updates are large enough to be missed
        tensors = dict(engine.named_tensors())
        assert all(torch.equal(tensors[key], p) for key, p in model.named_parameters())


@pytest.mark.parametrize(
    ("name", "dtype", "loss"),
    [("opt-tiny", "fp32", "choice"), ("opt-tiny", "bf16", "lm"), ("qwen3-tiny", "bf16", "choice")],
)
def test_twenty_steps_are_the_same_resident_offloaded_and_on_disk_with_scores_between_them_or_not(name, dtype, loss):
    def run(mode, score):
        with engine_of(name, dtype, **mode) as engine:
            method, steps = ZOSGD(lr=1e-3, eps=EPS, seed=7), []
            for n in range(20):
                steps.append(method.step(engine, gather(EXAMPLES[n % 3 :], loss)))
                if score:
                    engine.scores(gather(EXAMPLES))
            return [(s.loss, s.projected_grad) for s in steps], engine.scores(gather(EXAMPLES)).tolist()

    expected = run(TORCH[0], score=False)
    assert all(run(mode, score=True) == expected for mode in TORCH)
    assert len({g for _, g in expected[0]}) == 20


def test_choices_run_on_the_meta_device_for_their_memory():
    with engine_of(device="meta", placement="resident", noise="counter") as engine:
        batch = gather(EXAMPLES)
        batch = Batch(batch.input_ids, batch.labels, None, batch.choices)
        assert all(map(math.isnan, engine.probe(batch, POINTS)))
        assert engine.scores(batch).isnan().all()


def test_scores_need_candidates():
    batch = gather(EXAMPLES)
    with engine_of() as engine, pytest.raises(ValueError, match="choices") as error:
        engine.scores(Batch(batch.input_ids, batch.labels, batch.attention_mask))
    told = "`batch.choices` must be given to score candidates, but got none; give Batch(..., choices=...)"
    assert str(error.value) == told


shapes = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=4)


@given(shapes, st.randoms(use_true_random=False), st.sampled_from(["choice", "lm"]))
def test_scores_and_losses_equal_plain_loops_for_any_number_of_candidates_and_tokens(shape, random, loss):
    """``shape``: for each example, the number of tokens of each of its candidates."""
    values = [[[-5 * random.random() for _ in range(count)] for count in example] for example in shape]
    rights = [random.randrange(len(example)) for example in shape]
    firsts = list(itertools.accumulate(map(len, shape[:-1]), initial=0))
    flat = [own for example in values for own in example]
    owners = torch.tensor([n for n, own in enumerate(flat) for _ in own])
    choices = Choices(
        places=torch.stack([owners, torch.arange(len(owners))], 1),
        tokens=torch.arange(len(owners)),
        owners=owners,
        groups=torch.tensor([n for n, example in enumerate(shape) for _ in example]),
        answers=torch.tensor([first + right for first, right in zip(firsts, rights, strict=True)]),
        loss=loss,
    )
    picked = torch.tensor([value for own in flat for value in own], dtype=torch.float64, requires_grad=True)
    scores = [[sum(own) / len(own) for own in example] for example in values]
    assert candidate_scores(picked, choices).tolist() == pytest.approx([s for example in scores for s in example])
    chosen = [example[right] for example, right in zip(values, rights, strict=True)]
    if loss == "lm":
        expected = -sum(map(sum, chosen)) / sum(map(len, chosen))
    else:
        pairs = zip(scores, rights, strict=True)
        expected = sum(math.log(sum(map(math.exp, each))) - each[right] for each, right in pairs) / len(shape)
    found = choice_loss(picked, choices)
    assert found.item() == pytest.approx(expected)
    assert torch.autograd.gradcheck(lambda own: choice_loss(own, choices), (picked,))
    if loss == "lm":
        alone = only_right(choices)
        assert alone.groups.tolist() == alone.answers.tolist() == list(range(len(shape)))
        assert alone.tokens.tolist() == [n for n in range(len(owners)) if owners[n] in choices.answers]
        assert torch.equal(choice_loss(picked[alone.tokens], alone), found)
