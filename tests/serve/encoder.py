"""A tiny random sentence encoder in a folder as sentence-transformers writes it, trained for shorter vectors."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import models, normalizers, pre_tokenizers, processors

WORDS = (
    *("the", "a", "cat", "dog", "sat", "on", "mat", "ran", "home", "sun", "moon", "is", "bright", "and", "old", "new"),
    *("e", "i", "o", "n", "r", "t", "u", "##s", "##ing", "##er", "##e", "##n", "##o"),
)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
HIDDEN, LAYERS, HEADS, INNER, LONGEST = 32, 2, 2, 64, 64


def make_tiny_encoder(folder: Path) -> Path:
    """Write the model's files into `folder` and return it."""
    folder.mkdir(parents=True)
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *WORDS])}
    _write_tokenizer(folder, vocabulary)
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": len(vocabulary),
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "max_position_embeddings": LONGEST,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "matryoshka_dimensions": [8, 16, 32],
    }
    _write(folder / "config.json", config)
    modules = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Normalize", "Normalize")]
    _write(
        folder / "modules.json",
        [
            {"idx": int(name), "name": name, "path": path, "type": f"sentence_transformers.models.{kind}"}
            for name, path, kind in modules
        ],
    )
    (folder / "1_Pooling").mkdir()
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True})
    _write(folder / "sentence_bert_config.json", {"max_seq_length": 24, "do_lower_case": False})
    save_file(_weights(len(vocabulary)), folder / "model.safetensors")
    return folder


def _weights(vocab_size: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return 0.5 * torch.randn(*shape, generator=generator)

    found = {
        "embeddings.word_embeddings.weight": draw(vocab_size, HIDDEN),
        "embeddings.position_embeddings.weight": draw(LONGEST, HIDDEN),
        "embeddings.token_type_embeddings.weight": draw(2, HIDDEN),
        "embeddings.LayerNorm.weight": 1 + draw(HIDDEN),
        "embeddings.LayerNorm.bias": draw(HIDDEN),
    }
    shapes = {
        "attention.self.query": (HIDDEN, HIDDEN),
        "attention.self.key": (HIDDEN, HIDDEN),
        "attention.self.value": (HIDDEN, HIDDEN),
        "attention.output.dense": (HIDDEN, HIDDEN),
        "intermediate.dense": (INNER, HIDDEN),
        "output.dense": (HIDDEN, INNER),
    }
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        for part, shape in shapes.items():
            found[f"{name}.{part}.weight"] = draw(*shape)
            found[f"{name}.{part}.bias"] = draw(shape[0])
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            found[f"{name}.{part}.weight"] = 1 + draw(HIDDEN)
            found[f"{name}.{part}.bias"] = draw(HIDDEN)
    return found


def _write_tokenizer(folder: Path, vocabulary: dict[str, int]) -> None:
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    backend.add_special_tokens(SPECIAL)
    backend.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "BertTokenizer", "cls_token": "[CLS]", "sep_token": "[SEP]"},
    )


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1))
