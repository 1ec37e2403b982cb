"""Recorded steps as plain data: printed, hashed, saved, and their results placed in one stretch of memory."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from vivace.errors import ConfigError
from vivace.runtime.graphs import ALIGNMENT, Buffer, Call, Program, Ref, place

CAPACITY = {"rows": 10, "chosen": 3}


def buffer(number: int, width: int, count: str = "rows") -> Buffer:
    return Buffer(f"%{number}", "float32", count, (width,))


def call(function: str, reads: list[str], write: Buffer, **scalars: float | str | None) -> Call:
    arguments = [(f"x{index}", Ref(name, (4,) if name.startswith("%") else None)) for index, name in enumerate(reads)]
    return Call(function, write.count, (*arguments, *scalars.items(), ("y", Ref(write.name, write.sizes))), ("y",))


def chain(widths: list[int]) -> Program:
    """Each result is made from the one before; the first and the last are outputs."""
    buffers = tuple(buffer(number, width) for number, width in enumerate(widths))
    calls = [call("begin", ["ids", "table"], buffers[0], eps=1e-6, kind="silu", bias=None)]
    calls += [call("go", [before.name], after) for before, after in pairwise(buffers)]
    outputs = {"first": "%0", "last": buffers[-1].name}
    inputs = (Buffer("ids", "int64", "rows"),)
    return Program("a model", CAPACITY, inputs, buffers, ("table",), tuple(calls), outputs)


def test_a_program_is_one_line_per_call() -> None:
    assert str(chain([4, 8])).splitlines() == [
        "program a model",
        "capacity rows 10",
        "capacity chosen 3",
        "input ids: int64 (rows)",
        "output first %0",
        "output last %1",
        "%0 = begin(x0=ids, x1=table, eps=1e-06, kind=silu, bias=None)",
        "%1 = go(x0=%0)",
    ]


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    program = chain([4, 8, 16])
    program.save(tmp_path / "step.json")
    loaded = Program.load(tmp_path / "step.json")
    assert loaded == program
    assert loaded.digest == program.digest


def test_the_digest_tells_programs_apart() -> None:
    program = chain([4, 8])
    others = [chain([4, 9]), replace(program, key="another"), replace(program, capacity={**CAPACITY, "rows": 11})]
    assert len({item.digest for item in (program, *others)}) == 4


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 99}', '{"version": 1, "calls": 3}', "\x00"])
def test_a_file_that_is_no_program_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "step.json").write_text(text)
    with pytest.raises(ConfigError, match="is no recorded step of version 1"):
        Program.load(tmp_path / "step.json")


def test_a_field_too_many_is_refused(tmp_path: Path) -> None:
    chain([4]).save(tmp_path / "step.json")
    data = json.loads((tmp_path / "step.json").read_text())
    (tmp_path / "step.json").write_text(json.dumps({**data, "more": 1}))
    with pytest.raises(ConfigError, match="more"):
        Program.load(tmp_path / "step.json")


def test_results_take_turns_in_memory() -> None:
    offsets, total = place(chain([16] * 20))
    # The first is an output; of the others no more than two live at a time.
    assert total == 3 * 10 * 16 * 4
    assert offsets["%0"] == 0


@pytest.mark.parametrize("seed", range(20))
def test_results_that_live_at_once_do_not_overlap(seed: int) -> None:
    rng = random.Random(seed)
    buffers = [buffer(n, rng.randint(1, 40), rng.choice(["rows", "chosen"])) for n in range(30)]
    calls, names = [call("begin", ["ids"], buffers[0])], ["%0"]
    for item in buffers[1:]:
        calls.append(call("go", rng.sample(names, min(len(names), rng.randint(1, 3))), item))
        names.append(item.name)
    outputs = {"y": buffers[-1].name, "z": rng.choice(names)}
    program = Program("", CAPACITY, (Buffer("ids", "int64", "rows"),), tuple(buffers), (), tuple(calls), outputs)
    offsets, total = place(program)
    owner: dict[int, str] = {}  # cache line -> who wrote it last
    for step in calls:
        for ref in step.refs():
            if ref.name in offsets and ref.name not in step.writes_to():
                assert _owners(program, offsets, ref.name, owner) == {ref.name}
        for name in step.writes_to():
            owner.update(dict.fromkeys(_lines(program, offsets, name), name))
    for name in outputs.values():
        assert _owners(program, offsets, name, owner) == {name}
    assert all((line + 1) * ALIGNMENT <= total for line in owner)


def _owners(program: Program, offsets: dict[str, int], name: str, owner: dict[int, str]) -> set[str]:
    return {owner[line] for line in _lines(program, offsets, name)}


def _lines(program: Program, offsets: dict[str, int], name: str) -> range:
    item = next(item for item in program.buffers if item.name == name)
    assert offsets[name] % ALIGNMENT == 0
    return range(offsets[name] // ALIGNMENT, (offsets[name] + program.bytes_of(item)) // ALIGNMENT)
