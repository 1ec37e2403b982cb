"""The prefix tree: hits, what ends them, eviction, and the answers to why a prefix missed."""

from __future__ import annotations

from random import Random

import pytest

from vivace.engine.batch import Keep, Lane, PageGroup
from vivace.engine.job import Job
from vivace.engine.pages import LanePages
from vivace.engine.prefix import PrefixTree
from vivace.engine.prefix_explain import Miss, explain

ALL = PageGroup("all", 1, 4)


class Bench:
    """A tree without a scheduler: jobs run to their end at once."""

    def __init__(self, *groups: PageGroup, count: int = 20, key_bytes: int = 1) -> None:
        self.groups = groups or (ALL,)
        self.pages = LanePages(Lane("a", self.groups, {group.name: count for group in self.groups}))
        self.tree = PrefixTree(self.pages, key_bytes)
        self.number = 0

    def job(self, keys: bytes, root: bytes = b"", **options: object) -> Job:
        self.number += 1
        units = len(keys) // self.tree.key_bytes
        return Job(self.number, "a", units, 1000, root=root, keys=bytearray(keys), **options)  # type: ignore[arg-type]

    def hit(self, keys: bytes, root: bytes = b"", **options: object) -> int:
        """Units that a job with these keys would find."""
        job = self.job(keys, root, **options)
        found = self.tree.match(job, job.goal)
        return found.granules * self.tree.granule if found else 0

    def run(self, keys: bytes, root: bytes = b"", **options: object) -> Job:
        """A job that starts from its hit, computes the rest in one step, and is over."""
        job = self.job(keys, root, **options)
        self.tree.step += 1
        self.pages.open(job)
        found = self.tree.match(job, job.goal - 1)
        if found:
            job.done = job.entered = job.cached = self.tree.take(found, job)
        for keeper, missing in self.pages.shortage([(job, job.done, job.goal)]):
            self.tree.evict(keeper, missing, job.id)
        self.pages.grow([(job, job.done, job.goal)])
        self.pages.settle(job, job.done, job.goal, job.goal)
        job.done = job.goal
        self.tree.enter(job, job.goal)
        self.pages.give_back(job)
        self.pages.free(job)
        return job


def test_a_hit_is_the_longest_shared_run_of_whole_pages() -> None:
    bench = Bench()
    bench.run(b"abcdefghijkl")
    assert bench.hit(b"abcdefghijkl") == 12
    assert bench.hit(b"abcdefghXXXX") == 8
    assert bench.hit(b"abcdefgXijkl") == 4
    assert bench.hit(b"abc") == bench.hit(b"Xbcdefghijkl") == 0


def test_edges_split_where_prompts_part() -> None:
    bench = Bench()
    bench.run(b"aaaabbbbcccc")
    bench.run(b"aaaabbbbdddd")
    bench.run(b"aaaaeeee")
    assert sorted(node.edge for node in bench.tree.nodes()) == [b"aaaa", b"bbbb", b"cccc", b"dddd", b"eeee"]
    assert bench.hit(b"aaaabbbbdddd") == 12 and bench.hit(b"aaaaeeeecccc") == 8


def test_a_shorter_prompt_does_not_split_an_edge() -> None:
    bench = Bench()
    bench.run(b"aaaabbbbcccc")
    bench.run(b"aaaabbbb")
    assert [node.edge for node in bench.tree.nodes()] == [b"aaaabbbbcccc"]


def test_two_jobs_with_one_prefix_hold_its_pages_once() -> None:
    bench = Bench()
    first, second = bench.job(b"aaaabbbb"), bench.job(b"aaaabbbb")
    for job in (first, second):  # both start before either is entered
        bench.pages.open(job)
        bench.pages.grow([(job, 0, 8)])
        bench.pages.settle(job, 0, 8, 8)
        job.done = 8
    assert bench.pages.pool("all").free_count == 16
    bench.tree.enter(first, 8)
    bench.tree.enter(second, 8)
    assert first.tables == second.tables and bench.pages.pool("all").free_count == 18


