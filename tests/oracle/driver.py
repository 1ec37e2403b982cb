"""Runs a decoder of ours through paged stores without the scheduler: page tables, chunks and batches by hand.

Pages are dealt out shuffled. The null page, and pages that a window has left behind, are filled with NaN, so that a
kernel that reads what it must not read fails loudly.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vivace.engine.batch import Keep
from vivace.kernels.ops import GroupRows, KVStore, Ops, Rows
from vivace.layers.context import Context, Tap
from vivace.layers.state import make_stores
from vivace.models.base import Decoder, Encoder

POISON = float("nan")


@dataclass
class Stored:
    """One sequence: units stored so far, its frequencies, and its block table per page group."""

    limit: int
    variant: int
    stored: int = 0
    tables: dict[str, list[int]] = field(default_factory=dict)


class Driver:
    """A decoder with its stores. `pages` usable pages per group are shared by all sequences."""

    def __init__(self, model: Decoder, ops: Ops, page_size: int = 4, pages: int = 64, seed: int = 0) -> None:
        self.model, self.ops, self.page_size = model, ops, page_size
        self.groups = model.page_groups(page_size)
        counts = {group.name: pages for group in self.groups}
        self.stores: Sequence[KVStore] = make_stores(model.layout, counts, page_size, ops)
        self.free = {name: random.Random(seed).sample(range(1, count + 1), count) for name, count in counts.items()}
        self.sequences: list[Stored] = []
        self.tap: Tap | None = None
        self.pages_given_back = 0
        for group in self.groups:
            self._poison(group.name, 0)

    def add(self, limit: int) -> int:
        """A new sequence of at most `limit` units; returns its number."""
        tables: dict[str, list[int]] = {group.name: [] for group in self.groups}
        self.sequences.append(Stored(limit, self.model.ropes.variant(limit), tables=tables))
        return len(self.sequences) - 1

    def step(self, spans: Mapping[int, Sequence[int]]) -> dict[int, Tensor]:
        """Feed each sequence its next ids in one step; returns scores (count, vocab) of every row of each sequence."""
        for number, ids in spans.items():
            self._grow(self.sequences[number], len(ids))
        rows = self._rows(spans)
        angles = self.model.ropes.angles(rows.position, rows.variant, self.ops)
        ctx = Context(self.ops, rows, self.stores, angles, self.tap)
        hidden = self.model.forward(torch.tensor([token for ids in spans.values() for token in ids]), ctx)
        scores = self.model.logits(hidden, ctx)
        for number, ids in spans.items():
            self.sequences[number].stored += len(ids)
            self._leave_window(self.sequences[number])
        return dict(zip(spans, scores.split([len(ids) for ids in spans.values()]), strict=True))

    def prefill(self, number: int, ids: Sequence[int], chunk: int) -> Tensor:
        """Feed ids in chunks; returns the scores of all rows (len(ids), vocab)."""
        parts = [self.step({number: ids[at : at + chunk]})[number] for at in range(0, len(ids), chunk)]
        return torch.cat(parts)

    def greedy(self, number: int, last: Tensor, count: int) -> list[int]:
        """`count` tokens, each the best after the row before; `last` (vocab,) are the scores after the prompt."""
        found = []
        for _ in range(count):
            found.append(int(last.argmax()))
            last = self.step({number: found[-1:]})[number][-1]
        return found

    def _grow(self, sequence: Stored, count: int) -> None:
        assert sequence.stored + count <= sequence.limit
        wanted = -(-(sequence.stored + count) // self.page_size)
        for name, table in sequence.tables.items():
            table += [self.free[name].pop() for _ in range(wanted - len(table))]

    def _leave_window(self, sequence: Stored) -> None:
        for group in self.groups:
            table = sequence.tables[group.name]
            left = max(0, sequence.stored - group.span) // self.page_size if group.keep is Keep.LAST else 0
            for index in range(left):
                if table[index]:
                    self._poison(group.name, table[index])
                    table[index] = 0
                    self.pages_given_back += 1

    def _poison(self, group: str, page: int) -> None:
        for layer, store in zip(self.model.layout, self.stores, strict=True):
            if layer.group == group:
                store.keys[page] = POISON
                store.values[page] = POISON

    def _rows(self, spans: Mapping[int, Sequence[int]]) -> Rows:
        position, parent, owner, starts = [], [], [], [0]
        for index, (number, ids) in enumerate(spans.items()):
            first = self.sequences[number].stored
            position += range(first, first + len(ids))
            parent += [-1, *range(starts[-1], starts[-1] + len(ids) - 1)]
            owner += [index] * len(ids)
            starts.append(starts[-1] + len(ids))
        chosen = [self.sequences[number] for number in spans]
        return Rows(
            position=torch.tensor(position).view(-1, 1),
            parent=torch.tensor(parent, dtype=torch.int32),
            sequence=torch.tensor(owner, dtype=torch.int32),
            starts=tuple(starts),
            context=tuple(sequence.stored for sequence in chosen),
            variant=torch.tensor([chosen[index].variant for index in owner], dtype=torch.int32),
            groups={group.name: self._group_rows(group.name, chosen, position, owner) for group in self.groups},
        )

    def _group_rows(
        self, name: str, chosen: Sequence[Stored], position: Sequence[int], owner: Sequence[int]
    ) -> GroupRows:
        width = max(len(sequence.tables[name]) for sequence in chosen)
        tables = [sequence.tables[name] + [0] * (width - len(sequence.tables[name])) for sequence in chosen]
        slots = [
            tables[index][unit // self.page_size] * self.page_size + unit % self.page_size
            for unit, index in zip(position, owner, strict=True)
        ]
        return GroupRows(torch.tensor(slots), torch.tensor(tables, dtype=torch.int32), self.page_size)


def encode(model: Encoder, ops: Ops, texts: Sequence[Sequence[int]], types: Sequence[Sequence[int]]) -> list[Tensor]:
    """Hidden states (tokens, hidden) of each sequence, all packed into one step."""
    lengths = [len(text) for text in texts]
    starts = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    owner = [index for index, length in enumerate(lengths) for _ in range(length)]
    rows = Rows(
        position=torch.tensor([unit for length in lengths for unit in range(length)]).view(-1, 1),
        parent=torch.full((starts[-1],), -1, dtype=torch.int32),
        sequence=torch.tensor(owner, dtype=torch.int32),
        starts=tuple(starts),
        context=(0,) * len(texts),
        variant=torch.zeros(starts[-1], dtype=torch.int32),
        groups={},
    )
    ids = torch.tensor([token for text in texts for token in text])
    token_types = torch.tensor([kind for text in types for kind in text])
    return list(model.forward(ids, token_types, Context(ops, rows)).split(lengths))
