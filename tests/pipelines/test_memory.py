"""How pages are divided over groups."""

from dataclasses import replace

import pytest

from vivace.config import EngineConfig
from vivace.engine.batch import Keep, PageGroup
from vivace.errors import ConfigError
from vivace.pipelines.memory import longest_job, page_counts

FULL, WINDOW = PageGroup("full", 100, 10), PageGroup("window", 400, 10, Keep.LAST, 55)
CONFIG = EngineConfig(kv_bytes=4_000_000, max_jobs=4, step_budget=100)


def test_a_window_gets_no_more_than_all_jobs_can_use_and_the_rest_goes_to_the_full_group() -> None:
    pages = page_counts((FULL, WINDOW), CONFIG)
    assert pages["window"] == 4 * (6 + 2) + 10
    assert pages["full"] == (4_000_000 - 5000 - 42 * 4000) // 1000


def test_little_memory_is_divided_evenly() -> None:
    pages = page_counts((FULL, WINDOW), replace(CONFIG, kv_bytes=100_000))
    assert pages == {"full": 19, "window": 19}


def test_the_longest_job_is_the_models_own_unless_memory_or_config_say_less() -> None:
    pages = {"full": 50, "window": 9}
    assert longest_job((FULL, WINDOW), pages, CONFIG, 300) == 300
    assert longest_job((FULL, WINDOW), pages, CONFIG, 3000) == 500
    assert longest_job((FULL, WINDOW), pages, replace(CONFIG, max_length=70), 300) == 70
    with pytest.raises(ConfigError, match=r"max_length is 301, expected at most 300"):
        longest_job((FULL, WINDOW), pages, replace(CONFIG, max_length=301), 300)
    with pytest.raises(ConfigError, match=r"max_length is 501, but kv_bytes = 4000000 holds 500"):
        longest_job((FULL, WINDOW), pages, replace(CONFIG, max_length=501), 3000)
