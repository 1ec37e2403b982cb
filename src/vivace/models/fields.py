"""Reading published configurations strictly: a key that is neither used nor known to be irrelevant is an error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar, overload

from vivace.errors import UnsupportedModel, nearest

FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"  # as `layer_types` spells them

T = TypeVar("T", int, float, str, bool)

# Far above any published model: a damaged or hostile file must not ask for memory before a weight is looked at.
MAX_SIZE, MAX_LAYERS = 1 << 24, 1 << 12

# Keys of config.json that say nothing about the forward pass: bookkeeping, training, token ids (the tokenizer's and the
# generation settings' business), and generation defaults that older files kept here.
IRRELEVANT = frozenset(
    (
        "architectures",
        "model_type",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "name_or_path",
        "use_cache",
        "initializer_range",
        "attention_dropout",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "classifier_dropout",
        "embd_pdrop",
        "resid_pdrop",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "cls_token_id",
        "unk_token_id",
        "decoder_start_token_id",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "return_dict_in_generate",
        "torchscript",
        "gradient_checkpointing",
        "chunk_size_feed_forward",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "task_specific_params",
        "finetuning_task",
        "tokenizer_class",
        "prefix",
        "is_decoder",
        "is_encoder_decoder",
        "cross_attention_hidden_size",
        "add_cross_attention",
        "tie_encoder_decoder",
        "use_bfloat16",
        "tf_legacy_loss",
        "pretraining_tp",
        "auto_map",
        "transformers.js_config",
        "is_llama_config",
        "max_length",
        "min_length",
        "do_sample",
        "early_stopping",
        "num_beams",
        "num_beam_groups",
        "diversity_penalty",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "num_return_sequences",
        "output_scores",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "suppress_tokens",
        "begin_suppress_tokens",
        "unsloth_fixed",
        "unsloth_version",
        "matryoshka_dimensions",
        "is_matryoshka",
    )
)

_REQUIRED: Any = object()


class Fields:
    """The keys of one configuration; remembers which were read.

    `where` names the source in errors; `irrelevant` are keys that do not matter besides those of IRRELEVANT.
    """

    def __init__(self, values: Mapping[str, Any], where: str, irrelevant: Collection[str] = ()) -> None:
        self.values = values
        self._where = where
        self._ignored = frozenset(irrelevant)
        self._read: set[str] = set()

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...

    @overload
    def get(self, key: str, kind: type[T], default: T) -> T: ...

    @overload
    def get(self, key: str, kind: type[T], default: None) -> T | None: ...

    def get(self, key: str, kind: type[Any], default: Any = _REQUIRED) -> Any:
        """The value of `key`, checked to be a `kind`; null counts as not given. Without a default it must be given."""
        self._read.add(key)
        value = self.values.get(key)
        if value is None:
            if default is _REQUIRED:
                raise UnsupportedModel(f"{self._where} lacks '{key}'", hint=nearest(key, self.values))
            return default
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind or value != value:  # NaN is no number
            raise UnsupportedModel(f"{self._where}: '{key}' is {value!r}, expected {kind.__name__}")
        return value

    def size(self, key: str, default: Any = _REQUIRED, *, most: int = MAX_SIZE) -> Any:
        """An integer from 1 to `most`, or the default."""
        value = self.get(key, int, default)
        if value is not None and not 1 <= value <= most:
            raise UnsupportedModel(f"{self._where}: '{key}' is {value}, expected 1 to {most}")
        return value

    def layers(self, key: str) -> int:
        """The number of layers."""
        return int(self.size(key, most=MAX_LAYERS))

    def heads(self, key: str, kv_key: str) -> tuple[int, int]:
        """The numbers of query and of key-value heads; as many as queries where the latter is not given."""
        heads = self.size(key)
        kv_heads = self.size(kv_key, heads)
        if heads % kv_heads:
            raise UnsupportedModel(f"{self._where}: {heads} query heads cannot share {kv_heads} key-value heads")
        return heads, kv_heads

    def raw(self, key: str) -> Any:
        """The value of `key` as it is, or None."""
        self._read.add(key)
        return self.values.get(key)

    def require(self, key: str, *allowed: Any) -> None:
        """The model's forward pass knows only these values of `key` (or its absence)."""
        value = self.raw(key)
        if value is not None and value not in allowed:
            listed = " or ".join(repr(one) for one in allowed) or "nothing"
            raise UnsupportedModel(f"{self._where}: '{key}' is {value!r}, only {listed} is supported")

    def finish(self) -> None:
        """Raise UnsupportedModel if a key was left that could matter. Keys that are null, false or empty are off."""
        for key, value in self.values.items():
            is_known = key in self._read or key in IRRELEVANT or key in self._ignored or key.startswith("_")
            if not is_known and value not in (None, False, [], {}, ""):
                raise UnsupportedModel(
                    f"{self._where}: the setting '{key}' ({str(value)[:80]}) is not known and may change the results",
                    hint=nearest(key, self._read),
                )


def read_windows(fields: Fields, num_layers: int, window: int | None, default: list[str]) -> tuple[int | None, ...]:
    """The window of each layer, None where it sees everything, from `layer_types` or else the `default` types."""
    kinds = fields.raw("layer_types") or default
    if not isinstance(kinds, list):
        raise UnsupportedModel(f"'layer_types' is {str(kinds)[:80]!r}, expected a list")
    if len(kinds) != num_layers:
        raise UnsupportedModel(f"'layer_types' has {len(kinds)} entries, the model has {num_layers} layers")
    for kind in kinds:
        if kind not in (FULL_ATTENTION, SLIDING_ATTENTION):
            raise UnsupportedModel(f"layers of type '{kind}' are not known", hint=nearest(str(kind), set(default)))
    if SLIDING_ATTENTION in kinds and window is None:
        raise UnsupportedModel("'layer_types' names sliding layers, but there is no 'sliding_window'")
    return tuple(window if kind == SLIDING_ATTENTION else None for kind in kinds)
