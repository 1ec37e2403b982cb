"""How many pages fit: divides the memory for keys and values among the page groups of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vivace.errors import ConfigError


@dataclass(frozen=True)
class PageNeed:
    """What one page group asks for.

    page_bytes  bytes of one page over all layers of the group
    most        pages that can be in use at the same time, such as jobs times pages of a window; None: no such bound
    """

    page_bytes: int
    most: int | None = None


def pages_that_fit(needs: Mapping[str, PageNeed], budget_bytes: int, free_bytes: int | None = None) -> dict[str, int]:
    """Usable pages per group: the same number for each, except that no group gets more than its `most`.

    One page more per group is counted for the null page. A unit needs room in every group, so equal numbers waste
    nothing; what a bounded group leaves goes to the others. Raises ConfigError if the budget is larger than
    `free_bytes` or holds no page of each group.
    """
    if free_bytes is not None and budget_bytes > free_bytes:
        message = f"{_size(budget_bytes)} for keys and values, but only {_size(free_bytes)} of memory are free"
        raise ConfigError(message, hint="lower kv_bytes, or choose a smaller model")
    null_bytes = sum(need.page_bytes for need in needs.values())
    left, pages = budget_bytes - null_bytes, {}
    # Groups by rising bound: each gets its bound or an equal share of what is left, whichever is less.
    waiting = sorted(needs.items(), key=lambda item: float("inf") if item[1].most is None else item[1].most)
    for index, (name, need) in enumerate(waiting):
        share = left // sum(later.page_bytes for _, later in waiting[index:])
        pages[name] = share if need.most is None else min(share, need.most)
        left -= pages[name] * need.page_bytes
    if any(count < 1 for count in pages.values()):
        least = f"expected at least {_size(2 * null_bytes)}"
        message = f"{_size(max(0, budget_bytes))} for keys and values hold no page of each group, {least}"
        raise ConfigError(message, hint="raise kv_bytes, free memory, or lower page_size")
    return pages


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count} bytes"
