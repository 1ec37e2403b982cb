"""Pages of a model's lane out of the configured memory, and the longest job that they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vivace.config import EngineConfig, Hardware
from vivace.engine.batch import Keep, PageGroup
from vivace.errors import ConfigError
from vivace.runtime.memory import PageNeed, pages_that_fit

RESERVE = 10  # one part in so many of the machine's memory is left to everything else
UNKNOWN_BYTES = 256 << 20  # where the machine does not tell what is free


def kv_bytes_of(
    groups: Sequence[PageGroup], config: EngineConfig, context_length: int, hardware: Hardware, promised: int = 0
) -> int:
    """Bytes for the pages of a model that is loaded: half of what is free beyond the reserve, but no more than all jobs
    of a step can fill at their longest.

    promised  bytes of the pools of other models, which are taken only when they are written
    """
    if config.kv_bytes is not None:
        return config.kv_bytes
    length, total = config.max_length or context_length, 0
    for group in groups:
        pages = _most_pages(group, config) or config.max_jobs * -(-length // group.page_size)
        total += (pages + 1) * group.page_size * group.unit_bytes
    if not hardware.memory_bytes:
        return min(total, UNKNOWN_BYTES)
    return min(total, (hardware.memory_free_bytes - promised - hardware.memory_bytes // RESERVE) // 2)


def page_counts(groups: Sequence[PageGroup], config: EngineConfig) -> dict[str, int]:
    """Usable pages per group out of `config.kv_bytes`: equal numbers, so that a shared prefix may end anywhere, but for
    a sliding window no more than all jobs of a step can need at once. Raises ConfigError if that holds no page."""
    assert config.kv_bytes is not None, "ask kv_bytes_of first"
    needs = {group.name: PageNeed(group.unit_bytes * group.page_size, _most_pages(group, config)) for group in groups}
    return pages_that_fit(needs, config.kv_bytes)


def longest_job(
    groups: Sequence[PageGroup], pages: Mapping[str, int], config: EngineConfig, context_length: int
) -> int:
    """Units a job may reach: what the model was made for, less if the config or the memory says so.

    Raises ConfigError when the config asks for more than there is.
    """
    fits = min((pages[g.name] * g.page_size for g in groups if g.keep is Keep.ALL), default=context_length)
    if config.max_length is None:
        return min(context_length, fits)
    if config.max_length > context_length:
        message = f"max_length is {config.max_length}, expected at most {context_length}, the model's context length"
        raise ConfigError(message, hint="leave max_length out for the model's own limit")
    if config.max_length > fits:
        message = f"max_length is {config.max_length}, but kv_bytes = {config.kv_bytes} holds {fits} tokens"
        raise ConfigError(message, hint="raise kv_bytes or lower max_length")
    return config.max_length


def _most_pages(group: PageGroup, config: EngineConfig) -> int | None:
    """Pages of a window that all jobs of a step may need, the units of the step included; None for other groups."""
    if group.keep is not Keep.LAST:
        return None
    per_job = -(-group.span // group.page_size) + 2
    return config.max_jobs * per_job + -(-config.step_budget // group.page_size)
