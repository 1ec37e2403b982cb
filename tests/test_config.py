"""Settings: a value of a wrong type or size is refused by name before anything is made of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from vivace.config import EngineConfig, Hardware, ServeConfig, check_serve, resolve
from vivace.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threads", 0),
        ("threads", 10**6),  # each would be a thread of the native pool
        ("threads", True),
        ("threads", "2"),
        ("max_length", 3.5),
        ("page_size", 0),
        ("step_budget", None),
        ("kv_bytes", "16M"),
        ("max_jobs", -1),
    ],
)
def test_a_number_of_the_engine_is_whole_positive_and_bounded(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{field} is {value!r}, expected a whole number"):
        resolve(EngineConfig(**{field: value}), Hardware(cores=2, memory_free_bytes=1 << 30))


@pytest.mark.parametrize("field", ["kl_target", "kl_limit"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "0.1", True, None])
def test_a_divergence_is_a_positive_number(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{field} is {value!r}, expected a positive number"):
        resolve(EngineConfig(**{field: value}), Hardware())


def test_a_config_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected an EngineConfig"):
        resolve({"threads": 1}, Hardware())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", 65536),
        ("port", -1),
        ("max_body_bytes", 0),
        ("max_json_depth", 0),
        ("max_json_depth", 10**6),  # Python itself would give up first
        ("drain_seconds", -1.0),
        ("drain_seconds", math.nan),
        ("drain_seconds", math.inf),
        ("host", ""),
        ("api_key", ""),  # a key that is empty would be no key
        ("api_key", " "),
    ],
)
def test_a_setting_of_the_server_out_of_its_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field} is "):
        check_serve(ServeConfig(**{field: value}))


def test_the_defaults_are_accepted() -> None:
    check_serve(ServeConfig())
    assert resolve(EngineConfig(), Hardware(cores=2, memory_free_bytes=1 << 30)).threads == 2