def test_roots_share_nothing() -> None:
    bench = Bench()
    bench.run(b"aaaabbbb", root=b"tenant 1")
    assert bench.hit(b"aaaabbbb", root=b"tenant 2") == 0


def test_keys_of_several_bytes_are_compared_whole() -> None:
    bench = Bench(key_bytes=4)
    keys = b"".join(number.to_bytes(4, "little") for number in range(8))
    bench.run(keys)
    other = bytearray(keys)
    other[30] ^= 1  # one byte of the last key
    assert bench.hit(keys) == 8 and bench.hit(bytes(other)) == 4


def test_equal_hashes_do_not_make_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Colliding(bytes):
        def __hash__(self) -> int:
            return 1

    bench = Bench()
    bench.run(b"aaaabbbb")
    root = bench.tree.roots[b""]
    root.children = {Colliding(head): node for head, node in root.children.items()}
    monkeypatch.setattr("vivace.engine.prefix.bytes", Colliding, raising=False)
    assert bench.hit(b"aaaabbbb") == 8
    assert bench.hit(b"XXXXbbbb") == 0


def test_a_window_must_be_held_where_the_prefix_ends() -> None:
    bench = Bench(ALL, PageGroup("last", 1, 4, Keep.LAST, 6))
    bench.run(b"aaaabbbbccccddddeeee")
    assert bench.hit(b"aaaabbbbccccdddd") == 16
    last = bench.tree.keepers[1]
    bench.tree.evict(last, 2, 99)  # the earliest pages go first
    assert bench.hit(b"aaaabbbbccccdddd") == 16 and bench.hit(b"aaaabbbbcccc") == 0
    assert bench.hit(b"aaaabbbbccccddddeeee") == 20


def test_a_checkpoint_must_stand_exactly_where_the_prefix_ends() -> None:
    bench = Bench(ALL, PageGroup("state", 1, 1, Keep.CHECKPOINT, 8))
    bench.run(b"aaaabbbbccccddddeeee")
    assert bench.hit(b"aaaabbbbccccddddeeee") == 16
    assert bench.hit(b"aaaabbbbccccXXXX") == 8
    job = bench.run(b"aaaabbbbccccXXXX")
    assert job.cached == 8


def test_the_whole_object_comes_with_the_root() -> None:
    bench = Bench(ALL, PageGroup("image", 1, 1, Keep.WHOLE))
    bench.run(b"aaaabbbb", root=b"image 1")
    assert bench.hit(b"aaaabbbb", root=b"image 1") == 8
    bench.tree.evict(bench.pages.keepers[1], 1, 99)
    assert bench.hit(b"aaaabbbb", root=b"image 1") == 0
    assert explain(bench.tree, b"image 1", b"aaaabbbb").group == "image"


def test_a_hit_never_ends_inside_a_block() -> None:
    bench = Bench()
    bench.run(b"aaaabbbbccccdddd")
    assert bench.hit(b"aaaabbbbccccdddd", blocks=((6, 14),)) == 16
    assert bench.hit(b"aaaabbbbccccXXXX", blocks=((6, 14),)) == 4


def test_the_last_unit_of_a_job_is_always_computed() -> None:
    bench = Bench()
    bench.run(b"aaaabbbb")
    assert bench.run(b"aaaabbbb").cached == 4


def test_the_least_recently_used_leaf_goes_first_from_its_end() -> None:
    bench = Bench(count=6)
    bench.run(b"aaaabbbb")
    bench.run(b"ccccdddd")
    bench.run(b"aaaabbbbX")  # uses the older one again
    bench.run(b"eeeeffffgggg")  # needs a page more than there is
    assert bench.hit(b"aaaabbbb") == 8 and bench.hit(b"ccccdddd") == 4


