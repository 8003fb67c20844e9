"""What docs/equal.md says of differences: each has a bound, and each test that the page names exists."""

import copy
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, BertForMaskedLM

from tests.support.parity import materialised
from tests.support.reference import direction, draw_seeds, loss_at, mezo
from zobench import ZOSGD, Batch, Engine, EngineConfig, Point

ROOT = Path(__file__).parents[2]
SMALL = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1}
CONFIGS = {
    "codegen": {**SMALL, "rotary_dim": 4, "n_ctx": 64},
    "gptj": {**SMALL, "rotary_dim": 4},
    "gpt_neo": {
        "vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "bos_token_id": 1,
        "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64,
    },
}  # fmt: skip
RESIDENT = EngineConfig(placement="resident")


def rows(count: int, padded: bool = False) -> list[Batch]:
    """Batches of 2 rows of 9 tokens; padded, the first row begins with 3 tokens of padding."""
    batches = []
    for ids in torch.randint(3, 64, (count, 2, 9), generator=torch.Generator().manual_seed(1)):
        labels, mask = ids.clone(), torch.ones_like(ids)
        if padded:
            labels[0, :3], mask[0, :3] = -100, 0
        batches.append(Batch(ids, labels, mask if padded else None))
    return batches


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_cache_of_keys_is_what_sets_codegen_gptj_and_gpt_neo_apart(name, dtype, padded) -> None:
    """A plain loop without the cache equals the engine; with it, keys are copied, and CodeGen's rounded to bf16."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **CONFIGS[name]), dtype=dtype).eval()
    cached, plain, data = copy.deepcopy(model), copy.deepcopy(model), rows(4, padded)
    plain.config.use_cache = False
    with Engine(model, RESIDENT) as engine:
        method = ZOSGD(lr=1e-3, eps=1e-3, seed=0)
        steps = [method.step(engine, batch) for batch in data]
    losses, gs = mezo(plain, data, draw_seeds(0, 4), eps=1e-3, lr=1e-3)
    assert [step.loss for step in steps] == losses
    assert [step.projected_grad for step in steps] == gs
    rounded = name == "codegen" and dtype == torch.bfloat16
    losses, gs = mezo(cached, data, draw_seeds(0, 4), eps=1e-3, lr=1e-3)
    assert [step.loss for step in steps] == pytest.approx(losses, rel=0, abs=2e-2 if rounded else 3e-5)
    if rounded:
        assert [step.loss for step in steps] != losses


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_masked_models_loss_is_float32_where_transformers_rounds_it(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
    model = BertForMaskedLM(BertConfig(vocab_size=64, **sizes)).to(dtype).eval()
    (batch,) = rows(1)
    with torch.inference_mode():
        theirs = model(input_ids=batch.input_ids, labels=batch.labels).loss
    assert theirs.dtype == dtype
    with Engine(model, RESIDENT) as engine:
        mine = engine.evaluate(batch)
    assert abs(mine - theirs.item()) <= 1e-6 + mine * torch.finfo(dtype).eps
    if dtype != torch.float32:
        assert mine != theirs.item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
def test_zo2s_order_of_an_undecayed_update_is_two_roundings_off_at_most(dtype: torch.dtype) -> None:
    """``(lr * g) * z`` (ZO2) beside ``lr * (g * z)`` (MeZO and zobench)."""
    w, z = (torch.randn(10_000, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in (1, 2))
    lr, g = 1e-3, 1.2345678
    mezos, zo2s = w - lr * (g * z), w - (lr * g) * z
    apart = (mezos.double() - zo2s.double()).abs()
    assert 0 < (apart != 0).double().mean() < 0.1
    ulp = torch.finfo(dtype).eps * torch.maximum(w.double().abs(), (lr * g * z).double().abs())
    assert (apart <= 2 * ulp).all()


def test_a_tied_head_that_draws_its_own_direction_has_another_loss() -> None:
    """zobench and MeZO move a tied table along one z. ZO2 moves embedding and head along two."""
    model = materialised("opt-tiny", "fp32", True)
    (batch,) = rows(1)
    eps, move = 1e-2, direction(model, 3, "counter")
    with Engine(copy.deepcopy(model), EngineConfig(placement="resident", noise="counter")) as engine:
        (mine,) = engine.probe(batch, [Point(3, eps)])
    table = next(name for name, p in model.named_parameters() if p is model.get_output_embeddings().weight)
    with torch.inference_mode():
        assert mine == pytest.approx(loss_at(model, batch, move, eps), rel=0, abs=2e-5)
        head = model.get_output_embeddings()
        untied, second = copy.deepcopy(model), direction(model, 4, "counter")[table]
        untied.lm_head.weight = torch.nn.Parameter(head.weight.clone())
        theirs = loss_at(untied, batch, move | {"lm_head.weight": second}, eps)
    assert abs(mine - theirs) > 1e-4


def test_zo2_without_a_last_flush_lacks_the_last_update() -> None:
    """The engine's own weights after n steps are those of n updates; ZO2's, unless asked, those of n - 1."""
    data = rows(3)

    def weights_after(count: int) -> dict[str, torch.Tensor]:
        model = materialised("opt-tiny", "fp32", True)
        with Engine(model, EngineConfig()) as engine:
            method = ZOSGD(lr=1e-2, eps=1e-3, seed=0)
            for batch in data[:count]:
                method.step(engine, batch)
            return {name: tensor.clone() for name, tensor in engine.named_tensors()}

    plain = {}
    for count in (2, 3):
        model = materialised("opt-tiny", "fp32", True)
        mezo(model, data[:count], draw_seeds(0, count), eps=1e-3, lr=1e-2)
        plain[count] = dict(model.named_parameters())
    mine = weights_after(3)
    assert all(torch.equal(mine[name], plain[3][name]) for name in mine)
    assert any(not torch.equal(mine[name], plain[2][name]) for name in mine)


def test_every_test_that_the_page_names_exists() -> None:
    page = (ROOT / "docs" / "equal.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", page)
    assert len(named) >= 7
    for path, test in named:
        assert re.search(rf"^def {test}\(", (ROOT / path).read_text(encoding="utf-8"), re.M), f"{path}::{test}"
