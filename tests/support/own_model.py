"""Models for the runners that name none, or a package's, because their weights must be fetched first."""

from pathlib import Path

import pytest
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from zobench.models import gguf, packaged

SMALL = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 8,
}  # fmt: skip


def changes_for(runner: Path, folder: Path) -> dict[str, str]:
    """The changes with which ``runner`` loads: none, or a tiny model in ``folder`` where its text says --set model=."""
    if "--set model=" not in runner.read_text():
        return {}
    LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **SMALL)).save_pretrained(folder / "mine")
    return {"model": str(folder / "mine")}


def packages(folder: Path, monkeypatch: pytest.MonkeyPatch, layers: int = 30) -> None:
    """Lets small models of the same kinds stand for those of packages, as if they were added. ``layers``: of each, at
    most as many as the real one has, 30 and 18."""
    LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **SMALL)).save_pretrained(folder / "smollm2-135m")
    gemma = Gemma3TextConfig(num_hidden_layers=min(layers, 18), **SMALL)
    Gemma3ForCausalLM(gemma).save_pretrained(folder / "gemma3-270m")
    monkeypatch.setattr(packaged, "file_of", lambda model: folder / model.short)
    monkeypatch.setattr(gguf, "converted", lambda file: file)
