"""The one table from foreign names to model families: architectures of config.json, its model types, those of GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vivace.errors import UnsupportedModel, nearest
from vivace.models.base import Family
from vivace.registry import Registry

_LLAMA = "vivace.models.decoders.llama:FAMILY"
_QWEN3 = "vivace.models.decoders.qwen3:FAMILY"
_GEMMA3 = "vivace.models.decoders.gemma3:FAMILY"
_BERT = "vivace.models.encoders.bert:FAMILY"

# `architectures` of config.json; it says more than model_type, which a vision model may share with its text part.
ARCHITECTURES = Registry(
    "architecture",
    {
        "LlamaForCausalLM": _LLAMA,
        "LlamaModel": _LLAMA,
        "MistralForCausalLM": _LLAMA,
        "MistralModel": _LLAMA,
        "Qwen3ForCausalLM": _QWEN3,
        "Qwen3Model": _QWEN3,
        "Gemma3ForCausalLM": _GEMMA3,
        "Gemma3TextModel": _GEMMA3,
        "BertModel": _BERT,
        "BertForMaskedLM": _BERT,
        "BertForPreTraining": _BERT,
    },
)
# `model_type` of config.json, for files that state no architecture.
MODEL_TYPES = Registry(
    "model type",
    {"llama": _LLAMA, "mistral": _LLAMA, "qwen3": _QWEN3, "gemma3_text": _GEMMA3, "bert": _BERT},
)
# `general.architecture` of GGUF metadata.
GGUF_ARCHITECTURES = Registry("GGUF architecture", {"llama": _LLAMA, "qwen3": _QWEN3, "gemma3": _GEMMA3})


def family_of_config(config: Mapping[str, Any]) -> Family:
    """The family of a config.json; raises UnsupportedModel with the nearest known name."""
    names = config.get("architectures")
    if names and isinstance(names, list):
        return _find(ARCHITECTURES, str(names[0]))
    if not config.get("model_type"):
        raise UnsupportedModel("config.json states neither 'architectures' nor 'model_type'")
    return _find(MODEL_TYPES, str(config["model_type"]))


def family_of_gguf(metadata: Mapping[str, Any]) -> Family:
    """The family of a GGUF file; raises UnsupportedModel with the nearest known name."""
    if "general.architecture" not in metadata:
        raise UnsupportedModel("the GGUF metadata lacks 'general.architecture'")
    return _find(GGUF_ARCHITECTURES, str(metadata["general.architecture"]))


def _find(registry: Registry, name: str) -> Family:
    if name not in registry:
        raise UnsupportedModel(f"{registry.kind} '{name}' is not supported", hint=nearest(name, registry))
    family: Family = registry.load(name)
    return family
