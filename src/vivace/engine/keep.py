"""What each kind of page group keeps of a job: how its block table is laid out, grown, rolled back, forked and shared.

Layout of a block table (`Job.tables[group]`, page numbers, 0 is the null page):

    ALL         table[i] is the page of units i * page_size .. (i + 1) * page_size
    LAST        the same; pages that lie wholly before the last `span` units become 0
    CHECKPOINT  table[0]      the state after `done` units: a step reads it (0: the initial state, nothing done yet)
                table[1]      the state after the step: a step writes it
                table[1 + k]  the state after k * span units: a step that passes this unit writes it too, unless it is 0
    WHOLE       table[0] is the object; the span that starts at unit 0 writes it, all later ones read it

The live state of a CHECKPOINT group is double buffered: until a step is accepted table[0] still holds the state before
it, and acceptance swaps the two. A step never writes table[0], so it may be a page that others share. In a span over
start .. start + count the step writes checkpoint k if start < k * span <= start + count and table[1 + k] is not 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array

from vivace.engine.batch import Keep, PageCopy, PageGroup
from vivace.engine.pool import PagePool


class Keeper(ABC):
    """The block tables of one page group. A keeper has no state but its pool: methods act on the table they are given.

    A table is grown before a step (`need`, `grow`), settled after it (`settle`, then `give_back`), and in between holds
    pages for the units of the step. `granule` is the number of units between two places where a prefix may end.
    """

    is_positional = True  # whether a job that loses its pages has to compute its units again

    def __init__(self, group: PageGroup, pool: PagePool) -> None:
        self.name = group.name
        self.size = group.page_size
        self.span = group.span
        self.pool = pool
        self.granule = 1

    @abstractmethod
    def worst(self, limit: int, block: int) -> int:
        """Pages that a job of `limit` units holds at most when it moves in its smallest steps (`block` units)."""

    @abstractmethod
    def need(self, table: array[int], start: int, stop: int) -> int:
        """Pages that `grow` must take from the pool."""

    @abstractmethod
    def grow(self, table: array[int], start: int, stop: int, copies: list[PageCopy]) -> None:
        """Make the table ready for a step that writes units start .. stop; the pool must have `need` pages free.

        A shared page that the step would write is replaced by a copy. The table's reference to the source passes to the
        step, whoever runs it drops it once the step is accepted: a step that failed copies again.
        """

    def afford(self, table: array[int], stop: int) -> None:
        """Take pages that only save work, while the pool has free ones. Comes after `grow` for all jobs of a step."""
        return

    @abstractmethod
    def can_resume(self, table: array[int], start: int, stop: int, at: int) -> bool:
        """Whether a job that was granted start .. stop can go on from unit `at` with the pages it holds."""

    @abstractmethod
    def settle(self, table: array[int], start: int, stop: int, done: int) -> None:
        """After a step over start .. stop: `done` units count from now on, the table drops the rest."""

    @abstractmethod
    def fork(self, table: array[int], done: int, at: int) -> array[int]:
        """A table that shares the first `at` units of a settled table with `done` units."""

    def give_back(self, table: array[int], done: int) -> None:
        """Drop what the group no longer keeps after `done` units."""
        return

    def spare(self, table: array[int]) -> int:
        """Drop what only saves work; return how many references went."""
        return 0

    def free(self, table: array[int]) -> None:
        """Drop all pages."""
        for page in table:
            if page:
                self.pool.drop(page)
        del table[:]

    def slots(self, first: int, last: int) -> range:
        """Places in the table of what a prefix tree keeps for granules first .. last."""
        return range(0)

    def window(self, granules: int) -> int:
        """Entries before `granules` (in `slots` order) that a job needs to go on from there; -1 for all."""
        return -1

    def resume(self, entries: list[int], granules: int) -> array[int]:
        """A table that shares `entries` (in `slots` order) of the prefix tree after that many granules."""
        raise AssertionError(f"group {self.name!r} keeps nothing in a prefix tree")


class KeepUnits(Keeper):
    """ALL and LAST: pages of `page_size` units in order; LAST gives the old ones back."""

    def __init__(self, group: PageGroup, pool: PagePool) -> None:
        super().__init__(group, pool)
        self._slides = group.keep is Keep.LAST

    def worst(self, limit: int, block: int) -> int:
        pages = -(-limit // self.size)
        if self._slides:
            pages = min(pages, (self.span + block + self.size - 2) // self.size + 1)
        return pages

    def need(self, table: array[int], start: int, stop: int) -> int:
        pages = -(-stop // self.size) - len(table)
        if start % self.size and self.pool.refs[table[start // self.size]] > 1:
            pages += 1
        return pages

    def grow(self, table: array[int], start: int, stop: int, copies: list[PageCopy]) -> None:
        size = self.size
        if start % size:
            index = start // size
            source = table[index]
            if self.pool.refs[source] > 1:
                table[index] = self.pool.take()
                copies.append(PageCopy(self.name, source, table[index]))
        for _ in range(-(-stop // size) - len(table)):
            table.append(self.pool.take())

    def can_resume(self, table: array[int], start: int, stop: int, at: int) -> bool:
        if not self._slides:
            return True
        return all(table[max(0, at - self.span) // self.size : -(-at // self.size)])

    def settle(self, table: array[int], start: int, stop: int, done: int) -> None:
        for _ in range(len(table) - -(-done // self.size)):
            page = table.pop()
            if page:
                self.pool.drop(page)

    def fork(self, table: array[int], done: int, at: int) -> array[int]:
        shared = table[: -(-at // self.size)]
        for page in shared:
            if page:
                self.pool.share(page)
        self.give_back(shared, at)
        return shared

    def give_back(self, table: array[int], done: int) -> None:
        if not self._slides:
            return
        index = min(max(0, done - self.span) // self.size, len(table)) - 1
        while index >= 0 and table[index]:  # everything before the first null page was given back earlier
            self.pool.drop(table[index])
            table[index] = 0
            index -= 1

    def slots(self, first: int, last: int) -> range:
        stride = self.granule // self.size
        return range(first * stride, last * stride)

    def window(self, granules: int) -> int:
        if not self._slides:
            return -1
        stop = granules * self.granule
        return stop // self.size - max(0, stop - self.span) // self.size

    def resume(self, entries: list[int], granules: int) -> array[int]:
        window = self.window(granules)
        first = 0 if window < 0 else len(entries) - window
        table = array("i", bytes(4 * first))
        table.extend(entries[first:])
        for page in entries[first:]:
            self.pool.share(page)
        return table


class KeepCheckpoints(Keeper):
    """CHECKPOINT: two live states, of which one is read and one written, and a state after every `span` units.

    Checkpoints save work and no job needs one to go on: they are taken while the pool has free pages and spared first.
    """

    def worst(self, limit: int, block: int) -> int:
        return 2

    def need(self, table: array[int], start: int, stop: int) -> int:
        return 1 if len(table) < 2 or not table[1] else 0

    def grow(self, table: array[int], start: int, stop: int, copies: list[PageCopy]) -> None:
        if not table:
            table.extend((0, 0))
        if not table[1]:
            table[1] = self.pool.take()

    def afford(self, table: array[int], stop: int) -> None:
        for _ in range(2 + stop // self.span - len(table)):
            table.append(self.pool.take() if self.pool.free_count else 0)

    def can_resume(self, table: array[int], start: int, stop: int, at: int) -> bool:
        if at in (0, start, stop):
            return True
        return at % self.span == 0 and table[1 + at // self.span] != 0

    def settle(self, table: array[int], start: int, stop: int, done: int) -> None:
        if done == stop and stop > start:
            old = table[0]
            table[0] = table[1]
            table[1] = 0
            if old and self.pool.refs[old] == 1:
                table[1] = old
            elif old:
                self.pool.drop(old)
        elif done != start:
            self._load(table, done)
        for _ in range(len(table) - 2 - done // self.span):
            page = table.pop()
            if page:
                self.pool.drop(page)

    def _load(self, table: array[int], done: int) -> None:
        """Read from the checkpoint after `done` units from now on."""
        if table[0]:
            self.pool.drop(table[0])
        table[0] = table[1 + done // self.span] if done else 0
        if table[0]:
            self.pool.share(table[0])

    def fork(self, table: array[int], done: int, at: int) -> array[int]:
        state = 0
        if at:
            state = table[0] if at == done else table[1 + at // self.span]
        shared = array("i", (state, 0))
        shared.extend(table[2 : 2 + at // self.span])
        for page in shared:
            if page:
                self.pool.share(page)
        return shared

    def spare(self, table: array[int]) -> int:
        count = 0
        for index in range(2, len(table)):
            if table[index]:
                self.pool.drop(table[index])
                table[index] = 0
                count += 1
        return count

    def slots(self, first: int, last: int) -> range:
        stride = self.granule // self.span
        return range(1 + (first + 1) * stride, 1 + (last + 1) * stride, stride)

    def window(self, granules: int) -> int:
        return 1

    def resume(self, entries: list[int], granules: int) -> array[int]:
        self.pool.share(entries[-1])
        table = array("i", bytes(4 * (2 + granules * self.granule // self.span)))
        table[0] = entries[-1]
        return table


class KeepWhole(Keeper):
    """WHOLE: one page for one object. It belongs to the job's root: jobs that share a prefix share it too."""

    is_positional = False

    def worst(self, limit: int, block: int) -> int:
        return 1

    def need(self, table: array[int], start: int, stop: int) -> int:
        return 1 if not table or (start == 0 and self.pool.refs[table[0]] > 1) else 0

    def grow(self, table: array[int], start: int, stop: int, copies: list[PageCopy]) -> None:
        if self.need(table, start, stop):
            self.free(table)  # shared and about to be written anew
            table.append(self.pool.take())

    def can_resume(self, table: array[int], start: int, stop: int, at: int) -> bool:
        return True

    def settle(self, table: array[int], start: int, stop: int, done: int) -> None:
        pass

    def fork(self, table: array[int], done: int, at: int) -> array[int]:
        shared = table[:1] if at else array("i")
        for page in shared:
            self.pool.share(page)
        return shared


def make_keeper(group: PageGroup, pool: PagePool) -> Keeper:
    """The keeper for the group's kind."""
    if group.keep is Keep.CHECKPOINT:
        return KeepCheckpoints(group, pool)
    if group.keep is Keep.WHOLE:
        return KeepWhole(group, pool)
    return KeepUnits(group, pool)
