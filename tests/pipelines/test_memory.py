"""How pages are divided over groups."""

from dataclasses import replace

import pytest

from vivace.config import EngineConfig, Hardware
from vivace.engine.batch import Keep, PageGroup
from vivace.errors import ConfigError
from vivace.pipelines.memory import kv_bytes_of, longest_job, page_counts

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


MACHINE = Hardware(memory_bytes=10 << 30, memory_free_bytes=5 << 30)
LEFT = replace(CONFIG, kv_bytes=None)


def test_the_pool_takes_half_of_what_is_free_beyond_the_reserve() -> None:
    assert kv_bytes_of((FULL,), LEFT, 1 << 30, MACHINE) == (4 << 30) // 2
    assert kv_bytes_of((FULL,), LEFT, 1 << 30, MACHINE, promised=2 << 30) == (2 << 30) // 2
    assert kv_bytes_of((FULL,), LEFT, 1 << 30, Hardware()) == 256 << 20  # a machine that tells nothing


def test_the_pool_is_no_larger_than_all_jobs_at_their_longest_and_holds_them() -> None:
    assert kv_bytes_of((FULL,), LEFT, 300, MACHINE) == (4 * 30 + 1) * 1000
    assert kv_bytes_of((FULL,), replace(LEFT, max_length=50), 300, MACHINE) == (4 * 5 + 1) * 1000
    both = kv_bytes_of((FULL, WINDOW), LEFT, 300, MACHINE)
    pages = page_counts((FULL, WINDOW), replace(LEFT, kv_bytes=both))
    assert pages == {"full": 120, "window": 42}


def test_kv_bytes_that_are_given_are_taken() -> None:
    assert kv_bytes_of((FULL,), replace(CONFIG, kv_bytes=7), 300, MACHINE) == 7


def test_a_machine_without_room_for_a_page_is_an_error_with_numbers() -> None:
    full = Hardware(memory_bytes=10 << 30, memory_free_bytes=1 << 30)
    nothing = kv_bytes_of((FULL,), LEFT, 300, full)
    with pytest.raises(
        ConfigError, match=r"^0 bytes for keys and values hold no page .*, expected at least 2000 bytes"
    ):
        page_counts((FULL,), replace(LEFT, kv_bytes=nothing))
    with pytest.raises(ConfigError, match=r"^1 bytes for keys and values hold no page"):
        page_counts((FULL,), replace(LEFT, kv_bytes=1))
