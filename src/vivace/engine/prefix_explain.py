"""Why a prefix was not found, or not found further: the question that every cache gets asked."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from vivace.engine.prefix import PrefixTree
from vivace.engine.prefix_node import PrefixNode


class Miss(enum.Enum):
    """Why a hit ended where it did."""

    NONE = "all of it is cached"
    DIFFERS = "the cached prefixes differ here"
    OTHER_ROOT = "it is cached under another root (weights, adapter, KV format, position rule or tenant)"
    GRANULE = "prefixes end at whole pages of every group only"
    GROUP = "a window or a checkpoint at its end is not held"
    EVICTED = "it was evicted"
    NEVER = "it was never computed"


@dataclass(frozen=True, slots=True)
class Explanation:
    """A hit of `hit` units, and why unit `unit` was not part of it.

    group      page group that ended the hit (GROUP)
    step, job  when and for whose pages it was evicted (EVICTED)
    """

    hit: int
    miss: Miss
    unit: int
    group: str = ""
    step: int = 0
    job: int = 0

    def __str__(self) -> str:
        detail = f" (group {self.group})" if self.group else ""
        if self.miss is Miss.EVICTED:
            detail = f" at step {self.step} for job {self.job}"
        return f"{self.hit} units cached; unit {self.unit}: {self.miss.value}{detail}"


def explain(tree: PrefixTree, root: bytes, keys: bytes) -> Explanation:
    """Why a job with this root and these keys hits as far as it does.

    A job never takes its last unit from the tree, because it has to compute something; that is not counted here.
    """
    run, granule = tree.run, tree.granule
    if root not in tree.roots:
        head = keys[:run]
        elsewhere = len(head) == run and any(head in other.children for other in tree.roots.values())
        return Explanation(0, Miss.OTHER_ROOT if elsewhere else Miss.NEVER, 0)
    base = tree.roots[root]
    path, found = tree.walk(base, keys)
    hit, group = _usable(tree, path, found)
    for whole in tree.wholes:
        if whole.name not in base.whole:
            hit, group = 0, whole.name
    if hit < found:
        return Explanation(hit * granule, Miss.GROUP, hit * granule, group)
    head = bytes(keys[found * run : (found + 1) * run])
    if len(head) < run:
        miss = Miss.GRANULE if head else Miss.NONE
        return Explanation(hit * granule, miss, hit * granule)
    return _ended(tree, path[-1] if path else base, found - _granules(tree, path[:-1]), head, hit * granule)


def _granules(tree: PrefixTree, path: list[PrefixNode]) -> int:
    return sum(len(node.edge) for node in path) // tree.run


def _usable(tree: PrefixTree, path: list[PrefixNode], found: int) -> tuple[int, str]:
    """The granules that all groups can go on from, and the first group that lacks something at `found`."""
    entries: list[list[int]] = [[] for _ in tree.keepers]
    for node in path:
        for mine, pages in zip(entries, node.pages, strict=True):
            mine.extend(pages)
    group = ""
    for keeper, mine, stride in zip(tree.keepers, entries, tree.strides, strict=True):
        window = keeper.window(found)
        if not group and window >= 0 and not all(mine[found * stride - window : found * stride]):
            group = keeper.name
    hit = next((granules for granules in range(found, 0, -1) if tree.can_end(entries, granules)), 0)
    return hit, group


def _ended(tree: PrefixTree, node: PrefixNode, inside: int, head: bytes, unit: int) -> Explanation:
    """The keys left the tree at `unit`, `inside` granules into `node`; `head` is the granule that was not found."""
    run = tree.run
    is_inside = inside * run < len(node.edge)
    others = [node.edge[inside * run : (inside + 1) * run]] if is_inside else list(node.children)
    gone = tree.evictor.gone.get((node.serial, head))
    if gone is not None and not is_inside:
        return Explanation(unit, Miss.EVICTED, unit, step=gone.step, job=gone.job)
    if not others:
        return Explanation(unit, Miss.NEVER, unit)
    size = tree.key_bytes
    same = max(_same_units(head, other, size) for other in others)
    return Explanation(unit, Miss.DIFFERS, unit + same)


def _same_units(one: bytes, other: bytes, size: int) -> int:
    units = range(0, len(one), size)
    return next((at // size for at in units if one[at : at + size] != other[at : at + size]), len(units))
