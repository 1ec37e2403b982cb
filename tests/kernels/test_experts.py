"""`route`, `grouped_linear`, `combine` and `expert_mlp`: right, defined for every input, the same bits in any batch."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.kernels.bounds import assert_dot_close
from tests.kernels.conftest import ISAS
from vivace.kernels.cpu.bind import NativeOps
from vivace.kernels.ops import ExpertWeights, LinearWeight, RouteSpec, f32_weight, stored_weight
from vivace.kernels.quantized import PlainMatrix
from vivace.kernels.ref import experts as reference
from vivace.kernels.select import BoundOps, resolve
from vivace.kernels.tape import Recorder, Replay, named_parts
from vivace.weights.gguf_types import TYPES
from vivace.weights.stored import GgufMatrix

V3 = RouteSpec(count=3, scoring="sigmoid", groups=4, kept_groups=2, group_best=2, scale=2.5)
SPECS = {
    "softmax": RouteSpec(count=2),
    "plain": RouteSpec(count=4, is_normalized=False),
    "sigmoid": RouteSpec(count=1, scoring="sigmoid", is_normalized=False),
    "groups": RouteSpec(count=3, groups=4, kept_groups=2, scale=16.0),
    "v3": V3,
    "every": RouteSpec(count=16),
}
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_route_matches_float64(ops: BoundOps, spec: RouteSpec, has_bias: bool) -> None:
    logits, bias = randn(40, 16) * 3, randn(16, seed=1) if has_bias else None
    chosen, weights = ops.route(logits, spec, bias)
    for row, (ids, found) in enumerate(zip(chosen.tolist(), weights.tolist(), strict=True)):
        expected = routed(logits[row].double(), spec, None if bias is None else bias.double())
        assert ids == list(expected)
        assert found == pytest.approx(list(expected.values()), rel=3e-6)


def routed(logits: Tensor, spec: RouteSpec, bias: Tensor | None) -> dict[int, float]:
    """Expert -> weight of one row, one expert at a time."""
    scores = [float(x) for x in (torch.softmax(logits, 0) if spec.scoring == "softmax" else torch.sigmoid(logits))]
    ranks = [score + (0.0 if bias is None else float(bias[e])) for e, score in enumerate(scores)]
    members = len(scores) // spec.groups
    sums = {g: sum(sorted(ranks[g * members : (g + 1) * members])[-spec.group_best :]) for g in range(spec.groups)}
    kept = sorted(sums, key=lambda g: -sums[g])[: spec.kept_groups]
    ids = sorted((e for e in range(len(scores)) if e // members in kept), key=lambda e: -ranks[e])[: spec.count]
    total = sum(scores[e] for e in ids) if spec.is_normalized else 1.0
    return {e: scores[e] / total * spec.scale for e in ids}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_of_equal_experts_the_lowest_is_taken(ops: BoundOps, spec: RouteSpec) -> None:
    chosen, weights = ops.route(torch.zeros(3, 16), spec)
    assert chosen.tolist() == [list(range(spec.count))] * 3
    assert torch.equal(weights, weights[:1, :1].expand(3, spec.count))
    ties = torch.tensor([[0.0, 2.0, 1.0, 2.0, 2.0, 1.0]])
    assert ops.route(ties, RouteSpec(5))[0].tolist() == [[1, 3, 4, 2, 5]]


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("odd", [NAN, INF, -INF])
def test_odd_logits_choose_experts_that_exist_and_a_nan_reaches_the_weights(
    ops: BoundOps, spec: RouteSpec, odd: float
) -> None:
    logits = randn(3, 16)
    expected = ops.route(logits, spec)
    logits[1, 5] = odd
    chosen, weights = ops.route(logits, spec)
    assert ((chosen >= 0) & (chosen < 16)).all()
    assert all(len(set(ids)) == spec.count for ids in chosen.tolist())
    for row in (0, 2):
        assert torch.equal(chosen[row], expected[0][row]) and torch.equal(weights[row], expected[1][row])
    if math.isnan(odd):
        assert chosen[1].tolist() == reference.route(logits, spec)[0][1].tolist()
        assert weights[1].isnan().any()
    everything = ops.route(torch.full((1, 16), odd), spec)[0].tolist()
    assert everything == [list(range(spec.count))]


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("experts", [1, 5, 16, 17, 300])
def test_native_routes_as_the_reference_and_alike_on_every_instruction_set(experts: int) -> None:
    logits, bias = randn(50, experts), randn(experts, seed=2) / 8
    for spec in (RouteSpec(min(experts, 4)), RouteSpec(1, "sigmoid"), RouteSpec(experts)):
        expected, weights = reference.route(logits, spec, bias)
        results = [NativeOps(isa, threads).route(logits, spec, bias) for isa in ISAS for threads in (1, 2)]
        assert all(torch.equal(c, results[0][0]) and torch.equal(w, results[0][1]) for c, w in results)
        assert torch.equal(results[0][0], expected)
        torch.testing.assert_close(results[0][1], weights, rtol=2e-6, atol=0)


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (RouteSpec(17), "a row takes 17 experts out of 16"),
        (RouteSpec(9, groups=4, kept_groups=2), "9 experts out of 8"),
        (RouteSpec(1, groups=3), "16 experts do not divide into 3 groups"),
        (replace(V3, group_best=5), "groups do not fit"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(spec: RouteSpec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NativeOps(None, 1).route(randn(2, 16), spec)


CHOICES = {
    "mixed": lambda rows: torch.randint(0, 5, (rows, 3), generator=torch.Generator().manual_seed(rows)),
    "all to one": lambda rows: torch.full((rows, 2), 3),
    "none for most": lambda rows: torch.arange(rows)[:, None] % 2 * 4,
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(0, 8, 5), (1, 1, 1), (3, 33, 47), (70, 20, 100), (200, 40, 17)]
)
@pytest.mark.parametrize("has_places", [False, True])
def test_grouped_linear_matches_float64(
    ops: BoundOps, choice: str, rows: int, inputs: int, outputs: int, has_places: bool
) -> None:
    chosen = CHOICES[choice](rows).int()
    plain = [f32_weight(randn(outputs, inputs, seed=e), randn(outputs, seed=9 + e)) for e in range(5)]
    x = randn(rows, chosen.shape[1], inputs) if has_places else randn(rows, inputs)
    y = ops.grouped_linear(x, chosen, ops.pack_experts(plain))
    assert y.shape == (rows, chosen.shape[1], outputs)
    for row in range(rows):
        for place, expert in enumerate(chosen[row].tolist()):
            source = x[row, place] if has_places else x[row]
            assert_dot_close(y[row, place][None], source[None], plain[expert].data, plain[expert].bias)


def quantized(kind: str, outputs: int, inputs: int, seed: int) -> LinearWeight:
    """Random codes; bytes below 64 make scales of small positive numbers."""
    [found] = [known for known in TYPES.values() if known.name == kind]
    row_bytes = inputs // found.block_size * found.block_bytes
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 64, (outputs, row_bytes), dtype=torch.uint8, generator=generator)
    return stored_weight([GgufMatrix(raw, found)], randn(outputs, seed=seed))


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("kind", ["f32", "bf16", "Q4_1", "Q8_0", "Q6_K"])
def test_an_expert_gives_the_bits_of_its_linear_map_alone(kind: str) -> None:
    chosen = CHOICES["mixed"](67).int()
    for isa in ISAS:
        ops = resolve(choice="native", isa=isa, threads=2)
        if kind in ("f32", "bf16"):
            dtype = torch.float32 if kind == "f32" else torch.bfloat16
            stored = [stored_weight([PlainMatrix(randn(48, 256, seed=e).to(dtype))]) for e in range(5)]
        else:
            stored = [quantized(kind, 48, 256, e) for e in range(5)]
        weights = ops.pack_experts(stored)
        x = randn(67, 256)
        y = ops.grouped_linear(x, chosen, weights)
        alone = torch.stack([ops.linear(x, weight) for weight in weights.experts])  # (experts, rows, outputs)
        assert torch.equal(y, alone[chosen.long(), torch.arange(67)[:, None]])


def test_experts_give_a_row_the_same_bits_in_any_batch(invariant_ops: BoundOps) -> None:
    ops = invariant_ops
    logits, x = randn(30, 5), randn(30, 20)
    gate_up, down = layer(ops)

    def compute(first: int, last: int) -> Tensor:
        chosen, weights = ops.route(logits[first:last], RouteSpec(2))
        return ops.expert_mlp(x[first:last], chosen, weights, gate_up, down, "silu", x[first:last])

    whole = compute(0, 30)
    for first, last in ((0, 1), (29, 30), (3, 9), (2, 30)):
        assert torch.equal(compute(first, last), whole[first:last])


def layer(ops: BoundOps) -> tuple[ExpertWeights, ExpertWeights]:
    slices = {"gate": (0, 33), "up": (33, 66)}
    gate_up = ops.pack_experts([f32_weight(randn(66, 20, seed=e), slices=slices) for e in range(5)])
    return gate_up, ops.pack_experts([f32_weight(randn(20, 33, seed=e)) for e in range(5)])


@pytest.mark.parametrize("has_residual", [False, True])
def test_expert_mlp_is_a_weighted_sum_of_gated_mlps(ops: BoundOps, has_residual: bool) -> None:
    x, residual = randn(9, 20), randn(9, 20, seed=5) if has_residual else None
    gate_up, down = layer(ops)
    chosen, weights = ops.route(randn(9, 5), RouteSpec(3))
    y = ops.expert_mlp(x, chosen, weights, gate_up, down, "gelu_tanh", residual)
    each = torch.stack([ops.gated_mlp(x, gate_up.experts[e], down.experts[e], "gelu_tanh", None) for e in range(5)])
    picked = each[chosen.long(), torch.arange(9)[:, None]].double()  # (rows, count, outputs)
    expected = (weights.double()[..., None] * picked).sum(1) + (0 if residual is None else residual.double())
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(y[:0], ops.expert_mlp(x[:0], chosen[:0], weights[:0], gate_up, down, "silu", None))


@pytest.mark.usefixtures("needs_native")
def test_an_expert_that_does_not_exist_is_refused() -> None:
    ops = resolve(choice="native", threads=1)
    gate_up, _ = layer(ops)
    for wrong in (5, -1):
        with pytest.raises(ValueError, match=f"chosen holds {wrong}, expected 0 to 4"):
            ops.grouped_linear(randn(2, 20), torch.tensor([[0], [wrong]], dtype=torch.int32), gate_up)


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_recorded_layer_of_experts_is_eager_for_any_count_of_rows(threads: int) -> None:
    ops = resolve(choice="native", threads=threads)
    native = ops.native
    assert native is not None
    gate_up, down = layer(ops)
    parts = dict(named_parts("", {"gate_up": gate_up, "down": down}))

    def forward(bound: NativeOps, x: Tensor, logits: Tensor) -> Tensor:
        chosen, weights = bound.route(logits, RouteSpec(2))
        return bound.expert_mlp(x, chosen, weights, gate_up, down, "silu", x)

    with Recorder(native, "experts", {"rows": 40, "chosen": 1, "sequences": 1}, parts) as recorder:
        x, logits = recorder.input("x", "rows", 20), recorder.input("logits", "rows", 5)
        recorder.output("y", forward(recorder, x, logits))
    replay = Replay(recorder.program(), parts, native)
    for rows in (1, 40, 7, 0, 23):
        inputs, scores = randn(rows, 20), randn(rows, 5)
        replay.inputs["x"][:rows], replay.inputs["logits"][:rows] = inputs, scores
        replay.run(rows, 0, 0)
        assert torch.equal(replay.results["y"][:rows], forward(native, inputs, scores))


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
