"""The tiny trained Llama as a GGUF file of quantized weights, whole or with a layer that int8 inputs ruin."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
from safetensors.torch import load_file
from torch import Tensor

from tests.oracle.peers import llama_cpp_name, permuted

TINY = Path(__file__).resolve().parents[1] / "assets" / "tiny-llama"
OUTLIER = 300.0  # 1.2 levels of int8 are then as large as the other inputs of its group; of int14 0.02


def write_quantized(path: Path, *, has_outliers: bool = False, kind: str = "Q8_0") -> Path:
    """Write the model. `has_outliers`: one input in 32 of the feed-forward layers' second half is huge, and the weight
    it meets is as much smaller, so that in exact numbers the model is about the same."""
    config = json.loads((TINY / "config.json").read_text())
    weights = {name: tensor.float() for name, tensor in load_file(TINY / "model.safetensors").items()}
    if has_outliers:
        _add_outliers(weights)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    _add_vocabulary(writer)
    for name, tensor in weights.items():
        if "q_proj" in name:
            tensor = permuted(tensor, config["num_attention_heads"])
        if "k_proj" in name:
            tensor = permuted(tensor, config["num_key_value_heads"])
        values, there = tensor.contiguous().numpy(), llama_cpp_name(name)
        if values.ndim == 1:
            writer.add_tensor(there, values)
        else:
            wanted = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(there, gguf.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_outliers(weights: dict[str, Tensor]) -> None:
    for name in [name for name in weights if "up_proj" in name]:
        weights[name][::32] *= OUTLIER
        weights[name.replace("up_proj", "down_proj")][:, ::32] /= OUTLIER


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    table = json.loads((TINY / "tokenizer.json").read_text())
    vocabulary = table["model"]["vocab"]
    control = {token["content"] for token in table["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if t in control else gguf.TokenType.NORMAL for t in tokens])
    writer.add_token_merges([" ".join(pair) for pair in table["model"]["merges"]])
    writer.add_eos_token_id(vocabulary["<|im_end|>"])
    writer.add_chat_template((TINY / "chat_template.jinja").read_text())
