"""Shared prefixes: a radix tree over content keys, one per root, whose nodes hold the pages of committed units.

The tree is cut at multiples of `granule` units, where every page group ends a page. An edge is one `bytes` run of keys.
Keys are compared as bytes; nothing rests on a hash alone.
Paper: Zheng et al., SGLang: Efficient Execution of Structured Language Model Programs, 2024 (radix attention).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count as counter

from vivace.engine.job import Job
from vivace.engine.keep import Keeper, KeepWhole
from vivace.engine.limits import is_inside_block
from vivace.engine.pages import LanePages
from vivace.engine.prefix_evict import Evictor
from vivace.engine.prefix_node import PrefixNode, PrefixRoot


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The longest prefix of a job that all groups can go on from: `granules` long, with the pages of each keeper."""

    root: PrefixRoot
    path: tuple[PrefixNode, ...]
    entries: tuple[list[int], ...]
    granules: int


class PrefixTree:
    """The prefix trees of one lane, one per root.

    A lane with WHOLE groups shares their objects by root: its pipeline puts the digest of the object into `Job.root`.
    """

    def __init__(self, pages: LanePages, key_bytes: int) -> None:
        assert pages.granule > 0, "a lane without positional groups has no prefixes to share"
        self.granule = pages.granule
        self.run = pages.granule * key_bytes  # bytes of one granule of keys
        self.key_bytes = key_bytes
        self.keepers: list[Keeper] = [keeper for keeper in pages.keepers if keeper.is_positional]
        self.wholes = [keeper for keeper in pages.keepers if isinstance(keeper, KeepWhole)]
        self.roots: dict[bytes, PrefixRoot] = {}
        self.evictor = Evictor(self.roots, self.keepers, self.run)
        self.strides = self.evictor.strides
        self._serials = counter(1)

    @property
    def step(self) -> int:
        """The scheduler's step, the clock of eviction."""
        return self.evictor.step

    @step.setter
    def step(self, step: int) -> None:
        self.evictor.step = step

    def match(self, job: Job, limit: int) -> PrefixHit | None:
        """The longest hit of at most `limit` units at which no block of the job is cut, or None. Takes no reference."""
        root = self.roots.get(job.root)
        if root is None or any(keeper.name not in root.whole for keeper in self.wholes):
            return None
        path, found = self.walk(root, job.keys)
        entries: list[list[int]] = [[] for _ in self.keepers]
        for node in path:
            for mine, pages in zip(entries, node.pages, strict=True):
                mine.extend(pages)
        for granules in range(min(found, limit // self.granule), 0, -1):
            if self.can_end(entries, granules) and not is_inside_block(job, granules * self.granule):
                kept = tuple(mine[: granules * s] for mine, s in zip(entries, self.strides, strict=True))
                return PrefixHit(root, tuple(path), kept, granules)
        return None

    def take(self, hit: PrefixHit, job: Job) -> int:
        """Give the job tables that share the hit's pages; return its units."""
        for keeper, entries in zip(self.keepers, hit.entries, strict=True):
            job.tables[keeper.name] = keeper.resume(entries, hit.granules)
        for whole in self.wholes:
            page = hit.root.whole[whole.name]
            whole.pool.share(page)
            job.tables[whole.name].append(page)
        hit.root.used = self.step
        for node in hit.path:
            node.used = self.step
        return hit.granules * self.granule

    def walk(self, root: PrefixRoot, keys: bytearray | bytes) -> tuple[list[PrefixNode], int]:
        """The nodes whose edges the keys follow (the last one perhaps in part), and the number of granules followed."""
        path: list[PrefixNode] = []
        node: PrefixNode = root
        at = 0
        total = len(keys) // self.run
        while at < total:
            child = node.children.get(bytes(keys[at * self.run : (at + 1) * self.run]))
            if child is None:
                break
            common = self._common(child.edge, keys, at, total)
            path.append(child)
            at += common
            if common * self.run < len(child.edge):
                break
            node = child
        return path, at

    def can_end(self, entries: list[list[int]], granules: int) -> bool:
        """Whether every group holds what a job needs to go on after that many granules."""
        for keeper, mine, stride in zip(self.keepers, entries, self.strides, strict=True):
            window = keeper.window(granules)
            if window >= 0 and not all(mine[granules * stride - window : granules * stride]):
                return False
        return True

    def enter(self, job: Job, units: int) -> None:
        """Enter the first `units` units of a job, rounded down to granules. All of them are committed and have keys.

        Where the tree has a page already, the job goes on with the tree's page and gives its own back.
        """
        last = units // self.granule
        first = job.entered // self.granule
        if last <= first:
            return
        root = self.roots.get(job.root)
        if root is None:
            root = self.roots[job.root] = PrefixRoot(next(self._serials), job.root, len(self.keepers))
        root.used = self.step
        self._enter_wholes(root, job)
        node: PrefixNode = root
        at = 0
        while at < last:
            child = node.children.get(bytes(job.keys[at * self.run : (at + 1) * self.run]))
            if child is None:
                self._hang(node, job, at, last)
                break
            common = self._common(child.edge, job.keys, at, last)
            if at + common < last and common * self.run < len(child.edge):
                child = self._split(child, common)
            if at + common > first:
                self._merge(child, job, at, max(first, at), at + common)
            node = child
            at += common
        job.entered = last * self.granule

    def evict(self, keeper: Keeper, pages: int, job_id: int) -> None:
        """Free `pages` pages of the keeper's pool, or all that are not in use if there are fewer."""
        self.evictor.evict(keeper, pages, job_id)

    def clear(self) -> None:
        """Forget everything; pages that jobs use stay theirs."""
        for root in self.roots.values():
            for whole in self.wholes:
                if whole.name in root.whole:
                    whole.pool.uncache(root.whole[whole.name])
        for node in self.nodes():
            for keeper, held in zip(self.keepers, node.pages, strict=True):
                for page in held:
                    if page:
                        keeper.pool.uncache(page)
        self.roots.clear()
        self.evictor.clear()

    def nodes(self) -> list[PrefixNode]:
        """All nodes but the roots."""
        found: list[PrefixNode] = []
        stack = [node for root in self.roots.values() for node in root.children.values()]
        while stack:
            node = stack.pop()
            found.append(node)
            stack.extend(node.children.values())
        return found

    def _common(self, edge: bytes, keys: bytearray | bytes, at: int, total: int) -> int:
        """Granules that `edge` and the keys from granule `at` on share (at least one), found by bisection."""
        run = self.run
        low, high = 1, min(len(edge) // run, total - at)
        if keys.startswith(edge[: high * run], at * run):
            return high
        high -= 1
        while low < high:
            middle = (low + high + 1) // 2
            if keys.startswith(edge[: middle * run], at * run):
                low = middle
            else:
                high = middle - 1
        return low

    def _enter_wholes(self, root: PrefixRoot, job: Job) -> None:
        for keeper in self.wholes:
            if keeper.name not in root.whole:
                page = root.whole[keeper.name] = job.tables[keeper.name][0]
                keeper.pool.cache(page)

    def _hang(self, node: PrefixNode, job: Job, first: int, last: int) -> None:
        """Add granules first .. last of the job below `node`, or to its end if it is a leaf."""
        edge = bytes(job.keys[first * self.run : last * self.run])
        pages = []
        for keeper in self.keepers:
            table = job.tables[keeper.name]
            mine = [table[slot] for slot in keeper.slots(first, last)]
            for page in mine:
                if page:
                    keeper.pool.cache(page)
            pages.append(mine)
        self.evictor.gone.pop((node.serial, edge[: self.run]), None)
        if node.children or node.parent is None:
            child = PrefixNode(next(self._serials), node, edge, pages)
            node.children[edge[: self.run]] = child
            node = child
        else:
            node.edge += edge
            for held, mine in zip(node.pages, pages, strict=True):
                held.extend(mine)
        self._touch(node, job)
        self.evictor.watch(node)

    def _merge(self, node: PrefixNode, job: Job, at: int, first: int, last: int) -> None:
        """Granules first .. last of the job are in `node`, which begins at granule `at`: one page each is enough."""
        for index, keeper in enumerate(self.keepers):
            held = node.pages[index]
            table = job.tables[keeper.name]
            place = (first - at) * self.strides[index]
            for slot in keeper.slots(first, last):
                ours, mine = held[place], table[slot]
                if mine and not ours:
                    keeper.pool.cache(mine)
                    held[place] = mine
                elif mine and ours != mine:
                    keeper.pool.share(ours)
                    keeper.pool.drop(mine)
                    table[slot] = ours
                place += 1
        self._touch(node, job)
        self.evictor.watch(node)

    def _touch(self, node: PrefixNode, job: Job) -> None:
        node.used = self.step
        if job.retention > node.retention:
            node.retention = job.retention

    def _split(self, node: PrefixNode, granules: int) -> PrefixNode:
        """Cut a node after that many granules; return the new upper part."""
        assert node.parent is not None
        cut = granules * self.run
        head = PrefixNode(next(self._serials), node.parent, node.edge[:cut], [])
        head.used, head.retention = node.used, node.retention
        for index, stride in enumerate(self.strides):
            head.pages.append(node.pages[index][: granules * stride])
            del node.pages[index][: granules * stride]
        node.parent.children[head.edge[: self.run]] = head
        node.edge = node.edge[cut:]
        node.parent = head
        head.children[node.edge[: self.run]] = node
        self.evictor.watch(head)
        return head
