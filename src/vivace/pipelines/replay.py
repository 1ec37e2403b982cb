"""A decoder's step, recorded once and replayed for any rows: ids in, hidden states, scores and best ids out.

The steps that a tape cannot take (more rows than it was made for) and the operations that cannot be recorded are left
to the caller, who calls the model as if there were no tape: the results are the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from vivace.engine.batch import PageGroup
from vivace.errors import NotRecordable
from vivace.kernels.cpu.bind import NativeOps
from vivace.kernels.ops import GroupRows, KVStore, Ops, Rows
from vivace.kernels.select import BoundOps
from vivace.kernels.tape import BOUNDS, CHOSEN, ROWS, SEQUENCES, Recorder, Replay, named_parts
from vivace.layers.context import Context
from vivace.models.base import Decoder
from vivace.pipelines.rows import Ints, RowArrays
from vivace.pipelines.sampler import Scored
from vivace.runtime.graphs import Program


class DecoderReplay:
    """The recorded step of one model over its stores.

    key       model and formats
    capacity  most of each count: rows, chosen rows, sequences
    pages     most pages of a block table, by page group

    Raises NotRecordable when a step of the model holds what no tape can do.
    """

    def __init__(
        self,
        model: Decoder,
        native: NativeOps,
        stores: Sequence[KVStore],
        groups: Sequence[PageGroup],
        *,
        key: str,
        capacity: Mapping[str, int],
        pages: Mapping[str, int],
    ) -> None:
        self._ropes = model.ropes
        self._parts = dict([*named_parts("", model), *named_parts("stores", stores)])
        constants = self._constants()
        with Recorder(native, key, capacity, constants) as recorder:
            _record(model, recorder, stores, groups, pages)
        self.program: Program = recorder.program()
        self.tape = Replay(self.program, constants, native)
        self._variants = self._ropes.count
        self._scores, self._best = (self.tape.results[name].numpy() for name in ("scores", "best"))
        self._inputs = {name: tensor.numpy() for name, tensor in self.tape.inputs.items()}
        self.steps = 0  # run so far

    def can_run(self, rows: RowArrays, chosen: int) -> bool:
        """Whether a step of these rows, `chosen` of which go on to the head, fits the tape."""
        most = self.program.capacity
        return len(rows.parent) <= most[ROWS] and len(rows.context) <= most[SEQUENCES] and chosen <= most[CHOSEN]

    def run(self, ids: Ints, rows: RowArrays, chosen: Sequence[int]) -> tuple[Tensor, Iterator[Scored]]:
        """Compute a step. -> hidden states, in the first rows of (capacity, hidden), and scores after the chosen rows.

        They hold until the next run. ids (rows,).
        """
        if self._ropes.count != self._variants:  # a job of a length that asks for frequencies of its own
            self.tape.bind(self._constants())
            self._variants = self._ropes.count
        self._fill(ids, rows, chosen)
        count, drawn = len(ids), len(chosen)
        self.tape.run(count, drawn, len(rows.context))
        self.steps += 1
        return self.tape.results["hidden"], self._scored(drawn)

    def _scored(self, count: int) -> Iterator[Scored]:
        scores, numbers = self.tape.results["scores"], self._scores
        for place, best in enumerate(self._best[:count].tolist()):
            yield Scored(scores, place, best, float(numbers[place, best]))

    def _constants(self) -> dict[str, Any]:
        return {**self._parts, **dict(named_parts("ropes", self._ropes.tables))}

    def _fill(self, ids: Ints, rows: RowArrays, chosen: Sequence[int]) -> None:
        inputs, count, sequences = self._inputs, len(ids), len(rows.context)
        inputs["ids"][:count] = ids
        inputs["position"][:count, 0] = rows.position
        inputs["variant"][:count] = rows.variant
        inputs["parent"][:count] = rows.parent
        inputs["starts"][: sequences + 1] = rows.starts
        inputs["context"][:sequences] = rows.context
        inputs["chosen"][: len(chosen)] = chosen
        for name, slot in rows.slots.items():
            table = rows.tables[name]
            inputs[f"{name}.slot"][:count] = slot
            inputs[f"{name}.table"][:sequences, : table.shape[1]] = table


def try_replay(
    model: Decoder,
    ops: Ops,
    stores: Sequence[KVStore],
    groups: Sequence[PageGroup],
    *,
    key: str,
    capacity: Mapping[str, int],
    pages: Mapping[str, int],
) -> DecoderReplay | None:
    """The recorded step of a model, None where its operations are not native or cannot be recorded."""
    if not isinstance(ops, BoundOps) or ops.native is None:
        return None
    try:
        return DecoderReplay(model, ops.native, stores, groups, key=key, capacity=capacity, pages=pages)
    except NotRecordable:
        return None


def _record(
    model: Decoder,
    recorder: Recorder,
    stores: Sequence[KVStore],
    groups: Sequence[PageGroup],
    pages: Mapping[str, int],
) -> None:
    ops = cast(Ops, recorder)
    long, short = torch.int64, torch.int32
    for name, count in (("starts", BOUNDS), ("context", SEQUENCES)):
        recorder.input(name, count, dtype=long)
    tables = {
        group.name: GroupRows(
            recorder.input(f"{group.name}.slot", ROWS, dtype=long),
            recorder.input(f"{group.name}.table", SEQUENCES, pages[group.name], dtype=short),
            group.page_size,
        )
        for group in groups
    }
    position, variant, parent = (
        recorder.input("position", ROWS, 1, dtype=long),
        recorder.input("variant", ROWS, dtype=short),
        recorder.input("parent", ROWS, dtype=short),
    )
    # What tells the sequences apart are `starts` and `context`, read when the tape runs.
    rows = Rows(position, parent, parent, (0,), (), variant, tables, is_chain=False)
    ids, chosen = recorder.input("ids", ROWS, dtype=long), recorder.input("chosen", CHOSEN, dtype=long)
    ctx = Context(ops, rows, stores, model.ropes.angles(position, variant, ops))
    hidden = model.forward(ids, ctx)
    scores = model.logits(recorder.take_rows(hidden, chosen), ctx)
    for output, value in (("hidden", hidden), ("scores", scores), ("best", recorder.argmax(scores))):
        recorder.output(output, value)
