"""The nodes of a prefix tree."""

from __future__ import annotations


class PrefixNode:
    """A run of keys, a whole number of granules, and per positional keeper the pages of that run (0: not held).

    children   by the first granule of the child's edge
    used       step of the last hit or entry
    retention  evicted later the higher it is: the highest Job.retention of those that entered it
    queued     bit 0: in the eviction queue of leaves; bit 1 + i: in the queue of keeper i
    """

    __slots__ = ("children", "edge", "pages", "parent", "queued", "retention", "serial", "used")

    def __init__(self, serial: int, parent: PrefixNode | None, edge: bytes, pages: list[list[int]]) -> None:
        self.serial = serial
        self.parent = parent
        self.edge = edge
        self.pages = pages
        self.children: dict[bytes, PrefixNode] = {}
        self.used = 0
        self.retention = 0
        self.queued = 0


class PrefixRoot(PrefixNode):
    """The empty prefix of one root. `whole` holds the pages of WHOLE groups, which belong to the root's name."""

    __slots__ = ("name", "whole")

    def __init__(self, serial: int, name: bytes, num_keepers: int) -> None:
        super().__init__(serial, None, b"", [[] for _ in range(num_keepers)])
        self.name = name
        self.whole: dict[str, int] = {}
