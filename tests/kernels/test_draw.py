"""`draw` takes the ids that the sampling techniques take one after the other, whatever the scores."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.kernels.conftest import ISAS
from vivace.kernels.cpu.bind import NativeOps
from vivace.kernels.ops import DrawSpec
from vivace.kernels.ref import choose
from vivace.kernels.select import BoundOps
from vivace.techniques import index
from vivace.techniques.sampling.base import History, Parts
from vivace.techniques.sampling.draw import categorical, uniform

NAN, INF = math.nan, math.inf
SPECS = [
    DrawSpec(),
    DrawSpec(temperature=0.7),
    DrawSpec(temperature=1.5, top_k=40),
    DrawSpec(temperature=0.8, top_p=0.9),
    DrawSpec(top_p=0.999),
    DrawSpec(temperature=2.0, min_p=0.05),
    DrawSpec(temperature=0.8, top_k=40, top_p=0.9, min_p=0.02),
    DrawSpec(temperature=1e-30),
    DrawSpec(temperature=50.0, top_k=1000, top_p=0.5),
    DrawSpec(top_k=1),
    DrawSpec(top_k=10**9),
    DrawSpec(top_p=1e-9),
    DrawSpec(min_p=1.0),
]
SHAPES = {
    "normal": lambda n, g: torch.randn(n, generator=g) * 4,
    "flat": lambda n, g: torch.randn(n, generator=g) / 100,
    "steps": lambda n, g: torch.randint(-8, 3, (n,), generator=g).float(),  # many equal scores
    "equal": lambda n, g: torch.full((n,), 3.25),
    "peak": lambda n, g: torch.cat([torch.tensor([40.0]), torch.randn(n, generator=g)])[:n],
    "few": lambda n, g: torch.where(torch.rand(n, generator=g) < 0.9, -INF, torch.randn(n, generator=g)).index_fill(
        0, torch.tensor(n - 1), 0.5
    ),
    "rising": lambda n, g: torch.linspace(-30, 0, n),
    "falling": lambda n, g: torch.linspace(0, -30, n),
}


def chain(row: Tensor, spec: DrawSpec, seed: int, position: int) -> int:
    """The techniques themselves."""
    scores, history = row.clone(), History(torch.zeros(0, dtype=torch.int64), 0)
    for name in ("temperature", "top_k", "top_p", "min_p"):
        config = index.SAMPLING.load(name).parse({"value": getattr(spec, name)})
        scores = index.make(config, Parts(len(row)))(scores, history)
    return categorical(scores, seed, position)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("width", [1, 2, 17, 256, 257, 1000, 49_152])
def test_draw_is_the_chain_of_techniques(ops: BoundOps, shape: str, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    for number, spec in enumerate(SPECS):
        row = SHAPES[shape](width, generator)
        expected = [chain(row, spec, number, position) for position in range(3)]
        uniforms = torch.tensor([uniform(number, position) for position in range(3)], dtype=torch.float64)
        assert ops.draw(row.expand(3, -1).contiguous(), spec, uniforms).tolist() == expected, spec


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_vocabulary_of_262145_gives_the_ids_of_the_chain_on_every_instruction_set(spec: DrawSpec) -> None:
    row = torch.randn(262_145, generator=torch.Generator().manual_seed(3)) * 3
    row[7], row[262_144], row[90_000] = -INF, row.max(), row.max()  # equals far apart, one in the last, partial vector
    for position in range(2):
        u = torch.tensor([uniform(9, position)], dtype=torch.float64)
        expected = chain(row, spec, 9, position)
        found = {int(NativeOps(isa, threads).draw(row[None], spec, u)) for isa in ISAS for threads in (1, 2)}
        assert found == {expected}


@pytest.mark.usefixtures("needs_native")
def test_every_share_of_a_small_vocabulary_is_hit_as_often_as_it_weighs() -> None:
    row, many = torch.tensor([0.0, 1.0, -INF, 1.0, 2.0]), 1000
    uniforms = (torch.arange(many, dtype=torch.float64) + 0.5) / many
    ids = NativeOps(None, 2).draw(row.expand(many, -1).contiguous(), DrawSpec(), uniforms)
    expected = torch.softmax(row.double(), 0) * many
    assert (torch.bincount(ids, minlength=5) - expected).abs().max() <= 1  # inversion rounds each bound once
    assert (ids.diff() >= 0).all()


def test_the_lowest_and_the_highest_number_draw_ids_that_have_weight(ops: BoundOps) -> None:
    row = torch.tensor([[-INF, 0.0, -INF, 1.0, -INF]])
    for u, expected in ((0.0, 1), (math.nextafter(1.0, 0.0), 3)):
        assert ops.draw(row, DrawSpec(), torch.tensor([u], dtype=torch.float64)).tolist() == [expected]


def test_a_nan_is_never_drawn(ops: BoundOps) -> None:
    generator = torch.Generator().manual_seed(1)
    row = torch.randn(600, generator=generator)
    odd = torch.where(torch.rand(600, generator=generator) < 0.5, NAN, row)
    without = torch.where(odd.isnan(), -INF, odd)
    uniforms = torch.rand(20, dtype=torch.float64, generator=generator)
    for spec in (*SPECS, replace(DrawSpec(), top_k=400, top_p=0.9)):
        drawn = ops.draw(odd.expand(20, -1).contiguous(), spec, uniforms)
        assert torch.equal(drawn, ops.draw(without.expand(20, -1).contiguous(), spec, uniforms))
        assert not odd[drawn].isnan().any()


@pytest.mark.parametrize("odd", [NAN, INF, -INF])
def test_a_row_without_a_finite_largest_score_is_refused_and_named(ops: BoundOps, odd: float) -> None:
    x = torch.zeros(3, 300)
    x[2] = odd
    with pytest.raises(ValueError, match="no id can be drawn from row 2"):
        ops.draw(x, DrawSpec(top_k=3), torch.zeros(3, dtype=torch.float64))
    assert ops.draw(x[:2], DrawSpec(), torch.zeros(2, dtype=torch.float64)).tolist() == [0, 0]
    assert ops.draw(x[:0], DrawSpec(), torch.zeros(0, dtype=torch.float64)).shape == (0,)


@pytest.mark.usefixtures("needs_native")
def test_random_chains_draw_alike() -> None:
    generator = torch.Generator().manual_seed(5)
    native = NativeOps(None, 2)
    for turn in range(300):
        width = int(torch.randint(1, 3000, (), generator=generator))
        a, b, c, d = torch.rand(4, generator=generator).tolist()
        spec = DrawSpec(3 * a + 0.01, int(b * 200), 1.0 if turn % 3 else c, 0.0 if turn % 2 else d)
        row = torch.randn(width, generator=generator) * 5
        row = row.round() if turn % 5 == 0 else row
        u = torch.tensor([uniform(turn, 0)], dtype=torch.float64)
        assert int(native.draw(row[None], spec, u)) == chain(row, spec, turn, 0), (turn, spec)
        assert int(choose.draw(row[None], spec, u)) == chain(row, spec, turn, 0), (turn, spec)
