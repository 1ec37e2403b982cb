"""Published configurations are read; what would change the results and is not known is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoConfig

from tests.models import published
from vivace.errors import UnsupportedModel
from vivace.models.decoders.gemma3 import Gemma3Config
from vivace.models.decoders.llama import LlamaConfig
from vivace.models.decoders.qwen3 import Qwen3Config
from vivace.models.index import family_of_config
from vivace.weights.files import TensorInfo

ALL = {
    "smollm2": published.SMOLLM2_135M,
    "llama-3.2": published.LLAMA_3_2_1B,
    "mistral": published.MISTRAL_7B,
    "qwen3": published.QWEN3_0_6B,
    "gemma3": published.GEMMA3_1B,
    "minilm": published.MINILM,
}


def read(config: dict[str, Any]) -> Any:
    return family_of_config(config).from_dict(config)


@pytest.mark.parametrize("name", ALL)
def test_the_style_of_transformers_5_reads_the_same(name: str) -> None:
    old = ALL[name]
    new = AutoConfig.for_model(**{key: old[key] for key in old if key != "architectures"}).to_dict()
    assert "rope_theta" not in new
    assert read({**new, "architectures": old["architectures"]}) == read(old)


def test_llama_3_reads_its_scaling() -> None:
    config = read(published.LLAMA_3_2_1B)
    assert (config.rope.rope_type, config.rope.trained_length, config.rope.rope_theta) == ("llama3", 8192, 500000.0)
    assert config.is_tied


def test_gemma3_layers_alternate_by_the_pattern() -> None:
    config = read(published.GEMMA3_1B)
    assert [index for index, window in enumerate(config.windows) if window is None] == [5, 11, 17, 23]
    assert (config.local_rope.rope_theta, config.global_rope.rope_theta) == (10_000.0, 1_000_000.0)


def test_gemma3_scaling_is_about_global_layers_only() -> None:
    config = read({**published.GEMMA3_1B, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert (config.global_rope.rope_type, config.global_rope.factor) == ("linear", 8.0)
    assert config.local_rope.rope_type == "default"


def test_qwen3_ignores_its_window_unless_told_to_use_it() -> None:
    options = {"sliding_window": 4096, "max_window_layers": 20}
    assert read({**published.QWEN3_0_6B, **options}).windows == (None,) * 28
    used = read({**published.QWEN3_0_6B, **options, "use_sliding_window": True})
    assert used.windows == (None,) * 20 + (4096,) * 8


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llama-3.2", {"quantization_config": {"quant_method": "gptq"}}, "'quantization_config'"),
        ("llama-3.2", {"num_experts": 8}, "'num_experts'"),
        ("llama-3.2", {"rope_interleaved": True}, "'rope_interleaved'"),
        ("llama-3.2", {"hidden_act": "gelu_nwe"}, "did you mean 'gelu_new'"),
        ("llama-3.2", {"num_key_value_heads": 5}, "cannot share 5"),
        ("llama-3.2", {"num_hidden_layers": 10**9}, "expected 1 to"),
        ("llama-3.2", {"rope_scaling": {"rope_type": "mrope"}}, "'mrope' is not known"),
        ("qwen3", {"layer_types": ["linear_attention"] * 28}, "'linear_attention'"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' is 50.0"),
        ("gemma3", {"use_bidirectional_attention": True}, "'use_bidirectional_attention'"),
        ("minilm", {"position_embedding_type": "relative_key"}, "only 'absolute' is supported"),
        ("minilm", {"is_decoder": True}, "'is_decoder'"),
        ("minilm", {"num_attention_heads": 7}, "cannot be split into 7 heads"),
    ],
)
def test_what_would_change_the_results_is_refused(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        read({**ALL[name], **changes})
    assert words in str(caught.value)


def tensors(*names: str, vocab_size: int) -> dict[str, TensorInfo]:
    shapes = {"token_embd.weight": (vocab_size, 8)}
    return {name: TensorInfo(name, "F32", shapes.get(name, (8, 8)), 0, "") for name in ("token_embd.weight", *names)}


LLAMA_GGUF = {
    "general.architecture": "llama",
    "llama.context_length": 131072,
    "llama.embedding_length": 2048,
    "llama.block_count": 16,
    "llama.feed_forward_length": 8192,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
    "llama.attention.key_length": 64,
    "llama.attention.value_length": 64,
    "llama.attention.layer_norm_rms_epsilon": 1e-05,
    "llama.rope.dimension_count": 64,
    "llama.rope.freq_base": 500000.0,
    "llama.vocab_size": 128256,
}
GEMMA_GGUF = {
    "gemma3.context_length": 32768,
    "gemma3.embedding_length": 1152,
    "gemma3.block_count": 26,
    "gemma3.feed_forward_length": 6912,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.head_count_kv": 1,
    "gemma3.attention.key_length": 256,
    "gemma3.attention.value_length": 256,
    "gemma3.attention.layer_norm_rms_epsilon": 1e-06,
    "gemma3.attention.sliding_window": 512,
}


def test_gguf_metadata_reads_as_the_config_does() -> None:
    # The scaling stands in a tensor of the GGUF file, so the table itself is a plain one.
    expected = read({**published.LLAMA_3_2_1B, "rope_scaling": None})
    assert LlamaConfig.from_gguf(LLAMA_GGUF, tensors(vocab_size=128256)) == expected


def test_gguf_tensors_tell_of_biases_and_a_head_of_its_own() -> None:
    found = tensors("output.weight", "blk.0.attn_q.bias", "blk.0.ffn_gate.bias", vocab_size=100)
    config = LlamaConfig.from_gguf(LLAMA_GGUF, found)
    assert (config.is_tied, config.attention_bias, config.mlp_bias, config.vocab_size) == (False, True, True, 100)


def test_gguf_gemma3_assumes_what_the_file_leaves_out() -> None:
    config = Gemma3Config.from_gguf(GEMMA_GGUF, tensors(vocab_size=262144))
    assert config == read(published.GEMMA3_1B)
    large = {**GEMMA_GGUF, "gemma3.block_count": 62, "gemma3.embedding_length": 5376, "gemma3.attention.head_count": 32}
    assert Gemma3Config.from_gguf(large, tensors(vocab_size=10)).query_scalar == 168.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"llama.expert_count": 8}, "'expert_count' is 8"),
        ({"llama.attention.value_length": 32}, "'attention.value_length' is 32"),
        ({"llama.rope.scaling.attn_factor": 1.2}, "'rope.scaling.attn_factor'"),
        ({"llama.logit_scale": 2.0}, "'logit_scale'"),
        ({"llama.block_count": [1, 2]}, "expected int"),
    ],
)
def test_gguf_metadata_that_is_not_known_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        LlamaConfig.from_gguf({**LLAMA_GGUF, **changes}, tensors(vocab_size=10))
    assert words in str(caught.value)


def test_gguf_linear_scaling_has_an_old_spelling() -> None:
    old = LlamaConfig.from_gguf({**LLAMA_GGUF, "llama.rope.scale_linear": 4.0}, tensors(vocab_size=10))
    new = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert old == LlamaConfig.from_gguf({**LLAMA_GGUF, **new}, tensors(vocab_size=10))
    assert old.rope == replace(old.rope, rope_type="linear", factor=4.0)


def test_qwen3_gguf_keys_carry_its_own_prefix() -> None:
    metadata = {key.replace("llama.", "qwen3."): value for key, value in LLAMA_GGUF.items()}
    assert Qwen3Config.from_gguf(metadata, tensors(vocab_size=10)).head_dim == 64
    with pytest.raises(UnsupportedModel, match="lacks"):
        Qwen3Config.from_gguf(LLAMA_GGUF, tensors(vocab_size=10))


@pytest.mark.parametrize("name", ALL)
def test_any_damaged_value_is_read_or_refused_but_never_crashes(name: str) -> None:
    refused = 0
    damages = (-1, 0, 2.5, 1 << 70, "x", "", True, [], [[]], {}, {"factor": []}, {"rope_type": {}}, float("nan"))
    for key in {*ALL[name], "rope_scaling", "rope_parameters", "layer_types", "partial_rotary_factor"}:
        for value in damages:
            try:
                read({**ALL[name], key: value})
            except UnsupportedModel:
                refused += 1
    assert refused > 50
