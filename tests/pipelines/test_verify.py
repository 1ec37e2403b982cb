"""The walk down a tree of guesses: which tokens come out, which guesses count, and how it ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vivace.engine.job import Job
from vivace.errors import StepFailed
from vivace.pipelines.answer import Answer
from vivace.pipelines.requests import GenerateRequest
from vivace.pipelines.rows import keys_of
from vivace.pipelines.sampler import Scored
from vivace.pipelines.verify import Run, verify
from vivace.techniques.sampling.base import History
from vivace.techniques.speculation.base import EMPTY, ROOT, DraftTree

VOCAB = 12
PROMPT = (3, 1, 4)


class _Plain:
    """A sampler whose next token is a function of the text so far; it notes what it was asked."""

    def __init__(self, fails_after: int | None = None) -> None:
        self.fails_after = fails_after
        self.asked: list[tuple[int, list[int]]] = []

    def draw(self, scored: Scored, history: Callable[[], History], position: int) -> int:
        past = history()
        assert past.prompt == len(PROMPT)
        assert int(scored.row.argmax()) == scored.best == past.ids[-1], "the row is not that of the last token"
        self.asked.append((position, past.ids.tolist()))
        if self.fails_after == past.ids[-1]:
            raise StepFailed("no number")
        return plain_next(past.ids.tolist())


def plain_next(text: list[int]) -> int:
    return (3 * sum(text) + 2 * len(text) + 1) % VOCAB


def plain_run(text: list[int], count: int) -> list[int]:
    for _ in range(count):
        text = [*text, plain_next(text)]
    return text


def _job(sampler: Any, generated: tuple[int, ...] = (), **fields: Any) -> Job:
    values = {"max_tokens": 50, "end_ids": frozenset(), **fields}
    request = GenerateRequest(PROMPT, logprobs=values.pop("logprobs", None))
    answer = Answer(request, sampler, values["max_tokens"], values["end_ids"], 0, lambda reply: None)
    text = [*PROMPT, *generated]
    return Job(1, "lane", len(text), 100, keys=keys_of(text), payload=answer)


def _scores(last: int, tree: DraftTree) -> list[Scored]:
    """One row per guess, with its largest score at the guess itself, so that rows can be told apart."""
    tokens = torch.tensor((last, *tree.ids))
    return list(Scored.of(torch.nn.functional.one_hot(tokens, VOCAB).float(), tokens))


def _verify(job: Job, tree: DraftTree) -> Run:
    last = int.from_bytes(job.keys[-4:], "little")
    return verify(job, tree, _scores(last, tree))


@pytest.mark.parametrize("seed", range(200))
def test_the_tokens_are_those_of_the_plain_run_and_the_path_holds_all_but_the_last(seed: int) -> None:
    rng = random.Random(seed)
    sampler = _Plain()
    generated = tuple(plain_run(list(PROMPT), rng.randrange(4))[len(PROMPT) :])
    text = plain_run([*PROMPT, *generated], 20)
    known = len(PROMPT) + len(generated)
    ids, parents, depths = [], [], {ROOT: 0}
    for place in range(rng.randrange(1, 14)):
        parents.append(rng.randrange(max(ROOT, place - 3), place))
        depths[place] = depths[parents[-1]] + 1
        ids.append(text[known + depths[place] - 1] if rng.random() < 0.7 else rng.randrange(VOCAB))
    tree = DraftTree(tuple(ids), tuple(parents))
    run = _verify(_job(sampler, generated), tree)
    assert list(run.ids) == text[known : known + len(run.ids)]
    assert [tree.ids[place] for place in run.path] == list(run.ids[:-1])
    assert all(tree.parents[place] == before for before, place in zip((ROOT, *run.path), run.path, strict=False))
    assert tree.child(run.path[-1] if run.path else ROOT, run.ids[-1]) is None, "a right guess was not followed"
    assert [position for position, _ in sampler.asked] == list(range(known, known + len(run.ids)))
    assert run.moves() == [(place, depth) for depth, place in enumerate(run.path) if place != depth]


def test_without_a_draft_one_token_is_drawn() -> None:
    run = _verify(_job(_Plain()), EMPTY)
    assert run == Run((plain_next(list(PROMPT)),), (), ())


def test_every_token_of_a_run_has_its_logprob() -> None:
    text = plain_run(list(PROMPT), 6)
    tree = DraftTree.chain(tuple(text[3:7]))
    run = _verify(_job(_Plain(), logprobs=2), tree)
    assert [entry.id for entry in run.logprobs] == list(run.ids) == text[3:8]
    assert all(len(entry.top) == 2 for entry in run.logprobs)


def test_an_end_id_within_a_draft_ends_the_run_there() -> None:
    text = plain_run(list(PROMPT), 8)
    end = next(place for place in range(5, 10) if text[place] not in text[3:place])
    run = _verify(_job(_Plain(), end_ids=frozenset({text[end]})), DraftTree.chain(tuple(text[3:10])))
    assert (list(run.ids), run.finished, run.stop_id) == (text[3:end], "stop", text[end])
    assert run.path == tuple(range(end - 3)), "the units of all tokens of the answer count, that of the end does not"


def test_a_full_answer_ends_the_run() -> None:
    text = plain_run(list(PROMPT), 8)
    run = _verify(_job(_Plain(), max_tokens=3), DraftTree.chain(tuple(text[3:5])))
    assert (list(run.ids), run.finished, run.path) == (text[3:6], "length", (0, 1))
    assert _verify(_job(_Plain(), max_tokens=0), EMPTY) == Run((), (), (), "length")


def test_a_row_without_numbers_below_a_right_guess_waits_for_the_next_step() -> None:
    """The plain run would tell the tokens before it, and fail after them."""
    text = plain_run(list(PROMPT), 8)
    bad = next(place for place in range(4, 8) if text[place] not in text[:place])
    run = _verify(_job(_Plain(fails_after=text[bad])), DraftTree.chain(tuple(text[3:9])))
    assert list(run.ids) == text[3 : bad + 1]
    assert (run.path, run.finished) == (tuple(range(bad - 3)), None)
    with pytest.raises(StepFailed):
        _verify(_job(_Plain(fails_after=PROMPT[-1])), DraftTree.chain(tuple(text[3:9])))
