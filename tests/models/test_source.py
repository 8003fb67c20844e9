"""A model that is not in the list: a folder, a hub id, a GGUF file; what it is, and that its path is not part of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from zobench import models
from zobench.models import identity
from zobench.recipes import matrix
from zobench.result import Result
from zobench.runspec import RunSpec

LLAMA = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 32, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOBENCH_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path / "mine", LLAMA)


def written(path: Path, config: dict[str, Any]) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


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


def test_its_sizes_come_from_the_model_itself(folder: Path) -> None:
    known = models.of(given(folder))
    model = models.build(known, "fp32")
    assert models.parameter_count(known) == sum(tensor.numel() for tensor in model.parameters())
    assert (known.layers, known.max_positions, known.tied, known.vocab) == (3, 32, True, 128)


def test_a_result_is_read_and_shown_where_the_folder_is_not(folder: Path, tmp_path: Path) -> None:
    spec = given(folder)
    told = json.dumps(Result(spec=spec, outcome="ok").to_dict())  # type: ignore[arg-type]
    shutil.rmtree(folder)
    back = Result.from_dict(json.loads(told))
    assert (back.spec, back.spec.hash, back.spec.label) == (spec, spec.hash, "mine resident fp32 b1 s16")
    with pytest.raises(ValueError, match=r"must be a folder with a config\.json, but .*mine is not there; check it"):
        models.checked(spec, "cpu")


def test_a_matrix_mixes_names_and_folders(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "both.toml"
    file.write_text(f"[axes]\nmodel = ['OPT-TINY', '{folder}', '{folder}/../mine']\n[base]\nseq_len = 16\n")
    assert [cell.model for cell in matrix.load(file, "cpu").cells] == ["opt-tiny", "mine"]


def test_every_sampled_byte_of_the_weights_counts(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

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
        ("./empty", {}, "`model` must be a folder with a config.json, but {here}/empty has none; name a model's "
         "folder"),
        ("./text", {}, "{here}/text/config.json must be JSON, but is not (Expecting value: line 1 column 1 (char 0)); "
         "copy it again"),
        ("./foreign", {}, "{here}/foreign must hold a model of transformers, but model_type=mine is not one (its code "
         "comes with the checkpoint and is never run)"),
        ("./t5", {}, "{here}/t5 must hold a language model, causal or masked, but model_type=t5 is neither"),
        ("./absent.gguf", {}, "`model` must be a file that exists, but there is no {here}/absent.gguf; check the path"),
        ("./fake.gguf", {}, "{here}/fake.gguf must be a GGUF file, but does not begin as one; download it again"),
        ("./good", {"weights": "pretrained"}, "`weights=pretrained` needs *.safetensors, but {here}/good has none; use "
         "weights=random, or convert once: AutoModelForCausalLM.from_pretrained(...).save_pretrained(FOLDER)"),
        ("./good", {"weights": "pretrained", "weights_path": "x"}, "`weights_path` is for a model of the list, but got "
         "model=./good, which brings its own weights; leave weights_path out"),
        ("./good", {"tie_embeddings": False}, "`tie_embeddings` must be as the config.json of good has it (true), but "
         "got false; leave it out, or edit tie_word_embeddings there"),
        ("./good", {"name": "opt-125m"}, "`name` must not be a registered model's, but got 'opt-125m'; give another"),
        ("opt-tiny", {"name": "x"}, "`name` is for a model that is not in the list, but got name='x' for opt-tiny; "
         "leave it out"),
        ("zzzzzz", {}, "unknown model 'zzzzzz'; see `zobench list models`, or give a folder (./my-model), a hub id "
         "(owner/name) or a file.gguf"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_model_is_one_line(
    model: str, more: dict[str, Any], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "config.json").write_text("oh")
    (tmp_path / "fake.gguf").write_text("oh")
    written(tmp_path / "foreign", {"model_type": "mine", "auto_map": {}})
    written(tmp_path / "t5", {"model_type": "t5"})
    written(tmp_path / "good", LLAMA)
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the text is compared whole)
        given(model, **more)
    assert str(error.value) == text.format(here=tmp_path)
