"""A small LLaMA, as a config and as a GGUF file."""

from pathlib import Path
from typing import Any

LLAMA = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 32, "tie_word_embeddings": True,
}  # fmt: skip


def of_llama(path: Path, lacks: str = "") -> Any:
    """Writes a small LLaMA as GGUF, with llama.cpp's names and order of rows; returns the original."""
    import gguf
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, rest = LLAMA["model_type"], {key: value for key, value in LLAMA.items() if key != "model_type"}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **rest)).eval()  # type: ignore[no-untyped-call]
    writer = gguf.GGUFWriter(path, kind)
    for key, value in (
        ("block_count", 3), ("context_length", 32), ("embedding_length", 32), ("feed_forward_length", 48),
        ("attention.head_count", 4), ("attention.head_count_kv", 2), ("vocab_size", 128),
    ):  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-6)
    to_theirs = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 3)
    for name, tensor in model.named_parameters():
        values, heads = tensor.detach(), 4 if "q_proj" in name else 2 if "k_proj" in name else 0
        if heads:  # its rotary halves lie side by side there
            values = values.view(heads, 2, -1, 32).transpose(1, 2).reshape(-1, 32)
        if (llama_name := to_theirs.get_name(name, (".weight",))) != lacks:
            writer.add_tensor(llama_name, values.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model
