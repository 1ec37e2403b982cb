"""Every set of operations that this machine can bind, for tests that hold for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from vivace.kernels import select
from vivace.kernels.cpu import bind

REASON = bind.why_missing()
ISAS = bind.supported_isas() if REASON is None else ()
SETS = ("ref", "rows", *(f"native-{isa}" for isa in ISAS))


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=SETS)
def ops(request: pytest.FixtureRequest) -> select.BoundOps:
    """Each set in turn."""
    return resolve_set(request.param)


@pytest.fixture(params=[name for name in SETS if name != "ref"])
def invariant_ops(request: pytest.FixtureRequest) -> select.BoundOps:
    """Each set that promises bitwise equal results in any batch."""
    return resolve_set(request.param)


@pytest.fixture
def needs_native() -> None:
    if REASON is not None:
        pytest.skip(f"no native kernels: {REASON}")


def resolve_set(name: str) -> select.BoundOps:
    choice, _, isa = name.partition("-")
    return select.resolve(choice=choice, isa=isa or None, threads=1)
