"""A model that is not in the list: a folder, a hub id, a GGUF file; what it is, and that its path is not part of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support.files import written
from tests.support.small_gguf import LLAMA, of_llama
from zobench import models
from zobench.cost.footprint import memory
from zobench.models import identity, published
from zobench.models.weights import GGUFWeights, PretrainedWeights, materialise
from zobench.recipes import matrix
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOBENCH_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return configured(tmp_path / "mine", LLAMA)


def configured(path: Path, config: dict[str, Any]) -> Path:
    return written(path / "config.json", json.dumps(config)).parent


def given(path: Path | str, **values: Any) -> RunSpec:
    return matrix.single({"model": str(path), "seq_len": 16, **values}, "cpu")


def test_a_run_of_a_folder_is_hashed_by_what_it_holds_and_shown_by_its_name(folder: Path, tmp_path: Path) -> None:
    spec = given(folder)
    assert (spec.model, spec.model_path, spec.name, spec.weights_hash) == ("mine", str(folder), "", "")
    moved = given(shutil.copytree(folder, tmp_path / "elsewhere"), name="Mine 2")
    assert (moved.model, moved.hash) == ("Mine 2", spec.hash)
    (folder / "config.json").write_text(
        json.dumps({**LLAMA, "transformers_version": "9", "dtype": "bfloat16"}, indent=8)
    )
    assert given(folder).hash == spec.hash
    (folder / "config.json").write_text(json.dumps({**LLAMA, "rms_norm_eps": 1e-4}))
    assert given(folder).hash != spec.hash
    with pytest.raises(ValueError, match=r"must hold the config\.json of this run \(.*\), but has others now"):
        models.checked(spec, "cpu")


def test_a_result_is_read_and_shown_where_the_folder_is_not(folder: Path, tmp_path: Path) -> None:
    spec = given(folder)
    text = json.dumps(Result(spec=spec, outcome="ok").to_dict())  # type: ignore[arg-type]
    shutil.rmtree(folder)
    back = Result.from_dict(json.loads(text))
    assert (back.spec, back.spec.hash, back.spec.label) == (spec, spec.hash, "mine resident fp32 b1 s16")
    with pytest.raises(ValueError, match=r"must be a folder with a config\.json, but .*mine is not there; check it"):
        models.checked(spec, "cpu")


def test_two_models_of_one_name_in_a_matrix_are_refused(folder: Path, tmp_path: Path) -> None:
    """Tables would show them as one."""
    configured(tmp_path / "other" / "mine", {**LLAMA, "rms_norm_eps": 1e-4})
    text = f"[axes]\nmodel = ['{folder}', '{tmp_path}/other/mine']\n[base]\nseq_len = 16\n"
    with pytest.raises(ValueError, match="models must have names of their own") as error:
        matrix.load(written(tmp_path / "two.toml", text), "cpu")
    assert str(error.value) == (
        f"two.toml: models must have names of their own, but {folder} and {tmp_path}/other/mine are both called mine; "
        'give each in [[variants]], one with name = "..."'
    )


def test_every_sampled_byte_of_the_weights_counts(tmp_path: Path) -> None:
    tensors = {"big": torch.zeros(64 * identity.CHUNK, dtype=torch.uint8), "small": torch.zeros(9)}
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    seen = {identity.weights_hash(tmp_path)}
    for name, place in (("big", 0), ("big", 32 * identity.CHUNK), ("big", -1), ("small", 4)):
        changed = {key: value.clone() for key, value in tensors.items()}
        changed[name][place] = 1
        save_file(changed, path)
        seen.add(identity.weights_hash(tmp_path))
    assert len(seen) == 5


@pytest.mark.parametrize(
    ("model", "more", "text"),
    [
        ("./absent", {}, "`model` must be a folder with a config.json, but {here}/absent is not there; check it"),
        ("./foreign", {}, "{here}/foreign must hold a model of transformers, but model_type=mine is not one (its code "
         "comes with the checkpoint and is never run)"),
        ("./t5", {}, "{here}/t5 must hold a model that AutoModelForCausalLM or AutoModelForMaskedLM builds, but "
         "model_type=t5 is none of theirs; use another model"),
        ("./fake.gguf", {}, "{here}/fake.gguf must be a GGUF file, but does not begin as one; download it again"),
        ("./good", {"weights": "pretrained"}, "`weights=pretrained` needs *.safetensors, but {here}/good has none; use "
         "weights=random, or convert once: AutoModelForCausalLM.from_pretrained(...).save_pretrained(FOLDER)"),
        ("./good", {"tie_embeddings": False}, "`tie_embeddings` must be as the config.json of good has it (true), but "
         "got false; leave it out, or edit tie_word_embeddings there"),
        ("./good", {"name": "opt-125m"}, "`name` must not be a registered model's, but got 'opt-125m'; give another"),
        ("Phi-2", {}, "`model` must name one model, but Phi-2 is here and names the configuration of Phi-2 that comes "
         "with zobench too; write ./Phi-2, or go to another folder"),
        ("zzzzzz", {}, "unknown model 'zzzzzz'; see `zobench list models`, or give a folder (./my-model), a hub id "
         "(owner/name) or a file.gguf"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_model_is_one_line(model, more, text, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fake.gguf").write_text("oh")
    configured(tmp_path / "foreign", {"model_type": "mine", "auto_map": {}})
    configured(tmp_path / "t5", {"model_type": "t5"})
    configured(tmp_path / "good", LLAMA)
    configured(tmp_path / "Phi-2", LLAMA)
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the text is compared whole)
        given(model, **more)
    assert str(error.value) == text.format(here=tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": "four"}, "suit llama.*expected int, got str"),
        ({"num_attention_heads": 5}, "suit llama.*is not a multiple of the number of attention heads"),
        ({"vocab_size": 0}, r"build the llama.*but cannot \(vocab_size=0 leaves it no tokens\)"),
        ({"hidden_act": "none"}, "build the llama.*'none'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "=".join(map(str, *value.items())),
)
def test_a_config_json_that_no_model_can_have_is_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as error:
        given(configured(tmp_path / "wrong", {**LLAMA, **change}))
    assert "\n" not in str(error.value)
    assert str(error.value).endswith("; mend it")


def test_a_hub_id_is_read_from_the_hubs_cache_and_is_one_line_without_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    kept, commit = tmp_path / "hub" / "models--someone--small-llama", "0" * 40
    configured(kept / "snapshots" / commit, LLAMA)
    written(kept / "refs" / "main", commit)
    spec = given("someone/small-llama")
    assert (spec.model, spec.model_path) == ("small-llama", "someone/small-llama")
    assert models.of(spec).layers == 3
    with pytest.raises(ValueError, match=r"^cannot get 'someone/absent' from the hub .*; give a folder that") as error:
        given("someone/absent")
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"^cannot get 'a b/\.\.c' from the hub \(Repo id .*; give a folder that"):
        given("a b/..c")
    assert given("facebook/OPT-125m").model == "OPT-125M"


def test_a_folder_called_as_a_registered_model_does_not_pass_for_it(tmp_path: Path) -> None:
    assert given(configured(tmp_path / "opt-125m", LLAMA)).model == "opt-125m-local"
    assert given(configured(tmp_path / "SmolLM2-135M", LLAMA)).model == "SmolLM2-135M-local"  # a package's too


def test_a_gguf_file_is_converted_once_and_is_then_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = of_llama(tmp_path / "small.F32.gguf")
    spec = given(tmp_path / "small.F32.gguf", weights="pretrained")
    output = capsys.readouterr().err
    first, last, *more = output.splitlines()  # and no bar of transformers' own
    assert first.startswith("small.F32.gguf: converting it to safetensors, once")
    assert last.startswith("small.F32.gguf: ")
    assert [line for line in more if not line.startswith("small.F32.gguf: ")] == []
    assert (spec.model, spec.model_path) == ("small.F32", str(tmp_path / "small.F32.gguf"))
    model = models.build(models.of(spec), "fp32")
    materialise(model, PretrainedWeights(models.weights_place(spec), model), "cpu")
    ids = torch.randint(3, 128, (2, 16))
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, original(ids).logits)
    kept = [path.name for path in (tmp_path / "cache" / "models").iterdir() if path.suffix != ".lock"]
    assert [name.rpartition("-")[0] for name in kept] == ["small.F32"]  # and nothing half done


def test_a_gguf_file_without_all_tensors_and_a_model_that_was_not_added_are_one_line(tmp_path: Path) -> None:
    of_llama(tmp_path / "part.gguf", lacks="blk.1.ffn_up.weight")
    whole = (tmp_path / "part.gguf").read_bytes()
    for size in (4, 30, 500, len(whole) - 1000):  # in the header, in its keys, in a tensor
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        message = r"^transformers must be able to read cut\.gguf, but .*; download"
        with pytest.raises(ValueError, match=message) as error:
            given(tmp_path / "cut.gguf")
        assert "\n" not in str(error.value)
        with pytest.raises(ValueError, match=message):
            GGUFWeights(tmp_path / "cut.gguf", models.build("opt-tiny", "fp32"))
    with pytest.raises(ValueError, match="must hold all tensors") as error:
        given(tmp_path / "part.gguf")
    assert str(error.value) == (
        "part.gguf must hold all tensors of its model, but lacks model.layers.1.mlp.up_proj.weight; download it again"
    )
    kept = [path.name for path in (tmp_path / "cache" / "models").iterdir() if path.suffix != ".lock"]
    assert kept == []
    with pytest.raises(ValueError, match=r"^Gemma-3-270M needs its weights, .*; zobench model add gemma3-270m$"):
        given("gemma3-270m")


def test_blocks_of_different_sizes_count_by_the_largest_in_a_slot_and_by_their_sum_in_total(tmp_path: Path) -> None:
    config = {
        "model_type": "deepseek_v3", "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24,
        "num_hidden_layers": 4, "first_k_dense_replace": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "vocab_size": 128,
        "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
        "max_position_embeddings": 32,
    }  # fmt: skip
    spec = given(configured(tmp_path / "mixed", config), engine="offload", tier="pageable")
    known = models.of(spec)
    sizes = [sum(x.numel() for x in block.parameters()) for block in models.blocks(models.build(known, "fp32"))]
    assert min(sizes) < max(sizes)
    assert (known.block, known.all_blocks) == (max(sizes), sum(sizes))
    assert models.blocks_parameter_count(known, 2) == round(sum(sizes) / 2)
    assert memory(spec)[1] == 4 * sum(sizes)  # at rest in host memory, in float32


def test_a_published_config_json_is_that_of_its_registered_model(tmp_path: Path) -> None:
    """Qwen3-4B's, in the form of its hub: older names of the rotary base, keys that no registry states."""
    config = {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "bos_token_id": 151643, "head_dim": 128,
        "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 9728,
        "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3", "num_attention_heads": 32,
        "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_scaling": None,
        "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "use_sliding_window": False, "vocab_size": 151936,
    }  # fmt: skip
    spec = RunSpec(model="Qwen3-4B", weights="pretrained", weights_path=str(configured(tmp_path / "qwen", config)))
    models.check(spec)
    other = configured(tmp_path / "other", {**config, "num_attention_heads": 16, "hidden_act": "gelu"})
    with pytest.raises(ValueError, match="has num_attention_heads=16 and not 32, hidden_act=gelu and not silu; use"):
        models.check(spec.replace(weights_path=str(other)))


