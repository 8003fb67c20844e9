"""A checkpoint that is quantised already as the tier: the file's own bytes against the formats' own readers, and the
engine against a plain loop over the values that these give."""

import copy
import itertools
import json

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support.fast import taken_steps, unwritten_steps
from tests.support.small_gguf import of_llama
from zobench import Engine, EngineConfig, RunSpec, models
from zobench.data.batch import stream
from zobench.engine.weights.tiers import DiskTier
from zobench.models.stored import GGML, bits_of
from zobench.models.weights import PretrainedWeights
from zobench.training.assemble import initial_weights

FORMATS = [name for name in GGML if name[0] == "Q"]
CONFIG = {
    "model_type": "llama", "vocab_size": 128, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}  # fmt: skip


def bytes_of(kind: str, rows: int, width: int, seed: int) -> np.ndarray:
    """Any bits are a block of any format, but for the numbers in 16 bits, which are made small and finite."""
    kind_of = gguf.GGMLQuantizationType[kind]
    values, size = gguf.GGML_QUANT_SIZES[kind_of]
    raw = np.random.default_rng(seed).integers(0, 256, (rows * width // values, size), dtype=np.uint8)
    at = [208] if kind == "Q6_K" else [0, 2] if kind in ("Q4_1", "Q4_K", "Q5_K") else [0]
    for place in at:
        halves = np.random.default_rng(seed + place).uniform(1e-4, 1e-3, len(raw)).astype(np.float16)
        raw[:, place : place + 2] = halves[:, None].view(np.uint8)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_format_is_decoded_as_its_own_reader_does(kind):
    raw = bytes_of(kind, 6, 512, 3)
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
    values = GGML[kind].decode([torch.from_numpy(raw)])
    assert torch.equal(values, torch.from_numpy(expected))
    assert GGML[kind].values, GGML[kind].nbytes == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    assert len(values.unique()) > 14


def written(path, kinds=("Q8_0", "Q4_0", "Q4_K", "Q6_K")):
    """A LLaMA as GGUF, its matrices in several formats."""

    def raw_of(number, tensor):
        if tensor.dim() == 1:
            return np.random.default_rng(number).normal(1, 0.1, len(tensor)).astype(np.float32), None
        kind = kinds[number % len(kinds)]
        return bytes_of(kind, *tensor.shape, number), gguf.GGMLQuantizationType[kind]

    of_llama(path, config=CONFIG, raw_of=raw_of)
    return path


def given(path, **settings):
    fixed = {"weights": "pretrained", "engine": "offload", "noise": "counter", "writeback_every": "inf"}
    return models.identified(RunSpec(model=str(path), seq_len=17, batch_size=3, **(fixed | settings)))


def batches(spec, count=5):
    return list(itertools.islice(stream(spec, CONFIG["vocab_size"], None), count))


def built(spec):
    return models.build(models.of(spec), "fp32")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOBENCH_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("granularity", ["block", "linear"])
def test_a_gguf_file_is_the_tier_as_it_lies(granularity, tmp_path, monkeypatch):
    """Equal to transformers' own reading of the file, dequantised, in a plain loop; nothing is written anywhere."""
    file = written(tmp_path / "mixed.gguf")
    spec, plain = given(file, tier="checkpoint"), AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="mixed.gguf", dtype=torch.float32
    ).eval()  # fmt: skip
    monkeypatch.setattr(DiskTier, "__init__", lambda *_, **__: pytest.fail("a second copy was made"))
    before, config = file.read_bytes(), EngineConfig(
        noise="counter", writeback_every="inf", tier="checkpoint", slots=2, granularity=granularity,
        consolidate_after=2,
    )  # fmt: skip
    model = built(spec)
    with Engine(model, config, weights=initial_weights(spec, model)) as engine:
        taken = taken_steps(engine, batches(spec))
        blocks = sum(raw.n_bytes for raw in gguf.GGUFReader(str(file)).tensors if raw.name.startswith("blk"))
        assert blocks <= engine.bytes_at_rest < blocks + 4096 * len(engine.blocks) + 64 * 9 * 3
        engine.flush()
        tuned = dict(engine.named_tensors())
    assert taken == unwritten_steps(plain, batches(spec))
    assert {name for name, parameter in plain.named_parameters() if torch.equal(parameter, tuned[name])} == set(tuned)
    assert file.read_bytes() == before
    assert [path.name for path in (tmp_path / "cache/models").rglob("*") if path.suffix == ".safetensors"] == []


def test_it_is_the_model_that_its_conversion_is(tmp_path):
    lies = given(written(tmp_path / "own.gguf"), tier="checkpoint")
    converted = given(tmp_path / "own.gguf", tier="disk")
    assert lies.config_hash == converted.config_hash
    assert models.of(lies) == models.of(converted)
    theirs, direct = (initial_weights(spec, built(spec)) for spec in (converted, lies))
    for name, parameter in built(lies).named_parameters():
        for first, rows in ((0, len(parameter)), (len(parameter) // 2, 1)):
            rows_read, other = (torch.empty(rows, *parameter.shape[1:]) for _ in range(2))
            theirs.fill(name, rows_read, first)
            direct.fill(name, other, first)
            assert torch.equal(rows_read, other), name


def test_what_a_gguf_file_may_not_hold_is_one_line(tmp_path):
    odd = given(written(tmp_path / "odd.gguf", ("Q8_0", "Q5_1")), tier="checkpoint")
    model, config = built(odd), EngineConfig(noise="counter", writeback_every="inf", tier="checkpoint")
    start = initial_weights(odd, model)
    with pytest.raises(ValueError, match=r"must be in one of the formats F32, .*, but weights\.gguf has Q5_1; use "):
        Engine(model, config, weights=start)
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "odd.gguf").read_bytes()[:500])
    with pytest.raises(ValueError, match=r"^transformers must be able to read cut\.gguf, but cannot .*; download"):
        given(tmp_path / "cut.gguf", tier="checkpoint")
    assert [path for path in (tmp_path / "cache/models").iterdir() if "cut" in path.name and path.is_dir()] == []


def quantisation(bits=4, **weights):
    scheme = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": 64, **weights}
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": scheme, "input_activations": None}},
    }  # fmt: skip


