"""Weights in codes: packed without loss, multiplied exactly, the same bits in any batch, on any instruction set.

The matrices here are random: codes over their whole range, scales of both signs, minima where a coding has them. What
the codes of a file's types mean is tested in tests/weights.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.kernels.conftest import ISAS
from vivace.config import WeightFormat
from vivace.kernels import select
from vivace.kernels.cpu.bind import NativeOps
from vivace.kernels.cpu.pack import QUANT_FORMAT, pack_native, unpack_quant
from vivace.kernels.ops import LinearWeight, stored_weight
from vivace.kernels.quantized import IN_MEMORY, Coding, PlainMatrix, Quantized, RoundedMatrix, kept_as

pytestmark = pytest.mark.usefixtures("needs_native")

TABLE = (-128, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 127)
CODINGS = {
    "2 bits": Coding(2, zero=2),
    "2 bits, fine minima of 16": Coding(2, group=16, span=256, has_minimum=True, has_fine=True),
    "3 bits, fine": Coding(3, group=16, span=256, zero=4, has_fine=True),
    "3 bits, minima": Coding(3, has_minimum=True),
    "4 bits": Coding(4, zero=8),
    "4 bits, minima": Coding(4, has_minimum=True),
    "4 bits, fine": Coding(4, span=256, zero=4, has_fine=True, group=16),
    "4 bits, fine minima": Coding(4, span=256, has_minimum=True, has_fine=True),
    "4 bits, fine minima of 16": Coding(4, group=16, span=256, has_minimum=True, has_fine=True),
    "4 bits, table": Coding(4, table=TABLE),
    "4 bits, table, fine": Coding(4, span=256, has_fine=True, table=TABLE),
    "4 bits, table, float32": Coding(4, is_f32=True, table=TABLE),
    "5 bits": Coding(5, zero=16),
    "5 bits, minima": Coding(5, has_minimum=True),
    "5 bits, fine minima": Coding(5, span=256, has_minimum=True, has_fine=True),
    "6 bits, fine": Coding(6, group=16, span=256, zero=32, has_fine=True),
    "8 bits": Coding(8, zero=128),
}
FEW = ("2 bits, fine minima of 16", "3 bits, fine", "4 bits, minima", "5 bits", "6 bits, fine", "8 bits")
LEVELS = {"int14": 8191, "int8": 127}


class Random:
    """A matrix in codes."""

    dtype, origin = torch.float32, IN_MEMORY

    def __init__(self, coding: Coding, outputs: int, inputs: int, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.coding, self.outputs, self.inputs = coding, outputs, inputs

        def coarse() -> Tensor:
            drawn = torch.randn(outputs, inputs // coding.span, generator=draw) / 64
            return drawn if coding.is_f32 else drawn.half()

        def fine(low: int) -> Tensor | None:
            shape = (outputs, inputs // coding.group)
            return torch.randint(low, 128, shape, generator=draw).to(torch.int8) if coding.has_fine else None

        codes = torch.randint(0, 2**coding.bits, (outputs, inputs), generator=draw).to(torch.uint8)
        minima = (coarse(), fine(0)) if coding.has_minimum else (None, None)
        self.parts = Quantized(codes, coarse(), fine(-128), *minima)

    def plain(self) -> Tensor:
        return self.parts.values(self.coding)

    def quantized(self, first: int, last: int) -> Quantized:
        parts = vars(self.parts).items()
        return Quantized(**{name: None if part is None else part[first:last] for name, part in parts})


@pytest.mark.parametrize("name", CODINGS)
@pytest.mark.parametrize("outputs", [1, 16, 47, 48, 129])
def test_packing_loses_nothing(name: str, outputs: int) -> None:
    matrix = Random(CODINGS[name], outputs, 512)
    weight = pack_native(stored_weight([matrix]), "int14")
    assert (weight.format, weight.outputs, weight.inputs) == (QUANT_FORMAT, outputs, 512)
    assert torch.equal(unpack_quant(weight), matrix.plain())


@pytest.mark.parametrize("name", CODINGS)
def test_codes_take_their_bits_and_no_more(name: str) -> None:
    coding, weight = CODINGS[name], pack_native(stored_weight([Random(CODINGS[name], 48, 512)]), "int14")
    factors = 2 if coding.has_minimum else 1
    coarse = 512 / coding.span * (4 if coding.is_f32 else 2)
    fine = 512 / coding.group if coding.has_fine else 0
    assert len(weight.data) == 48 * (512 * coding.bits / 8 + factors * (coarse + fine))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CODINGS)
@pytest.mark.parametrize("activations", LEVELS)
def test_the_product_is_that_of_the_quantized_activations(isa: str, name: str, activations: str) -> None:
    matrix = Random(CODINGS[name], 70, 512, seed=1)
    x = _inputs(9, 512)
    native = NativeOps(isa, 1)
    y = native.linear(x, pack_native(stored_weight([matrix]), activations))
    quantized = _quantized(x, LEVELS[activations])
    exact, size = quantized @ matrix.plain().double().t(), quantized.abs() @ _sizes(matrix).double().t()
    # Per group at most six roundings of relative size 2^-24, and one a group when it is added: 32 groups of 16.
    assert ((y.double() - exact).abs() <= (32 + 6) * 2.0**-24 * size).all()


@pytest.mark.parametrize("name", CODINGS)
@pytest.mark.parametrize("activations", LEVELS)
def test_all_instruction_sets_and_thread_counts_agree(name: str, activations: str) -> None:
    weight = pack_native(_with_bias(stored_weight([Random(CODINGS[name], 200, 768, seed=2)])), activations)
    x = _inputs(70, 768)
    results = [NativeOps(isa, threads).linear(x, weight) for isa in ISAS for threads in (1, 2, 3)]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CODINGS)
@pytest.mark.parametrize("activations", LEVELS)
def test_a_row_is_the_same_bits_in_any_batch_at_any_place(isa: str, name: str, activations: str) -> None:
    native = NativeOps(isa, 1)
    weight = pack_native(_with_bias(stored_weight([Random(CODINGS[name], 100, 512, seed=3)])), activations)
    x = _inputs(150, 512)
    whole = native.linear(x, weight)
    for first, last in ((0, 1), (149, 150), (1, 3), (2, 6), (5, 12), (7, 15), (3, 68), (40, 150)):
        assert torch.equal(native.linear(x[first:last].clone(), weight), whole[first:last])
    assert native.linear(x[:0], weight).shape == (0, 100)


def test_linear_add_is_linear_then_one_sum() -> None:
    native, x = NativeOps(None, 2), _inputs(33, 256)
    weight = pack_native(_with_bias(stored_weight([Random(CODINGS["8 bits"], 90, 256)])), "int14")
    residual = torch.randn(33, 90)
    assert torch.equal(native.linear_add(x, weight, residual), residual + native.linear(x, weight))


def test_matrices_of_several_codings_form_one_weight() -> None:
    native, x = NativeOps(None, 2), _inputs(5, 512)
    matrices = [
        Random(CODINGS[name], outputs, 512) for name, outputs in zip(FEW, (20, 48, 33, 16, 100, 49), strict=True)
    ]
    whole = pack_native(stored_weight(matrices), "int14")
    alone = [native.linear(x, pack_native(stored_weight([matrix]), "int14")) for matrix in matrices]
    assert torch.equal(native.linear(x, whole), torch.cat(alone, dim=1))
    assert torch.equal(unpack_quant(whole), torch.cat([matrix.plain() for matrix in matrices]))


def test_embedding_reads_the_table_that_the_head_uses() -> None:
    native, matrix = NativeOps(None, 1), Random(CODINGS["8 bits"], 53, 64)
    table, ids = pack_native(stored_weight([matrix]), "int14"), torch.tensor([52, 0, 15, 16, 47, 48, 0])
    assert torch.equal(native.embedding(ids, table), matrix.plain()[ids])
    assert torch.equal(native.embedding(ids, table, 1.5), matrix.plain()[ids] * 1.5)
    assert native.embedding(ids[:0], table).shape == (0, 64)
    with pytest.raises(ValueError, match="ids holds 53, expected 0 to 52"):
        native.embedding(torch.tensor([53]), table)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activations", LEVELS)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_spoils_its_own_row_only(isa: str, activations: str, wrong: float) -> None:
    native, x = NativeOps(isa, 1), _inputs(7, 256)
    for name in FEW:
        weight = pack_native(stored_weight([Random(CODINGS[name], 50, 256)]), activations)
        good = native.linear(x, weight)
        spoiled = x.clone()
        spoiled[2, 77] = wrong
        y = native.linear(spoiled, weight)
        assert not y[2].isfinite().any()
        y[2] = good[2]
        assert torch.equal(y, good)


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-31, 1e-20, 1e20, 1e33])
def test_tiny_and_huge_activations_are_as_exact_as_others(size: float) -> None:
    matrix, x = Random(CODINGS["4 bits, minima"], 48, 256), torch.full((2, 256), size)
    y = NativeOps(None, 1).linear(x, pack_native(stored_weight([matrix]), "int14"))
    exact = x.double() @ matrix.plain().double().t()
    bound = 2e-4 * x.double().abs() @ _sizes(matrix).double().t()  # half a level of 8191, and roundings
    # A group whose largest activation is below 2^-100 counts as zero.
    assert (y == 0).all() if size < 2.0**-100 else ((y.double() - exact).abs() <= bound).all()


def test_what_no_integer_kernel_reads_becomes_float_panels() -> None:
    matrix = Random(CODINGS["8 bits"], 20, 64)
    assert pack_native(stored_weight([matrix]), "f32").format == "f32_panel16"
    mixed = stored_weight([matrix, PlainMatrix(torch.randn(7, 64))])
    assert pack_native(mixed, "int14").format == "f32_panel16"
    assert pack_native(stored_weight([PlainMatrix(torch.randn(7, 64))]), "int14").format == "f32_panel16"


def test_the_module_refuses_layouts_and_tensors_that_do_not_fit() -> None:
    weight = pack_native(stored_weight([Random(CODINGS["8 bits"], 20, 64)]), "int14")
    native = NativeOps(None, 1)
    for shape, message in (((2, 32), "x has the wrong shape"), ((64,), "x has the wrong shape")):
        with pytest.raises(ValueError, match=message):
            native._kernels.quant_linear(torch.zeros(shape), weight.handle, None, None, torch.zeros(2, 20))
    with pytest.raises(ValueError, match="y has the wrong shape"):
        native._kernels.quant_linear(torch.zeros(2, 64), weight.handle, None, None, torch.zeros(2, 21))
    with pytest.raises(ValueError, match="no kernel reads"):
        pack_native(stored_weight([Random(Coding(8, zero=3), 4, 64)]), "int14")
    with pytest.raises(ValueError, match="no kernel reads"):
        pack_native(stored_weight([Random(replace(CODINGS["8 bits"], group=16), 4, 64)]), "int14")


def _inputs(rows: int, inputs: int) -> Tensor:
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows + inputs))
    x[:, 32:64] = 0.0  # a group of zeros
    x[:, 70] *= 30.0  # and one with an outlier
    return x


def _with_bias(weight: LinearWeight) -> LinearWeight:
    return replace(weight, bias=torch.randn(weight.outputs, generator=torch.Generator().manual_seed(9)))


def _quantized(x: Tensor, levels: int) -> Tensor:
    """The activations that the kernels multiply, float64."""
    groups = x.unflatten(1, (-1, 32))
    largest = groups.abs().amax(2, keepdim=True)
    codes = torch.round(groups.double() * torch.where(largest > 0, levels / largest, 0.0).double())
    return (codes * (largest / levels).double()).flatten(1)


def _sizes(matrix: Random) -> Tensor:
    """|scale * (code - zero)| + |minimum| of each weight: what its roundings are relative to."""
    coding, parts = matrix.coding, matrix.parts
    without = Quantized(parts.codes, parts.coarse, parts.fine)
    if not coding.has_minimum:
        return without.values(coding).abs()
    zeros = torch.zeros_like(parts.codes)
    minima = Quantized(zeros, parts.coarse, parts.fine, parts.coarse_minimum, parts.fine_minimum)
    return (matrix.plain() - minima.values(coding)).abs() + minima.values(coding).abs()


def test_rounded_weights_are_within_half_a_level_and_packed_without_loss() -> None:
    source = PlainMatrix(torch.randn(19, 96, generator=torch.Generator().manual_seed(3)) * 1e-3)
    source.data[4, 32:64] = 0
    rounded = kept_as(source, "int8")
    scales = source.data.view(19, 3, 32).abs().amax(2) / 127
    assert ((rounded.plain() - source.data).view(19, 3, 32).abs() <= scales.unsqueeze(2) * 0.500001).all()
    assert torch.equal(unpack_quant(pack_native(stored_weight([rounded]), "int8")), rounded.plain())


def test_only_floats_in_whole_groups_are_rounded() -> None:
    odd, whole = PlainMatrix(torch.ones(2, 48)), PlainMatrix(torch.ones(2, 64))
    coded = Random(CODINGS["4 bits"], 2, 64)
    assert kept_as(odd, "int8") is odd
    assert isinstance(kept_as(whole, "int8"), RoundedMatrix)
    assert kept_as(whole, "bf16").dtype == torch.bfloat16
    assert all(kept_as(coded, weights) is coded for weights in ("int8", "bf16"))
    assert kept_as(whole, "stored") is whole


@pytest.mark.parametrize("weights", ["bf16", "int8"])
def test_the_reference_reads_the_rounded_values(weights: WeightFormat) -> None:
    source, x = PlainMatrix(torch.randn(7, 64)), torch.randn(3, 64)
    ops = select.resolve(choice="ref", weights=weights)
    expected = x @ kept_as(source, weights).plain().float().t()
    torch.testing.assert_close(ops.linear(x, ops.pack_linear(stored_weight([source]))), expected)


def test_weights_that_are_no_numbers_stay_so() -> None:
    data = torch.ones(2, 64)
    data[0, 3], data[1, 40] = float("nan"), float("inf")
    for activations in LEVELS:
        weight = pack_native(stored_weight([kept_as(PlainMatrix(data), "int8")]), activations)  # type: ignore[arg-type]
        assert not NativeOps(None, 1).linear(torch.ones(1, 64), weight).isfinite().any()
