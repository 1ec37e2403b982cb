"""The cost table: measured once, kept in a file, and what it costs changes schedules but no answer."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

import pytest

from tests.pipelines.engine import CONFIG, Engine, prompts, tiny
from vivace.engine.costs import StepCosts
from vivace.engine.limits import SchedulerConfig
from vivace.engine.loop import Loop
from vivace.pipelines.costs import saved_costs
from vivace.pipelines.requests import GenerateRequest

COSTS = StepCosts(1000, 20, 300, 4, 1)


def never() -> NoReturn:
    raise AssertionError("measured although there is a table")


def test_a_table_is_measured_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "costs" / "table.json"
    assert saved_costs(path, lambda: COSTS) == COSTS
    assert saved_costs(path, never) == COSTS
    assert [file.name for file in path.parent.iterdir()] == ["table.json"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", json.dumps({**asdict(COSTS), "unit": -1}), json.dumps({**asdict(COSTS), "more": 1})]
)
def test_a_damaged_table_is_measured_again(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    assert saved_costs(path, lambda: COSTS) == COSTS
    assert saved_costs(path, never) == COSTS


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert saved_costs(tmp_path / "file" / "table.json", lambda: COSTS) == COSTS


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma3"])
def test_a_measured_table_has_costs_of_steps_and_rows_and_spoils_nothing(name: str, tmp_path: Path) -> None:
    requests = [GenerateRequest(ids, max_tokens=12) for ids in prompts(name)]
    plain, bound = Engine(tiny(name)), Engine(tiny(name))
    bound.pipeline.bound_gaps(tmp_path, "this machine", 8)
    costs = bound.pipeline.lane.costs
    assert costs is not None
    assert costs.unit + costs.span > 0
    assert costs.reach == sum(group.unit_bytes for group in bound.pipeline.lane.groups if not group.span) // 15
    assert [result.ids for result in plain.run(*requests)] == [result.ids for result in bound.run(*requests)]


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma3"])
def test_a_bound_cuts_prompts_into_more_chunks_and_changes_no_answer(name: str) -> None:
    requests = [GenerateRequest(ids, max_tokens=12) for ids in sorted(prompts(name), key=len)]
    plain, bound = Engine(tiny(name)), Engine(tiny(name))
    bound.pipeline._lane = replace(bound.pipeline.lane, costs=COSTS)
    limits = SchedulerConfig(step_budget=CONFIG.step_budget, max_jobs=CONFIG.max_jobs, gap_limit=2500, least_chunk=1)
    bound.loop = Loop([bound.pipeline], limits)
    results = [[result.same() for result in engine.run(*requests)] for engine in (plain, bound)]
    assert results[0] == results[1]
    assert bound.loop.snapshot()["cut_spans"] > plain.loop.snapshot()["cut_spans"]