def compressed(folder, bits, dtype):
    """A folder as llm-compressor writes it, by the package's own functions; and the model that it stands for."""
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**CONFIG)).eval()
    tensors, largest = {}, 2 ** (bits - 1) - 1
    for name, parameter in model.named_parameters():
        if "proj" not in name:
            tensors[name] = parameter.detach().clone()
            continue
        groups = parameter.detach().view(len(parameter), -1, 64)
        scale = (groups.abs().amax(2) / largest).to(dtype)
        codes = (groups / scale.float().unsqueeze(2)).round().clamp(-largest - 1, largest)
        tensors[name.removesuffix("weight") + "weight_packed"] = pack_to_int32(
            codes.view_as(parameter).to(torch.int8), bits
        )
        tensors[name.removesuffix("weight") + "weight_scale"] = scale
        tensors[name.removesuffix("weight") + "weight_shape"] = torch.tensor(parameter.shape)
        parameter.data.copy_((codes.to(dtype) * scale.unsqueeze(2)).view_as(parameter))
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**CONFIG, "architectures": ["LlamaForCausalLM"], "quantization_config": quantisation(bits)}
    (folder / "config.json").write_text(json.dumps(config))
    return model


@pytest.mark.parametrize(("bits", "dtype"), [(4, torch.bfloat16), (8, torch.float16)])
def test_compressed_tensors_are_the_tier_as_they_lie(bits, dtype, tmp_path):
    pytest.importorskip("compressed_tensors")
    plain = compressed(tmp_path / "own", bits, dtype)
    spec = given(tmp_path / "own", tier="checkpoint")
    for tier in ("checkpoint", "pageable"):
        config, model = EngineConfig(noise="counter", writeback_every="inf", tier=tier), built(spec)
        with Engine(model, config, weights=PretrainedWeights(models.weights_place(spec), model)) as engine:
            first = dict(engine.named_tensors())
            assert all(torch.equal(parameter, first[name]) for name, parameter in plain.named_parameters()), tier
            taken, rests = taken_steps(engine, batches(spec)), engine.bytes_at_rest
        assert taken == unwritten_steps(copy.deepcopy(plain), batches(spec))
        full = 4 * sum(parameter.numel() for parameter in models.blocks(plain).parameters())
        assert rests < (bits / 32 + 0.04) * full if tier == "checkpoint" else rests >= full


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quant_method=gptq"),
        (quantisation(symmetric=False), "symmetric=False"),
        (quantisation(actorder="group"), "actorder=group"),
    ],
)
def test_what_is_not_read_is_named(config, why):
    with pytest.raises(ValueError, match=f"^{why}$"):
        bits_of(config)
