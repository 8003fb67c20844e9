"""Families that zobench has no formula for, from a config.json alone: counted, initialised, and run by both engines."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, MambaConfig

from tests.support.families import CONFIGS
from tests.support.files import written
from zobench import models
from zobench.models.weights import ModelWeights, RandomWeights, materialise
from zobench.programs import cell
from zobench.recipes import matrix
from zobench.result import Outcome
from zobench.runspec import RunSpec

FAMILIES = ("gpt2", "gpt_neox", "phi", "gemma2", "mixtral", "qwen2", "olmo", "bloom", "mpt")
TINY = [name for name in models.MODELS.names() if name.endswith("-tiny")]
EDGES = ("mamba2", "gemma4_text", "apertus")
"""Families whose config.json holds what others' do not."""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOBENCH_CACHE_DIR", str(tmp_path / "cache"))


def given(tmp_path: Path, family: str) -> RunSpec:
    config = written(tmp_path / family / "config.json", json.dumps({"model_type": family, **CONFIGS[family]}))
    values = {"model": str(config.parent), "seq_len": 16, "steps": 3, "warmup": 0, "batch_size": 2, "lr": 1e-3}
    return matrix.single(values, "cpu")


@pytest.mark.parametrize("family", [*FAMILIES, *EDGES])
def test_the_counts_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    known = models.of(given(tmp_path, family))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path / family))  # type: ignore[no-untyped-call]
    blocks = [sum(tensor.numel() for tensor in block.parameters()) for block in models.blocks(model)]
    inside = set(models.blocks(model).parameters())
    outside = [tensor.numel() for tensor in model.parameters() if tensor not in inside]
    assert (known.layers, known.hidden, known.vocab) == (2, 32, 64)
    assert (known.block, known.all_blocks) == (max(blocks), sum(blocks))
    assert known.resident(known.tied, known.max_positions) == outside
    assert models.parameter_count(known) == sum(tensor.numel() for tensor in model.parameters())
    assert known.largest_linear == max(tensor.numel() for tensor in inside)


@pytest.mark.parametrize("family", [*FAMILIES, *TINY])
def test_random_values_are_distributed_as_the_models_own(tmp_path: Path, family: str) -> None:
    """Those of GPT-2's residual projections are smaller, Gemma's norms begin at zero, Mixtral's experts are stacked."""
    torch.manual_seed(0)
    if family in TINY:
        ours, config = models.build(family, "fp32"), models.build_config(family)
    else:
        ours = models.build(models.of(given(tmp_path, family)), "fp32")
        config = AutoConfig.from_pretrained(tmp_path / family)
    initialised = dict(AutoModelForCausalLM.from_config(config).named_parameters())  # type: ignore[no-untyped-call]
    materialise(ours, RandomWeights(ours, 0), "cpu")
    assert [name for name, _ in ours.named_parameters()] == list(initialised)
    for name, values in ours.named_parameters():
        expected = initialised[name]
        tolerance = 10 * 0.02 / expected.numel() ** 0.5
        assert values.std().item() == pytest.approx(expected.std().item(), abs=tolerance), name
        assert values.mean().item() == pytest.approx(expected.mean().item(), abs=tolerance), name
        assert torch.equal(values == 0, expected == 0), name


def test_a_parameter_that_the_module_around_its_layer_writes_again_is_as_that_writes_it() -> None:
    """Mamba's mixer draws the weights and the rates of its linear layers anew, after these have drawn their own."""
    config = MambaConfig(hidden_size=64, num_hidden_layers=1, vocab_size=128, state_size=8)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    weights = RandomWeights(model, 0)
    for key in ("dt_proj.weight", "dt_proj.bias", "out_proj.weight", "conv1d.weight"):
        name = f"backbone.layers.0.mixer.{key}"
        expected = model.get_parameter(name)
        values = torch.empty_like(expected)
        weights.fill(name, values)
        assert values.std().item() == pytest.approx(expected.std().item(), rel=0.3), name
        assert values.mean().item() == pytest.approx(expected.mean().item(), abs=0.4 * expected.std().item()), name


@pytest.mark.parametrize("family", [*FAMILIES, *EDGES])
def test_a_model_from_a_config_alone_is_the_one_that_transformers_builds(tmp_path: Path, family: str) -> None:
    known = models.of(given(tmp_path, family))
    reference = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path / family)).eval()  # type: ignore[no-untyped-call]
    ours = models.build(known, "fp32")
    materialise(ours, ModelWeights(reference), "cpu")
    ids = torch.randint(3, 64, (2, 16))
    with torch.inference_mode():
        assert torch.equal(ours(ids).logits, reference(ids).logits)


@pytest.mark.parametrize("family", ["gpt2", "mixtral", "mamba2", "gemma4_text"])
def test_offloaded_losses_are_the_resident_ones(tmp_path: Path, family: str) -> None:
    spec = given(tmp_path, family).replace(noise="counter")
    resident = cell.run(spec)
    offload = cell.run(spec.replace(engine="offload", tier="pageable"))
    assert (resident.outcome, resident.reason) == (Outcome.OK, "")
    assert (offload.outcome, offload.reason) == (Outcome.OK, "")
    assert resident.samples["loss"] == offload.samples["loss"]
    assert len(set(resident.samples["loss"])) == 3


@pytest.mark.parametrize("name", TINY)
def test_a_folder_of_a_registered_model_has_the_registered_facts(tmp_path: Path, name: str) -> None:
    config = models.build_config(name)
    config.architectures = ["RobertaForMaskedLM"] if models.get(name).masked else None
    config.save_pretrained(tmp_path / "it")
    ours, theirs = models.get(name), models.of(matrix.single({"model": str(tmp_path / "it")}, "cpu"))
    for fact in (
        "model_type", "masked", "layers", "heads", "hidden", "vocab", "max_positions", "tied", "embedding_width",
        "attention_widths", "block", "all_blocks", "largest_linear", "whole_attention",
    ):  # fmt: skip
        assert getattr(theirs, fact) == getattr(ours, fact), fact
    sizes = [spec.resident(ours.tied, ours.max_positions) for spec in (ours, theirs)]
    assert sorted(sizes[0]) == sorted(sizes[1])
    for kind in itertools.product((2, 4), (False, True), (False, True)):
        assert ours.kept(*kind) <= theirs.kept(*kind) <= 3 * ours.kept(*kind), kind


def test_a_folder_of_an_encoder_and_a_decoder_is_refused_and_its_decoder_alone_is_not(tmp_path: Path) -> None:
    sizes = {"vocab_size": 64, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}
    config = {"model_type": "bart", "is_encoder_decoder": True, "max_position_embeddings": 64, **sizes}
    for name, named in (("whole", "BartForConditionalGeneration"), ("decoder", "BartForCausalLM")):
        written(tmp_path / name / "config.json", json.dumps({**config, "architectures": [named]}))
    assert models.of(matrix.single({"model": str(tmp_path / "decoder"), "seq_len": 16}, "cpu")).layers == 2
    with pytest.raises(ValueError, match="BartForConditionalGeneration has an encoder and a decoder; use"):
        matrix.single({"model": str(tmp_path / "whole"), "seq_len": 16}, "cpu")
