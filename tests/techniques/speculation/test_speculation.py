"""What holds for every drafter, and for the trees they propose: null is off, names, drafts that fit, parents first."""

from __future__ import annotations

import random

import numpy as np
import pytest

from vivace.errors import InvalidRequest, UnknownName
from vivace.techniques import index
from vivace.techniques.speculation.base import EMPTY, MAX_UNITS, ROOT, DraftTree, Parts, report

VOCAB = 50


def _random_tree(rng: random.Random, count: int) -> DraftTree:
    return DraftTree(
        tuple(rng.randrange(5) for _ in range(count)), tuple(rng.randrange(ROOT, place) for place in range(count))
    )


@pytest.mark.parametrize("name", index.SPECULATION)
def test_a_drafter_is_off_at_its_null_value_whatever_else_is_set(name: str) -> None:
    config = index.SPECULATION.load(name)
    assert config().is_null
    assert config.parse({**config.usual, "k": 0}).is_null
    assert not config.parse(config.usual).is_null


@pytest.mark.parametrize("name", index.SPECULATION)
def test_drafts_fit_the_room_and_the_vocabulary_and_are_functions_of_the_history(name: str) -> None:
    rng = random.Random(5)
    config = index.SPECULATION.load(name).parse({**index.SPECULATION.load(name).usual, "k": 6})
    kept = index.make(config, Parts(VOCAB))
    history: list[int] = []
    for _ in range(200):
        history.append(rng.randrange(4))
        room = rng.randrange(1, 9)
        draft = kept.propose(np.array(history), room)
        assert len(draft) <= min(room, 6)
        assert all(0 <= token < VOCAB for token in draft.ids)
        assert draft == index.make(config, Parts(VOCAB)).propose(np.array(history), room)
        assert draft == kept.propose(np.array(history), room), "a step that is run again drafts the same"


@pytest.mark.parametrize("value", [-1, MAX_UNITS + 1, 1.5, True, "8"])
@pytest.mark.parametrize("name", index.SPECULATION)
def test_a_length_out_of_its_range_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=rf"{name}\.k is .*, expected a whole number from 0 to {MAX_UNITS}"):
        index.parse(index.SPECULATION, {name: {"k": value}})


def test_a_drafter_by_name_gets_its_usual_fields_and_given_fields_win() -> None:
    assert index.with_usual(index.SPECULATION, "ngram") == {"ngram": {"k": 8}}
    assert index.with_usual(index.SPECULATION, {"ngram": {"min_n": 3}}) == {"ngram": {"k": 8, "min_n": 3}}
    assert index.with_usual(index.SPECULATION, {"ngram": {"k": 2}}) == {"ngram": {"k": 2}}
    assert index.with_usual(index.SPECULATION, "off") == index.with_usual(index.SPECULATION, {}) == {}


@pytest.mark.parametrize("chosen", ["ngrams", {"ngrams": {}}, {"ngram": {"kk": 1}}])
def test_an_unknown_drafter_or_field_is_an_error_with_the_nearest_name(chosen: object) -> None:
    with pytest.raises(UnknownName) as caught:
        index.with_usual(index.SPECULATION, chosen)  # type: ignore[arg-type]
    assert "ngram" in caught.value.hint or "k" in caught.value.hint


@pytest.mark.parametrize("chosen", [3, ["ngram"], {"ngram": 8}])
def test_a_choice_of_another_shape_is_refused(chosen: object) -> None:
    with pytest.raises(InvalidRequest):
        index.with_usual(index.SPECULATION, chosen)  # type: ignore[arg-type]


def test_any_first_part_of_a_tree_is_a_tree() -> None:
    rng = random.Random(1)
    for _ in range(100):
        tree = _random_tree(rng, rng.randrange(1, 12))
        for count in range(len(tree) + 2):
            part = tree.first(count)
            assert part.ids == tree.ids[:count]
            assert part.depths() == tree.depths()[: len(part)]


def test_a_tree_finds_the_first_child_with_a_token() -> None:
    tree = DraftTree((7, 8, 7, 9), (ROOT, 0, ROOT, 1))
    assert tree.child(ROOT, 7) == 0
    assert tree.child(0, 8) == 1
    assert tree.child(0, 9) is None
    assert tree.child(1, 9) == 3
    assert tree.depths() == [1, 2, 1, 3]
    assert not tree.is_chain
    assert DraftTree.chain((1, 2, 3)) == DraftTree((1, 2, 3), (ROOT, 0, 1))
    assert DraftTree.chain((1, 2, 3)).is_chain
    assert EMPTY.is_chain


@pytest.mark.parametrize("parents", [(0,), (ROOT, 1), (ROOT, -2), (ROOT,)])
def test_a_parent_that_does_not_stand_before_its_child_is_a_fault(parents: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        DraftTree((1, 2) if len(parents) == 2 or parents == (ROOT,) else (1,), parents)


def test_the_report_of_a_lane_counts_a_step_saved_per_right_guess() -> None:
    assert report({"drafted": 8, "accepted": 6}) == {
        "drafted": 8,
        "accepted": 6,
        "acceptance_rate": 0.75,
        "steps_saved": 6,
    }
    assert report({})["acceptance_rate"] == 0.0
