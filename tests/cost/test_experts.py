"""Mixtures of experts, latent attention, windows and recurrences: what a token goes through, counted by torch."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tools.families import classes, small_config
from zobench import models
from zobench.cost import choices, footprint, gpu, hardware, seconds, shapes
from zobench.cost.choices import TargetMachine
from zobench.models import inspection
from zobench.models.inspected import Inspected
from zobench.recipes import matrix
from zobench.runspec import RunSpec
from zobench.training.evaluate import LEAST, room

TOKENS = 24
EXPERTS = (
    "aria_text", "cohere2_moe", "deepseek_v3", "ernie4_5_moe", "gpt_oss", "granitemoeshared", "jetmoe", "llama4_text",
    "mixtral", "phimoe", "qwen2_moe",
)  # fmt: skip
DENSE = ("bart", "gemma3_text", "gpt2", "minicpm3", "mistral", "phi3")
"""Among them attention to an encoder that is not there, windows, latent attention, and stored transposed matrices."""
RECURRENT = ("falcon_mamba", "qwen3_next")
MIXTRAL = {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "num_experts_per_tok": 2, "vocab_size": 32000, "max_position_embeddings": 32768,
}  # fmt: skip
"""Mixtral-8x7B."""


def counted(name: str, folder: Path) -> tuple[Inspected, float]:
    """A small model of the family as its configuration is read, and the operations that torch counts of a forward."""
    _, _, config_class, model_class = next(row for row in classes() if row[:2] == ("causal", name))
    config = small_config(config_class, model_class)
    config._experts_implementation = "eager"
    model = model_class._from_config(config, attn_implementation="eager").eval()
    ids = torch.arange(TOKENS).view(1, TOKENS) % 80 + 4
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=ids)
    model.config.architectures = [model_class.__name__]
    model.config.save_pretrained(folder)
    return inspection.inspect(folder), float(counter.get_total_flops())


def operations(model: Inspected) -> float:
    """What is counted of one forward, with attention over all pairs, as no fused kernel leaves any out."""
    pairs = 2 * TOKENS**2 * sum(sum(block.attention) * count for block, count in shapes.blocks(model))
    return pairs + 2 * TOKENS * (shapes.active(model) + model.vocab * model.embedding_width)


@pytest.mark.parametrize("name", [*EXPERTS, *DENSE])
def test_products_and_attention_are_those_that_torch_counts(name: str, tmp_path: Path) -> None:
    model, total = counted(name, tmp_path)
    assert operations(model) == pytest.approx(total, rel=0.03)
    assert not model.uncounted
    assert name in EXPERTS or not any(block.experts for block, _ in shapes.blocks(model))


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrence_is_said_not_to_be_counted_and_widens_the_range(name: str, tmp_path: Path) -> None:
    model, _ = counted(name, tmp_path)
    assert "the recurrence of" in model.uncounted[0]
    spec = matrix.single({"model": str(tmp_path), "seq_len": 16, "dtype": "fp16"}, "cuda:0")
    known = gpu.predict(spec, hardware.load("rtx-3090"))
    assert known.slower > 0
    assert known.range[0] < known.tokens_per_second / (1 + known.share)
    assert known.notes == model.uncounted


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunSpec]:
    def spec(device: str = "cuda:0", chosen: int = 2, **fields: Any) -> RunSpec:
        folder = tmp_path_factory.mktemp("mixtral")
        (folder / "config.json").write_text(json.dumps({**MIXTRAL, "num_experts_per_tok": chosen}))
        return matrix.single({"model": str(folder), "dtype": "fp16", "seq_len": 2048, **fields}, device)

    return spec


def test_mixtral_has_46_7_billion_parameters_of_which_a_token_meets_12_9(mixtral: Callable[..., RunSpec]) -> None:
    """Jiang et al., Mixtral of Experts (2024), section 2: 47B parameters, 13B of them active."""
    model = models.of(mixtral())
    assert models.parameter_count(model) == 46_702_792_704
    assert shapes.active(model) + model.vocab * model.hidden == pytest.approx(12.75e9, rel=0.001)  # one table is read
    assert seconds.operations(mixtral()) == 2 * 2048 * 2 * (shapes.active(model) + model.vocab * model.hidden)


def test_experts_are_moved_whole_and_computed_in_part(mixtral: Callable[..., RunSpec]) -> None:
    """Four times as many experts are four times their products; what travels and what is drawn stays."""
    card, engine = hardware.load("rtx-3090"), {"engine": "offload", "noise": "counter"}
    few, more = (gpu.predict(mixtral(chosen=chosen, **engine), card) for chosen in (2, 8))
    for part in ("upload", "offload", "noise"):
        assert few.parts[part] == more.parts[part]
    assert 3 < more.parts["products"] / few.parts["products"] < 4
    copies = 2048 * 6 * (4096 + 4 * 14336) * 2  # six more experts' inputs, both branches and what is made of them
    assert more.device_bytes - few.device_bytes == pytest.approx(copies, rel=0.01)
    assert few.host_bytes == more.host_bytes


OLMOE = {
    "model_type": "olmoe", "architectures": ["OlmoeForCausalLM"], "hidden_size": 64, "intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "num_experts": 8,
    "num_experts_per_tok": 8, "vocab_size": 96, "max_position_embeddings": 64,
}  # fmt: skip
"""Both branches of an expert together are as wide as a token, as in OLMoE-1B-7B."""


def test_both_branches_of_experts_are_not_taken_for_their_last_matrix(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OLMOE))
    model = inspection.inspect(tmp_path)
    assert shapes.block(model).inner == 8 * 32
    assert shapes.feed_forward(model) == 3 * 8 * 64 + 8 * 32  # inputs, outputs, these weighted; what made them
    spec = matrix.single({"model": str(tmp_path), "dtype": "fp16", "seq_len": 16}, "cpu")
    assert room(spec) == LEAST // ((4 * 64 + 1792) * 2) == 1024


def test_experts_whose_number_is_not_known_widen_the_range_to_shorter_steps(tmp_path, monkeypatch) -> None:
    """All eight are counted; a single expert takes an eighth of their products, and the rest stays."""
    monkeypatch.setenv("ZOBENCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(inspection, "CHOSEN", ())
    (tmp_path / "config.json").write_text(json.dumps({**MIXTRAL, "vocab_size": 32002}))
    spec = matrix.single({"model": str(tmp_path), "dtype": "fp16", "seq_len": 2048, "noise": "counter"}, "cuda:0")
    known = gpu.predict(spec, hardware.load("rtx-3090"))
    assert known.notes == models.of(spec).overcounted != ()
    assert known.slower == 0
    assert known.range[0] == known.tokens_per_second / (1 + known.share)
    assert 3 < known.range[1] / (known.tokens_per_second / (1 - known.share)) < 8


def test_few_tokens_do_not_hit_all_experts() -> None:
    """By hand, two of eight: one token hits 2, two tokens 8 (1 - (3/4)^2) = 3.5, many all of them."""
    stack = shapes.Experts(8, 2.0, 16, 32, False)
    assert [stack.hit(tokens) for tokens in (1, 2)] == [2.0, 3.5]
    assert stack.hit(1000) == pytest.approx(8)
    assert shapes.Experts(4, 4.0, 16, 32, False).hit(1) == 4


def test_a_window_shorter_than_a_row_makes_attention_compute_all_pairs() -> None:
    """transformers gives torch a mask then, with which no kernel leaves the pairs behind a token out."""
    block = shapes.block(models.get("Mistral-7B"))
    assert block.pairs(2048) == 2048**2 * 4096
    assert block.pairs(8192) == 2 * 8192**2 * 4096
    assert dataclasses.replace(block, window=0).pairs(8192) == 8192**2 * 4096
    assert block.pairs(2048, is_whole=True) == 2 * 2048**2 * 4096
    assert block.pairs(8192, is_whole=True) == block.pairs(8192)


def test_mixtral_on_a_3090_is_bound_by_the_link(mixtral: Callable[..., RunSpec]) -> None:
    target = TargetMachine(gpu=hardware.load("rtx-3090"), host=128e9)
    best = choices.choices({"model": mixtral().model_path, "dtype": "fp16"}, target)[0]
    assert (best.lacks, best.prediction.bound) == ("", "link (upload)")
    low, high = best.prediction.range
    assert 400 < low < 523 < 690 < high < 700  # by hand: 87 GB at 22 GB/s are 3.9 s, at 32 GB/s 2.8 s


def test_no_plan_cuts_a_block_whose_matrices_are_not_in_linear_layers(mixtral: Callable[..., RunSpec]) -> None:
    target = TargetMachine(gpu=hardware.load("rtx-3090"), host=128e9)
    best, *others = choices.choices({"model": mixtral().model_path, "dtype": "fp16"}, target)
    shown = [best, *others, *choices.alternatives(best, target)]
    assert {choice.spec.granularity for choice in shown} == {"block"}
    assert footprint.fit(mixtral(noise="counter", engine="offload", device_memory=20 * 10**9))[0].granularity == "block"
    with pytest.raises(ValueError, match="whose matrices are not all in linear layers, but got granularity=linear"):
        mixtral(noise="counter", engine="offload", granularity="linear")
