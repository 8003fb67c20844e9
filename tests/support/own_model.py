"""A model for the runners that name none, because its weights must be fetched first."""

from __future__ import annotations

from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM


def changes_for(runner: Path, folder: Path) -> dict[str, str]:
    """The changes with which ``runner`` loads: none, or a tiny model in ``folder`` where its text says --set model=."""
    if "--set model=" not in runner.read_text():
        return {}
    small = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=32, **small)).save_pretrained(folder / "mine")
    return {"model": str(folder / "mine")}
