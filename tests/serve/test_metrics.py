"""The metrics page: what it says of an engine that is gone."""

from __future__ import annotations

from vivace.serve.metrics import Metrics

ENGINE = {
    "steps": 5,
    "lanes": {"m": {"running": 1, "waiting": 2, "counts": {}, "pages": {"all": {"total": 9, "free": 8, "cached": 0}}}},
}


def test_an_engine_that_does_not_answer_leaves_no_numbers_behind() -> None:
    metrics = Metrics()
    up = metrics.render(ENGINE).decode()
    assert "vivace_engine_up 1.0" in up
    assert 'vivace_engine_jobs{model="m",state="waiting"} 2.0' in up
    down = metrics.render(None).decode()
    assert "vivace_engine_up 0.0" in down
    assert 'model="m"' not in down
    assert 'counter="steps"' not in down
