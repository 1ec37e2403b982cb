"""`benchmarks.ops`: every operation of the menu has a case, and each case runs in every implementation."""

from __future__ import annotations

import pytest

from benchmarks.ops import every_case, implementations, measure, table
from vivace.kernels.ops import Ops
from vivace.kernels.select import resolve
from vivace.lab.ceilings import Ceilings

AT_LOAD = {"pack_linear", "pack_table", "pack_experts", "make_store"}  # not part of a step
MENU = {name for name in vars(Ops) if not name.startswith("_")} - AT_LOAD
CEILINGS = Ceilings("made up", 1, (1e10,), 1e11, 1e12, "vpdpbusd")


@pytest.mark.parametrize("is_full", [False, True])
def test_every_operation_of_the_menu_has_a_case(is_full: bool) -> None:
    assert {case.op for case in every_case(is_full=is_full)} == MENU == set(resolve(choice="ref").bound)


@pytest.mark.parametrize("name", implementations(is_full=True))
def test_a_case_of_each_operation_runs_in_each_implementation(name: str) -> None:
    ops = resolve(choice="ref") if name == "ref" else resolve(choice="native", isa=name, threads=1)
    smallest = {case.op: case for case in sorted(every_case(is_full=False), key=lambda case: -case.operations)}
    results = [measure(case, name, ops, CEILINGS, 0.0) for case in smallest.values()]
    assert {result.op for result in results} == MENU
    assert all(result.us > 0 and result.share >= 0 for result in results)
    text = table(results)
    assert all(f"{op:17}" in text for op in MENU)
