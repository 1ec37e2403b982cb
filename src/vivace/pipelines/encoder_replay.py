"""An encoder's step, recorded once and replayed for any texts: ids in, hidden states, means and unit means out.

Texts that do not fit the tape, and operations that cannot be recorded, are left to the caller, who calls the model as
if there were no tape: the results are the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
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

LEAST_PART = 48  # tokens of a part: with fewer, reading the weights once for each part costs more than cutting saves
FAIR = 1.2  # the largest part may hold so many times its share of the tokens
MEAN, UNIT_MEAN = "mean", "unit mean"  # results: the mean of each text's rows, and that at length one


@dataclass(frozen=True, eq=False)
class EncoderStep:
    """What a tape computes at a time.

    ids, token_types  (rows,)
    skips             first tokens of each text that its mean leaves out
    """

    ids: Ints
    token_types: Ints
    rows: RowArrays
    skips: Sequence[int]


class EncoderReplay:
    """The recorded step of one model, for at most `rows` tokens of `texts` texts.

    A large step is cut into as many parts as there are threads, and each runs on one thread with buffers of its own: no
    thread waits for another between two operations, and what a core has written stays in its own caches. A small one,
    or one that cannot be cut fairly, runs on all threads together. The results are the same bits.

    Raises NotRecordable when a step of the model holds what no tape can do.
    """

    def __init__(self, model: Encoder, native: NativeOps, *, key: str, rows: int, texts: int) -> None:
        constants = dict(named_parts("", model))
        capacity = {ROWS: rows, CHOSEN: texts, SEQUENCES: texts}
        with Recorder(native, key, capacity, constants) as recorder:
            _record(model, recorder)
        self.program = recorder.program()
        self.tape = Replay(self.program, constants, native)
        alone = [NativeOps(native.isa, 1) for _ in range(native.threads if native.threads > 1 else 0)]
        self._parts = [Replay(self.program, constants, one) for one in alone]
        self._helpers = ThreadPoolExecutor(max(1, len(alone) - 1), "vivace-encoder")
        self.steps = self.cut_steps = 0  # run so far, and those that were cut

    def can_run(self, tokens: int, texts: int) -> bool:
        """Whether a step of that size fits the tape."""
        return tokens <= self.program.capacity[ROWS] and texts <= self.program.capacity[SEQUENCES]

    def cut(self, lengths: Sequence[int]) -> list[list[int]]:
        """Which texts of a step make up its parts, by their places: the longest first, each to the shortest part."""
        parts: list[list[int]] = [[] for _ in self._parts]
        tokens, whole = [0] * len(parts), [list(range(len(lengths)))]
        if not parts or sum(lengths) < LEAST_PART * len(parts):
            return whole
        for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
            least = min(range(len(parts)), key=tokens.__getitem__)
            parts[least].append(place)
            tokens[least] += lengths[place]
        return parts if max(tokens) * len(parts) <= FAIR * sum(lengths) else whole

    def run(self, steps: Sequence[EncoderStep]) -> list[Mapping[str, Tensor]]:
        """Compute the parts of a step side by side. -> of each part "hidden" (rows, hidden), MEAN and UNIT_MEAN (texts,
        hidden), in the first rows of larger tensors, which hold until the next run."""
        self.steps += 1
        if len(steps) == 1:
            _run(self.tape, steps[0])
            return [self.tape.results]
        self.cut_steps += 1
        tasks = [self._helpers.submit(_run, tape, step) for tape, step in zip(self._parts[1:], steps[1:], strict=True)]
        try:
            _run(self._parts[0], steps[0])
        finally:
            wait(tasks)
        for task in tasks:
            task.result()
        return [tape.results for tape in self._parts]


def _run(tape: Replay, step: EncoderStep) -> None:
    count, texts, starts = len(step.ids), len(step.skips), step.rows.starts
    values = {
        "ids": step.ids,
        "token_types": step.token_types,
        "position": step.rows.position[:, None],
        "starts": starts,
        "first": starts[:-1] + step.skips,
        "last": starts[1:],
    }
    for name, value in values.items():
        tape.inputs[name].numpy()[: len(value)] = value
    tape.run(count, texts, texts)


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
