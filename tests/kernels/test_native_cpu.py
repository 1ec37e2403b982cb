"""Native CPU kernels: instruction sets and thread counts agree bit for bit, and wrong tensors are refused by name."""

from __future__ import annotations

import os
import threading
from typing import Any, get_args

import pytest
import torch

from tests.kernels.conftest import ISAS
from tests.kernels.steps import GROUP, cut_step, random_past, stored_as
from tests.kernels.test_quant import Random
from vivace.errors import ConfigError
from vivace.kernels.cpu import bind
from vivace.kernels.cpu.bind import NativeOps
from vivace.kernels.cpu.pack import pack_native
from vivace.kernels.layout import pack_panels
from vivace.kernels.ops import Activation, AttentionSpec, f32_weight, stored_weight
from vivace.kernels.quantized import Coding
from vivace.kernels.store import STORE_DTYPES, to_panels

pytestmark = pytest.mark.usefixtures("needs_native")

BYTES = torch.zeros(5, 4, 2, 8, dtype=torch.int8)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 7, 5), (3, 300, 50), (70, 513, 200), (2, 900, 1000)])
def test_linear_is_the_same_bits_for_any_isa_and_thread_count(rows: int, inputs: int, outputs: int) -> None:
    generator = torch.Generator().manual_seed(5)
    weight = pack_panels(f32_weight(torch.randn(outputs, inputs, generator=generator), torch.randn(outputs)))
    x = torch.randn(rows, inputs, generator=generator)
    results = [NativeOps(isa, threads).linear(x, weight) for isa in ISAS for threads in (1, 2, 3)]
    assert _are_equal(results)


def test_an_odd_vocabulary_of_a_quarter_million_is_the_same_bits_for_any_isa_and_thread_count() -> None:
    matrix = Random(Coding(4, has_minimum=True), 262_145, 64)
    weight = pack_native(stored_weight([matrix]), "int14")
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    natives = [NativeOps(isa, threads) for isa in ISAS for threads in (1, 2, 7)]
    scores = [native.linear(x, weight) for native in natives]
    assert _are_equal(scores)
    assert _are_equal([native.argmax(scores[0]) for native in natives])
    assert torch.equal(natives[0].argmax(scores[0]), scores[0].argmax(1))
    assert torch.equal(natives[0].embedding(torch.tensor([262_144, 0]), weight), matrix.plain()[[262_144, 0]])


@pytest.mark.parametrize("width", [1, 15, 16, 17, 576])
def test_norms_are_the_same_bits_for_any_isa_and_thread_count(width: int) -> None:
    x, w = torch.randn(1500, width, generator=torch.Generator().manual_seed(6)), torch.rand(width)
    natives = [NativeOps(isa, threads) for isa in ISAS for threads in (1, 2)]
    assert _are_equal([native.rms_norm(x, w, 1e-6) for native in natives])
    assert _are_equal([native.layer_norm(x, w, w, 1e-6) for native in natives])


@pytest.mark.parametrize("kind", get_args(Activation))
def test_activations_are_the_same_bits_for_any_isa_and_thread_count(kind: Activation) -> None:
    # Every magnitude that float32 has, both signs, around the places where the exponential runs over or under.
    sizes = torch.cat([torch.logspace(-45, 38, 20000), torch.linspace(80, 110, 20000), torch.tensor([0.0, torch.inf])])
    x = torch.cat([sizes, -sizes])
    natives = [NativeOps(isa, threads) for isa in ISAS for threads in (1, 2)]
    assert _are_equal([native.activation(x, kind) for native in natives])
    assert _are_equal([native.soft_cap(x, 30.0) for native in natives])


@pytest.mark.parametrize("value_dim", [8, 64, 70, 256])
def test_attention_is_the_same_bits_for_any_isa_and_thread_count(value_dim: int) -> None:
    spec = AttentionSpec(heads=9, kv_heads=3, head_dim=64, scale=0.125, window=50, soft_cap=8.0)
    q, store, rows = cut_step(random_past((200, 90), spec, value_dim), [(0, 40, 160), (1, 89, 1)], page_size=16)
    sinks = torch.linspace(-1, 1, 9)
    natives = [NativeOps(isa, threads) for isa in ISAS for threads in (1, 2)]
    assert _are_equal([native.attention(q, store, rows, GROUP, spec, sinks) for native in natives])


