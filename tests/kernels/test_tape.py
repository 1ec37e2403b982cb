"""Recorded operations: replayed for any number of rows they give the bits of the same operations called one by one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vivace.errors import NotRecordable
from vivace.kernels.cpu.bind import NativeOps
from vivace.kernels.layout import pack_panels
from vivace.kernels.ops import KVStore, LinearWeight, f32_weight
from vivace.kernels.tape import Recorder, Replay, named_parts
from vivace.runtime.graphs import Program

pytestmark = pytest.mark.usefixtures("needs_native")

CAPACITY = {"rows": 40, "chosen": 7, "sequences": 5}
SIZE, INNER = 48, 100


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def packed(outputs: int, inputs: int, **slices: tuple[int, int]) -> LinearWeight:
    return pack_panels(f32_weight(randn(outputs, inputs, seed=outputs), randn(outputs), slices=slices))


WEIGHTS = {
    "table": packed(90, SIZE),
    "norm": randn(SIZE, seed=3),
    "gate_up": packed(2 * INNER, SIZE, gate=(0, INNER), up=(INNER, 2 * INNER)),
    "down": packed(SIZE, INNER),
}
PARTS = dict(named_parts("", WEIGHTS))


def forward(ops: Any, ids: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    x = ops.embedding(ids, WEIGHTS["table"], 2.0)
    for _ in range(3):
        h = ops.gated_mlp(ops.rms_norm(x, WEIGHTS["norm"], 1e-6), WEIGHTS["gate_up"], WEIGHTS["down"], "silu", x)
        x = ops.add(h, ops.soft_cap(ops.layer_norm(h, WEIGHTS["norm"], None, 1e-6), 2.0))
    scores = ops.linear(ops.take_rows(x, chosen), WEIGHTS["table"])
    return scores, ops.argmax(scores)


def recorded(native: NativeOps) -> Program:
    with Recorder(native, "test", CAPACITY, PARTS) as recorder:
        ids = recorder.input("ids", "rows", dtype=torch.int64)
        scores, best = forward(recorder, ids, recorder.input("chosen", "chosen", dtype=torch.int64))
        recorder.output("scores", scores)
        recorder.output("best", best)
    return recorder.program()


def check(replay: Replay, native: NativeOps, rows: int, chosen: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(90, (rows,), generator=generator)
    take = torch.randint(rows, (chosen,), generator=generator) if rows else torch.zeros(0, dtype=torch.int64)
    replay.inputs["ids"][:rows] = ids
    replay.inputs["chosen"][:chosen] = take
    replay.run(rows, chosen, 0)
    scores, best = forward(native, ids, take)
    assert torch.equal(replay.results["scores"][:chosen], scores)
    assert torch.equal(replay.results["best"][:chosen], best)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_replay_is_eager_for_any_count_of_rows(threads: int) -> None:
    native = NativeOps(None, threads)
    replay = Replay(recorded(native), PARTS, native)
    for rows, chosen in [(1, 1), (40, 7), (17, 3), (5, 0), (0, 0), (2, 7), (40, 1)]:
        check(replay, native, rows, chosen)


def test_any_thread_count_replays_the_same_bits() -> None:
    results = []
    for threads in (1, 2, 3, 4, 7):
        native = NativeOps(None, threads)
        replay = Replay(recorded(native), PARTS, native)
        replay.inputs["ids"][:] = torch.arange(40)
        replay.inputs["chosen"][:] = torch.arange(7) * 5
        replay.run(40, 7, 0)
        results.append(replay.results["scores"].clone())
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_saved_program_runs_the_same(tmp_path: Path) -> None:
    native = NativeOps(None, 2)
    program = recorded(native)
    program.save(tmp_path / "step.json")
    loaded = Program.load(tmp_path / "step.json")
    assert loaded.digest == recorded(NativeOps("portable", 1)).digest
    check(Replay(loaded, PARTS, native), native, 23, 4)


def test_constants_are_named_by_their_place_in_the_model() -> None:
    program = recorded(NativeOps(None, 1))
    linear = {f"{name}.{part}" for name in ("table", "gate_up", "down") for part in ("data", "bias")}
    assert set(program.constants) == {*linear, "norm"}
    assert "weights=gate_up.data" in str(program)


def test_other_constants_can_be_bound() -> None:
    native = NativeOps(None, 1)
    program = recorded(native)
    replay = Replay(program, PARTS, native)
    replay.inputs["ids"][:] = torch.arange(40)
    replay.run(40, 7, 0)
    before = replay.results["scores"].clone()
    replay.bind({**PARTS, "norm": PARTS["norm"] * 2})  # type: ignore[operator]
    replay.run(40, 7, 0)
    assert not torch.equal(replay.results["scores"], before)
    with pytest.raises(NotRecordable, match=r"needs norm"):
        replay.bind({name: value for name, value in PARTS.items() if name != "norm"})


def test_a_step_over_the_capacity_is_refused_before_anything_is_written() -> None:
    native = NativeOps(None, 1)
    replay = Replay(recorded(native), PARTS, native)
    check(replay, native, 3, 2)
    before = replay.results["scores"].clone()
    for rows, chosen, message in [
        (41, 1, "41 rows, the tape holds 40"),
        (1, 8, "8 rows, the tape holds 7"),
        (-1, 0, "-1"),
    ]:
        with pytest.raises(ValueError, match=message):
            replay.run(rows, chosen, 0)
    assert torch.equal(replay.results["scores"], before)


def test_an_index_out_of_range_is_refused_and_the_next_run_is_right() -> None:
    native = NativeOps(None, 2)
    replay = Replay(recorded(native), PARTS, native)
    replay.inputs["ids"][0] = 90
    with pytest.raises(ValueError, match="ids holds 90, expected 0 to 89"):
        replay.run(1, 0, 0)
    check(replay, native, 9, 2)


def test_a_timed_run_names_every_call() -> None:
    native = NativeOps(None, 1)
    replay = Replay(recorded(native), PARTS, native)
    times = replay.run_timed(4, 1, 0)
    assert [function for function, _ in times] == [call.function for call in replay.program.calls]
    assert all(time >= 0 for _, time in times)


FORBIDDEN: list[tuple[Callable[[Any, Tensor], Any], str]] = [
    (lambda ops, x: x + 1, r"torch\.add is called while a step is recorded"),
    (lambda ops, x: x.clone(), r"torch\.clone is called"),
    (lambda ops, x: torch.zeros(3), r"torch\.zeros is called"),
    (lambda ops, x: float(x.sum()), r"torch\.sum is called"),
    (lambda ops, x: ops.add(x, torch.empty(0)), r"torch\.empty is called"),
    (lambda ops, x: ops.rms_norm(x, STRANGER, 1e-6), r"neither input, nor result, nor weight"),
    (lambda ops, x: ops.add(x[:5], x[5:10]), r"takes a part of %0: float32 \(rows, 48\)"),
    (lambda ops, x: ops.rms_norm(x[:, :24], WEIGHTS["norm"], 1e-6), r"torch\.clone is called|takes a part"),
    (lambda ops, x: ops.kv_move(STORE, x, x), r"kv_move gives no result"),
]
STRANGER = torch.ones(SIZE)
STORE = KVStore(randn(2, 2, 1, 4), randn(2, 2, 1, 4))


@pytest.mark.parametrize(("body", "message"), FORBIDDEN, ids=[message for _, message in FORBIDDEN])
def test_what_is_no_operation_raises_and_names_itself(body: Callable[[Any, Tensor], Any], message: str) -> None:
    with Recorder(NativeOps(None, 1), "test", CAPACITY, PARTS) as recorder:
        x = recorder.embedding(recorder.input("ids", "rows", dtype=torch.int64), WEIGHTS["table"])
        with pytest.raises(NotRecordable, match=message):
            body(recorder, x)
    assert (torch.ones(2) + 1).sum() == 4  # torch works as before


def test_two_programs_share_one_pool_from_two_threads() -> None:
    native = NativeOps(None, 2)
    program = recorded(native)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            replay = Replay(program, PARTS, NativeOps(None, 1) if number == 9 else native)
            for turn in range(30):
                check(replay, native, 1 + (turn * 7 + number) % 40, turn % 8)
        except BaseException as error:  # a thread's error belongs to the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
