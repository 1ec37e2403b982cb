"""The rows of a step from its spans: positions, slots and block tables, without a loop over units or pages.

Block tables are `array("i")` and content keys are bytes: both are read in place and copied once, into the step's own
arrays. No view outlives the call, because an array that is looked at cannot grow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vivace.engine.batch import PageGroup, Span
from vivace.engine.job import Job
from vivace.kernels.ops import GroupRows, Rows
from vivace.techniques.speculation.base import EMPTY, DraftTree

KEY_BYTES = 4  # a token's content key is its id, little-endian
_KEY = np.dtype("<u4")

Ints = npt.NDArray[Any]


def keys_of(ids: Sequence[int]) -> bytearray:
    """Content keys of token ids."""
    return bytearray(np.asarray(ids, _KEY).tobytes())


def ids_of(job: Job, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
    """Token ids of the units start .. stop that are known of a job."""
    last = len(job.keys) // KEY_BYTES if stop is None else stop
    return np.frombuffer(job.keys, _KEY, last - start, start * KEY_BYTES).astype(np.int64)


def known_of(job: Job) -> int:
    """Number of units of a job that are known; those after them are guesses."""
    return len(job.keys) // KEY_BYTES


@dataclass(frozen=True, eq=False)
class RowArrays:
    """The rows of a step as numpy arrays, for a tape; `tensors` gives them to operations. See kernels.ops.Rows."""

    position: Ints  # (rows,)
    parent: Ints
    sequence: Ints
    variant: Ints
    starts: Ints  # (sequences + 1,)
    context: Ints  # (sequences,)
    slots: Mapping[str, Ints]  # page group -> (rows,)
    tables: Mapping[str, Ints]  # page group -> (sequences, pages) int32
    page_sizes: Mapping[str, int]
    is_chain: bool

    def tensors(self, device: torch.device) -> Rows:
        """The same rows on a device."""

        def tensor(array: Ints) -> Tensor:
            return torch.from_numpy(array).to(device)

        groups = {
            name: GroupRows(tensor(slot), tensor(self.tables[name]), self.page_sizes[name])
            for name, slot in self.slots.items()
        }
        return Rows(
            position=tensor(self.position[:, None]),
            parent=tensor(self.parent),
            sequence=tensor(self.sequence),
            starts=tuple(self.starts.tolist()),
            context=tuple(self.context.tolist()),
            variant=tensor(self.variant),
            groups=groups,
            is_chain=self.is_chain,
        )


def span_ids(spans: Sequence[Span], drafts: Sequence[DraftTree] = ()) -> npt.NDArray[np.int64]:
    """Token ids of all rows of a step: (rows,). `drafts`: the guesses that each span ends with."""
    keys = bytearray()
    for span, draft in zip(spans, drafts or repeat(EMPTY), strict=False):
        last = span.start + span.count - len(draft)
        keys += span.job.keys[span.start * KEY_BYTES : last * KEY_BYTES]
        if draft:
            keys += keys_of(draft.ids)
    return np.frombuffer(keys, _KEY).astype(np.int64)


def build_rows(
    spans: Sequence[Span], groups: Sequence[PageGroup], variants: Sequence[int], drafts: Sequence[DraftTree] = ()
) -> RowArrays:
    """The rows of a step, span after span.

    variants  the rotary table of each span's job
    drafts    the guesses that each span ends with: the last rows of the span, below its last known unit
    """
    if all(span.count == 1 for span in spans) and not any(drafts):
        return _one_row_each(spans, groups, variants)
    firsts = np.array([span.start for span in spans], np.int64)
    starts = np.zeros(len(spans) + 1, np.int64)
    np.cumsum([span.count for span in spans], out=starts[1:])
    total = int(starts[-1])
    sequence = np.repeat(np.arange(len(spans), dtype=np.int32), np.diff(starts))
    unit = np.arange(total, dtype=np.int64) - (starts[:-1] - firsts)[sequence]
    parent = np.arange(-1, total - 1, dtype=np.int32)
    parent[starts[:-1]] = -1
    position, branching = unit.copy(), [index for index, draft in enumerate(drafts) if not draft.is_chain]
    for index in branching:
        root = int(starts[index + 1]) - len(drafts[index]) - 1
        parent[root + 1 : starts[index + 1]] = root + 1 + np.array(drafts[index].parents)
        position[root + 1 : starts[index + 1]] = unit[root] + np.array(drafts[index].depths())
    tables = {group.name: _table(spans, group) for group in groups}
    return RowArrays(
        position=position,
        parent=parent,
        sequence=sequence,
        variant=np.array(variants, np.int32)[sequence],
        starts=starts,
        context=firsts,
        slots={group.name: _slots(tables[group.name], group, sequence, unit) for group in groups},
        tables=tables,
        page_sizes={group.name: group.page_size for group in groups},
        is_chain=not branching,
    )


def _one_row_each(spans: Sequence[Span], groups: Sequence[PageGroup], variants: Sequence[int]) -> RowArrays:
    """The same for the usual step, in which every job reads its last token: with as few calls as that takes."""
    units, count = [span.start for span in spans], len(spans)
    position = np.array(units, np.int64)
    slots = {}
    for group in groups:
        size, name = group.page_size, group.name
        pages = [span.job.tables[name][span.start // size] for span in spans]
        slots[name] = np.array([page * size + unit % size for page, unit in zip(pages, units, strict=True)], np.int64)
    return RowArrays(
        position=position,
        parent=np.full(count, -1, np.int32),
        sequence=np.arange(count, dtype=np.int32),
        variant=np.array(variants, np.int32),
        starts=np.arange(count + 1),
        context=position,
        slots=slots,
        tables={group.name: _table(spans, group) for group in groups},
        page_sizes={group.name: group.page_size for group in groups},
        is_chain=True,
    )


def _table(spans: Sequence[Span], group: PageGroup) -> Ints:
    table = np.zeros((len(spans), max(len(span.job.tables[group.name]) for span in spans)), np.int32)
    for index, span in enumerate(spans):
        pages = span.job.tables[group.name]
        table[index, : len(pages)] = np.frombuffer(pages, np.int32)
    return table


def _slots(table: Ints, group: PageGroup, sequence: Ints, unit: Ints) -> Ints:
    page, offset = np.divmod(unit, group.page_size)
    return table[sequence, page].astype(np.int64) * group.page_size + offset
