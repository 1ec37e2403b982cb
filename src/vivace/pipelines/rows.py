"""The rows of a step from its spans: positions, slots and block tables, without a loop over units or pages.

Block tables are `array("i")` and content keys are bytes: both are read in place and copied once, into the step's own
tensors. No view outlives the call, because an array that is looked at cannot grow.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def span_ids(spans: Sequence[Span], device: torch.device, drafts: Sequence[DraftTree] = ()) -> Tensor:
    """Token ids of all rows of a step: (rows,) int64. `drafts`: the guesses that each span ends with."""
    parts = []
    for span, draft in zip(spans, drafts or [EMPTY] * len(spans), strict=True):
        parts.append(ids_of(span.job, span.start, span.start + span.count - len(draft)))
        if draft:
            parts.append(np.array(draft.ids, np.int64))
    return torch.from_numpy(np.concatenate(parts)).to(device)


def build_rows(
    spans: Sequence[Span],
    groups: Sequence[PageGroup],
    variants: Sequence[int],
    device: torch.device,
    drafts: Sequence[DraftTree] = (),
) -> Rows:
    """The rows of a step, span after span.

    variants  the rotary table of each span's job
    drafts    the guesses that each span ends with: the last rows of the span, below its last known unit
    """
    counts = np.array([span.count for span in spans], np.int64)
    firsts = np.array([span.start for span in spans], np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)])
    total = int(starts[-1])
    row = np.arange(total, dtype=np.int64)
    sequence = np.repeat(np.arange(len(spans), dtype=np.int32), counts)
    unit = row - (starts[:-1] - firsts)[sequence]
    parent = np.arange(-1, total - 1, dtype=np.int32)
    parent[starts[:-1]] = -1
    position, branching = unit.copy(), [index for index, draft in enumerate(drafts) if not draft.is_chain]
    for index in branching:
        root = int(starts[index + 1]) - len(drafts[index]) - 1
        parent[root + 1 : starts[index + 1]] = root + 1 + np.array(drafts[index].parents)
        position[root + 1 : starts[index + 1]] = unit[root] + np.array(drafts[index].depths())
    return Rows(
        position=_tensor(position[:, None], device),
        parent=_tensor(parent, device),
        sequence=_tensor(sequence, device),
        starts=tuple(starts.tolist()),
        context=tuple(firsts.tolist()),
        variant=_tensor(np.array(variants, np.int32)[sequence], device),
        groups={group.name: _group_rows(spans, group, sequence, unit, device) for group in groups},
        is_chain=not branching,
    )


def _group_rows(
    spans: Sequence[Span],
    group: PageGroup,
    sequence: npt.NDArray[np.int32],
    unit: npt.NDArray[np.int64],
    device: torch.device,
) -> GroupRows:
    table = np.zeros((len(spans), max(len(span.job.tables[group.name]) for span in spans)), np.int32)
    for index, span in enumerate(spans):
        pages = span.job.tables[group.name]
        table[index, : len(pages)] = np.frombuffer(pages, np.int32)
    slot = table[sequence, unit // group.page_size].astype(np.int64) * group.page_size + unit % group.page_size
    return GroupRows(_tensor(slot, device), _tensor(table, device), group.page_size)


def _tensor(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)
