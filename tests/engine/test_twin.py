"""Right or refused: an engine over any model of transformers gives its own losses, or says in one line why not."""

import copy
import re

import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from tests.support.reference import perturb
from tools import families
from zobench import Batch, Engine, EngineConfig, Entry, Point, models
from zobench.engine import twin
from zobench.engine.backprop import Backprop
from zobench.engine.directions.in_place import InPlace
from zobench.engine.passes.fold import observe
from zobench.engine.shrink import shrunk

IDS = torch.arange(12).view(2, 6) * 7 % 60 + 5
BATCH = Batch(IDS, IDS)


def small(model_type, family=AutoModelForCausalLM, **values):
    torch.manual_seed(3)
    return family.from_config(shrunk(AutoConfig.for_model(model_type, **values))).eval()


@torch.no_grad()
def own_loss(model, batch=BATCH):
    return float(model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels)["loss"])


def assert_own(losses, plain, batch=BATCH):
    """Losses at two opposite points are those of the plain model, which is left at the second."""
    for loss, scale in zip(losses, (1e-2, -2e-2), strict=True):
        perturb(plain, 1, 1.0, scale)
        assert loss == pytest.approx(own_loss(plain, batch), abs=2e-6)


@pytest.fixture(autouse=True)
def _no_verdicts(monkeypatch):
    monkeypatch.setattr(twin, "_VERDICTS", {})


# --- what is refused --------------------------------------------------------------------------------------------------

NO_LANGUAGE_MODEL = {
    "Linear, which is none of transformers": lambda: nn.Linear(2, 2),
    "BartForConditionalGeneration, which has an encoder and a decoder": lambda: small("bart", AutoModelForMaskedLM),
    "LlamaModel, which has no head onto the vocabulary": lambda: small("llama").model,
}


@pytest.mark.parametrize("what", NO_LANGUAGE_MODEL)
def test_what_is_no_language_model_is_named(what):
    with pytest.raises(ValueError, match=f"must be a causal or masked language model, but got {what}; build one with"):
        Engine(NO_LANGUAGE_MODEL[what](), EngineConfig(placement="resident"))


REFUSED = {
    "xlnet": "a module with weights of its own must not hold others with theirs, but XLNetLMHeadModel's transformer "
    "has mask_emb and holds transformer.word_embedding; use another model",
    "rwkv": "a model's forward must leave its weights alone, but RwkvForCausalLM's writes "
    "rwkv.blocks.0.attention.output.weight; use another model",
}


@pytest.mark.parametrize(("build", "model_type"), [(Engine, "xlnet"), (Backprop, "rwkv")])
def test_a_model_that_computes_something_else_is_refused_in_one_line_and_left_as_it_was(build, model_type):
    model = small(model_type)
    before = copy.deepcopy(model)
    for _ in range(2):  # the second time from memory
        with pytest.raises(ValueError, match=f"^{re.escape(REFUSED[model_type])}$"):
            build(model, EngineConfig(placement="resident"))
    assert own_loss(model) == own_loss(before)
    assert all(
        torch.equal(weight, other) for weight, other in zip(model.parameters(), before.parameters(), strict=True)
    )


@pytest.mark.parametrize("model_type", ["opt", "gpt2"])  # one that tests hold, and one that is compared
def test_a_loss_that_one_model_was_given_is_refused(model_type):
    model = small(model_type)
    model.loss_function = lambda logits, **kwargs: logits.sum()
    with pytest.raises(ValueError, match=r"^a model must have the loss of its class, but this \w+ was given its own "):
        Engine(model, EngineConfig())


# --- what the comparison finds: errors planted in the engine ----------------------------------------------------------


def test_a_soft_cap_that_is_left_out_is_found(monkeypatch):
    monkeypatch.setattr("zobench.engine.passes.head.finished", lambda output, notes: output)
    with pytest.raises(ValueError, match="an engine must give the model's own loss, but of Gemma2ForCausalLM it gives"):
        Engine(small("gemma2", final_logit_softcapping=0.05), EngineConfig())


