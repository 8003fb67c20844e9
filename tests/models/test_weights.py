"""Initial values: random ones that depend on (seed, name) only, and checkpoints in safetensors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from tests.support.devices import DEVICES
from tests.support.families import made
from tests.support.parity import assert_equal
from zobench import models
from zobench.models.weights import POOL, ModelWeights, PretrainedWeights, RandomWeights, Weights, materialise


def filled(name: str, seed: int = 0, dtype: str = "fp32", tie: bool | None = None, folder: Path | None = None) -> Any:
    model = models.build(name, dtype, tie)
    materialise(model, RandomWeights(model, seed) if folder is None else PretrainedWeights(folder, model), "cpu")
    return model


def values(weights: Weights, model: nn.Module, name: str) -> torch.Tensor:
    out = torch.full_like(model.get_parameter(name), torch.nan, device="cpu", dtype=torch.float32)
    weights.fill(name, out)
    return out


def test_values_do_not_depend_on_the_order_of_calls() -> None:
    model = models.build("opt-tiny", "fp32")
    names = [name for name, _ in model.named_parameters()]
    forward, backward = RandomWeights(model, 3), RandomWeights(model, 3)
    first = {name: values(forward, model, name) for name in names}
    for name in reversed(names):
        assert torch.equal(values(backward, model, name), first[name]), name


def test_seeds_names_and_rows_differ() -> None:
    model = models.build("opt-tiny", "fp32")
    zero, base = RandomWeights(model, 0), RandomWeights(model, 1)
    first, second = "model.decoder.layers.0.fc1.weight", "model.decoder.layers.1.fc1.weight"
    assert float(values(zero, model, first).double().sum()) == pytest.approx(-3.721682, rel=1e-5)  # in any process
    assert not torch.equal(values(zero, model, first), values(base, model, first))
    assert not torch.equal(values(zero, model, first), values(zero, model, second))
    assert len(set(map(tuple, values(zero, model, first).tolist()))) == 256


def test_a_tensor_larger_than_the_pool_repeats_it_and_keeps_its_rows_apart() -> None:
    model = models.build("OPT-125M", "fp32")
    name = "model.decoder.embed_tokens.weight"
    out = values(RandomWeights(model, 0), model, name)
    assert out.numel() > 9 * POOL
    flat = out.view(-1)[2 * 768 :]  # after the padding row
    assert torch.equal(flat[:POOL], flat[POOL : 2 * POOL])
    heads = [tuple(row) for row in out[2:, :4].tolist()]
    assert len(set(heads)) == len(heads)
    assert not out.isnan().any()


def test_a_view_into_a_flat_buffer_is_filled_in_place() -> None:
    model = models.build("llama-tiny", "fp32")
    weights, name = RandomWeights(model, 0), "model.layers.0.self_attn.q_proj.weight"
    buffer = torch.zeros(5 + 64 * 64 + 3)
    weights.fill(name, buffer[5:-3].view(64, 64))
    assert torch.equal(buffer[5:-3].view(64, 64), values(weights, model, name))
    assert buffer[:5].count_nonzero() == buffer[-3:].count_nonzero() == 0


@pytest.mark.parametrize("source", ["random", "model"])
def test_a_tied_tensor_has_the_same_values_under_both_names(source: str) -> None:
    model = filled("opt-tiny")
    weights = RandomWeights(model, 0) if source == "random" else ModelWeights(model)
    embedding = values(weights, model, "model.decoder.embed_tokens.weight")
    assert torch.equal(values(weights, model, "lm_head.weight"), embedding)


@pytest.mark.parametrize("device", DEVICES[1:])
def test_values_do_not_depend_on_the_device(device: str) -> None:
    for dtype in ("fp32", "bf16"):
        model = models.build("opt-tiny", dtype)
        materialise(model, RandomWeights(model, 0), device)
        for name, parameter in filled("opt-tiny", dtype=dtype).named_parameters():
            assert torch.equal(model.get_parameter(name).cpu(), parameter), name


def test_a_module_without_a_rule_is_named() -> None:
    model = models.build("opt-tiny", "fp32")
    model.add_module("extra", nn.Bilinear(2, 2, 2, bias=False))
    with pytest.raises(ValueError, match=r"`extra.weight` must belong to .*, but got Bilinear; use weights=pretrained"):
        RandomWeights(model, 0)


# ---- checkpoints


@pytest.mark.parametrize("old", ["decoder.", "model.decoder."])
def test_both_prefixes_of_opt_checkpoints_are_understood(old: str, tmp_path: Path) -> None:
    original = filled("opt-tiny")
    tensors = {name.replace("model.decoder.", old): value.detach() for name, value in original.named_parameters()}
    save_file(tensors, tmp_path / "model.safetensors")
    copy = filled("opt-tiny", folder=tmp_path)
    assert_equal(dict(copy.named_parameters()), dict(original.named_parameters()))


def test_a_tied_checkpoint_fills_an_untied_model(tmp_path: Path) -> None:
    original = filled("opt-tiny")
    original.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    copy = filled("opt-tiny", tie=False, folder=tmp_path)
    assert copy.lm_head.weight is not copy.get_input_embeddings().weight
    assert torch.equal(copy.lm_head.weight, original.lm_head.weight)


def test_an_untied_checkpoint_does_not_fill_a_tied_model(tmp_path: Path) -> None:
    filled("llama-tiny").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="holds two different tensors; use tie_embeddings=false"):
        filled("llama-tiny", tie=True, folder=tmp_path)


@pytest.mark.parametrize("name", ["opt-tiny", "qwen3-tiny"])
def test_rows_of_a_tensor_are_those_of_the_whole(name: str, tmp_path: Path) -> None:
    model = models.build(name, "fp32")
    random = RandomWeights(model, 3)
    materialise(model, random, "cpu")
    model.save_pretrained(tmp_path)
    sources: list[Weights] = [random, ModelWeights(model), PretrainedWeights(tmp_path, model)]
    for key, parameter in model.named_parameters():
        for source in sources:
            some = torch.empty_like(parameter[1:3])
            source.fill(key, some, 1)
            assert torch.equal(some, parameter[1:3]), (key, type(source))


# ---- checkpoints that are refused, each in one line


def saved(folder: Path, **changed: torch.Tensor | None) -> None:
    """opt-tiny in one file, with these tensors changed, or left out."""
    tensors = {key: value.detach() for key, value in filled("opt-tiny").named_parameters()}
    kept = {key: value for key, value in {**tensors, **changed}.items() if value is not None}
    save_file(kept, folder / "model.safetensors")


def index(folder: Path, text: str = "", **weight_map: str) -> Path:
    """A checkpoint in shards, whose index holds ``text``, or places these tensors elsewhere; the index."""
    filled("opt-tiny").save_pretrained(folder, max_shard_size="100KB")
    path = folder / "model.safetensors.index.json"
    known = json.loads(path.read_text())["weight_map"]
    path.write_text(text or json.dumps({"weight_map": {**known, **weight_map}}))
    return path


def described(folder: Path, **changed: object) -> None:
    filled("opt-tiny").save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changed}))


def without_a_shard(folder: Path) -> None:
    places = json.loads(index(folder).read_text())["weight_map"].values()
    (folder / max(places)).unlink()


def in_two_files(folder: Path) -> None:
    saved(folder)
    (folder / "model.safetensors").rename(folder / "part0.safetensors")
    save_file({"more": torch.zeros(1)}, folder / "part1.safetensors")


def cut_off(folder: Path) -> None:
    saved(folder)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-50])


def with_its_code(folder: Path) -> None:
    (folder / "modeling_mine.py").write_text("raise SystemExit('this was run')")
    described(folder, model_type="mine", auto_map={"AutoModelForCausalLM": "modeling_mine.Mine"})


NAME = "model.decoder.layers.1.fc1.bias"
FIRST = "model.decoder.embed_tokens.weight"
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "pickles": (lambda folder: (folder / "pytorch_model.bin").write_bytes(b"not opened"),
                "`weights_path` must hold *.safetensors, but {} has none, and pickles"),
    "no tensor": (lambda folder: saved(folder, **{NAME: None}),
                  f"`{NAME}` must be in the checkpoint, but {{}} lacks it; give this model's weights"),
    "no shard": (without_a_shard, "`weights_path` must hold all shards, but {} lacks model-0000"),
    "a shape": (lambda folder: saved(folder, **{NAME: torch.zeros(3)}),
                f"`{NAME}` must have shape (256,), but {{}} has (3,); "),
    "integers": (lambda folder: saved(folder, **{NAME: torch.zeros(256, dtype=torch.int8)}),
                 f"`{NAME}` must be fp32, fp16 or bf16, but {{}} has int8; give one that is not quantised"),
    "doubles": (lambda folder: saved(folder, **{NAME: torch.zeros(256, dtype=torch.float64)}),
                f"`{NAME}` must be fp32, fp16 or bf16, but {{}} has float64; save it in one of these"),
    "two files": (in_two_files, "`weights_path` must hold model.safetensors or an index of its shards, but {} has 2 "
                  "files without one: part0.safetensors, part1.safetensors; "),
    "no JSON": (lambda folder: index(folder, "{"), "`weights_path` must hold an index that says weight_map, but "
                "{}/model.safetensors.index.json is damaged (Expecting property name"),
    "no map": (lambda folder: index(folder, "{}"), "`weights_path` must hold an index whose weight_map names a file "
               "for each tensor, but that of {}/model.safetensors.index.json does not; copy it again"),
    "outside": (lambda folder: index(folder, **{FIRST: "a/../../secret.safetensors"}), "`weights_path` must name "
                "shards inside its folder, but {}/model.safetensors.index.json names 'a/../../secret.safetensors'; "),
    "damage": (cut_off, "`weights_path` must hold whole safetensors, but {}/model.safetensors is damaged ("),
    "quantised": (lambda folder: described(folder, quantization_config={"quant_method": "bitsandbytes"}),
                  "`weights_path` must hold weights that are not quantised, or symmetric integers of compressed-ten"),
    "its code": (with_its_code, "`weights_path` must hold a model that transformers knows, but {} has model_type="
                 "'mine', whose code comes with it (auto_map), and that is never run; "),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_checkpoint_that_cannot_be_read_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    (folder := tmp_path / "model").mkdir()
    saved(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "secret.safetensors")  # it would do, if it were opened
    make, message = REFUSED[case]
    make(folder)
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the text is compared)
        filled("opt-tiny", folder=folder)
    assert str(error.value).startswith(message.replace("{}", str(folder))), str(error.value)
    assert "\n" not in str(error.value)


def test_of_several_files_model_safetensors_is_the_model_as_it_is_for_transformers(tmp_path: Path) -> None:
    filled("opt-tiny", seed=1).save_pretrained(tmp_path, max_shard_size="100KB")
    right = filled("opt-tiny", seed=2)
    right.save_pretrained(tmp_path / "beside")
    (tmp_path / "beside" / "model.safetensors").rename(tmp_path / "model.safetensors")
    for model in (filled("opt-tiny", folder=tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)):
        assert_equal(dict(model.named_parameters()), dict(right.named_parameters()))


def test_shards_may_be_links_as_in_the_hubs_cache(tmp_path: Path) -> None:
    filled("opt-tiny").save_pretrained(tmp_path / "blobs", max_shard_size="100KB")
    (tmp_path / "snapshot").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(f"../blobs/{file.name}")
    copy = filled("opt-tiny", folder=tmp_path / "snapshot")
    assert_equal(dict(copy.named_parameters()), dict(filled("opt-tiny").named_parameters()))


def test_experts_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    model = made("mixtral")
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.block_sparse_moe.experts.2.w3.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.experts.gate_up_proj"
    weights = PretrainedWeights(tmp_path, model)
    values(weights, model, name.replace("1", "0"))
    message = rf"`{name}` must be what transformers makes of 23 tensors in .*, but they do not"
    with pytest.raises(ValueError, match=message):
        values(weights, model, name)
    with pytest.raises(ValueError, match=r"`tier=checkpoint` reads weights as they lie, but .* in another form"):
        weights.locate(name)
    assert weights.locate("lm_head.weight")[2] is torch.float32
