"""How far the scores of a model with lossy features are from those of its exact form, on one text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from vivace.engine.batch import PageGroup
from vivace.kernels.ops import GroupRows, Ops, Rows
from vivace.layers.context import Context
from vivace.layers.state import make_stores
from vivace.models.base import Decoder
from vivace.weights.measured import Quality

PAGE_SIZE = 16
SLICE_SCORES = 1 << 22  # scores compared at once: 16 MB, whatever the vocabulary

Slice = tuple[Tensor, Tensor, Tensor]


def compare(slices: Iterable[Slice]) -> Quality:
    """The sums over slices of (exact scores, found scores, next tokens): two of (positions, vocabulary), (positions,).

    With p the exact distribution and d = found - exact, moved so that its mean under p is 0:
    KL = log(sum p exp d) = log1p(sum p (exp d - 1 - d)): a sum of small positive terms where the two are nearly equal.
    """
    positions, divergence, same, change = 0, 0.0, 0, 0.0
    for exact, found, tokens in slices:
        p, d = torch.softmax(exact, -1), found - exact
        d -= (p * d).sum(-1, keepdim=True)
        after = d.gather(1, tokens[:, None])[:, 0]  # log-probability of the next token, up to the divergence
        kl = torch.log1p((p * (torch.expm1(d) - d)).sum(-1).double())
        positions += len(tokens)
        divergence += float(kl.sum())
        same += int((exact.argmax(-1) == found.argmax(-1)).sum())
        change += float((kl - after).sum())
    assert positions, "nothing to compare"
    return Quality(positions, max(divergence / positions, 0.0), same / positions, math.expm1(change / positions))


def read_text(model: Decoder, ops: Ops, ids: Sequence[int], store_format: str = "f32") -> Tensor:
    """Hidden states after each token of one text, read in one step with stores of its own: (tokens, hidden)."""
    count, groups = len(ids), model.page_groups(PAGE_SIZE, store_format)
    pages = -(-count // PAGE_SIZE)
    stores = make_stores(model.layout, {group.name: pages for group in groups}, PAGE_SIZE, ops, store_format)
    unit = torch.arange(count)
    rows = Rows(
        position=unit[:, None],
        parent=torch.arange(-1, count - 1, dtype=torch.int32),
        sequence=torch.zeros(count, dtype=torch.int32),
        starts=(0, count),
        context=(0,),
        variant=torch.full((count,), model.ropes.variant(count), dtype=torch.int32),
        groups={group.name: _pages_in_order(group, unit, pages) for group in groups},
    )
    ctx = Context(ops, rows, stores, model.ropes.angles(rows.position, rows.variant, ops))
    return model.forward(torch.tensor(ids), ctx)


def scores_of(model: Decoder, ops: Ops, hidden: Tensor) -> Iterator[Tensor]:
    """Scores after each row, some rows at a time: (some, vocabulary)."""
    ctx = Context(ops, _NO_ROWS)
    for part in torch.split(hidden, max(1, SLICE_SCORES // model.vocab_size)):
        yield model.logits(part, ctx)


def against(exact: tuple[Decoder, Tensor], found: tuple[Decoder, Tensor], ops: Ops, ids: Sequence[int]) -> Quality:
    """The quality of a model and its hidden states of a text against another's."""
    (exact_model, exact_hidden), (found_model, found_hidden) = exact, found
    tokens = torch.split(torch.tensor(ids[1:]), max(1, SLICE_SCORES // exact_model.vocab_size))
    ours, theirs = scores_of(found_model, ops, found_hidden[:-1]), scores_of(exact_model, ops, exact_hidden[:-1])
    return compare(zip(theirs, ours, tokens, strict=True))


def _pages_in_order(group: PageGroup, unit: Tensor, pages: int) -> GroupRows:
    table = torch.arange(1, pages + 1, dtype=torch.int32)[None]
    return GroupRows(unit + group.page_size, table, group.page_size)


_NOTHING = torch.empty(0, dtype=torch.int32)
_NO_ROWS = Rows(_NOTHING[:, None], _NOTHING, _NOTHING, (0,), (), _NOTHING, {})  # the head looks at no rows