def test_weights_that_do_not_move_are_found(monkeypatch):
    at = InPlace.at
    monkeypatch.setattr(InPlace, "at", lambda self, unit, point: at(self, unit, Point() if unit.part == 2 else point))
    with pytest.raises(ValueError, match="losses at perturbed weights must be those of GPT2LMHeadModel itself"):
        Engine(small("gpt2"), EngineConfig())


def test_arguments_that_are_not_cut_with_the_batch_are_found(monkeypatch):
    """BLOOM's alibi has a row for each head of each row of the batch: by its size nobody sees that."""
    monkeypatch.setattr(twin, "observe", lambda *args: {})
    with pytest.raises(ValueError, match="BloomForCausalLM"):
        Engine(small("bloom", n_layer=2), EngineConfig())


# --- what follows the batch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model_type", "heads"), [("bloom", "n_head"), ("mpt", "n_heads")])
@pytest.mark.parametrize("count", [2, 4])
def test_alibi_is_cut_by_what_it_follows_and_not_by_its_size(model_type, heads, count):
    """Two points on two rows are four copies: as many as heads."""
    width = "d_model" if model_type == "mpt" else "hidden_size"
    model = small(model_type, **{heads: count, width: 16 * count})
    plain = copy.deepcopy(model)
    with Engine(model, EngineConfig(slots=2)) as engine:
        losses = engine.probe(BATCH, [Point(1, 1e-2), Point(1, -1e-2)])
    assert_own(losses, plain)


def test_blocks_that_run_twice_or_backwards_are_refused():
    class Body(nn.Module):
        def __init__(self, order):
            super().__init__()
            self.blocks, self.order = nn.ModuleList(nn.Linear(2, 2) for _ in range(2)), order

        def forward(self, x):
            for number in self.order:
                x = self.blocks[number](x)
            return x

    for order in ((1, 0), (0, 1, 0), (0,)):
        body = Body(order)
        with pytest.raises(ValueError, match="run each of its blocks once, in their order, but Body makes"):
            observe(body, list(body.blocks), [lambda rows, body=body: body(torch.zeros(rows, 2))])


# --- which modules are blocks -----------------------------------------------------------------------------------------


def test_blocks_are_the_list_with_the_most_parameters():
    model = small("stablelm", qk_layernorm=True, num_hidden_layers=2, num_attention_heads=4)
    assert models.blocks(model) is model.model.layers
    assert max(len(module) for module in model.modules() if isinstance(module, nn.ModuleList)) > 2


def test_blocks_under_half_of_the_model_are_refused():
    holder = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(2)),
                            "other": nn.Linear(3, 3, bias=False)})  # fmt: skip
    with pytest.raises(ValueError, match="the largest ModuleList of ModuleDict holds 8 of 17; use another model"):
        models.blocks(holder)


# --- the router, heads, layers ------------------------------------------------------------------------------------


def test_a_router_loss_is_left_out_and_told():
    model = small("mixtral")
    expected = own_loss(model)
    model.config.output_router_logits = True
    assert own_loss(model) > expected + 1e-3
    with pytest.warns(UserWarning, match="the loss of MixtralForCausalLM adds a router loss"):
        engine = Engine(model, EngineConfig(slots=2))
    with engine:
        assert engine.evaluate(BATCH) == pytest.approx(expected, abs=1e-6)
        assert model.config.output_router_logits


def test_an_engine_draws_nothing_from_the_callers_generator():
    model, state = small("gpt2"), torch.get_rng_state()
    Engine(model, EngineConfig(placement="resident")).close()
    assert torch.equal(torch.get_rng_state(), state)


def test_the_twin_of_the_largest_model_is_small():
    config = shrunk(models.build("OPT-175B", "fp32").config)
    assert sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters()) < 5_000_000


