"""Speculation on equals off bit for bit on a few schedules; and damage that the comparison must see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from tests.identities.speculation import EVENTS, TREE_EVENTS, NgramWorld, PlantedPipeline, PlantedWorld
from tests.identities.world import run_schedule
from vivace.kernels.cpu.bind import why_missing
from vivace.pipelines import generate
from vivace.pipelines.requests import GenerateRequest
from vivace.pipelines.rows import RowArrays, build_rows
from vivace.techniques.speculation.base import DraftTree

ASSETS = ("tiny-llama", "tiny-gemma3")
NO_NATIVE = why_missing() or ""
KERNELS = ("rows", pytest.param("native", marks=pytest.mark.skipif(bool(NO_NATIVE), reason=NO_NATIVE)))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _run(world: NgramWorld, seeds: range) -> None:
    for seed in seeds:
        run_schedule(world, seed, world.seen)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("asset", ASSETS)
def test_ngram_speculation_on_equals_off(asset: str, kernels: str) -> None:
    world = NgramWorld(asset, kernels)
    _run(world, range(2000, 2012))
    assert all(world.seen[event] for event in ("drafts partly right", "drafts wholly wrong", "cut drafts")), world.seen


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("asset", ASSETS)
def test_trees_of_guesses_change_nothing(asset: str, kernels: str) -> None:
    world = PlantedWorld(asset, kernels)
    _run(world, range(3000, 3012))
    assert all(world.seen[event] >= 3 for event in (*EVENTS, *TREE_EVENTS)), world.seen


class _Unmoved(PlantedPipeline):
    def _compact(self, moves: Sequence[tuple[int, int]], rows: RowArrays) -> None:
        """Leaves keys and values of right guesses where they were computed."""


def test_keys_that_are_not_moved_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlantedWorld, "pipeline_type", _Unmoved)
    with pytest.raises(AssertionError, match="differ"):
        _run(PlantedWorld("tiny-llama"), range(40))


def test_rows_that_see_wrong_guesses_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_chain(spans, groups, variants, drafts=()):
        return build_rows(spans, groups, variants, [DraftTree.chain(draft.ids) for draft in drafts])

    monkeypatch.setattr(generate, "build_rows", as_chain)
    with pytest.raises(AssertionError, match="differ"):
        _run(PlantedWorld("tiny-llama"), range(40))


def test_positions_that_count_wrong_guesses_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DraftTree, "depths", lambda tree: list(range(1, len(tree) + 1)))
    with pytest.raises(AssertionError, match="differ"):
        _run(PlantedWorld("tiny-gemma3"), range(40))


def test_guesses_taken_for_tokens_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verifier that follows the first guess whatever was drawn."""

    def first_child(tree: DraftTree, place: int, token: int) -> int | None:
        return next((other for other in range(place + 1, len(tree)) if tree.parents[other] == place), None)

    monkeypatch.setattr(DraftTree, "child", first_child)
    with pytest.raises(AssertionError, match="differ"):
        _run(NgramWorld("tiny-llama"), range(40))


@pytest.mark.parametrize("asset", ASSETS)
def test_serving_48_times_is_continued_as_without_speculation(asset: str) -> None:
    """Case 55: the text matches itself everywhere, whatever the model makes of it."""
    world = NgramWorld(asset)
    ids = tuple(world.tokenizer.encode("serving " * 48))
    request = GenerateRequest(ids, max_tokens=24, logprobs=2, ignore_eos=True)
    plain = world.plain.run_alone(request)
    for k, longest in ((1, 1), (8, 2), (24, 4)):
        speculation = {"ngram": {"k": k, "min_n": 1, "max_n": longest}}
        assert world.run_alone(replace(request, speculation=speculation)) == plain
    assert world.seen["drafted"] > 20