def test_higher_retention_stays_longer() -> None:
    bench = Bench(count=4)
    bench.run(b"aaaabbbb", retention=1)
    bench.run(b"ccccdddd")
    bench.run(b"eeee")
    assert bench.hit(b"aaaabbbb") == 8 and bench.hit(b"ccccdddd") == 4


def test_pages_in_use_are_not_evicted() -> None:
    bench = Bench(count=4)
    bench.run(b"aaaabbbb")
    user = bench.job(b"aaaabbbbc")
    bench.pages.open(user)
    found = bench.tree.match(user, 8)
    assert found is not None
    bench.tree.take(found, user)
    bench.tree.evict(bench.tree.keepers[0], 4, 99)
    assert bench.hit(b"aaaabbbb") == 8
    bench.pages.free(user)
    bench.tree.evict(bench.tree.keepers[0], 4, 99)
    assert bench.hit(b"aaaabbbb") == 0 and bench.pages.pool("all").free_count == 4 and not bench.tree.roots


def test_a_tree_of_windows_only_does_not_grow_without_end() -> None:
    bench = Bench(PageGroup("last", 1, 4, Keep.LAST, 8), count=8)
    rng = Random(0)
    for _ in range(200):
        bench.run(rng.randbytes(16))
    assert len(bench.tree.nodes()) <= 8


def test_random_runs_agree_with_a_list_of_all_prefixes() -> None:
    rng = Random(1)
    bench = Bench(count=4000)
    known: set[bytes] = set()
    for _ in range(300):
        keys = bytes(rng.choice(b"ab") for _ in range(rng.randint(1, 40)))
        expected = max((end for end in range(0, len(keys) + 1, 4) if keys[:end] in known or end == 0), default=0)
        assert bench.hit(keys) == expected
        bench.run(keys)
        known.update(keys[:end] for end in range(4, len(keys) + 1, 4))


def test_why_a_prefix_missed() -> None:
    bench = Bench(ALL, PageGroup("state", 1, 1, Keep.CHECKPOINT, 4), count=4)
    assert explain(bench.tree, b"", b"aaaabbbb").miss is Miss.NEVER
    bench.run(b"aaaabbbbc")
    tree = bench.tree

    def why(keys: bytes, root: bytes = b"") -> tuple[int, Miss, int]:
        answer = explain(tree, root, keys)
        return answer.hit, answer.miss, answer.unit

    assert why(b"aaaabbbb") == (8, Miss.NONE, 8)
    assert why(b"aaaabbbbcc") == (8, Miss.GRANULE, 8)
    assert why(b"aaaabbbbcccc") == (8, Miss.NEVER, 8)
    assert why(b"aaaabbXbcccc") == (4, Miss.DIFFERS, 6)
    assert why(b"aaaabbbb", b"other tenant") == (0, Miss.OTHER_ROOT, 0)
    assert why(b"ccccbbbb", b"other tenant") == (0, Miss.NEVER, 0)
    tree.evict(tree.keepers[1], 4, 99)
    assert why(b"aaaabbbb") == (0, Miss.GROUP, 0)
    assert explain(tree, b"", b"aaaabbbb").group == "state"


def test_an_eviction_is_remembered_with_its_step_and_job() -> None:
    bench = Bench(count=4)
    bench.run(b"aaaabbbbcccc")
    job = bench.run(b"ddddeeee")
    answer = explain(bench.tree, b"", b"aaaabbbbcccc")
    assert (answer.hit, answer.miss, answer.step, answer.job) == (8, Miss.EVICTED, 2, job.id)
    assert str(answer) == f"8 units cached; unit 8: it was evicted at step 2 for job {job.id}"


def test_clearing_gives_every_page_back() -> None:
    bench = Bench(ALL, PageGroup("last", 1, 4, Keep.LAST, 6), PageGroup("image", 1, 1, Keep.WHOLE))
    bench.run(b"aaaabbbbcccc")
    bench.run(b"aaaabbbbdddd")
    bench.tree.clear()
    assert [keeper.pool.free_count for keeper in bench.pages.keepers] == [20, 20, 20]
