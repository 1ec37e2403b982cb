"""What `benchmarks.ops` times: each operation of the menu at a few shapes, with the work that each one is.

Shapes follow small real models, with odd ones between. `operations` counts a fused multiply-add as two; `bytes` counts
each input read and each output written once, the least that memory must move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vivace.kernels.ops import (
    AttentionSpec,
    DrawSpec,
    GroupRows,
    KVStore,
    LinearWeight,
    QkvSpec,
    Rows,
    StoreShape,
    f32_weight,
)
from vivace.kernels.select import BoundOps
from vivace.kernels.store import vector_bytes

PAGE_SIZE = 16


@dataclass(frozen=True)
class Case:
    """One operation at one shape. `prepare` makes the inputs for a set of operations and returns the call to time.
    `byte_products` says how many products of bytes native kernels make of one product; 0: they compute in float32."""

    op: str
    shape: str
    operations: float
    bytes: float
    prepare: Callable[[BoundOps], Callable[[], Any]]
    byte_products: int = 0


def all_cases(*, is_full: bool) -> Iterator[Case]:
    """Every operation; the full size adds larger weights and longer contexts."""
    rows = (1, 16, 128) + ((512,) if is_full else ())
    weights = [(1536, 576), (576, 1536), (1001, 577)] + ([(49152, 576), (4096, 4096)] if is_full else [])
    for outputs, inputs in weights:
        for count in rows:
            yield _linear(count, outputs, inputs)
    yield _linear_add(16, 576, 1536)
    yield from _choosing(is_full=is_full)
    yield _embedding(128, 49152 if is_full else 4096, 576)
    for count in (1, 127):
        yield from _elementwise(count, 576, 1536)
        yield from _coarse(count)
    for store_format in ("f32", "f16", "i8"):
        for spans in _attention_spans(is_full=is_full):
            yield _attention(spans, store_format)
    yield _attention_packed((64, 17, 128))
    yield from _stores()


def _linear(rows: int, outputs: int, inputs: int) -> Case:
    def prepare(ops: BoundOps) -> Callable[[], Tensor]:
        x, weight = torch.randn(rows, inputs), _packed(ops, outputs, inputs)
        return lambda: ops.linear(x, weight)

    moved = 4 * (outputs * inputs + rows * (inputs + outputs))
    return Case("linear", f"{rows}x{inputs} -> {outputs}", 2 * rows * inputs * outputs, moved, prepare)


def _linear_add(rows: int, outputs: int, inputs: int) -> Case:
    def prepare(ops: BoundOps) -> Callable[[], Tensor]:
        x, weight, residual = torch.randn(rows, inputs), _packed(ops, outputs, inputs), torch.randn(rows, outputs)
        return lambda: ops.linear_add(x, weight, residual)

    moved = 4 * (outputs * inputs + rows * (inputs + 2 * outputs))
    return Case("linear_add", f"{rows}x{inputs} -> {outputs}", 2 * rows * inputs * outputs, moved, prepare)


def _embedding(rows: int, count: int, width: int) -> Case:
    def prepare(ops: BoundOps) -> Callable[[], Tensor]:
        ids = torch.randint(count, (rows,))
        weight = ops.pack_table(f32_weight(torch.randn(count, width)))
        return lambda: ops.embedding(ids, weight)

    return Case("embedding", f"{rows} of {count}x{width}", 0, 8 * rows * width, prepare)


def _elementwise(rows: int, width: int, inner: int) -> Iterator[Case]:
    """Norms over `width`, the rest over `inner`. Operations are those of the equation, an exponential counts as one."""

    def norm(ops: BoundOps, name: str) -> Callable[[], Tensor]:
        x, w = torch.randn(rows, width), torch.randn(width)
        call = getattr(ops, name)
        return (lambda: call(x, w, 1e-5)) if name == "rms_norm" else (lambda: call(x, w, w, 1e-5))

    def activation(ops: BoundOps, kind: Any) -> Callable[[], Tensor]:
        x = torch.randn(rows, inner)
        return lambda: ops.activation(x, kind)

    def other(ops: BoundOps, name: str) -> Callable[[], Tensor]:
        x, y = torch.randn(rows, inner), torch.randn(rows, inner)
        return (lambda: ops.add(x, y)) if name == "add" else (lambda: ops.soft_cap(x, 30.0))

    for name in ("rms_norm", "layer_norm"):
        yield Case(name, f"{rows}x{width}", 5 * rows * width, 8 * rows * width, lambda ops, name=name: norm(ops, name))
    for kind in ("silu", "gelu", "gelu_tanh"):
        work = 4 * rows * inner, 8 * rows * inner
        yield Case("activation", f"{kind} {rows}x{inner}", *work, lambda ops, kind=kind: activation(ops, kind))
    yield Case("soft_cap", f"{rows}x{inner}", 3 * rows * inner, 8 * rows * inner, lambda ops: other(ops, "soft_cap"))
    yield Case("add", f"{rows}x{inner}", rows * inner, 12 * rows * inner, lambda ops: other(ops, "add"))


def _coarse(rows: int) -> Iterator[Case]:
    """The coarse operations and rope, as SmolLM2-135M asks for them."""
    heads, kv_heads, dim, size, inner = 9, 3, 64, 576, 1536
    outputs = (heads + 2 * kv_heads) * dim

    def rope(ops: BoundOps) -> Callable[[], Tensor]:
        x, cos = torch.randn(rows, heads, dim), torch.rand(rows, dim // 2)
        return lambda: ops.rope(x, cos, cos, "half")

    def qkv(ops: BoundOps) -> Callable[[], Tensor]:
        x, weight, cos = torch.randn(rows, size), _packed(ops, outputs, size), torch.rand(rows, dim // 2)
        store, where = (
            _store(ops, rows, kv_heads, dim),
            GroupRows(torch.arange(rows) + PAGE_SIZE, torch.zeros(1, 1), PAGE_SIZE),
        )
        spec = QkvSpec(heads, kv_heads, dim)
        return lambda: ops.qkv_rope_store(x, weight, spec, cos, cos, store, where)

    def mlp(ops: BoundOps) -> Callable[[], Tensor]:
        x, down = torch.randn(rows, size), _packed(ops, size, inner)
        gate_up = ops.pack_linear(
            f32_weight(torch.randn(2 * inner, size), slices={"gate": (0, inner), "up": (inner, 2 * inner)})
        )
        return lambda: ops.gated_mlp(x, gate_up, down, "silu", x)

    def angles(ops: BoundOps) -> Callable[[], Any]:
        position, variant = torch.arange(rows).view(-1, 1), torch.zeros(rows, dtype=torch.int32)
        frequencies = torch.rand(1, dim // 2)
        return lambda: ops.rope_angles(position, variant, frequencies, 1.0)

    yield Case("rope_angles", f"{rows}x{dim // 2}", 4 * rows * dim // 2, 4 * rows * dim, angles)
    yield Case("rope", f"{rows}x{heads}x{dim}", 3 * rows * heads * dim, 8 * rows * heads * dim, rope)
    yield Case(
        "qkv_rope_store",
        f"{rows}x{size}",
        2 * rows * size * outputs,
        4 * (size * outputs + rows * (size + outputs)),
        qkv,
    )
    yield Case("gated_mlp", f"{rows}x{size}", 6 * rows * size * inner, 4 * (3 * size * inner + 3 * rows * size), mlp)


def _choosing(*, is_full: bool) -> Iterator[Case]:
    """The rows that go on to the head, and the best id of each, for the vocabularies of small models."""

    def take(ops: BoundOps) -> Callable[[], Tensor]:
        x, rows = torch.randn(512, 576), torch.arange(7, 512, 8)
        return lambda: ops.take_rows(x, rows)

    def argmax(ops: BoundOps, rows: int, width: int) -> Callable[[], Tensor]:
        x = torch.randn(rows, width)
        return lambda: ops.argmax(x)

    def mean(ops: BoundOps) -> Callable[[], Tensor]:
        x, bounds = torch.randn(512, 384), torch.arange(0, 513, 64)
        return lambda: ops.mean_rows(x, bounds[:-1], bounds[1:])

    def unit(ops: BoundOps) -> Callable[[], Tensor]:
        x = torch.randn(64, 384)
        return lambda: ops.unit_rows(x)

    yield Case("take_rows", "64 of 512x576", 0, 8 * 64 * 576, take)
    yield Case("mean_rows", "8 of 64x384", 512 * 384, 4 * 520 * 384, mean)
    yield Case("unit_rows", "64x384", 3 * 64 * 384, 8 * 64 * 384, unit)
    for width in (49_152, 262_145):
        for rows in (1, 16) if is_full else (1,):
            case = Case(
                "argmax", f"{rows}x{width}", rows * width, 4 * rows * width, partial(argmax, rows=rows, width=width)
            )
            yield case
            yield from _draws(rows, width)


def _draws(rows: int, width: int) -> Iterator[Case]:
    """A draw from the scores: an exponential and a sum for each of them, over the two passes that it takes."""
    specs = {"all": DrawSpec(0.7), "top_k 40": DrawSpec(0.7, top_k=40), "top_p 0.9": DrawSpec(0.7, top_p=0.9)}
    for name, spec in specs.items():

        def prepare(ops: BoundOps, spec: DrawSpec = spec) -> Callable[[], Tensor]:
            x, uniforms = torch.randn(rows, width) * 3, torch.rand(rows, dtype=torch.float64)
            return lambda: ops.draw(x, spec, uniforms)

        yield Case("draw", f"{name} {rows}x{width}", 2 * rows * width, 4 * rows * width, prepare)


def _attention_spans(*, is_full: bool) -> Iterator[tuple[tuple[int, int], ...]]:
    """(context, rows) of each sequence: decodes of one and of several, prompts, a chunk."""
    contexts = (127, 1023, 8191) if is_full else (127, 1023)
    for streams in (1, 16, 64):
        for context in contexts:
            if streams * context < 1 << 18:  # 400 MB in float32
                yield ((context, 1),) * streams
    yield ((500, 1), (33, 1), (129, 1), (250, 1))
    yield ((0, 512),)
    yield ((100, 61),)
    if is_full:
        yield ((3584, 512),)


def _attention(spans: tuple[tuple[int, int], ...], store_format: str) -> Case:
    """Bytes of keys and values count as the store keeps them."""
    spec = AttentionSpec(heads=9, kv_heads=3, head_dim=64, scale=0.125)
    pairs = sum(count * context + count * (count + 1) // 2 for context, count in spans)
    units, rows = sum(context + count for context, count in spans), sum(count for _, count in spans)

    def prepare(ops: BoundOps) -> Callable[[], Tensor]:
        store, step = _store(ops, units + PAGE_SIZE * len(spans), 3, 64, store_format), _rows(spans)
        q = torch.randn(rows, 9, 64)
        return lambda: ops.attention(q, store, step, "full", spec)

    name = f"{len(spans)} x " if len(spans) > 1 else ""
    shape = f"{store_format} {name}{spans[0][1]} at {spans[0][0]}"
    unit = 3 * 2 * vector_bytes(64, store_format)
    return Case("attention", shape, 4 * pairs * 9 * 64, units * unit + 8 * rows * 9 * 64, prepare)


def _attention_packed(lengths: tuple[int, ...]) -> Case:
    spec, rows = AttentionSpec(12, 12, 32, 0.18, is_causal=False), sum(lengths)
    starts = tuple(sum(lengths[:i]) for i in range(len(lengths) + 1))

    def prepare(ops: BoundOps) -> Callable[[], Tensor]:
        nothing = torch.zeros(0, dtype=torch.int32)
        qkv, step = torch.randn(rows, 3 * 12 * 32), Rows(nothing, nothing, nothing, starts, (), nothing, {})
        return lambda: ops.attention_packed(qkv, step, spec)

    pairs = sum(length * length for length in lengths)
    shape = f"lengths {', '.join(map(str, lengths))}"
    return Case("attention_packed", shape, 4 * pairs * 12 * 32, 16 * rows * 12 * 32, prepare)


def _stores() -> Iterator[Case]:
    """Copies within a store of 64-dim heads. Bytes: each number read once and written once."""
    page_bytes, slot_bytes = 2 * 4 * PAGE_SIZE * 3 * 64, 2 * 4 * 3 * 64
    pages, slots = torch.arange(1, 5), torch.arange(PAGE_SIZE, PAGE_SIZE + 7)

    def copy(ops: BoundOps) -> Callable[[], None]:
        store = _store(ops, 200, 3, 64)
        return lambda: ops.kv_copy(store, pages, pages + 5)

    def move(ops: BoundOps) -> Callable[[], None]:
        store = _store(ops, 200, 3, 64)
        return lambda: ops.kv_move(store, slots, slots + 3)

    def rotate(ops: BoundOps) -> Callable[[], None]:
        store, cos = _store(ops, 200, 3, 64), torch.rand(7, 32)
        return lambda: ops.kv_rotate(store, slots, cos, cos, "half")

    yield Case("kv_copy", "4 pages", 0, 2 * 4 * page_bytes, copy)
    yield Case("kv_move", "7 slots", 0, 2 * 7 * slot_bytes, move)
    yield Case("kv_rotate", "7 slots", 3 * 7 * 3 * 64, 7 * slot_bytes, rotate)


def _packed(ops: BoundOps, outputs: int, inputs: int) -> LinearWeight:
    return ops.pack_linear(f32_weight(torch.randn(outputs, inputs)))


def _store(ops: BoundOps, units: int, kv_heads: int, dim: int, store_format: str = "f32") -> KVStore:
    """A store as the operations make it, filled with random numbers, so that every page has memory."""
    store = ops.make_store(StoreShape(units // PAGE_SIZE + 2, PAGE_SIZE, kv_heads, dim, dim), store_format)
    for part in (store.keys, store.values):
        part.random_(-127, 128) if part.dtype == torch.int8 else part.normal_()
    for scale in (store.key_scales, store.value_scales):
        if scale is not None:
            scale.fill_(1 / 127)
    return store


def _rows(spans: tuple[tuple[int, int], ...]) -> Rows:
    counts = [count for _, count in spans]
    pages = [(context + count + PAGE_SIZE - 1) // PAGE_SIZE for context, count in spans]
    table, slots, taken = torch.zeros(len(spans), max(pages), dtype=torch.int32), [], 1
    for s, (context, count) in enumerate(spans):
        table[s, : pages[s]] = torch.arange(taken, taken + pages[s])
        slots.append(taken * PAGE_SIZE + torch.arange(context, context + count))
        taken += pages[s]
    total = sum(counts)
    return Rows(
        position=torch.cat([torch.arange(c, c + n) for c, n in spans]).view(-1, 1),
        parent=torch.full((total,), -1, dtype=torch.int32),
        sequence=torch.repeat_interleave(torch.arange(len(spans), dtype=torch.int32), torch.tensor(counts)),
        starts=tuple(sum(counts[:i]) for i in range(len(spans) + 1)),
        context=tuple(context for context, _ in spans),
        variant=torch.zeros(total, dtype=torch.int32),
        groups={"full": GroupRows(torch.cat(slots), table, PAGE_SIZE)},
    )
