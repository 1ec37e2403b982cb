"""Binds each operation to one implementation, once at load: by device, instruction set and format, from static tables.

Four choices: "ref" (batched torch), "rows" (the bitwise invariant reference), "native" (compiled kernels, an error
without them) and "auto" (native where there is one, else the reference). Never a clock: the same machine and the same
arguments always give the same kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from vivace.config import ActivationFormat, WeightFormat
from vivace.errors import ConfigError, nearest
from vivace.kernels.cpu import bind as native
from vivace.kernels.cpu.pack import pack_experts, pack_native, pack_native_table
from vivace.kernels.layout import to_plain
from vivace.kernels.ops import ExpertWeights, KVStore, LinearWeight, Ops, StoreShape
from vivace.kernels.quantized import kept_as
from vivace.kernels.ref import activation, attention, choose, embedding, experts, kv, linear, mlp, norm, pool, qkv, rope
from vivace.kernels.ref import rows as one_row
from vivace.kernels.rooms import FRESH_MEMORY, Rooms
from vivace.kernels.store import panel_store, plain_store
from vivace.runtime import threads as runtime_threads

CHOICES = ("auto", "native", "ref", "rows")

# Every set starts from these.
_REFERENCE: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "embedding": embedding.embedding,
        "linear": linear.linear,
        "add": linear.add,
        "rms_norm": norm.rms_norm,
        "layer_norm": norm.layer_norm,
        "activation": activation.activation,
        "soft_cap": activation.soft_cap,
        "rope_angles": rope.rope_angles,
        "rope": rope.rope,
        "attention": attention.attention,
        "attention_packed": attention.attention_packed,
        "take_rows": choose.take_rows,
        "mean_rows": pool.mean_rows,
        "unit_rows": pool.unit_rows,
        "argmax": choose.argmax,
        "draw": choose.draw,
        "route": experts.route,
        "grouped_linear": experts.grouped_linear,
        "combine": experts.combine,
        "kv_copy": kv.kv_copy,
        "kv_move": kv.kv_move,
        "kv_rotate": kv.kv_rotate,
    }
)
# Of these, the ones that only copy, round each product and sum by itself, or add in one order: invariant in every set.
_EXACT = frozenset(
    (
        *(
            "add",
            "embedding",
            "rope_angles",
            "rope",
            "take_rows",
            "mean_rows",
            "unit_rows",
            "argmax",
            "draw",
            "combine",
        ),
        *("kv_copy", "kv_move", "kv_rotate"),
    )
)
# Coarse operations as compositions of bound ones, where a set has no kernel of its own: the function and its parts.
_COMPOSITIONS: Mapping[str, tuple[Callable[..., Any], tuple[str, ...]]] = MappingProxyType(
    {
        "linear_add": (linear.linear_add, ("linear",)),
        "qkv_rope_store": (qkv.qkv_rope_store, ("linear", "rms_norm", "rope")),
        "gated_mlp": (mlp.gated_mlp, ("linear", "activation", "linear_add")),
        "expert_mlp": (experts.expert_mlp, ("grouped_linear", "activation", "combine")),
    }
)
_ROWS_OPS = (
    *("linear", "rms_norm", "layer_norm", "activation", "soft_cap", "attention", "attention_packed"),
    *("route", "grouped_linear"),
)
_NATIVE_OPS = (*_REFERENCE, *_COMPOSITIONS)


@dataclass(frozen=True)
class Bound:
    """What one operation is bound to: `name` for people, `call`, and whether its result is the same in any batch."""

    name: str
    call: Callable[..., Any]
    is_invariant: bool


class BoundOps(Ops):
    """The operations as layers call them, each bound to one implementation.

    bound   operation name -> what it is bound to
    device  where tensors live
    weights how matrices of floats are kept
    native  the native kernels, if every operation is bound to them: then steps can be recorded
    """

    def __init__(self, device: torch.device, weights: WeightFormat = "stored") -> None:
        self.device = device
        self.weights = weights
        self.bound: dict[str, Bound] = {}
        self.native: native.NativeOps | None = None
        self._pack: Callable[[LinearWeight, Rooms], LinearWeight] = lambda weight, _: to_plain(weight)
        self._pack_table: Callable[[LinearWeight, Rooms], LinearWeight] = self._pack
        self._pack_experts: Callable[[Sequence[LinearWeight]], ExpertWeights] = partial(experts.pack_experts, self)
        self._make_store: Callable[[StoreShape, str, torch.device], KVStore] = plain_store
        self._note = ""

    def pack_linear(self, weight: LinearWeight, rooms: Rooms = FRESH_MEMORY) -> LinearWeight:
        """Return the weight in the layout that `linear` reads. Layers call this once at load and drop the plain one."""
        if self.weights != "stored":
            weight = replace(weight, stored=tuple(kept_as(matrix, self.weights) for matrix in weight.stored))
        return self._pack(weight, rooms)

    def pack_table(self, weight: LinearWeight, rooms: Rooms = FRESH_MEMORY) -> LinearWeight:
        """Return the weight in the layout that `embedding` reads best, for tables that nothing else reads."""
        return self._pack_table(weight, rooms)

    def pack_experts(self, weights: Sequence[LinearWeight]) -> ExpertWeights:
        """Return the weights of all experts in the layout that `grouped_linear` reads."""
        return self._pack_experts(weights)

    def make_store(self, shape: StoreShape, store_format: str) -> KVStore:
        """Return an empty store in the layout that `attention` reads best."""
        return self._make_store(shape, store_format, self.device)

    @property
    def is_invariant(self) -> bool:
        """Whether results are bitwise independent of batch, chunk and neighbours (the determinism contract)."""
        return all(bound.is_invariant for bound in self.bound.values())

    def describe(self) -> str:
        """The choices as text, for `vivace info --kernels`."""
        lines = [f"{op:17} {bound.name:24} {_word(bound.is_invariant)}" for op, bound in sorted(self.bound.items())]
        verdict = "holds" if self.is_invariant else "does not hold: some operations depend on their batch (see above)"
        lines = [f"device {self.device}", *lines, f"determinism contract {verdict}"]
        return "\n".join([*lines, self._note] if self._note else lines)

    def _bind(self, op: str, bound: Bound) -> None:
        assert hasattr(Ops, op), f"{op} is not on the menu"
        self.bound[op] = bound
        setattr(self, op, bound.call)


def resolve(
    *,
    device: str = "cpu",
    choice: str = "auto",
    isa: str | None = None,
    threads: int | None = None,
    weights: WeightFormat = "stored",
    activations: ActivationFormat = "int14",
) -> BoundOps:
    """Bind every operation of the menu.

    device       a torch device: "cpu", "cuda", "cuda:1"
    choice       auto, native, ref or rows (VIVACE_KERNELS)
    isa          highest instruction set of native kernels, one of kernels.cpu.bind.ISAS (VIVACE_ISA); None: the best
    threads      threads that native kernels use; None takes torch's count
    weights      how matrices of floats are kept
    activations  what native kernels turn the inputs of quantized weights into

    A set of operations owns its thread pool. "rows" sets torch to one thread, because the invariance of one row rests
    on it. Raises ConfigError for an unknown name, and for "native" when this machine has no native kernels.
    """
    if choice not in CHOICES:
        raise ConfigError(f"kernels is '{choice}', expected one of {', '.join(CHOICES)}", hint=nearest(choice, CHOICES))
    # Every method of the menu is bound just below, so nothing of it stays abstract.
    ops = BoundOps(torch.device(device), weights)  # type: ignore[abstract]
    for op, call in _REFERENCE.items():
        ops._bind(op, Bound("reference (torch)", call, op in _EXACT))
    if choice == "rows":
        _bind_rows(ops)
    elif choice != "ref":
        _bind_native(ops, isa, threads, activations, is_required=choice == "native")
    for op, (call, parts) in _COMPOSITIONS.items():
        if op not in ops.bound:
            is_invariant = all(ops.bound[part].is_invariant for part in parts)
            ops._bind(op, Bound("composition", partial(call, ops), is_invariant))
    return ops


def _bind_rows(ops: BoundOps) -> None:
    runtime_threads.set_torch_threads(1)
    for op in _ROWS_OPS:
        ops._bind(op, Bound("reference, row by row", getattr(one_row, op), True))


def _bind_native(
    ops: BoundOps, isa: str | None, threads: int | None, activations: ActivationFormat, *, is_required: bool
) -> None:
    """Bind the operations that have a native kernel; without them say why, or raise if they are required."""
    reason = native.why_missing() if ops.device.type == "cpu" else f"none are built for {ops.device.type}"
    if reason is not None:
        if is_required:
            raise ConfigError(
                f"no native kernels: {reason}", hint="reinstall with a C++17 compiler, or use kernels=auto"
            )
        ops._note = f"no native kernels: {reason}"
        return
    kernels = native.NativeOps(isa, threads or torch.get_num_threads())
    for op in _NATIVE_OPS:
        ops._bind(op, Bound(f"native {kernels.isa}", getattr(kernels, op), True))
    ops.native = kernels
    ops._pack = lambda weight, rooms: pack_native(weight, activations, rooms)
    ops._pack_table = lambda weight, rooms: pack_native_table(weight, activations, rooms)
    ops._pack_experts = lambda weights: pack_experts([ops.pack_linear(weight) for weight in weights])
    ops._make_store = panel_store
    ops._note = f"native kernels on {kernels.threads} threads, quantized weights meet {activations} activations"


def _word(is_invariant: bool) -> str:
    return "invariant" if is_invariant else "depends on the batch"
