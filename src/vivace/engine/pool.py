"""A pool of numbered pages with reference counts. Page 0 is the null page: never given away, never written."""

from __future__ import annotations

from array import array


class PagePool:
    """Pages 1 .. count of one page group.

    refs        references per page: block tables, steps in flight and the prefix tree count alike
    cached      how many of them are the prefix tree's
    idle_count  pages that only the prefix tree refers to
    """

    __slots__ = ("_free", "cached", "count", "idle_count", "refs")

    def __init__(self, count: int) -> None:
        self.count = count
        self.refs = array("i", bytes(4 * (count + 1)))
        self.cached = array("i", bytes(4 * (count + 1)))
        self.idle_count = 0
        self._free = list(range(count, 0, -1))

    @property
    def free_count(self) -> int:
        """Pages that nobody refers to."""
        return len(self._free)

    def take(self) -> int:
        """A free page with one reference. The caller has made sure that there is one."""
        page = self._free.pop()
        self.refs[page] = 1
        return page

    def share(self, page: int) -> None:
        """Add a reference to a page in use."""
        count = self.refs[page]
        assert count > 0, f"page {page} is free and cannot be shared"
        if count == self.cached[page]:
            self.idle_count -= 1
        self.refs[page] = count + 1

    def drop(self, page: int) -> None:
        """Remove a reference; the page is free when it was the last."""
        count = self.refs[page] - 1
        assert count >= self.cached[page], f"page {page} is dropped more often than it was taken"
        self.refs[page] = count
        if count == 0:
            self._free.append(page)
        elif count == self.cached[page]:
            self.idle_count += 1

    def is_idle(self, page: int) -> bool:
        """Whether only the prefix tree refers to the page."""
        return 0 < self.cached[page] == self.refs[page]

    def cache(self, page: int) -> None:
        """Add a reference of the prefix tree to a page that somebody else refers to."""
        assert self.refs[page] > self.cached[page], f"page {page} is not in use"
        self.refs[page] += 1
        self.cached[page] += 1

    def uncache(self, page: int) -> None:
        """Remove a reference of the prefix tree."""
        assert self.cached[page] > 0, f"page {page} is not in the prefix tree"
        self.cached[page] -= 1
        self.refs[page] -= 1
        if self.refs[page] == 0:
            self.idle_count -= 1
            self._free.append(page)

    def free_pages(self) -> list[int]:
        """The free pages, for the invariants."""
        return list(self._free)
