"""`benchmarks.speed`: each claim is judged by the fastest of those beside it, and what was not measured is said."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import peers
from benchmarks.contenders import Work
from benchmarks.pairs import ratios
from benchmarks.speed import gemma_lines, smollm2_lines


def row(work: str, vivace: float, peer: str, speed: float, variant: str = "int8") -> dict[str, Any]:
    readings = {"vivace": {"tokens_per_s": vivace}, "peer": {"tokens_per_s": speed}}
    return {"work": work, "vivace_name": variant, "peer_name": peer, **readings}


def report_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    about = {"weight_bytes": 100_000_000, "unit_bytes": 10_000}
    found = [vars(ratio) for ratio in ratios(rows)]
    ceilings = {"bytes_per_s": [15e9, 20e9]}
    return {"rows": rows, "ratios": found, "contenders": {"int8": about}, "ceilings": ceilings}


def test_the_fastest_peer_counts_and_the_prototype_is_none() -> None:
    report = report_of(
        [
            row("decode 16", 210, "slow", 70),
            row("decode 16", 210, "fast", 105),
            row("decode 16", 210, "prototype int8", 240),
        ]
    )
    lines = {line.text: line for line in smollm2_lines(report)}
    best, prototype = lines["int8 decode 16 / best peer"], lines["int8 decode 16 / prototype"]
    assert (best.found, best.target, best.is_met) == (2.0, 2.1, False)
    assert (prototype.found, prototype.is_met) == (0.875, True)
    assert "NOT MET   fast: 210 and 105 tokens/s, 1 pairs" in best.describe()
    missing = lines["int14 decode 16 / best peer"]
    assert missing.found is None and not missing.is_met and "not measured" in missing.describe()


def test_one_stream_is_judged_by_the_bytes_that_its_steps_read() -> None:
    lines = {line.text: line for line in gemma_lines(report_of([row("decode 1", 180, "fast", 100)]))}
    line = lines["int8 decode 1 / reading ceiling"]
    assert line.found == pytest.approx(180 * (100e6 + 160 * 10e3) / 20e9)
    assert line.is_met


class Fixed:
    """A contender of one speed."""

    def __init__(self, name: str, speed: float) -> None:
        self.name, self.about, self.speed, self.count = name, {}, speed, 0

    def measure(self, work: Work) -> dict[str, float]:
        self.count += 1
        return {"tokens_per_s": self.speed}

    def close(self) -> None:
        return


def test_a_peer_far_behind_gets_few_pairs_and_variants_share_the_readings_of_a_peer() -> None:
    run, variants = peers.Run(), [Fixed("int14", 100), Fixed("int8", 120)]
    slow, fast = Fixed("slow", 10), Fixed("fast", 90)
    for peer in (fast, slow):
        peers.measure_peer(run, variants, peers.Entry(peer.name, lambda peer=peer: peer), [Work(1, 16, 8)], 7)
    assert (fast.count, slow.count) == (1 + 7, 1 + peers.SCREEN_PAIRS)
    found = {(ratio.vivace_name, ratio.peer_name): (ratio.pairs, ratio.median) for ratio in ratios(run.rows)}
    assert found["int8", "slow"] == (peers.SCREEN_PAIRS, 12.0)
    assert found["int14", "fast"] == (7, pytest.approx(100 / 90))


def test_the_prototype_meets_the_variant_of_its_own_activations() -> None:
    run, variants = peers.Run(), [Fixed("int14", 100), Fixed("int8", 120)]
    prototype = Fixed("prototype int8", 130)
    peers.measure_peer(run, variants, peers.Entry(prototype.name, lambda: prototype), [Work(1, 16, 8)], 2)
    assert [row["vivace_name"] for row in run.rows] == ["int8", "int8"]
