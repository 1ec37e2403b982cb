"""Lossy features verify themselves: int8 activations and narrow key-value stores are compared with the exact form of
the same weights on a built-in text before a model is served, and `auto` is chosen there."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vivace.config import ActivationFormat, KVFormat, WeightFormat
from vivace.errors import ConfigError
from vivace.kernels.ops import Ops
from vivace.layers.precision import Layers, choose_lossy, formats_text, integer_layers, with_lossy
from vivace.models.base import Decoder
from vivace.models.quality import against, read_text
from vivace.weights.measured import Measured, MeasuredFolder, Quality

METHOD = 1  # of measuring and choosing: another number makes saved results void
PASSES = 24  # over the text, to choose the layers of `auto`
MAX_TOKENS = 384
EXACT_STORE = "f32"


@dataclass(frozen=True)
class Lossy:
    """What is asked for, over which form of the weights, and how much it may change.

    Of the divergences `auto` aims at the first, and the second is refused: means over the probe text of
    KL(exact || lossy), in nats.
    """

    activations: ActivationFormat
    kv_format: KVFormat
    weights: WeightFormat
    kl_target: float
    kl_limit: float

    def describe(self) -> str:
        """The settings that are lossy."""
        target = f" (kl_target={self.kl_target:g})" if self.activations == "auto" else ""
        parts = [f"activations={self.activations}{target}"] if self.activations in ("int8", "auto") else []
        parts += [f"kv_format={self.kv_format}"] if self.kv_format != EXACT_STORE else []
        return ", ".join(parts) + (f" over weights={self.weights}" if self.weights != "stored" else "")


def probe_text() -> str:
    """The built-in text: prose, sums, code, data and other languages."""
    return Path(__file__).with_name("probe.txt").read_text(encoding="utf-8")


def verified(
    model: Decoder, ops: Ops, lossy: Lossy, ids: Sequence[int], saved: MeasuredFolder, say: Callable[[str], None]
) -> tuple[Decoder, Quality | None]:
    """The model with the layers that `lossy` asks for, and how far that is from exact; None where nothing is lossy.

    ids    the probe text as the model's tokenizer reads it
    saved  where earlier results are found and new ones kept
    say    told what is measured, and the result

    Raises ConfigError with the numbers when the divergence is over the limit, or is no number.
    """
    layers = integer_layers(model)
    has_lossy_layers = bool(layers) and lossy.activations in ("int8", "auto")
    if not has_lossy_layers and lossy.kv_format == EXACT_STORE:
        return model, None
    ids = ids[: min(MAX_TOKENS, model.context_length)]
    if len(ids) < 2:
        raise ConfigError(f"{lossy.describe()} cannot be checked: the probe text has {len(ids)} tokens in this model")
    key = (METHOD, hashlib.sha256(repr(list(ids)).encode()).hexdigest(), sorted(layers), lossy.describe())
    found = saved.find(key)
    if found is None or not layers.keys() >= set(found.lossy):
        say(f"measuring what {lossy.describe()} changes, once for these weights ...")
        found = _measure(model, ops, lossy, ids)
        saved.keep(key, found)
        say(f"{lossy.describe()}: {found.quality.describe()}")
    quality = found.quality
    if not quality.divergence <= lossy.kl_limit:
        raise ConfigError(
            f"{lossy.describe()} changes this model too much: {quality.describe()}; "
            f"kl_limit allows a divergence of {lossy.kl_limit:g}",
            hint="use activations=int14 and kv_format=f32, or raise kl_limit",
        )
    return with_lossy(model, frozenset(found.lossy)), quality


@torch.inference_mode()
def _measure(model: Decoder, ops: Ops, lossy: Lossy, ids: Sequence[int]) -> Measured:
    """Choose the layers, and compare the model with them and the stores asked for with its exact form."""
    layers = integer_layers(model)
    exact = with_lossy(model, frozenset())
    hidden = read_text(exact, ops, ids)

    def quality_of(names: Layers, kv_format: str) -> Quality:
        changed = with_lossy(exact, names)
        return against((exact, hidden), (changed, read_text(changed, ops, ids, kv_format)), ops, ids)

    def divergence_of(names: Layers) -> float:
        found = quality_of(names, EXACT_STORE).divergence
        return math.inf if math.isnan(found) else found

    names: Layers = frozenset(layers) if lossy.activations == "int8" else frozenset()
    if lossy.activations == "auto":
        work = {name: layer.weight.outputs * layer.weight.inputs for name, layer in layers.items()}
        names = choose_lossy(work, divergence_of, lossy.kl_target, passes=PASSES)
    stated = formats_text(with_lossy(exact, names))
    return Measured(lossy.describe(), tuple(sorted(names)), stated, quality_of(names, lossy.kv_format))
