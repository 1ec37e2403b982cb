"""Which layers may be int8: the choice from a table of made-up sensitivities, in few measurements."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from vivace.layers.precision import Layers, choose_lossy

KINDS = ("qkv", "out", "up", "down")
NAMES = tuple(f"blocks.{block}.{kind}" for block in range(12) for kind in KINDS)
WORK = {name: 3 if name.endswith(("up", "down")) else 1 for name in NAMES}


class Table:
    """Divergences that add up, and a count of the measurements; `bend` makes a mix worse than the sum of its parts."""

    def __init__(self, parts: dict[str, float], bend: float = 1.0) -> None:
        self.parts, self.bend, self.calls = parts, bend, 0

    def __call__(self, layers: Layers) -> float:
        self.calls += 1
        total = sum(self.parts[name] for name in layers)
        return total if len(layers) <= len(KINDS) * 6 else self.bend * total


def choose(table: Table, budget: float) -> Layers:
    return choose_lossy(WORK, table, budget, passes=40)


def test_all_layers_are_taken_after_one_measurement_where_they_fit() -> None:
    table = Table(dict.fromkeys(NAMES, 1.0))
    assert choose(table, 48.0) == frozenset(NAMES)
    assert table.calls == 1


def test_one_sensitive_layer_is_found_and_left_out() -> None:
    guilty = "blocks.7.down"
    table = Table({**dict.fromkeys(NAMES, 0.01), guilty: 50.0})
    assert choose(table, 1.0) == frozenset(NAMES) - {guilty}
    assert table.calls < len(NAMES) / 2


def test_the_most_work_for_its_divergence_comes_first() -> None:
    table = Table({name: {"qkv": 8.0, "out": 5.0, "up": 1.0, "down": 2.0}[name.split(".")[2]] for name in NAMES})
    assert Counter(name.split(".")[2] for name in choose(table, 36.0)) == {"up": 12, "down": 12}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("bend", [1.0, 1.8, 0.6])
def test_the_chosen_mix_is_within_the_budget_as_measured_and_most_of_what_is_possible(seed: int, bend: float) -> None:
    draw = random.Random(seed)
    parts = {name: draw.lognormvariate(0.0, 1.0) for name in NAMES}
    budget, table = 0.3 * sum(parts.values()), Table(parts, bend)
    chosen = choose(table, budget)
    assert table.calls <= 44
    assert Table(parts, bend)(chosen) <= budget
    possible, left = 0, budget / max(bend, 1.0)
    for name in sorted(NAMES, key=lambda name: parts[name] / WORK[name]):
        left -= parts[name]
        possible += WORK[name] if left >= 0 else 0
    assert sum(WORK[name] for name in chosen) > 0.6 * possible


def test_nothing_is_taken_where_nothing_fits() -> None:
    for worst in (9.0, math.inf):
        assert choose(Table(dict.fromkeys(NAMES, worst)), 1.0) == frozenset()
    assert choose_lossy({}, Table({}), 1.0) == frozenset()
