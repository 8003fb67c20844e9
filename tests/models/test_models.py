"""The registry: published sizes, models on the meta device, and buffers that no checkpoint holds."""

import csv
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from zobench import models
from zobench.models.weights import ModelWeights, RandomWeights, materialise
from zobench.programs import cell
from zobench.result import Outcome
from zobench.runspec import RunSpec

TINY = [name for name in models.MODELS.names() if name.endswith("-tiny")]
PAPER = Path(__file__).parents[2] / "results" / "paper" / "reference.csv"

# Known counts of the published checkpoints (tied tensors once), written down apart from the formulas under test.
PUBLISHED = {
    "OPT-125M": 125_239_296,
    "OPT-350M": 331_196_416,
    "OPT-1.3B": 1_315_758_080,
    "OPT-2.7B": 2_651_596_800,
    "OPT-6.7B": 6_658_473_984,
    "OPT-13B": 12_853_473_280,
    "OPT-30B": 29_974_540_288,
    "LLaMA2-7B": 6_738_415_616,
    "Mistral-7B": 7_241_732_096,
    "Vicuna-7B": 6_738_415_616,
    "RoBERTa-large": 355_412_057,  # of RobertaForMaskedLM
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
}


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_every_model_that_the_papers_report_is_registered_under_their_name() -> None:
    if not PAPER.is_file():
        pytest.skip("the papers' values are not part of this installation")
    with PAPER.open() as file:
        reported = {row["model"] for row in csv.DictReader(file)}
    assert reported <= set(models.MODELS.names())


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_parameter_counts_equal_the_published_ones(name: str, parameters: int) -> None:
    assert models.parameter_count(name) == parameters


UNTIED = [name for name in models.MODELS.names() if models.get(name).tied and not models.get(name).family.masked]


@pytest.mark.parametrize(
    ("name", "tie"), [*((name, None) for name in models.MODELS.names()), *((name, False) for name in UNTIED)]
)
def test_counts_equal_those_of_the_built_model(name: str, tie: bool | None) -> None:
    model = models.build(name, "bf16", tie)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert models.parameter_count(name, tie) == count(model)
    assert {count(block) for block in models.blocks(model)} == {models.get(name).block}
    assert len(models.blocks(model)) == models.get(name).layers
    inside = {id(parameter) for parameter in models.blocks(model).parameters()}
    outside = [parameter.numel() for parameter in model.parameters() if id(parameter) not in inside]
    assert models.resident_parameter_count(name, tie) == sum(outside)
    assert max(models.resident_sizes(name, tie)) == max(outside)
    assert models.get(name).largest_linear == max(parameter.numel() for parameter in models.blocks(model).parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", TINY)
def test_a_model_built_on_meta_and_filled_equals_one_built_normally(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    config, masked = models.build_config(name), models.get(name).family.masked
    family = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    normal = family.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()  # type: ignore[no-untyped-call]
    filled = models.build(name, dtype)
    materialise(filled, ModelWeights(normal), "cpu")
    for (key, buffer), (_, expected) in zip(filled.named_buffers(), normal.named_buffers(), strict=True):
        assert buffer.dtype == expected.dtype
        assert torch.equal(buffer, expected), key
    ids = torch.randint(4, 128, (2, 64))
    with torch.inference_mode():
        assert torch.equal(filled(ids).logits, normal(ids).logits)
    assert models.is_masked(filled) is masked
    head = filled.get_output_embeddings()
    assert (head.weight is filled.get_input_embeddings().weight) is models.get(name).tied


def test_roberta_is_the_published_one() -> None:
    config = models.build_config("RoBERTa-large")
    assert (config.vocab_size, config.intermediate_size, config.type_vocab_size) == (50265, 4096, 1)
    assert (config.bos_token_id, config.pad_token_id, config.eos_token_id) == (0, 1, 2)
    assert (config.hidden_act, config.layer_norm_eps) == ("gelu", 1e-5)
    assert config.max_position_embeddings == 514
    assert models.get("RoBERTa-large").max_positions == 512  # of text: tokens begin at position 2
    model = models.build("roberta-tiny", "fp32")
    materialise(model, RandomWeights(model, 3), "cpu")
    assert model(torch.full((1, 64), 5)).logits.shape == (1, 64, 128)
    with pytest.raises(RuntimeError, match="index 66 is out of bounds"):
        model(torch.full((1, 65), 5))


def test_a_masked_model_is_always_tied() -> None:
    text = (
        "roberta-tiny must be tied, but got tie_embeddings=False; an untied one keeps a bias that nothing uses: use "
        "tie_embeddings=None"
    )
    with pytest.raises(ValueError, match="roberta-tiny") as error:
        models.build("roberta-tiny", "fp32", tie_embeddings=False)
    assert str(error.value) == text


def test_published_values_reach_the_configuration() -> None:
    qwen, mistral, opt = (models.build_config(name) for name in ("Qwen3-4B", "Mistral-7B", "OPT-350M"))
    assert (qwen.head_dim, qwen.rope_parameters["rope_theta"], qwen.tie_word_embeddings) == (128, 1e6, True)
    assert (mistral.sliding_window, mistral.num_key_value_heads, mistral.rms_norm_eps) == (4096, 8, 1e-5)
    assert (opt.word_embed_proj_dim, opt.do_layer_norm_before, opt.ffn_dim) == (512, False, 4096)
    assert models.build_config("Qwen3-8B").tie_word_embeddings is False


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (RunSpec(model="OPT-13B", seq_len=2049, weights="pretrained"),
         "`seq_len <= 2048` must hold for OPT-13B, but got seq_len=2049; "
         "the model has 2048 positions: use --set seq_len=2048 or less, or weights=random"),
        (RunSpec(model="OPT-175B", weights="pretrained"),
         "`weights=pretrained` needs a checkpoint, but none of OPT-175B is on the hub; "
         "give weights_path=FOLDER or use weights=random"),
    ],
)  # fmt: skip
def test_check_names_constraint_value_and_remedy(spec: RunSpec, text: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the text is compared whole)
        models.check(spec)
    assert str(error.value) == text


