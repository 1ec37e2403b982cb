"""Pooling: every mode against its equation in exact sums, finishers, and that null is off."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from vivace.errors import InvalidRequest
from vivace.techniques import index
from vivace.techniques.pooling.base import Parts, ordered_sum

SIZE = 24


def _rows(count: int) -> Tensor:
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(count))


def _pool(name: str, rows: Tensor, skip: int = 0) -> Tensor:
    return index.make(index.POOLING.load(name).parse({}), Parts(SIZE))(rows, skip)


def _finish(name: str, vector: Tensor, **fields: object) -> Tensor:
    return index.make(index.POOLING.load(name).parse(fields), Parts(vector.shape[0]))(vector)


def _exact(name: str, rows: np.ndarray, skip: int) -> np.ndarray:
    """The equations, with correctly rounded sums."""
    kept = rows[skip:].astype(np.float64)
    sums = np.array([math.fsum(column) for column in kept.T])
    places = np.arange(skip + 1, len(rows) + 1)
    return {
        "cls": kept[0],
        "max": kept.max(0),
        "mean": sums / len(kept),
        "mean_sqrt_len": sums / math.sqrt(len(kept)),
        "weightedmean": (kept * places[:, None]).sum(0) / places.sum(),
        "lasttoken": kept[-1],
    }[name]


@pytest.mark.parametrize("skip", [0, 3])
@pytest.mark.parametrize("name", ["cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken"])
def test_a_mode_equals_its_equation(name: str, skip: int) -> None:
    for count in (4, 5, 130):
        rows = _rows(count)
        ours = _pool(name, rows, skip)
        assert ours.dtype == torch.float32
        assert ours.numpy() == pytest.approx(_exact(name, rows.numpy(), skip), rel=2e-7, abs=1e-12)


def test_sums_run_in_the_order_of_the_rows() -> None:
    rows = _rows(100) * 1e6
    total = torch.zeros(SIZE, dtype=torch.float64)
    for row in rows:
        total += row.double()
    assert torch.equal(ordered_sum(rows), total)


def test_normalize_gives_length_one_and_leaves_zero_alone() -> None:
    assert float(_finish("normalize", _rows(1)[0], value=True).double().norm()) == pytest.approx(1.0, abs=1e-6)
    assert _finish("normalize", torch.zeros(4), value=True).tolist() == [0, 0, 0, 0]


def test_matryoshka_cuts_and_then_normalises() -> None:
    vector = torch.tensor([3.0, 4.0, 12.0, 84.0])
    assert _finish("matryoshka", vector, value=2).tolist() == pytest.approx([0.6, 0.8])


def test_more_dimensions_than_the_vector_has_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"dimensions is 25, expected at most 24"):
        _finish("matryoshka", _rows(1)[0], value=25)


@pytest.mark.parametrize("name", ["normalize", "matryoshka"])
def test_the_null_value_of_a_finisher_is_off_bit_for_bit(name: str) -> None:
    vector = _rows(1)[0]
    assert torch.equal(_finish(name, vector), vector)
    assert index.POOLING.load(name).parse({}).is_null


@pytest.mark.parametrize("name", index.POOLING)
def test_a_technique_is_registered_under_its_file_and_names_its_origin(name: str) -> None:
    config = index.POOLING.load(name)
    assert config.name == name == config.__module__.rpartition(".")[2]
    assert config.origin
