"""Rows, slots and tables of a step, against a loop over units."""

import random
from array import array

import pytest
import torch

from vivace.engine.batch import PageGroup, Span
from vivace.engine.job import Job
from vivace.pipelines.rows import build_rows, ids_of, keys_of, span_ids
from vivace.techniques.speculation.base import DraftTree

CPU = torch.device("cpu")
GROUPS = (PageGroup("full", 8, 4), PageGroup("window", 8, 3))


def _spans(seed: int) -> list[Span]:
    rng = random.Random(seed)
    spans = []
    for number in range(rng.randrange(1, 6)):
        ids = [rng.randrange(300_000) for _ in range(rng.randrange(2, 40))]
        job = Job(number, "lane", len(ids), len(ids), keys=keys_of(ids), payload=ids)
        for group in GROUPS:
            pages = -(-len(ids) // group.page_size)
            job.tables[group.name] = array("i", rng.sample(range(1, 1000), pages))
        start = rng.randrange(len(ids))
        spans.append(Span(job, start, rng.randrange(1, len(ids) - start + 1)))
    return spans


@pytest.mark.parametrize("is_decode", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_rows_equal_a_loop_over_units(seed: int, is_decode: bool) -> None:
    spans = [Span(span.job, span.start, 1) if is_decode else span for span in _spans(seed)]
    rows = build_rows(spans, GROUPS, [span.job.id % 2 for span in spans]).tensors(CPU)
    ids, units, sequences, parents, slots = [], [], [], [], {group.name: [] for group in GROUPS}
    for number, span in enumerate(spans):
        for unit in range(span.start, span.start + span.count):
            parents.append(len(units) - 1 if unit > span.start else -1)
            ids.append(span.job.payload[unit])
            units.append(unit)
            sequences.append(number)
            for group in GROUPS:
                page = span.job.tables[group.name][unit // group.page_size]
                slots[group.name].append(page * group.page_size + unit % group.page_size)
    assert span_ids(spans).tolist() == ids
    assert rows.position.tolist() == [[unit] for unit in units]
    assert rows.sequence.tolist() == sequences
    assert rows.parent.tolist() == parents
    assert rows.variant.tolist() == [number % 2 for number in sequences]
    assert rows.context == tuple(span.start for span in spans)
    assert [rows.starts[i + 1] - rows.starts[i] for i in range(len(spans))] == [span.count for span in spans]
    for group in GROUPS:
        assert rows.groups[group.name].slot.tolist() == slots[group.name]
        for span, table in zip(spans, rows.groups[group.name].table.tolist(), strict=True):
            pages = span.job.tables[group.name]
            assert table == [*pages, *[0] * (len(table) - len(pages))]


@pytest.mark.parametrize("seed", range(20))
def test_guesses_stand_below_the_last_known_unit(seed: int) -> None:
    rng = random.Random(seed)
    spans = _spans(seed)
    drafts = []
    for span in spans:  # the last units of each span become guesses: its job knows fewer
        count = rng.randrange(span.count)
        parents = [rng.randrange(-1, place) for place in range(count)]
        drafts.append(DraftTree(tuple(rng.randrange(300_000) for _ in range(count)), tuple(parents)))
        del span.job.keys[(span.start + span.count - count) * 4 :]
    rows = build_rows(spans, GROUPS, [0] * len(spans), drafts).tensors(CPU)
    plain = build_rows(_spans(seed), GROUPS, [0] * len(spans)).tensors(CPU)
    assert rows.is_chain == all(draft.is_chain for draft in drafts)
    assert rows.groups["full"].slot.tolist() == plain.groups["full"].slot.tolist(), "guesses take units in their order"
    ids = span_ids(spans, drafts).tolist()
    for index, (span, draft) in enumerate(zip(spans, drafts, strict=True)):
        root = rows.starts[index + 1] - len(draft) - 1
        assert ids[rows.starts[index] : root + 1] == span.job.payload[span.start : span.start + span.count - len(draft)]
        assert ids[root + 1 : rows.starts[index + 1]] == list(draft.ids)
        unit = span.start + span.count - len(draft) - 1
        for place, (parent, depth) in enumerate(zip(draft.parents, draft.depths(), strict=True)):
            assert rows.parent[root + 1 + place] == root + 1 + parent
            assert rows.position[root + 1 + place].tolist() == [unit + depth]


def test_types_are_those_of_the_menu() -> None:
    rows = build_rows(_spans(1), GROUPS, [0] * len(_spans(1))).tensors(CPU)
    assert rows.position.dtype == rows.groups["full"].slot.dtype == torch.int64
    assert rows.parent.dtype == rows.sequence.dtype == rows.variant.dtype == torch.int32
    assert rows.groups["full"].table.dtype == torch.int32


def test_tables_and_keys_can_grow_after_a_step_has_read_them() -> None:
    spans = _spans(2)
    rows, ids = build_rows(spans, GROUPS, [0] * len(spans)).tensors(CPU), span_ids(spans)
    for span in spans:
        span.job.keys += keys_of([1])
        span.job.tables["full"].append(7)
    assert len(ids) == rows.starts[-1]


def test_keys_are_ids_as_four_little_endian_bytes() -> None:
    keys = keys_of([1, 262_143])
    assert bytes(keys) == b"\x01\0\0\0\xff\xff\x03\0"
    assert ids_of(Job(1, "lane", 2, 2, keys=keys)).tolist() == [1, 262_143]
