"""In which integers each linear layer takes its inputs: read from a model, set on it, and the cheapest mix in a budget.

Rounding errors of different layers are nearly independent, and the divergence of the scores is quadratic in them, so
the divergence of a mix is about the sum of its parts': sensitivity per layer by KL divergence as in Cai et al.,
"ZeroQ", 2020 (arXiv 2001.00281), here for the inputs instead of the weights.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from vivace.kernels.cpu.pack import QUANT_FORMAT, activations_of, with_activations
from vivace.layers.linear import Linear

EXACT, LOSSY = "int14", "int8"

T = TypeVar("T")
Layers = frozenset[str]


def integer_layers(model: Any) -> dict[str, Linear]:
    """The linear layers whose inputs become integers, by their path in the model: blocks.0.mlp.down."""
    found: dict[str, Linear] = {}

    def note(name: str, layer: Linear) -> Linear:
        if layer.weight.format == QUANT_FORMAT:
            found[name] = layer
        return layer

    _each_linear(model, note)
    return found


def with_lossy(model: T, names: Layers) -> T:
    """The model over the same weights, its integer layers `names` with int8 inputs and all others with int14."""

    def change(name: str, layer: Linear) -> Linear:
        wanted = LOSSY if name in names else EXACT
        if layer.weight.format != QUANT_FORMAT or activations_of(layer.weight) == wanted:
            return layer
        return Linear(with_activations(layer.weight, wanted))

    changed: T = _each_linear(model, change)
    return changed


def lossy_layers(model: Any) -> Layers:
    """The layers with int8 inputs."""
    layers = integer_layers(model).items()
    return frozenset(name for name, layer in layers if activations_of(layer.weight) == LOSSY)


def formats_text(model: Any) -> str:
    """What the layers of a model take: "f32", "int14", "int8", or for a mix the count of int8 layers and its hash."""
    layers, lossy = integer_layers(model), lossy_layers(model)
    if not layers:
        return "f32"
    if len(lossy) in (0, len(layers)):
        return LOSSY if lossy else EXACT
    digest = hashlib.sha256("\n".join(sorted(lossy)).encode()).hexdigest()
    return f"mix {digest[:16]} ({len(lossy)} of {len(layers)} layers int8)"


@dataclass(frozen=True)
class _Group:
    """Layers that were measured together: the divergence when only they are int8, and the work this makes cheaper."""

    layers: tuple[str, ...]
    divergence: float
    work: int

    @property
    def price(self) -> float:
        return self.divergence / self.work


def choose_lossy(
    work: Mapping[str, int], measure: Callable[[Layers], float], budget: float, *, passes: int = 40
) -> Layers:
    """The layers that may be int8: as much work as possible with a divergence of at most `budget`.

    work     layer -> multiplications per row: what int8 makes cheaper. Never a clock, so the same measures give the
             same layers
    measure  the divergence of a mix, called about `passes` times

    All layers together come first. Groups that do not fit are measured in halves: by kind of layer, then by depth.
    What fits by the sum of its parts is measured as a whole, and the sum is corrected by what came out.
    """
    halving, count = (3 * passes) // 4, 1

    def measured(layers: Sequence[str]) -> _Group:
        return _Group(tuple(layers), measure(frozenset(layers)), sum(work[name] for name in layers))

    groups = [measured(list(work))] if work else []
    while count < halving:
        taken = _fill(groups, budget)
        apart = [group for group in groups if group not in taken and len(group.layers) > 1]
        if not apart:
            break
        largest = max(apart, key=lambda group: group.work)
        parts = _parts(largest.layers)
        groups.remove(largest)
        groups += [measured(part) for part in parts]
        count += len(parts)
    return _verified(groups, measure, budget, passes - count)


def _verified(groups: Sequence[_Group], measure: Callable[[Layers], float], budget: float, passes: int) -> Layers:
    """The most work of some groups whose divergence, measured together, is within the budget."""
    best, best_work, aim, tried = frozenset[str](), 0, budget, set[Layers]()
    for _ in range(max(passes, 2)):
        taken = _fill(groups, aim)
        layers = frozenset(name for group in taken for name in group.layers)
        if not layers or layers in tried:
            break
        tried.add(layers)
        divergence = taken[0].divergence if len(taken) == 1 else measure(layers)
        work = sum(group.work for group in taken)
        if divergence <= budget and work > best_work:
            best, best_work = layers, work
        aim *= min(1.5, (1.0 if divergence <= budget else 0.9) * budget / max(divergence, 1e-12))
    return best


def _fill(groups: Sequence[_Group], budget: float) -> list[_Group]:
    """The groups with the least divergence for their work, as long as the sum is within the budget."""
    taken, total = [], 0.0
    for group in sorted(groups, key=lambda group: group.price):
        if total + group.divergence <= budget:
            taken.append(group)
            total += group.divergence
    return taken


def _parts(layers: Sequence[str]) -> list[Sequence[str]]:
    """Layers by kind (their path without numbers), or two halves by depth if they are of one kind."""
    kinds: dict[str, list[str]] = {}
    for name in layers:
        kinds.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    middle = len(layers) // 2
    return list(kinds.values()) if len(kinds) > 1 else [layers[:middle], layers[middle:]]


def _each_linear(value: Any, change: Callable[[str, Linear], Linear], name: str = "") -> Any:
    """The value with every linear layer inside it replaced by what `change` makes of it."""
    if isinstance(value, Linear):
        return change(name, value)
    if isinstance(value, tuple):
        items = [_each_linear(item, change, f"{name}.{index}") for index, item in enumerate(value)]
        return tuple(items) if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {}
    for field in fields(value):
        old = getattr(value, field.name)
        new = _each_linear(old, change, f"{name}.{field.name}" if name else field.name)
        if new is not old:
            changes[field.name] = new
    return replace(value, **changes) if changes else value