@pytest.mark.parametrize("store_format", STORE_DTYPES)
@pytest.mark.parametrize("spans", [((0, 1499, 1),), ((0, 1300, 9), (1, 20, 1)), ((0, 600, 400),)], ids=str)
def test_a_long_context_is_the_same_bits_for_any_isa_and_thread_count(
    spans: tuple[tuple[int, int, int], ...], store_format: str
) -> None:
    """One thread computes a row whole, several split it into stretches where it is a large share of the step."""
    slopes, biases = torch.linspace(-0.01, 0.02, 4), torch.linspace(-1, 1, 44).view(4, 11)
    spec = AttentionSpec(heads=4, kv_heads=1, head_dim=20, scale=0.2, slopes=slopes, biases=biases)
    q, store, rows = cut_step(random_past((1500, 30), spec, 40), spans, page_size=16)
    stored = stored_as(store_format, store.keys, store.values)
    natives = [NativeOps(isa, threads) for isa in ISAS for threads in (1, 2, 5)]
    found = [native.attention(q, kept, rows, GROUP, spec) for native in natives for kept in (stored, to_panels(stored))]
    assert found[0].isfinite().all() and _are_equal(found)


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
def test_a_forked_child_computes_and_cleans_up_without_the_workers() -> None:
    native, unused = NativeOps(None, 2), NativeOps(None, 2)
    weight = pack_panels(f32_weight(torch.ones(500, 500)))
    x = torch.ones(8, 500)
    child = os.fork()
    if child == 0:
        is_right = bool((native.linear(x, weight) == 500).all())
        del native, unused  # their threads stayed in the parent
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bool((unused.linear(x, weight) == 500).all())


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


def test_a_machine_without_the_highest_set_takes_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind, "supported_isas", lambda: ("portable",))
    assert NativeOps("avx512", 1).isa == "portable"


def test_unknown_instruction_sets_and_thread_counts_are_refused() -> None:
    with pytest.raises(ConfigError, match="instruction set 'avx3' is not known"):
        NativeOps("avx3", 1)
    with pytest.raises(ValueError, match="threads is 0"):
        NativeOps(None, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"starts": torch.tensor([0, 2])}, "starts do not rise from 0 to the number of rows, 3"),
        ({"starts": torch.tensor([0, 3, 3])}, r"starts has the wrong shape: shape \(3\), expected .* \(2\)"),
        ({"context": torch.tensor([30])}, r"unit 32 is beyond the block table"),
        ({"context": torch.tensor([-1])}, "a context is negative"),
        ({"table": torch.full((1, 8), 9, dtype=torch.int32)}, "page 9 is not in the store"),
        ({"table": torch.zeros(1, 8, dtype=torch.int64)}, "table is not int32"),
        ({"keys": torch.zeros(5, 4, 3, 8), "values": torch.zeros(5, 4, 3, 8)}, "4 heads cannot share 3 key heads"),
        ({"values": torch.zeros(5, 4, 2, 8, dtype=torch.float64)}, "values is not like the keys"),
        ({"parent": torch.tensor([-1, 0], dtype=torch.int32)}, r"parent has the wrong shape"),
        ({"slopes": torch.zeros(3)}, r"slopes has the wrong shape: shape \(3\), expected .* \(4\)"),
        ({"biases": torch.zeros(4, 6)}, "biases are a table of 6 distances, expected an odd number"),
        ({"keys": BYTES, "values": BYTES}, "keys and values of bytes come with their scales"),
        ({"key_scales": torch.zeros(5, 4, 2)}, "only keys and values of bytes come with scales"),
        ({"parent": torch.tensor([-1, 2, 1], dtype=torch.int32)}, "a parent is no earlier row of its sequence"),
    ],
)
def test_attention_refuses_what_would_read_out_of_bounds(change: dict[str, Any], message: str) -> None:
    good = {"q": torch.zeros(3, 4, 8), "keys": torch.zeros(5, 4, 2, 8), "values": torch.zeros(5, 4, 2, 8)}
    good |= {"table": torch.ones(1, 8, dtype=torch.int32), "page_size": 4}
    good |= {"starts": torch.tensor([0, 3]), "context": torch.tensor([2]), "parent": None}
    good |= {"sinks": None, "scale": 1.0, "window": 0, "soft_cap": 0.0, "is_causal": True}
    good |= dict.fromkeys(("key_scales", "value_scales", "slopes", "biases"))
    kernels = NativeOps(None, 1)._kernels
    kernels.attention(**good, y=torch.zeros(3, 4, 8))
    with pytest.raises(ValueError, match=message):
        kernels.attention(**{**good, **change}, y=torch.zeros(3, 4, 8))


def _are_equal(results: list[torch.Tensor]) -> bool:
    """Bit for bit; NaN equals NaN."""
    return all(torch.equal(result.isnan(), results[0].isnan()) for result in results) and all(
        torch.equal(result.nan_to_num(), results[0].nan_to_num()) for result in results
    )
