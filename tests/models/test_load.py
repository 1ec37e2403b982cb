"""Loading is strict: every tensor is used once, and what does not fit is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from vivace.errors import UnsupportedModel, WeightError
from vivace.kernels.select import resolve
from vivace.models.base import Decoder, Encoder
from vivace.models.load import load_model

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "vocab_size": 11,
    "tie_word_embeddings": True,
}


def weights() -> dict[str, torch.Tensor]:
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (11, 8),
        "model.norm.weight": (8,),
        layer + "input_layernorm.weight": (8,),
        layer + "post_attention_layernorm.weight": (8,),
        layer + "self_attn.q_proj.weight": (8, 8),
        layer + "self_attn.k_proj.weight": (4, 8),
        layer + "self_attn.v_proj.weight": (4, 8),
        layer + "self_attn.o_proj.weight": (8, 8),
        layer + "mlp.gate_proj.weight": (12, 8),
        layer + "mlp.up_proj.weight": (12, 8),
        layer + "mlp.down_proj.weight": (8, 12),
    }
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def saved(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any] | None = None) -> Path:
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config or CONFIG))
    return folder


def load(folder: Path) -> Any:
    return load_model(folder, resolve(choice="ref"))


def test_a_folder_loads_as_a_decoder(tmp_path: Path) -> None:
    model = load(saved(tmp_path, weights()))
    assert isinstance(model, Decoder)
    assert not isinstance(model, Encoder)
    assert (model.vocab_size, model.context_length) == (11, 32)
    assert [group.name for group in model.page_groups(16)] == ["full"]


def test_the_weight_file_beside_its_config_loads_too(tmp_path: Path) -> None:
    assert load(saved(tmp_path, weights()) / "model.safetensors").vocab_size == 11


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    extra = {**weights(), "model.layers.0.self_attn.q_proj.bias": torch.zeros(8)}
    with pytest.raises(WeightError, match=r"q_proj\.bias"):
        load(saved(tmp_path, extra))


def test_constants_of_old_files_are_ignored(tmp_path: Path) -> None:
    load(saved(tmp_path, {**weights(), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)}))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = weights()
    del tensors["model.layers.0.mlp.up_proj.weight"]
    with pytest.raises(WeightError, match=r"up_proj\.weight"):
        load(saved(tmp_path, tensors))


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=r"embed_tokens\.weight"):
        load(saved(tmp_path, weights(), {**CONFIG, "vocab_size": 12}))


def test_a_bare_models_names_lack_the_prefix(tmp_path: Path) -> None:
    load(saved(tmp_path, {name.removeprefix("model."): tensor for name, tensor in weights().items()}))


def test_a_file_without_a_config_is_refused(tmp_path: Path) -> None:
    safetensors.torch.save_file(weights(), tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"no config\.json"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]", '{"architectures": ["Nothing"]}', '"text"'])
def test_a_config_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    saved(tmp_path, weights())
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UnsupportedModel):
        load(tmp_path)
