"""Native CPU kernels: instruction sets and thread counts agree bit for bit, and wrong tensors are refused by name."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch

from tests.kernels.conftest import ISAS
from vivace.errors import ConfigError
from vivace.kernels.cpu.bind import NativeOps
from vivace.kernels.layout import pack_panels
from vivace.kernels.ops import f32_weight

pytestmark = pytest.mark.usefixtures("needs_native")


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 7, 5), (3, 300, 50), (70, 513, 200), (2, 900, 1000)])
def test_linear_is_the_same_bits_for_any_isa_and_thread_count(rows: int, inputs: int, outputs: int) -> None:
    generator = torch.Generator().manual_seed(5)
    weight = pack_panels(f32_weight(torch.randn(outputs, inputs, generator=generator), torch.randn(outputs)))
    x = torch.randn(rows, inputs, generator=generator)
    results = [NativeOps(isa, threads).linear(x, weight) for isa in ISAS for threads in (1, 2, 3)]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 576])
def test_rms_norm_is_the_same_bits_for_any_isa_and_thread_count(width: int) -> None:
    x, weight = torch.randn(1500, width, generator=torch.Generator().manual_seed(6)), torch.rand(width)
    results = [NativeOps(isa, threads).rms_norm(x, weight, 1e-6) for isa in ISAS for threads in (1, 2)]
    assert all(torch.equal(result, results[0]) for result in results)


def test_calls_from_several_threads_at_once_give_the_same_bits() -> None:
    native = NativeOps(None, 2)
    weight = pack_panels(f32_weight(torch.randn(333, 257, generator=torch.Generator().manual_seed(7))))
    x = torch.randn(65, 257, generator=torch.Generator().manual_seed(8))
    expected = native.linear(x, weight)
    wrong: list[int] = []

    def call(number: int) -> None:
        if not all(torch.equal(native.linear(x, weight), expected) for _ in range(20)):
            wrong.append(number)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_computes_without_the_workers() -> None:
    native = NativeOps(None, 2)
    weight = pack_panels(f32_weight(torch.ones(500, 500)))
    x = torch.ones(8, 500)
    child = os.fork()
    if child == 0:
        os._exit(0 if bool((native.linear(x, weight) == 500).all()) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 8, dtype=torch.float64)}, r"x is not float32: shape \(2, 8\), expected .* \(any, any\)"),
        ({"x": torch.zeros(8, 2).t()}, "x is not contiguous"),
        ({"x": torch.zeros(8)}, r"x has the wrong shape: shape \(8\)"),
        ({"x": torch.zeros(2, 9)}, r"weights has the wrong shape: shape \(2, 8, 16\), expected .* \(2, 9, 16\)"),
        ({"weights": torch.zeros(1, 8, 16)}, r"weights has the wrong shape"),
        ({"bias": torch.zeros(19)}, r"bias has the wrong shape: shape \(19\), expected .* \(20\)"),
        ({"residual": torch.zeros(1, 20)}, r"residual has the wrong shape"),
        ({"y": torch.zeros(3, 20)}, r"y has the wrong shape"),
    ],
)
def test_a_wrong_tensor_is_refused_with_its_name(change: dict[str, Any], message: str) -> None:
    good = {"x": torch.zeros(2, 8), "weights": torch.zeros(2, 8, 16), "bias": None, "residual": None}
    kernels = NativeOps(None, 1)._kernels
    kernels.linear(**good, y=torch.zeros(2, 20))
    with pytest.raises(ValueError, match=message):
        kernels.linear(**{**good, "y": torch.zeros(2, 20), **change})


def test_unknown_instruction_sets_and_thread_counts_are_refused() -> None:
    with pytest.raises(ConfigError, match="instruction set 'avx3' is not available"):
        NativeOps("avx3", 1)
    with pytest.raises(ValueError, match="threads is 0"):
        NativeOps(None, 0)
