"""Ceilings are rates of loops that were really run; no speed is judged."""

from __future__ import annotations

import pytest
import torch

from vivace.kernels.cpu import bind
from vivace.lab.ceilings import Ceilings, best_time, measure_ceilings


def test_every_ceiling_is_measured_for_each_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivace.lab.ceilings.MEMORY_FLOATS", 1 << 20)
    monkeypatch.setattr("vivace.lab.ceilings.ROUNDS", 1000)
    found = measure_ceilings(2, seconds=0.001)
    assert len(found.bytes_per_s) == 2
    assert min(*found.bytes_per_s, found.floats_per_s) > 0
    assert found.read_bytes_per_s == found.bytes_per_s[-1]
    assert f"{found.read_bytes_per_s / 1e9:.1f} GB/s" in found.describe()


def test_without_native_kernels_torch_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind, "why_missing", lambda: "not built")
    monkeypatch.setattr("vivace.lab.ceilings.MEMORY_FLOATS", 1 << 20)
    before = torch.get_num_threads()
    found = measure_ceilings(1, seconds=0.001)
    assert found.source == "torch"
    assert found.integers_per_s is None
    assert torch.get_num_threads() == before


@pytest.mark.skipif(bind.why_missing() is not None, reason="there are no native kernels here")
def test_the_integer_ceiling_counts_what_its_loop_does() -> None:
    native = bind.NativeOps(None, 1)
    assert native.byte_dots(2000) == 2 * native.byte_dots(1000) > 0
    assert bind.byte_dots_by()


def test_best_time_calls_three_times_at_least() -> None:
    calls: list[int] = []
    assert best_time(lambda: calls.append(1), 0.0) > 0
    assert len(calls) >= 3


def test_a_ceiling_without_integers_says_nothing_of_them() -> None:
    assert "Gop/s" not in Ceilings("torch", 1, (1e9,), 1e9).describe()
