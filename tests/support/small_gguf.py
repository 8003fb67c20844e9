"""A small LLaMA, as a config and as a GGUF file."""

from pathlib import Path
from typing import Any

LLAMA = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 32, "tie_word_embeddings": True,
}  # fmt: skip


def of_llama(path: Path, lacks: str = "", config: dict[str, Any] = LLAMA, raw_of: Any = None) -> Any:
    """Writes a small LLaMA as GGUF, with llama.cpp's names and order of rows; returns the original. ``raw_of``: of the
    number and the tensor of a parameter what is written in its place, and its format."""
    import gguf
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).eval()  # type: ignore[no-untyped-call]
    writer, width = gguf.GGUFWriter(path, "llama"), config["hidden_size"]
    for key, value in (
        ("block_count", 3), ("context_length", 32), ("embedding_length", width), ("attention.head_count", 4),
        ("feed_forward_length", config["intermediate_size"]), ("attention.head_count_kv", 2), ("vocab_size", 128),
    ):  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-6)
    to_theirs = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 3)
    for number, (name, tensor) in enumerate(model.named_parameters()):
        values, heads = tensor.detach(), 4 if "q_proj" in name else 2 if "k_proj" in name else 0
        if heads:  # its rotary halves lie side by side there
            values = values.view(heads, 2, -1, width).transpose(1, 2).reshape(-1, width)
        raw, kind = raw_of(number, tensor) if raw_of else (values.contiguous().numpy(), None)
        if (llama_name := to_theirs.get_name(name, (".weight",))) != lacks:
            writer.add_tensor(llama_name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model
