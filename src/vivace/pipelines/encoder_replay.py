"""An encoder's step, recorded once and replayed for any texts: ids in, hidden states, means and unit means out.

Texts that do not fit the tape, and operations that cannot be recorded, are left to the caller, who calls the model as
if there were no tape: the results are the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from vivace.errors import NotRecordable
from vivace.kernels.cpu.bind import NativeOps
from vivace.kernels.ops import Ops, Rows
from vivace.kernels.select import BoundOps
from vivace.kernels.tape import BOUNDS, CHOSEN, ROWS, SEQUENCES, Recorder, Replay, named_parts
from vivace.layers.context import Context
from vivace.models.base import Encoder
from vivace.pipelines.rows import Ints, RowArrays

MEAN, UNIT_MEAN = "mean", "unit mean"  # results: the mean of each text's rows, and that at length one


class EncoderReplay:
    """The recorded step of one model, for at most `rows` tokens of `texts` texts.

    results  "hidden" (rows, hidden), and MEAN and UNIT_MEAN (texts, hidden); they hold until the next run

    Raises NotRecordable when a step of the model holds what no tape can do.
    """

    def __init__(self, model: Encoder, native: NativeOps, *, key: str, rows: int, texts: int) -> None:
        constants = dict(named_parts("", model))
        capacity = {ROWS: rows, CHOSEN: texts, SEQUENCES: texts}
        with Recorder(native, key, capacity, constants) as recorder:
            _record(model, recorder)
        self.program = recorder.program()
        self.tape = Replay(self.program, constants, native)
        self.results = self.tape.results
        self._inputs = {name: tensor.numpy() for name, tensor in self.tape.inputs.items()}
        self.steps = 0  # run so far

    def can_run(self, rows: RowArrays) -> bool:
        """Whether a step of these rows fits the tape."""
        most = self.program.capacity
        return len(rows.parent) <= most[ROWS] and len(rows.context) <= most[SEQUENCES]

    def run(self, ids: Ints, token_types: Ints, rows: RowArrays, skips: Sequence[int]) -> Tensor:
        """Compute a step -> hidden states, in the first rows of (capacity, hidden).

        ids, token_types (rows,); skips: first tokens of each text that its mean leaves out.
        """
        inputs, count, texts = self._inputs, len(ids), len(skips)
        inputs["ids"][:count] = ids
        inputs["token_types"][:count] = token_types
        inputs["position"][:count, 0] = rows.position
        inputs["starts"][: texts + 1] = rows.starts
        inputs["first"][:texts] = rows.starts[:-1] + skips
        inputs["last"][:texts] = rows.starts[1:]
        self.tape.run(count, texts, texts)
        self.steps += 1
        return self.results["hidden"]


def try_encoder_replay(model: Encoder, ops: Ops, *, key: str, rows: int, texts: int) -> EncoderReplay | None:
    """The recorded step of a model, None where its operations are not native or cannot be recorded."""
    if not isinstance(ops, BoundOps) or ops.native is None:
        return None
    try:
        return EncoderReplay(model, ops.native, key=key, rows=rows, texts=texts)
    except NotRecordable:
        return None


def _record(model: Encoder, recorder: Recorder) -> None:
    ops, long = cast(Ops, recorder), torch.int64
    ids, token_types, position, parent = (
        recorder.input("ids", ROWS, dtype=long),
        recorder.input("token_types", ROWS, dtype=long),
        recorder.input("position", ROWS, 1, dtype=long),
        recorder.input("parent", ROWS, dtype=torch.int32),
    )
    recorder.input("starts", BOUNDS, dtype=long)
    recorder.input("context", SEQUENCES, dtype=long)
    first, last = recorder.input("first", CHOSEN, dtype=long), recorder.input("last", CHOSEN, dtype=long)
    rows = Rows(position, parent, parent, (0,), (), parent, {})  # what tells the texts apart is `starts`
    hidden = model.forward(ids, token_types, Context(ops, rows))
    means = recorder.mean_rows(hidden, first, last)
    for name, value in (("hidden", hidden), (MEAN, means), (UNIT_MEAN, recorder.unit_rows(means))):
        recorder.output(name, value)
