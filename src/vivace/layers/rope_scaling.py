"""Inverse frequencies of rotary embeddings and all scalings of them in use, from published configurations.

RoPE (Su et al., 2021) turns pair j of a head by angle position * theta^(-2j/dim). The scalings stretch these
frequencies for contexts longer than those of pretraining:

    linear    f / factor                                              Position Interpolation, Chen et al. 2023
    dynamic   theta grows with the length beyond the trained one      NTK-aware scaling with dynamic base, 2023
    yarn      blends f and f / factor by wavelength, scales angles    YaRN, Peng et al. 2023
    llama3    blends f and f / factor by wavelength                   Llama 3.1 model card, 2024
    longrope  a searched factor per frequency, short and long         LongRoPE, Ding et al. 2024
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from vivace.errors import UnsupportedModel, nearest

# Where config.json files keep rotary parameters; `rope_parameters` reads them all.
ROPE_KEYS = (
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "partial_rotary_factor",
    "original_max_position_embeddings",
)


@dataclass(frozen=True)
class RopeConfig:
    """One rotary table. `dim` is the rotated part of a head, `max_length` the context that the model states.

    The other fields belong to one kind or another and keep their published names; None means not given.
    """

    dim: int
    max_length: int
    rope_theta: float = 10000.0
    rope_type: str = "default"
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.rope_type not in KINDS:
            hint = nearest(self.rope_type, KINDS)
            raise UnsupportedModel(f"rotary scaling '{self.rope_type}' is not known", hint=hint)
        least = 4 if self.rope_type == "dynamic" else 2  # its exponent is dim / (dim - 2)
        if self.dim < least or self.dim % 2:
            expected = f"an even number of dimensions, {least} or more"
            raise UnsupportedModel(f"rotary embeddings need {expected}, not {self.dim}")
        for name in KINDS[self.rope_type].needed:
            if getattr(self, name) is None:
                raise UnsupportedModel(f"rotary scaling '{self.rope_type}' needs '{name}', which is not given")
        for name in ("short_factor", "long_factor"):
            factors = getattr(self, name)
            if factors is not None and len(factors) != self.dim // 2:
                raise UnsupportedModel(f"'{name}' has {len(factors)} factors, expected {self.dim // 2}")

    @property
    def trained_length(self) -> int:
        """The context of pretraining, before it was stretched."""
        return self.original_max_position_embeddings or self.max_length

    @property
    def stretch(self) -> float:
        """How many times longer the context became; where the factor is not given, the lengths tell it."""
        return self.max_length / self.trained_length if self.factor is None else self.factor

    def length_class(self, limit: int) -> int:
        """Lengths of one class share their frequencies. 0 for kinds that do not depend on the length of a job."""
        if self.rope_type == "dynamic":
            return max(limit, self.max_length)
        if self.rope_type == "longrope":
            return int(limit > self.trained_length)
        return 0


@dataclass(frozen=True)
class RopeKind:
    """A scaling: its function (config, limit) -> (inverse frequencies (dim / 2,), factor on cos and sin)."""

    frequencies: Callable[[RopeConfig, int], tuple[Tensor, float]]
    needed: tuple[str, ...] = ()


def inverse_frequencies(config: RopeConfig, limit: int = 0) -> tuple[Tensor, float]:
    """Inverse frequencies (dim / 2,) float32 of a job that may reach `limit` units, and the factor on cos and sin.

    A limit of 0 stands for any length within the trained context.
    """
    return KINDS[config.rope_type].frequencies(config, limit)


def read_rope(
    parameters: Mapping[str, Any], head_dim: int, max_length: int, default_theta: float = 10000.0
) -> RopeConfig:
    """A rotary table from the keys that config.json uses (a flat `rope_parameters`, see `rope_parameters`).

    Raises UnsupportedModel for an unknown kind or key, and for a key that is missing.
    """
    values = {key: value for key, value in parameters.items() if value is not None}
    kind = str(values.pop("rope_type", None) or values.get("type", "default"))
    values.pop("type", None)
    fraction = min(1.0, _checked("partial_rotary_factor", values.pop("partial_rotary_factor", 1.0)))
    values.setdefault("rope_theta", default_theta)
    known = {field.name for field in fields(RopeConfig)} - {"dim", "max_length", "rope_type"}
    for key, value in values.items():
        if key not in known:
            raise UnsupportedModel(f"rotary parameter '{key}' is not known", hint=nearest(key, known))
        values[key] = _checked(key, value)
    kind = "longrope" if kind == "su" else kind  # the first Phi-3 files called it by its author
    return RopeConfig(dim=int(head_dim * fraction), max_length=max_length, rope_type=kind, **values)


def rope_parameters(config: Mapping[str, Any], layer_type: str | None = None) -> dict[str, Any]:
    """The rotary keys of a config.json as one flat dictionary, whichever way it writes them.

    Newer files nest them under `rope_parameters`, perhaps once more per layer type; older ones write `rope_theta` and
    `partial_rotary_factor` at the top and the scaling under `rope_scaling`.
    """
    nested = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if layer_type is not None and isinstance(nested, Mapping) and layer_type in nested:
        nested = nested[layer_type] or {}
    if not isinstance(nested, Mapping):
        raise UnsupportedModel(f"rotary parameters are {nested!r}, expected an object")
    flat = dict(nested)
    for key in ("rope_theta", "partial_rotary_factor"):
        if config.get(key) is not None:
            flat.setdefault(key, config[key])
    if config.get("original_max_position_embeddings") is not None:
        flat["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    return flat


# Parameters must be above these, else above 0: logarithms of the first two are divided by.
_LEAST = {"rope_theta": 1.0, "original_max_position_embeddings": 1.0, "mscale": -1.0, "mscale_all_dim": -1.0}


def _checked(key: str, value: Any) -> Any:
    """A parameter in the type of its field; lists become tuples."""
    if key == "truncate" and isinstance(value, bool):
        return value
    is_list = key in ("short_factor", "long_factor")
    numbers = value if is_list else [value]
    least = _LEAST.get(key, 0.0)
    if not isinstance(numbers, list) or not all(_is_number(number, least) for number in numbers):
        expected = f"{'a list of numbers' if is_list else 'a number'} over {least:g}"
        raise UnsupportedModel(f"rotary parameter '{key}' is {str(value)[:80]!r}, expected {expected}")
    if is_list:
        return tuple(float(number) for number in numbers)
    return int(value) if key == "original_max_position_embeddings" else float(value)


def _is_number(value: Any, least: float) -> bool:
    return type(value) in (int, float) and least < value < math.inf


def _powers(theta: float, dim: int) -> Tensor:
    # (dim / 2,): theta^(2j/dim), in the order of operations that published models were computed with.
    return theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def _default(config: RopeConfig, limit: int) -> tuple[Tensor, float]:
    return 1.0 / _powers(config.rope_theta, config.dim), 1.0


def _linear(config: RopeConfig, limit: int) -> tuple[Tensor, float]:
    return 1.0 / _powers(config.rope_theta, config.dim) / config.stretch, 1.0


def _dynamic(config: RopeConfig, limit: int) -> tuple[Tensor, float]:
    length, dim = max(limit, config.max_length), config.dim
    growth = (config.stretch * length / config.max_length) - (config.stretch - 1)
    return 1.0 / _powers(config.rope_theta * growth ** (dim / (dim - 2)), dim), 1.0


def _yarn(config: RopeConfig, limit: int) -> tuple[Tensor, float]:
    dim, theta, factor = config.dim, config.rope_theta, config.stretch

    def turning_dim(turns: float) -> float:
        # The pair that makes `turns` turns over the trained length.
        return dim * math.log(config.trained_length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = turning_dim(config.beta_fast or 32), turning_dim(config.beta_slow or 1)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high = high + 0.001 if low == high else high
    kept = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    powers = _powers(theta, dim)
    return 1.0 / (factor * powers) * (1 - kept) + 1.0 / powers * kept, _yarn_attention(config, factor)


def _yarn_attention(config: RopeConfig, factor: float) -> float:
    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if config.attention_factor is not None:
        return config.attention_factor
    if config.mscale and config.mscale_all_dim:
        return magnitude(config.mscale) / magnitude(config.mscale_all_dim)
    return magnitude(1.0)


def _llama3(config: RopeConfig, limit: int) -> tuple[Tensor, float]:
    assert config.low_freq_factor is not None
    assert config.high_freq_factor is not None
    low, high, length, factor = config.low_freq_factor, config.high_freq_factor, config.trained_length, config.stretch
    plain = 1.0 / _powers(config.rope_theta, config.dim)
    wavelength = 2 * math.pi / plain
    smooth = (length / wavelength - low) / (high - low)
    blended = (1 - smooth) * plain / factor + smooth * plain
    scaled = torch.where(wavelength > length / low, plain / factor, blended)
    return torch.where(wavelength < length / high, plain, scaled), 1.0


def _longrope(config: RopeConfig, limit: int) -> tuple[Tensor, float]:
    assert config.short_factor is not None
    assert config.long_factor is not None
    factors = torch.tensor(config.long_factor if limit > config.trained_length else config.short_factor)
    stretch, attention = config.stretch, config.attention_factor
    if attention is None:
        attention = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(config.trained_length))
    return 1.0 / (factors * _powers(config.rope_theta, config.dim)), attention


KINDS: Mapping[str, RopeKind] = MappingProxyType(
    {
        "default": RopeKind(_default),
        "linear": RopeKind(_linear, ("factor",)),
        "dynamic": RopeKind(_dynamic, ("factor",)),
        "yarn": RopeKind(_yarn),
        "llama3": RopeKind(_llama3, ("factor", "low_freq_factor", "high_freq_factor")),
        "longrope": RopeKind(_longrope, ("short_factor", "long_factor")),
    }
)
