"""The cost table of a decoder: its own steps are timed once, and the table is kept in the cache folder from then on.

So schedules are a function of the table and of what arrives; no clock is read while the engine runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from vivace.engine.batch import Keep, PageGroup, Span
from vivace.engine.costs import StepCosts
from vivace.engine.job import Job
from vivace.pipelines.rows import RowArrays, build_rows, keys_of, span_ids

ROWS = 64  # of the larger steps: enough to tell the cost of a row from that of a step
PAST = 1024  # units before them, where attention is measured
TRIES = 3  # the best counts
READ_BYTES_PER_NS = 15  # of keys and values of a long context: what two or more cores reach on most machines


class Forward(Protocol):
    """A whole step: ids, rows and the rows that are scored -> hidden states, and the scores as they are asked for."""

    def __call__(
        self, ids: npt.NDArray[np.int64], rows: RowArrays, chosen: list[int], /
    ) -> tuple[object, Iterable[object]]: ...


def saved_costs(path: Path, measure: Callable[[], StepCosts]) -> StepCosts:
    """The table in `path`; where there is none that can be read, it is measured and, if the folder allows, saved."""
    try:
        costs = StepCosts(**json.loads(path.read_text()))
        if all(isinstance(value, int) and value >= 0 for value in asdict(costs).values()):
            return costs
    except (OSError, ValueError, TypeError):
        pass
    costs = measure()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_text(json.dumps(asdict(costs)))
        part.replace(path)
    return costs


def measure_costs(forward: Forward, groups: tuple[PageGroup, ...], max_length: int, most_rows: int) -> StepCosts:
    """Time steps of one row, of many rows and of many spans, in nanoseconds. They read and write null pages only."""
    rows = max(2, min(ROWS, most_rows, max_length // 2))
    past = min(PAST, max_length - rows)

    def best(count: int, start: int, length: int) -> int:
        tables = {group.name: array("i", bytes(4 * -(-(start + length) // group.page_size))) for group in groups}
        stop = start + length
        job = Job(0, "", stop, stop, keys=keys_of([0] * stop), tables=tables)
        spans = [Span(job, start, length)] * count
        arrays, ids = build_rows(spans, groups, [0] * count), span_ids(spans)
        return min(_time(forward, ids, arrays) for _ in range(TRIES))

    with torch.inference_mode():
        one, long, wide, far = best(1, 0, 1), best(1, 0, rows), best(rows, 0, 1), best(1, past, rows)
    unit = max(0, long - one) // (rows - 1)
    span = max(0, (wide - one) // (rows - 1) - unit)
    reach = sum(group.unit_bytes for group in groups if group.keep is Keep.ALL) // READ_BYTES_PER_NS
    return StepCosts(max(0, one - unit - span), span, unit, reach, max(0, far - long) // (rows * max(1, past)))


def _time(forward: Forward, ids: npt.NDArray[np.int64], rows: RowArrays) -> int:
    began = time.perf_counter_ns()
    _, scores = forward(ids, rows, [int(start) - 1 for start in rows.starts[1:]])
    for _ in scores:
        pass
    return time.perf_counter_ns() - began
