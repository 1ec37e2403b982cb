"""`bench engine` on a tiny model: every work leaves its readings; no time is judged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from vivace.api.engine import Engine
from vivace.config import EngineConfig
from vivace.errors import ConfigError
from vivace.lab.bench_engine import Report, bench_engine
from vivace.lab.report import compare_table, engine_tables, gain, heading
from vivace.lab.settings import BenchConfig
from vivace.lab.steps_profile import StepsProfile
from vivace.lab.streams import Prompts, Streams

TINY = Path(__file__).resolve().parents[1] / "assets" / "tiny-llama"
ENGINE = EngineConfig(threads=1, kv_bytes=16 << 20)
SMALL = BenchConfig(prefill=(24,), streams=(1, 3), context=8, tokens=4, running=2, arrivals=2, repeats=2)


@pytest.fixture(scope="module")
def report() -> Report:
    return bench_engine(str(TINY), ENGINE, SMALL, with_profile=True)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(ENGINE) as made:
        made.add_model(str(TINY), name="tiny")
        yield made


def test_every_work_keeps_all_its_readings(report: Report) -> None:
    works = {row["work"] for row in report["results"]}
    assert works == {"prefill 24", "decode 1", "decode 3", "mixed 2"}
    assert all(len(row["values"]) == 2 and min(row["values"]) > 0 for row in report["results"])
    assert all(row["best"] in row["values"] for row in report["results"])


def test_the_report_is_plain_json_and_says_what_it_was_measured_with(report: Report) -> None:
    again = json.loads(json.dumps(report))
    assert again["settings"]["threads"] == 1
    assert again["settings"]["kv_format"] in (["f32"], ["f32_panel16"])  # as the operations keep it
    assert again["model"]["weight_bytes"] == sum(again["model"]["formats"].values()) > 0
    assert {"vivace", "commit", "python", "torch"} <= again["software"].keys()
    # The system counts resident pages per thread and adds them up late: a peak may read below what came before.
    assert again["memory"]["load_peak_bytes"] > 0.9 * again["memory"]["before_bytes"] > 0


def test_rates_have_a_share_of_the_ceiling_that_binds(report: Report) -> None:
    shares = {row["work"]: row for row in report["results"] if "share" in row}
    assert shares.keys() == {"prefill 24", "decode 1", "decode 3"}
    assert all(row["ceiling"] in ("memory", "float", "integer") for row in shares.values())


def test_the_profile_holds_every_stage_of_a_step(report: Report) -> None:
    stages = report["profile"]["decode 3"]
    assert {"plan", "rows", "attention", "head linear", "sampling", "accept", "replies"} <= stages.keys()
    assert all(time >= 0 for time in stages.values())


def test_watching_an_engine_changes_nothing_of_it(engine: Engine) -> None:
    prompt = Prompts(384).make(8)
    calls = {op: getattr(engine.ops, op) for op in engine.ops.bound}
    with StepsProfile(engine, "tiny") as profile, Streams(engine, "tiny") as streams:
        assert engine.ops.linear is not calls["linear"]
        streams.wait(streams.start([prompt], 6), 6)
        streams.wait(streams.start([prompt], 6), 6)
    assert {(step.jobs, step.rows) for step in profile.steps} >= {(1, 8), (1, 1)}
    assert {op: getattr(engine.ops, op) for op in engine.ops.bound} == calls
    assert "plan" not in vars(engine.loop.scheduler)


def test_streams_that_run_on_are_cancelled_at_the_end_of_the_block(engine: Engine) -> None:
    with Streams(engine, "tiny") as streams:
        started = streams.start([Prompts(384).make(4)], 200)
        streams.wait(started, 3)
    assert started[0].is_over
    assert len(started[0].token_ns) >= 3
    assert not engine.loop.scheduler.has_work


def test_a_prompt_that_was_seen_is_found_again(engine: Engine) -> None:
    with Streams(engine, "tiny") as streams:
        for _ in range(2):
            [stream] = streams.start([Prompts(384).make(40)], 1)
            streams.wait([stream], 1)
    assert stream.cached >= 32


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"streams": (65,)}, "the engine runs 64"),
        ({"prefill": (100_000,)}, "tokens of context"),
        ({"repeats": 0}, "expected positive numbers"),
        ({"streams": ()}, "expected positive numbers"),
    ],
)
def test_work_that_cannot_be_done_is_refused_before_it_begins(change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bench_engine(str(TINY), ENGINE, replace(SMALL, **change))  # type: ignore[arg-type]


def test_tables_and_ratios_are_made_of_reports(report: Report) -> None:
    assert "f32" in heading(report)
    assert len(engine_tables(report)) == 3
    assert compare_table(report, report).row_count == len(report["results"])
    assert gain("tokens_per_s", 10.0, 20.0) == 2.0
    assert gain("gap_p50_ms", 10.0, 20.0) == 0.5
    with pytest.raises(ConfigError, match="expected 'vivace bench engine'"):
        compare_table(report, {"kind": "another"})