def test_the_bias_that_a_holder_adds_to_its_heads_output_moves_with_the_head_and_is_saved(tmp_path):
    """ESM's head has no bias; what holds it adds one. Backprop and the engine give the model's own loss, and the update
    is MeZO's."""
    values = {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32, "hidden_size": 32, "num_hidden_layers": 2}
    config = AutoConfig.for_model("esm", **values, num_attention_heads=2, intermediate_size=48)
    torch.manual_seed(3)
    model = AutoModelForMaskedLM.from_config(config).eval()
    batch = Batch(IDS % 29 + 4, IDS % 29 + 4)
    torch.nn.init.normal_(model.lm_head.bias)
    plain, again = copy.deepcopy(model), copy.deepcopy(model)
    with Backprop(again, EngineConfig(placement="resident")) as engine:
        assert engine.evaluate(batch) == pytest.approx(own_loss(plain, batch), abs=2e-6)
    assert again.lm_head.decoder.bias is None
    with Engine(model, EngineConfig(slots=2)) as engine:
        losses = engine.probe(batch, [Point(1, 1e-2), Point(1, -1e-2)])
        engine.commit([Entry(step=0, seed=1, g=0.5, lr=0.1)])
        engine.save_pretrained(tmp_path)
    assert model.lm_head.decoder.bias is None
    assert_own(losses, plain, batch)
    perturb(plain, 1, 1.0, 1e-2 - 0.05)
    saved = AutoModelForMaskedLM.from_pretrained(tmp_path)
    torch.testing.assert_close(saved.lm_head.bias, plain.lm_head.bias, rtol=0, atol=1e-6)


def test_layers_that_share_a_module_are_one_block():
    """ALBERT runs one module for all of its layers: what holds it is the block, and moves once."""
    model = small("albert", AutoModelForMaskedLM, num_attention_heads=2, hidden_size=32, intermediate_size=48)
    assert [type(block).__name__ for block in models.blocks(model)] == ["AlbertTransformer"]
    plain = copy.deepcopy(model)
    with Engine(model, EngineConfig(slots=2)) as engine:
        losses = engine.probe(BATCH, [Point(1, 1e-2), Point(1, -1e-2)])
        assert len(engine.blocks) == 1
    assert_own(losses, plain)


def test_a_class_whose_loss_shifts_no_labels_is_given_shifted_ones():
    """BART's decoder: the engine's loss is that of the next token, which is its class's own on the next tokens."""
    model = small("bart", d_model=32, decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=48)
    following = torch.cat([IDS[:, 1:], torch.full((2, 1), -100)], 1)
    expected = own_loss(model, Batch(IDS, following))
    with Engine(model, EngineConfig()) as engine:
        assert engine.evaluate(BATCH) == pytest.approx(expected, abs=2e-6)


# --- all of transformers ----------------------------------------------------------------------------------------------

SAMPLE = ("bloom", "cohere", "gemma2", "mamba2")


def _check(row):
    assert {row.verdict, row.folder} <= {families.EQUAL, families.REFUSED, families.NOT_BUILT}, row
    rows = {(listed.kind, listed.model_type, listed.name): listed for listed in families.read("docs/families.md")}
    listed = rows[row.kind, row.model_type, row.name]
    assert (listed.verdict, listed.folder) == (row.verdict, row.folder)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_transformers_is_equal(name):
    row = families.judge(*families.class_of("causal", CONFIG_MAPPING[name]))
    assert (row.verdict, row.folder) == (families.EQUAL, families.EQUAL), row.reason
    _check(row)


def pytest_generate_tests(metafunc):
    """All classes are imported only where the sweep over them is asked for."""
    if metafunc.function is test_all_of_transformers_is_equal_or_refused:
        classes = families.classes() if "sweep" in (metafunc.config.option.markexpr or "") else ()
        named = {f"{kind}-{name}": (kind, *rest) for kind, name, *rest in classes}
        metafunc.parametrize("of", named.values(), ids=named)


@pytest.mark.sweep
def test_all_of_transformers_is_equal_or_refused(of):
    _check(families.judged_in_process(*of))
