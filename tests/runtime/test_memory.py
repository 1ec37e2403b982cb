"""Dividing memory into pages."""

from __future__ import annotations

import pytest

from vivace.errors import ConfigError
from vivace.runtime.memory import PageNeed, pages_that_fit


def test_one_group_gets_all_but_the_null_page() -> None:
    assert pages_that_fit({"full": PageNeed(100)}, 1099) == {"full": 9}


def test_unbounded_groups_get_equal_numbers() -> None:
    assert pages_that_fit({"a": PageNeed(100), "b": PageNeed(300)}, 4400) == {"a": 10, "b": 10}


def test_what_a_bounded_group_leaves_goes_to_the_others() -> None:
    needs = {"full": PageNeed(100), "window": PageNeed(100, most=5)}
    assert pages_that_fit(needs, 200 + 2500) == {"full": 20, "window": 5}


def test_a_loose_bound_changes_nothing() -> None:
    needs = {"full": PageNeed(100), "window": PageNeed(100, most=1000)}
    assert pages_that_fit(needs, 200 + 2000) == {"full": 10, "window": 10}


def test_pages_never_exceed_the_budget() -> None:
    needs = {"a": PageNeed(7, most=3), "b": PageNeed(13), "c": PageNeed(29, most=11)}
    for budget in range(98, 3000, 17):
        pages = pages_that_fit(needs, budget)
        assert sum((pages[name] + 1) * need.page_bytes for name, need in needs.items()) <= budget


def test_a_model_without_stores_needs_no_memory() -> None:
    assert pages_that_fit({}, 0) == {}


def test_too_small_a_budget_is_an_error_that_says_what_is_needed() -> None:
    with pytest.raises(ConfigError, match="hold no page of each group"):
        pages_that_fit({"full": PageNeed(1 << 20)}, (1 << 20) + 5)


def test_a_budget_below_a_mebibyte_is_told_in_bytes() -> None:
    with pytest.raises(ConfigError, match=r"^100 bytes for .*, expected at least 2048 bytes"):
        pages_that_fit({"full": PageNeed(1024)}, 100)


def test_more_than_the_free_memory_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"only 1\.0 MiB of memory are free"):
        pages_that_fit({"full": PageNeed(1024)}, 2 << 20, free_bytes=1 << 20)
