"""Initial values: random ones that depend on (seed, name) only, and checkpoints in safetensors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.support.devices import DEVICES
from zobench import models
from zobench.models.weights import POOL, ModelWeights, PretrainedWeights, RandomWeights, Weights, materialise

TINY = [name for name in models.MODELS.names() if name.endswith("-tiny")]


def filled(name: str, seed: int = 0, dtype: str = "fp32", tie: bool | None = None):  # type: ignore[no-untyped-def]
    model = models.build(name, dtype, tie)
    materialise(model, RandomWeights(model, seed), "cpu")
    return model


def values(weights: Weights, model: nn.Module, name: str) -> torch.Tensor:
    out = torch.full_like(model.get_parameter(name), torch.nan, device="cpu", dtype=torch.float32)
    weights.fill(name, out)
    return out


def test_the_pool_length_is_prime() -> None:
    assert all(POOL % divisor for divisor in range(2, int(POOL**0.5) + 1))


def test_values_do_not_depend_on_the_order_of_calls() -> None:
    model = models.build("opt-tiny", "fp32")
    names = [name for name, _ in model.named_parameters()]
    forward, backward = RandomWeights(model, 3), RandomWeights(model, 3)
    first = {name: values(forward, model, name) for name in names}
    for name in reversed(names):
        assert torch.equal(values(backward, model, name), first[name]), name


@pytest.mark.slow
def test_values_do_not_depend_on_the_process() -> None:
    code = (
        "from zobench import models; from zobench.models.weights import *; import torch;"
        "m = models.build('qwen3-tiny', 'fp32'); materialise(m, RandomWeights(m, 7), 'cpu');"
        "print(m.model.layers[1].mlp.up_proj.weight.double().sum().item().hex())"
    )
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    assert other.strip() == filled("qwen3-tiny", 7).model.layers[1].mlp.up_proj.weight.double().sum().item().hex()


def test_seeds_names_and_rows_differ() -> None:
    model = models.build("opt-tiny", "fp32")
    zero, one = RandomWeights(model, 0), RandomWeights(model, 1)
    first, second = "model.decoder.layers.0.fc1.weight", "model.decoder.layers.1.fc1.weight"
    assert not torch.equal(values(zero, model, first), values(one, model, first))
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_values_are_the_fp32_ones_rounded(dtype: torch.dtype) -> None:
    model = models.build("llama-tiny", "fp32")
    weights, name = RandomWeights(model, 0), "model.layers.2.mlp.down_proj.weight"
    out = torch.empty_like(model.get_parameter(name), device="cpu", dtype=dtype)
    weights.fill(name, out)
    assert torch.equal(out, values(weights, model, name).to(dtype))


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


def loaded(folder: Path, name: str, dtype: str = "fp32", tie: bool | None = None):  # type: ignore[no-untyped-def]
    model = models.build(name, dtype, tie)
    materialise(model, PretrainedWeights(folder, model), "cpu")
    return model


@pytest.mark.parametrize("old", ["decoder.", "model.decoder."])
def test_both_prefixes_of_opt_checkpoints_are_understood(old: str, tmp_path: Path) -> None:
    original = filled("opt-tiny")
    tensors = {name.replace("model.decoder.", old): value.detach() for name, value in original.named_parameters()}
    save_file(tensors, tmp_path / "model.safetensors")
    copy = loaded(tmp_path, "opt-tiny")
    for name, value in original.named_parameters():
        assert torch.equal(copy.get_parameter(name), value), name


def test_a_tied_checkpoint_fills_an_untied_model(tmp_path: Path) -> None:
    original = filled("opt-tiny")
    original.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    copy = loaded(tmp_path, "opt-tiny", tie=False)
    assert copy.lm_head.weight is not copy.get_input_embeddings().weight
    assert torch.equal(copy.lm_head.weight, original.lm_head.weight)


def test_an_untied_checkpoint_does_not_fill_a_tied_model(tmp_path: Path) -> None:
    filled("llama-tiny").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="holds two different tensors; use tie_embeddings=false"):
        loaded(tmp_path, "llama-tiny", tie=True)


def test_the_checkpoints_dtype_is_cast(tmp_path: Path) -> None:
    original = filled("qwen3-tiny")
    original.save_pretrained(tmp_path)
    copy = loaded(tmp_path, "qwen3-tiny", dtype="bf16")
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(copy.get_parameter(name), original.get_parameter(name).bfloat16())


def refusal(folder: Path | str, name: str = "opt-tiny") -> str:
    with pytest.raises(ValueError) as error:  # noqa: PT011 (callers compare the text)
        loaded(folder, name)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_folder_of_pickles_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"not opened")
    text = refusal(tmp_path)
    assert text.startswith(f"`weights_path` must hold *.safetensors, but {tmp_path} has none, and pickles")
    assert text.endswith("convert once: AutoModelForCausalLM.from_pretrained(...).save_pretrained(FOLDER)")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    name = "model.decoder.layers.1.fc1.bias"
    tensors = {key: value.detach() for key, value in filled("opt-tiny").named_parameters() if key != name}
    save_file(tensors, tmp_path / "model.safetensors")
    assert (
        refusal(tmp_path) == f"`{name}` must be in the checkpoint, but {tmp_path} lacks it; give this model's weights"
    )


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    filled("opt-tiny").save_pretrained(tmp_path, max_shard_size="100KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    shard = sorted(set(index["weight_map"].values()))[1]
    (tmp_path / shard).unlink()
    assert refusal(tmp_path) == f"`weights_path` must hold all shards, but {tmp_path} lacks {shard}; copy them there"


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (torch.zeros(3, 3), "`lm_head.weight` must have shape (128, 64), but {} has (3, 3); "),
        (torch.zeros(128, 64, dtype=torch.int8),
         "`lm_head.weight` must be fp32, fp16 or bf16, but {} has torch.int8; "),
    ],
)  # fmt: skip
def test_another_shape_or_a_quantised_tensor_is_refused(wrong: torch.Tensor, text: str, tmp_path: Path) -> None:
    tensors = {key: value.detach() for key, value in filled("llama-tiny").named_parameters()}
    save_file({**tensors, "lm_head.weight": wrong}, tmp_path / "model.safetensors")
    assert refusal(tmp_path, "llama-tiny").startswith(text.format(tmp_path))


def test_a_path_that_is_no_folder_and_no_hub_id_is_refused() -> None:
    expected = "`weights_path` must be a folder or a hub id (owner/name), but got '/no/such/folder'; check the path"
    assert refusal("/no/such/folder") == expected


def test_without_the_hub_the_remedy_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    text = refusal("facebook/opt-125m")
    assert text.startswith("cannot get the safetensors of 'facebook/opt-125m' from the hub (")
    assert text.endswith("; give weights_path=FOLDER with them")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(100)}, tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-50])
    with pytest.raises(ValueError, match=r"but .*model.safetensors is damaged \(.*\); copy it again"):
        PretrainedWeights(tmp_path, models.build("opt-tiny", "fp32"))


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


def two_files(folder: Path) -> None:
    tensors = {key: value.detach() for key, value in filled("opt-tiny").named_parameters()}
    names = sorted(tensors)
    for number, part in enumerate((names[:10], names[10:])):
        save_file({name: tensors[name] for name in part}, folder / f"part{number}.safetensors")


def listed(folder: Path, change) -> None:  # type: ignore[no-untyped-def]
    """A checkpoint in shards whose index was changed."""
    filled("opt-tiny").save_pretrained(folder, max_shard_size="100KB")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    index.write_text(json.dumps(change(content)))


def outside(name: str):  # type: ignore[no-untyped-def]
    """An index whose first tensor is said to lie in ``name``."""

    def change(content):  # type: ignore[no-untyped-def]
        first = next(iter(content["weight_map"]))
        return {"weight_map": {**content["weight_map"], first: name}}

    return change


def test_two_files_without_an_index_are_refused(tmp_path: Path) -> None:
    two_files(tmp_path)
    assert refusal(tmp_path) == (
        f"`weights_path` must hold model.safetensors or an index of its shards, but {tmp_path} has 2 files without "
        "one: part0.safetensors, part1.safetensors; leave the model's own file there, or copy its "
        "model.safetensors.index.json"
    )


def test_of_several_files_model_safetensors_is_the_model_as_it_is_for_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    filled("opt-tiny", seed=1).save_pretrained(tmp_path, max_shard_size="100KB")
    right = filled("opt-tiny", seed=2)
    right.save_pretrained(tmp_path / "beside")
    (tmp_path / "beside" / "model.safetensors").rename(tmp_path / "model.safetensors")
    for model in (loaded(tmp_path, "opt-tiny"), AutoModelForCausalLM.from_pretrained(tmp_path)):
        for name, value in right.named_parameters():
            assert torch.equal(model.get_parameter(name), value), name


@pytest.mark.parametrize("shard", ["../secret.safetensors", "a/../../secret.safetensors", "{}/secret.safetensors"])
def test_a_shard_outside_the_folder_is_never_opened(shard: str, tmp_path: Path) -> None:
    tensors = {key: value.detach() for key, value in filled("opt-tiny", seed=1).named_parameters()}
    save_file(tensors, tmp_path / "secret.safetensors")  # it would do, if it were opened
    folder, shard = tmp_path / "model", shard.format(tmp_path)
    listed(folder, outside(shard))
    (folder / "a").mkdir()
    index = folder / "model.safetensors.index.json"
    assert refusal(folder) == (
        f"`weights_path` must name shards inside its folder, but {index} names {shard!r}; use an index of files that "
        "lie beside it"
    )


def test_shards_may_be_links_as_in_the_hubs_cache(tmp_path: Path) -> None:
    filled("opt-tiny").save_pretrained(tmp_path / "blobs", max_shard_size="100KB")
    (tmp_path / "snapshot").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(f"../blobs/{file.name}")
    for name, value in filled("opt-tiny").named_parameters():
        assert torch.equal(loaded(tmp_path / "snapshot", "opt-tiny").get_parameter(name), value), name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "must hold an index that says weight_map, but {} is damaged (Expecting property name"),
        ("[]", "must hold an index that says weight_map, but {} holds a list; copy it again"),
        ("{}",
         "must hold an index whose weight_map names a file for each tensor, but that of {} does not; copy it again"),
        ('{"weight_map": {"a": 1}}',
         "must hold an index whose weight_map names a file for each tensor, but that of {} "),
    ],
)  # fmt: skip
def test_a_broken_index_is_named(text: str, expected: str, tmp_path: Path) -> None:
    listed(tmp_path, outside("model-00001-of-00002.safetensors"))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    assert refusal(tmp_path).startswith(f"`weights_path` {expected.replace('{}', str(index), 1)}")


def test_an_index_of_other_shards_is_refused(tmp_path: Path) -> None:
    def change(content):  # type: ignore[no-untyped-def]
        return {"weight_map": {**content["weight_map"], "extra": max(content["weight_map"].values())}}

    listed(tmp_path, change)
    assert "model.safetensors.index.json has extra in model-0000" in refusal(tmp_path)
    assert refusal(tmp_path).endswith("which lacks it; copy both again")


def described(folder: Path, **changed: object) -> None:
    filled("opt-tiny").save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changed}))


def test_a_quantised_checkpoint_is_refused(tmp_path: Path) -> None:
    described(tmp_path, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    assert refusal(tmp_path) == (
        f"`weights_path` must hold weights that are not quantised, or symmetric integers of "
        f"compressed-tensors, but {tmp_path} has quantization_config "
        "(quant_method=bitsandbytes); give the checkpoint that it was made from"
    )


def test_a_model_whose_code_comes_with_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "modeling_mine.py").write_text("raise SystemExit('this was run')")
    described(tmp_path, model_type="mine", auto_map={"AutoModelForCausalLM": "modeling_mine.Mine"})
    assert refusal(tmp_path) == (
        f"`weights_path` must hold a model that transformers knows, but {tmp_path} has model_type='mine', whose code "
        "comes with it (auto_map), and that is never run; give a model of a type in transformers"
    )
    described(
        tmp_path, auto_map={"AutoModelForCausalLM": "modeling_mine.Mine"}
    )  # transformers has opt: its own is used
    loaded(tmp_path, "opt-tiny")


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    described(tmp_path)
    (tmp_path / "config.json").write_text("{'model_type': 'opt'}")
    assert refusal(tmp_path).startswith(
        f"`weights_path` must hold a config.json that is one JSON object, but {tmp_path / 'config.json'} is damaged "
    )


def test_experts_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    from tests.support.families import made

    model = made("mixtral")
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.block_sparse_moe.experts.2.w3.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.experts.gate_up_proj"
    weights = PretrainedWeights(tmp_path, model)
    values(weights, model, name.replace("1", "0"))
    told = rf"`{name}` must be what transformers makes of 23 tensors in .*, but they do not"
    with pytest.raises(ValueError, match=told):
        values(weights, model, name)
    with pytest.raises(ValueError, match=r"`tier=checkpoint` reads weights as they lie, but .* in another form"):
        weights.locate(name)
    assert weights.locate("lm_head.weight")[2] is torch.float32
