"""What a sentence-transformers folder says about turning a text into a vector.

modules.json lists the modules; 1_Pooling/config.json names the modes, in the old schema by one flag per mode, in the
new one by `pooling_mode`; Dense and Normalize follow; config_sentence_transformers.json holds prompts,
sentence_bert_config.json the longest text. A folder without modules.json is read as sentence-transformers reads it: the
mean of the tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vivace.errors import UnsupportedModel, nearest

if TYPE_CHECKING:
    from vivace.kernels.ops import Activation  # brings torch, which the text side does without

MAX_JSON_BYTES = 1 << 20

# Modes in the order in which several are concatenated: our name, flag of the old schema, name of the new one.
_MODES = (
    ("cls", "pooling_mode_cls_token", "cls"),
    ("max", "pooling_mode_max_tokens", "max"),
    ("mean", "pooling_mode_mean_tokens", "mean"),
    ("mean_sqrt_len", "pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    ("weightedmean", "pooling_mode_weightedmean_tokens", "weightedmean"),
    ("lasttoken", "pooling_mode_lasttoken", "lasttoken"),
)
_ACTIVATIONS: Mapping[str, Activation | None] = MappingProxyType(
    {"Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Identity": None}
)


@dataclass(frozen=True)
class DenseConfig:
    """A linear map after pooling; its weights lie in `folder`. activation: None for none."""

    folder: Path
    inputs: int
    outputs: int
    has_bias: bool = True
    activation: Activation | None = "tanh"


@dataclass(frozen=True)
class Normalize:
    """Scale to length one at this place."""


@dataclass(frozen=True)
class SentenceConfig:
    """How a text becomes a vector.

    modes           pooling modes, concatenated in this order
    include_prompt  false: the tokens of a prompt are left out of pooling
    steps           what follows, in order
    max_length      longest text in tokens, special ones included; None: the model's context
    lower_case      the text is lowered before it is tokenized
    prompts         texts that are put in front of the input, by name
    default_prompt  name of the prompt that is used when none is asked for
    matryoshka      lengths that vectors may be cut to: empty for any, None if the model was not trained for it
    """

    modes: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    steps: tuple[DenseConfig | Normalize, ...] = ()
    max_length: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    matryoshka: tuple[int, ...] | None = None


def read_sentence_config(folder: Path) -> SentenceConfig:
    """Read a model folder. Raises UnsupportedModel for a module or an option that is not known."""
    modes: tuple[str, ...] = ("mean",)
    include_prompt = True
    steps: list[DenseConfig | Normalize] = []
    for module in _read(folder / "modules.json", list) or []:
        kind, place = _module(folder, module)
        if kind == "Pooling":
            modes, include_prompt = read_pooling(_read(place / "config.json", dict) or {})
        elif kind == "Dense":
            steps.append(_dense(place, _read(place / "config.json", dict) or {}))
        elif kind == "Normalize":
            steps.append(Normalize())
        elif kind not in ("Transformer", "Dropout"):
            hint = "known: Transformer, Pooling, Dense, Normalize"
            raise UnsupportedModel(f"modules.json has a module of the kind '{kind}'", hint=hint)
    text = _read(folder / "sentence_bert_config.json", dict) or {}
    names = _read(folder / "config_sentence_transformers.json", dict) or {}
    return SentenceConfig(
        modes=modes,
        include_prompt=include_prompt,
        steps=tuple(steps),
        max_length=text.get("max_seq_length") or _tokenizer_limit(folder),
        lower_case=bool(text.get("do_lower_case", False)),
        prompts=dict(names.get("prompts") or {}),
        default_prompt=names.get("default_prompt_name"),
        matryoshka=_matryoshka(_read(folder / "config.json", dict) or {}),
    )


def read_pooling(config: Mapping[str, Any]) -> tuple[tuple[str, ...], bool]:
    """Modes and `include_prompt` of a 1_Pooling/config.json in either schema."""
    include_prompt = bool(config.get("include_prompt", True))
    if "pooling_mode" not in config:
        known = {flag for _, flag, _ in _MODES}
        for name in config:
            if name.startswith("pooling_mode_") and name not in known:
                raise UnsupportedModel(f"unknown pooling mode '{name}'", hint=nearest(name, known))
        return tuple(mode for mode, flag, _ in _MODES if config.get(flag)) or ("mean",), include_prompt
    chosen = config["pooling_mode"]
    names = {published: mode for mode, _, published in _MODES}
    listed = [chosen] if isinstance(chosen, str) else list(chosen)
    for name in listed:
        if name not in names:
            raise UnsupportedModel(f"unknown pooling mode '{name}'", hint=nearest(str(name), names))
    return tuple(names[name] for name in listed), include_prompt


def shortened(ids: Sequence[int], max_length: int, num_suffix: int) -> list[int]:
    """At most `max_length` ids: the text is cut at its end, the last `num_suffix` special ids stay."""
    if len(ids) <= max_length:
        return list(ids)
    keep = max_length - num_suffix
    return [*ids[:keep], *ids[len(ids) - num_suffix :]]


def _module(folder: Path, module: Any) -> tuple[str, Path]:
    """Kind and folder of an entry of modules.json, which may not lead out of the model's folder."""
    if not isinstance(module, dict) or not isinstance(module.get("type"), str):
        raise UnsupportedModel("modules.json has an entry without a type")
    place = (folder / str(module.get("path", ""))).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise UnsupportedModel(f"modules.json names the folder {module['path']!r} outside of the model")
    return module["type"].rpartition(".")[2], place


def _dense(place: Path, config: Mapping[str, Any]) -> DenseConfig:
    if config.get("use_residual"):
        raise UnsupportedModel(f"{place.name} is a Dense module with a residual connection")
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise UnsupportedModel(
            f"{place.name} has the activation '{activation}'", hint=nearest(activation, _ACTIVATIONS)
        )
    try:
        sizes = int(config["in_features"]), int(config["out_features"])
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedModel(f"{place.name}/config.json gives no in_features and out_features") from error
    return DenseConfig(place, *sizes, bool(config.get("bias", True)), _ACTIVATIONS[activation])


def _tokenizer_limit(folder: Path) -> int | None:
    limit = (_read(folder / "tokenizer_config.json", dict) or {}).get("model_max_length")
    return int(limit) if isinstance(limit, int) and limit < 1 << 30 else None  # a huge number stands for no limit


def _matryoshka(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    listed = config.get("matryoshka_dimensions")
    if listed:
        return tuple(int(size) for size in listed)
    return () if config.get("is_matryoshka") else None


def _read(path: Path, kind: type[Any]) -> Any:
    """The JSON value of a file, or None if there is none. Raises UnsupportedModel for anything but a `kind`."""
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_JSON_BYTES:
        raise UnsupportedModel(f"{path.name} has {path.stat().st_size} bytes, at most {MAX_JSON_BYTES} are read")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnsupportedModel(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(value, kind):
        raise UnsupportedModel(f"{path.name} holds {type(value).__name__}, expected {kind.__name__}")
    return value