@pytest.mark.parametrize(("name", "tie"), [("opt-tiny", None), ("opt350-tiny", False), ("roberta-tiny", None)])
def test_an_extended_model_has_only_more_positions_and_the_counts_know(name: str, tie: bool | None) -> None:
    published, extended = models.build(name, "fp32", tie), models.build(name, "fp32", tie, 8192)
    differ = {key for key, value in published.state_dict().items() if value.shape != extended.state_dict()[key].shape}
    (table,) = differ
    assert table in ("model.decoder.embed_positions.weight", "roberta.embeddings.position_embeddings.weight")
    assert extended.get_parameter(table).shape[0] == 8192 + 2
    assert models.parameter_count(name, tie, 8192) == count(extended)
    outside = count(extended) - count(models.blocks(extended))
    assert models.resident_parameter_count(name, tie, 8192) == outside
    sizes = [p.numel() for key, p in extended.named_parameters() if ".layers." not in key and ".layer." not in key]
    assert max(models.resident_sizes(name, tie, 8192)) == max(sizes)


def test_the_published_rows_of_an_extended_table_keep_their_random_values() -> None:
    tables = []
    for positions in (None, 80):
        model = models.build("opt-tiny", "fp32", None, positions)
        materialise(model, RandomWeights(model, 3), "cpu")
        tables.append(model.get_parameter("model.decoder.embed_positions.weight"))
    assert torch.equal(tables[0], tables[1][:66])


@pytest.mark.parametrize(("name", "data"), [("opt-tiny", "random"), ("roberta-tiny", "ragged")])
def test_a_step_beyond_the_published_positions_runs_alike_resident_and_offloaded_and_says_so(name, data) -> None:
    """A masked model's random batches have labels in their places, not moved by one: throughput needs no task."""
    spec = RunSpec(model=name, batch_size=2, seq_len=80, steps=2, warmup=0, data=data)
    resident, offload = cell.run(spec), cell.run(spec.replace(engine="offload", tier="pageable"))
    assert (resident.outcome, resident.reason) == (Outcome.OK, "")
    assert resident.samples["loss"] == offload.samples["loss"]
    assert resident.samples["projected_grad"] == offload.samples["projected_grad"]
    assert None not in resident.samples["loss"]
    assert resident.warnings[0] == offload.warnings[0]
    assert resident.warnings[0] == (
        f"the position table was extended from 64 to 80 positions with random values: {name} was published with 64 "
        "(the papers that report longer sequences do not say what they did)"
    )
    assert models.position_count(spec.replace(weights="pretrained", weights_path="somewhere")) == 64
    within = cell.run(spec.replace(seq_len=64))
    assert not any("position" in warning for warning in within.warnings)


def test_a_model_without_blocks_is_named() -> None:
    with pytest.raises(ValueError, match="must hold its transformer blocks in one ModuleList, but Linear has none"):
        models.blocks(nn.Linear(2, 2))
