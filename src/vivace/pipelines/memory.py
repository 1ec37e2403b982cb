"""How the memory of a model's pages is divided over its page groups, and the longest job that fits it."""

from __future__ import annotations

from collections.abc import Sequence

from vivace.config import EngineConfig
from vivace.engine.batch import Keep, PageGroup
from vivace.errors import ConfigError


def page_counts(groups: Sequence[PageGroup], config: EngineConfig) -> dict[str, int]:
    """Usable pages per group out of `config.kv_bytes`.

    Groups share evenly, so that a shared prefix may end anywhere; but a sliding window gets no more than all jobs
    of a step need at once, and what it leaves goes to the groups that keep everything.
    """
    assert config.kv_bytes is not None, "resolve the config first"
    left = config.kv_bytes - sum(group.unit_bytes * group.page_size for group in groups)  # page 0 of each
    counts: dict[str, int] = {}
    for group in sorted(groups, key=lambda group: group.keep is not Keep.LAST):
        open_groups = [other for other in groups if other.name not in counts]
        even = left // sum(other.unit_bytes * other.page_size for other in open_groups)
        counts[group.name] = min(even, _most_pages(group, config)) if len(open_groups) > 1 else even
        left -= counts[group.name] * group.unit_bytes * group.page_size
    if any(count < 1 for count in counts.values()):
        least = 2 * sum(group.unit_bytes * group.page_size for group in groups)
        raise ConfigError(f"kv_bytes is {config.kv_bytes}, expected at least {least}", hint="give kv_bytes more memory")
    return counts


def longest_job(groups: Sequence[PageGroup], pages: dict[str, int], config: EngineConfig, context_length: int) -> int:
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
        raise ConfigError(message, hint="give kv_bytes more memory or lower max_length")
    return config.max_length


def _most_pages(group: PageGroup, config: EngineConfig) -> int:
    """Pages of a window that all jobs of a step may need, the step's own units included."""
    per_job = -(-group.span // group.page_size) + 2
    return config.max_jobs * per_job + -(-config.step_budget // group.page_size)
