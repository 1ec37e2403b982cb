"""Check a draft: draw each next token as without a draft, and go on from the guess that it meets.

Below the last known token x_t stands a tree of guesses, each with a row of the step, so that the model's scores after
every path of guesses are there at once. With f the plain rule of the request (filters with the history of the path,
then the most likely id or the draw with the random number of that position):

    x_{t+1} = f(scores after x_t, x_1..x_t),  x_{t+2} = f(scores after x_{t+1}, x_1..x_{t+1}),  ...

as long as the token just drawn is a guess below the row it was drawn from. The first token that nobody guessed is part
of the answer too: a step always brings one token more than guesses were right.

Why nothing changes: f is a function of the scores, the history and (seed, position) alone. By the determinism contract
the scores after a row of a tree are bit for bit those of a plain run that has come to the same text, and the path that
is followed is that text. So the answer is the plain one token by token, greedy or sampled, with its log-probabilities,
penalties, minimum length and ends; wrong guesses cost time only. Trees of guesses come from Miao et al., "SpecInfer",
ASPLOS 2024, arXiv:2305.09781. Rejection sampling (Leviathan, Kalman and Matias, "Fast Inference from Transformers via
Speculative Decoding", ICML 2023, arXiv:2211.17192) keeps the distribution instead of the tokens of a seed; it accepts
more where a draft brings probabilities of its own, which text matches do not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vivace.engine.job import Job
from vivace.errors import StepFailed
from vivace.pipelines.answer import Answer
from vivace.pipelines.logprobs import token_logprob
from vivace.pipelines.requests import TokenLogprob
from vivace.pipelines.rows import ids_of, known_of
from vivace.pipelines.sampler import Scored
from vivace.techniques.sampling.base import History
from vivace.techniques.speculation.base import ROOT, DraftTree


@dataclass(frozen=True)
class Run:
    """What one step adds to an answer.

    ids       new tokens in order
    logprobs  of them, if asked for
    path      guesses that stand for the first of them, from the root down; the other rows of the draft are worthless
    finished  why the answer ends here, else None
    stop_id   the end id that was drawn after the new tokens
    """

    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    path: tuple[int, ...]
    finished: str | None = None
    stop_id: int | None = None

    def moves(self) -> list[tuple[int, int]]:
        """(from, to) for each guess on the path that does not stand where a plain run would have put its token."""
        return [(place, depth) for depth, place in enumerate(self.path) if place != depth]


def verify(job: Job, tree: DraftTree, scores: Sequence[Scored]) -> Run:
    """Walk down the tree from the last known token.

    scores  after the last known token, then after each guess of the tree

    Raises StepFailed if nothing can be drawn after the last known token.
    """
    answer: Answer = job.payload
    known, prompt, top = known_of(job), len(answer.request.ids), answer.request.logprobs
    ids: list[int] = []
    path: list[int] = []
    logprobs: list[TokenLogprob] = []
    stop_id: int | None = None
    finished = "length" if answer.max_tokens == 0 else None

    def history() -> History:
        return History(torch.from_numpy(np.concatenate([ids_of(job), np.array(ids, np.int64)])), prompt)

    while finished is None:
        place = path[-1] if path else ROOT
        scored = scores[place + 1]
        try:
            token = answer.sampler.draw(scored, history, known + len(ids))
        except StepFailed:
            if not path:
                raise
            path.pop()  # its token is drawn all the same: the next step begins there, and fails as the plain run does
            break
        if token in answer.end_ids:
            finished, stop_id = "stop", token
            break
        ids.append(token)
        if top is not None:
            logprobs.append(token_logprob(scored.row, token, top))
        guess = tree.child(place, token)
        if known + len(ids) - prompt == answer.max_tokens:
            finished = "length"
        elif guess is None:
            break
        else:
            path.append(guess)
    return Run(tuple(ids), tuple(logprobs), tuple(path), finished, stop_id)
