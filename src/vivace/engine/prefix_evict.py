"""Eviction from a prefix tree: least recently used first, never what a job uses.

Pages of ALL groups go leaf by leaf, granule by granule from the end, with the pages of the other groups beside them.
Pages of windows and checkpoints may also go alone, from inner nodes too: the prefix then no longer ends there, but
longer and shorter ones may. The queues are heaps that are mended lazily: a node has at most one entry per queue, which
may be older than its last use; such an entry is put back with the right key when it comes up.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from vivace.engine.keep import Keeper, KeepWhole
from vivace.engine.prefix_node import PrefixNode, PrefixRoot

_REMEMBERED = 1024  # evictions that can still be explained

_Entry = tuple[int, int, int, PrefixNode]  # retention, used, serial


@dataclass(frozen=True, slots=True)
class Gone:
    """An eviction: at which step, and to make room for which job."""

    step: int
    job: int


class Evictor:
    """The eviction queues of one prefix tree, whose `roots` it shares.

    keepers, strides   the positional keepers and how many pages each has per granule
    run                bytes of one granule of keys
    gone               by (serial of a node, granule that followed it)
    """

    def __init__(self, roots: dict[bytes, PrefixRoot], keepers: Sequence[Keeper], run: int) -> None:
        self.roots = roots
        self.keepers = keepers
        self.strides = [len(keeper.slots(0, 1)) for keeper in keepers]
        self.run = run
        self.step = 0
        self.gone: OrderedDict[tuple[int, bytes], Gone] = OrderedDict()
        self._inner = [keeper.window(1) >= 0 for keeper in keepers]
        self._queues: list[list[_Entry]] = [[] for _ in range(1 + len(keepers))]  # leaves, then one per keeper

    def watch(self, node: PrefixNode) -> None:
        """See that the queues hold a node that is new, or new as a leaf."""
        if not node.children:
            self._queue(node, 0)
        for index, inner in enumerate(self._inner):
            if inner:
                self._queue(node, 1 + index)

    def evict(self, keeper: Keeper, pages: int, job_id: int) -> None:
        """Free `pages` pages of the keeper's pool, or all that are not in use if there are fewer."""
        if not keeper.pool.idle_count:
            return
        goal = keeper.pool.free_count + pages
        if isinstance(keeper, KeepWhole):
            self._evict_wholes(keeper, goal)
        else:
            index = self.keepers.index(keeper)
            self._run_queue(1 + index if self._inner[index] else 0, index, goal, job_id)

    def clear(self) -> None:
        """Forget the queues and the past."""
        self.gone.clear()
        for queue in self._queues:
            queue.clear()

    def _queue(self, node: PrefixNode, which: int) -> None:
        if not node.queued >> which & 1:
            node.queued |= 1 << which
            heapq.heappush(self._queues[which], (node.retention, node.used, node.serial, node))

    def _run_queue(self, which: int, index: int, goal: int, job_id: int) -> None:
        queue = self._queues[which]
        pool = self.keepers[index].pool
        aside: list[PrefixNode] = []
        while queue and pool.free_count < goal and pool.idle_count:
            retention, used, _, node = heapq.heappop(queue)
            node.queued &= ~(1 << which)
            if node.parent is None or (which == 0 and node.children):
                continue
            if (retention, used) != (node.retention, node.used):
                self._queue(node, which)
                continue
            if which == 0:
                self._trim(node, index, goal, job_id)
            else:
                self._thin(node, index, goal, job_id)
            aside.append(node)
        for node in aside:
            if node.parent is not None:
                self._queue(node, which)

    def _trim(self, leaf: PrefixNode, index: int, goal: int, job_id: int) -> None:
        """Drop granules from the end of a leaf until the pool has `goal` free pages or a granule is in use."""
        pool = self.keepers[index].pool
        length = kept = len(leaf.edge) // self.run
        while kept and pool.free_count < goal and self._is_idle(leaf, kept - 1):
            kept -= 1
            for keeper, held, stride in zip(self.keepers, leaf.pages, self.strides, strict=True):
                for page in held[kept * stride :]:
                    if page:
                        keeper.pool.uncache(page)
                del held[kept * stride :]
        if kept == 0:
            self._remove(leaf, job_id)
        elif kept < length:
            self._remember(leaf, leaf.edge[kept * self.run : (kept + 1) * self.run], job_id)
            leaf.edge = leaf.edge[: kept * self.run]

    def _is_idle(self, node: PrefixNode, granule: int) -> bool:
        for keeper, held, stride in zip(self.keepers, node.pages, self.strides, strict=True):
            for page in held[granule * stride : (granule + 1) * stride]:
                if page and not keeper.pool.is_idle(page):
                    return False
        return True

    def _thin(self, node: PrefixNode, index: int, goal: int, job_id: int) -> None:
        """Drop unused pages of one group, the earliest first: prefixes end most often where the node does."""
        pool = self.keepers[index].pool
        held = node.pages[index]
        for place, page in enumerate(held):
            if pool.free_count >= goal:
                break
            if page and pool.is_idle(page):
                pool.uncache(page)
                held[place] = 0
        while node.parent is not None and not node.children and not any(any(pages) for pages in node.pages):
            parent = node.parent  # a leaf without any page is of no use, nor are ancestors that this leaves so
            self._remove(node, job_id)
            node = parent

    def _remove(self, leaf: PrefixNode, job_id: int) -> None:
        """Take a leaf out of the tree. Its parent may become a leaf, or a root that holds nothing."""
        parent = leaf.parent
        assert parent is not None and not leaf.children
        head = leaf.edge[: self.run]
        del parent.children[head]
        leaf.parent = None
        self._remember(parent, head, job_id)
        if parent.children:
            return
        if parent.parent is not None:
            self._queue(parent, 0)
        elif isinstance(parent, PrefixRoot) and not parent.whole:
            del self.roots[parent.name]

    def _evict_wholes(self, keeper: KeepWhole, goal: int) -> None:
        for root in sorted(self.roots.values(), key=lambda root: root.used):
            if keeper.pool.free_count >= goal:
                return
            page = root.whole.get(keeper.name, 0)
            if page and keeper.pool.is_idle(page):
                keeper.pool.uncache(page)
                del root.whole[keeper.name]
                if not root.children and not root.whole:
                    del self.roots[root.name]

    def _remember(self, node: PrefixNode, head: bytes, job_id: int) -> None:
        self.gone[node.serial, head] = Gone(self.step, job_id)
        if len(self.gone) > _REMEMBERED:
            self.gone.popitem(last=False)
