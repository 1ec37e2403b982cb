"""The identities on a few schedules, and that the comparison sees damage: a changed bit, stale pages, batched sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.identities import native
from tests.identities.files import TYPES, make_weights
from tests.identities.world import World, run_schedule, run_schedules
from vivace.config import ActivationFormat
from vivace.kernels.cpu.bind import supported_isas, why_missing
from vivace.pipelines.generate import GeneratePipeline

ASSETS = ("tiny-llama", "tiny-gemma3")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(
    scope="module",
    params=[(asset, *kind) for kind in (("rows", "f32"), ("native", "f16"), ("native", "i8")) for asset in ASSETS],
    ids=str,
)
def world(request: pytest.FixtureRequest) -> World:
    asset, kernels, kv_format = request.param
    if kernels == "native" and why_missing() is not None:
        pytest.skip(f"no native kernels: {why_missing()}")
    return World(asset, kernels, kv_format)


@pytest.mark.parametrize("seed", range(1000, 1012))
def test_disturbed_equals_undisturbed(world: World, seed: int) -> None:
    run_schedule(world, seed, Counter())


@pytest.mark.skipif(why_missing() is not None, reason=f"no native kernels: {why_missing()}")
@pytest.mark.parametrize("asset", ASSETS)
def test_steps_of_native_operations_are_replayed(asset: str) -> None:
    """So the disturbed runs above are replayed, and the undisturbed ones that they are compared with are not."""
    seen: Counter[str] = Counter()
    run_schedule(World(asset, "native"), 1000, seen)
    assert seen["replayed steps"] == seen["steps"] > 10


@pytest.mark.skipif(why_missing() is not None, reason=f"no native kernels: {why_missing()}")
@pytest.mark.parametrize("activations", native.ACTIVATIONS)
@pytest.mark.parametrize("weights", TYPES)
def test_instruction_sets_and_threads_agree_on_quantized_weights(
    weights: str, activations: ActivationFormat, tmp_path: Path
) -> None:
    """Every set, replayed under a schedule, gives the logits of the portable one called undisturbed."""
    case = native.Case("tiny-gemma3", weights, "f16", activations)
    found = native.run_part(native.Part(case, make_weights(case.asset, weights, tmp_path), (4000, 4001)))
    assert not found.different
    assert set(found.runs) == {(isa, threads) for isa in supported_isas() for threads in native.THREADS}


def test_one_changed_bit_in_the_pages_is_seen(world: World) -> None:
    def flip(pipeline: GeneratePipeline) -> None:
        keys = pipeline._stores[0].keys
        keys.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[keys.itemsize]).bitwise_xor_(1)

    with pytest.raises(AssertionError, match="differ"):
        run_schedules(world, 10, flip)


def test_sums_that_depend_on_the_batch_are_seen() -> None:
    world = World("tiny-llama", kernels="ref")
    with pytest.raises(AssertionError, match="differ"):
        run_schedules(world, 60)
