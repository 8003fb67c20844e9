"""A saved checkpoint is the one that transformers writes itself, and nothing older in its folder is loaded instead."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from tests.support.families import CONFIGS, made
from tests.support.parity import assert_equal, batches
from tests.support.watched import before
from zobench import ZOSGD, Batch, Engine, EngineConfig
from zobench.engine.weights import checkpoint
from zobench.engine.weights.checkpoint import save_checkpoint
from zobench.models.checkpoint import persistent_buffers
from zobench.models.weights import PretrainedWeights


def tensors(model):  # type: ignore[no-untyped-def]
    named = [*model.named_parameters(), *persistent_buffers(model)]
    return [(name, tensor.detach().clone()) for name, tensor in named]


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("shard", [1 << 30, 10_000], ids=["one file", "shards"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_names_and_tensors_are_those_that_transformers_writes(name, tied, shard, tmp_path, monkeypatch):
    model, theirs, ours = made(name, tied), tmp_path / "theirs", tmp_path / "ours"
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", shard)
    model.save_pretrained(theirs)
    save_checkpoint(model, reversed(tensors(model)), ours)  # in whatever order an engine yields them
    assert_equal(stored(ours), stored(theirs))
    family = AutoModelForMaskedLM if name == "roberta" else AutoModelForCausalLM
    loaded, notes = family.from_pretrained(ours, output_loading_info=True)
    assert not any(notes.values()), notes
    assert_equal(dict(tensors(loaded)), dict(tensors(model)))
    assert json.loads((ours / "config.json").read_text()) == json.loads((theirs / "config.json").read_text())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_what_transformers_writes_is_read_back(name, tied, tmp_path):
    model, other = made(name, tied), made(name, tied, seed=1)
    model.save_pretrained(tmp_path)
    weights = PretrainedWeights(tmp_path, other)
    for key, parameter in model.named_parameters(remove_duplicate=False):
        out = torch.full_like(parameter, torch.nan)
        weights.fill(key, out)
        assert torch.equal(out, parameter), key
        some = torch.full_like(parameter[1:3], torch.nan)
        weights.fill(key, some, 1)
        assert torch.equal(some, parameter[1:3]), key
    assert_equal(dict(persistent_buffers(other)), dict(persistent_buffers(model)))


@pytest.mark.parametrize("placement", ["resident", "offload"])
def test_an_engine_saves_persistent_buffers_of_blocks_that_travel(placement, tmp_path):
    model = made("glm4_moe")
    held = {name: buffer.clone() for name, buffer in persistent_buffers(model)}
    assert len(held) == 2
    ids = torch.randint(0, 64, (2, 8))
    with Engine(model, EngineConfig(placement=placement, slots=1)) as engine:
        for _ in range(3):
            ZOSGD(lr=1e-2).step(engine, Batch(ids, ids))
        assert set(dict(engine.named_tensors())) == {name for name, _ in made("glm4_moe").named_parameters()} | set(
            held
        )
        engine.save_pretrained(tmp_path)
        expected = engine.evaluate(Batch(ids, ids))
    loaded, notes = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(notes.values()), notes
    assert_equal(dict(persistent_buffers(loaded)), held)
    with torch.inference_mode():
        assert loaded(input_ids=ids, labels=ids).loss.item() == pytest.approx(expected, abs=1e-5)


def old_and_new(tmp_path):  # type: ignore[no-untyped-def]
    old, new, folder = made("llama", seed=1), made("llama", seed=2), tmp_path / "checkpoint"
    return old, new, folder


def single(model, folder):  # type: ignore[no-untyped-def]
    model.save_pretrained(folder)


def sharded(model, folder):  # type: ignore[no-untyped-def]
    model.save_pretrained(folder, max_shard_size="20KB")


def numbered(model, folder):  # type: ignore[no-untyped-def]
    """As zobench once named them."""
    folder.mkdir()
    save_file(dict(tensors(model)), folder / "model-00001.safetensors")
    names = dict.fromkeys(dict(tensors(model)), "model-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


@pytest.mark.parametrize("size", [1 << 30, 20_000], ids=["one file", "shards"])
@pytest.mark.parametrize("before", [single, sharded, numbered])
def test_safetensors_that_were_there_are_replaced(before, size, tmp_path, monkeypatch):
    old, new, folder = old_and_new(tmp_path)
    before(old, folder)
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", size)
    save_checkpoint(new, tensors(new), folder)
    assert_equal(dict(tensors(AutoModelForCausalLM.from_pretrained(folder))), dict(tensors(new)))
    assert_equal(stored(folder), dict(tensors(new)))  # no loader of all *.safetensors finds an old one
    index = folder / "model.safetensors.index.json"
    assert index.is_file() is (size == 20_000)
    if index.is_file():
        listed = set(json.loads(index.read_text())["weight_map"].values())
        assert listed == {file.name for file in folder.glob("*.safetensors")}
        assert len(listed) > 1


def test_a_folder_of_an_adapter_is_refused_and_left_as_it_is(tmp_path):
    model = made("llama")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"without an adapter, but .* has adapter_config\.json"):
        save_checkpoint(model, iter(tensors(model)), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["adapter_config.json"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_folder_in_the_place_of_a_file_is_refused_before_a_tensor_is_read(name, tmp_path):
    (tmp_path / name / "own").mkdir(parents=True)
    with pytest.raises(ValueError, match=f"{name} to be a file or absent, but it is a folder; name another one"):
        save_checkpoint(made("llama"), iter(lambda: 1 / 0, None), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_save_that_fails_leaves_the_old_checkpoint(tmp_path):
    old, new, folder = old_and_new(tmp_path)
    single(old, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def failing():  # type: ignore[no-untyped-def]
        yield from tensors(new)[:5]
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        save_checkpoint(new, failing(), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("moment", [0, 1, 3])
def test_whoever_is_killed_between_two_files_leaves_nothing_that_mixes(moment, tmp_path, monkeypatch):
    old, new, folder = old_and_new(tmp_path)
    sharded(old, folder)
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 20_000)
    moments = itertools.count()

    def kill(*_):  # type: ignore[no-untyped-def]
        if next(moments) == moment:
            raise KeyboardInterrupt

    before(monkeypatch.setattr, checkpoint.os, "replace", kill)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(new, tensors(new), folder)
    with pytest.raises(OSError, match="no file named model"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_an_engine_may_save_over_the_checkpoint_that_it_reads(tmp_path):
    made("llama").save_pretrained(tmp_path)
    model = made("llama", seed=1)
    config = EngineConfig(tier="checkpoint", noise="counter", writeback_every="inf", disk_dir=tmp_path)
    batch = batches("llama-tiny", count=1)[0]
    batch = Batch(batch.input_ids % 64, batch.labels % 64)
    with Engine(model, config, weights=PretrainedWeights(tmp_path, model)) as engine:
        method = ZOSGD(lr=1e-2)
        method.step(engine, batch)
        engine.save_pretrained(tmp_path)
        expected = engine.evaluate(batch)
        method.step(engine, batch)
        assert engine.evaluate(batch) != expected
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.inference_mode():
        assert loaded(input_ids=batch.input_ids, labels=batch.labels).loss.item() == pytest.approx(expected, abs=1e-6)