PUBLISHED = {
    "Gemma-3-1B": 1.00, "Llama-3-70B": 70.6, "Llama-3-8B": 8.03, "Llama-3.1-70B": 70.6, "Llama-3.1-8B": 8.03,
    "Llama-3.2-1B": 1.24, "Llama-3.2-3B": 3.21, "Mistral-7B-v0.3": 7.25, "Mistral-Small-24B": 23.6,
    "Mixtral-8x22B": 141, "Mixtral-8x7B": 46.7, "Phi-2": 2.78, "Phi-3-mini": 3.82, "Phi-4": 14.7, "Qwen2.5-0.5B": 0.494,
    "Qwen2.5-1.5B": 1.54, "Qwen2.5-14B": 14.8, "Qwen2.5-32B": 32.8, "Qwen2.5-3B": 3.09, "Qwen2.5-72B": 72.7,
    "Qwen2.5-7B": 7.62, "Qwen3-0.6B": 0.596, "Qwen3-30B-A3B": 30.5,
}  # fmt: skip
"""Parameters, in 1e9, as the hub's pages of these models have them."""
ATTENTION = {
    "Gemma-3-1B": (32768, 1e6, 4, 1), "Llama-3-70B": (8192, 5e5, 64, 8), "Llama-3-8B": (8192, 5e5, 32, 8),
    "Llama-3.1-70B": (131072, 5e5, 64, 8), "Llama-3.1-8B": (131072, 5e5, 32, 8),
    "Llama-3.2-1B": (131072, 5e5, 32, 8), "Llama-3.2-3B": (131072, 5e5, 24, 8),
    "Mistral-7B-v0.3": (32768, 1e6, 32, 8), "Mistral-Small-24B": (32768, 1e8, 32, 8),
    "Mixtral-8x22B": (65536, 1e6, 48, 8), "Mixtral-8x7B": (32768, 1e6, 32, 8), "Phi-2": (2048, 1e4, 32, 32),
    "Phi-3-mini": (4096, 1e4, 32, 32), "Phi-4": (16384, 2.5e5, 40, 10), "Qwen2.5-0.5B": (32768, 1e6, 14, 2),
    "Qwen2.5-1.5B": (131072, 1e6, 12, 2), "Qwen2.5-14B": (131072, 1e6, 40, 8), "Qwen2.5-32B": (131072, 1e6, 40, 8),
    "Qwen2.5-3B": (32768, 1e6, 16, 2), "Qwen2.5-72B": (131072, 1e6, 64, 8), "Qwen2.5-7B": (131072, 1e6, 28, 4),
    "Qwen3-0.6B": (40960, 1e6, 16, 8), "Qwen3-30B-A3B": (40960, 1e6, 32, 4),
}  # fmt: skip
"""Most positions, rope's base, heads, heads of keys: but for Mistral-Small-24B and Gemma's positions, which it has not
or differently, those of litgpt 0.5.13 (litgpt/config.py)."""


def test_the_configurations_by_name_have_the_published_numbers_of_parameters() -> None:
    assert set(published.names()) == set(PUBLISHED)
    for name, billions in PUBLISHED.items():
        spec = given(name.lower())
        config = identity.read_config(published.folder_of(name, weights=False))
        keys = ("max_position_embeddings", "rope_theta", "num_attention_heads", "num_key_value_heads")
        assert tuple(config[key] for key in keys) == ATTENTION[name], name
        assert (spec.model, spec.model_path) == (name, name)
        assert models.parameter_count(models.of(spec)) / 1e9 == pytest.approx(billions, rel=4e-3), name
        assert Result.from_dict(json.loads(json.dumps(result_of(spec).to_dict()))).spec == spec


def result_of(spec: RunSpec) -> Result:
    return Result(spec=spec, outcome=Outcome.SKIPPED, reason="too large")
