"""The native CPU kernels as operations of the menu: makes the tensors of results and hands all tensors to C++."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]  # public, but not listed in __all__

from vivace.errors import ConfigError, nearest
from vivace.kernels.cpu.pack import QUANT_FORMAT
from vivace.kernels.layout import PANEL_FORMATS
from vivace.kernels.ops import (
    Activation,
    AttentionSpec,
    DrawSpec,
    ExpertWeights,
    GroupRows,
    KVStore,
    LinearWeight,
    Pairing,
    QkvSpec,
    RouteSpec,
    Rows,
)

ISAS = ("avx512vnni", "avx512", "avx2vnni", "avx2", "portable")  # the best first; the last runs everywhere

_MODULE = "vivace.kernels.cpu._native"


def why_missing() -> str | None:
    """None if the native kernels can be used, else the reason."""
    try:
        importlib.import_module(_MODULE)
    except ImportError as error:
        return f"{error}; Vivace was installed without a working C++ compiler"
    return None


def supported_isas() -> tuple[str, ...]:
    """Those of ISAS that this machine has and native kernels were built for, the best first."""
    return tuple(importlib.import_module(_MODULE).supported_isas())


def byte_dots_by() -> str:
    """Which instruction `NativeOps.byte_dots` measures."""
    return str(importlib.import_module(_MODULE).byte_dots_by())


class NativeOps:
    """The operations that have a native kernel, over one instruction set and one thread pool.

    isa      highest instruction set to use; None takes the best of this machine
    threads  size of the pool, the calling thread included

    Every result is the same bits for any batch, thread count and instruction set: see the files in kernels/cpu.
    Each operation is a few calls of compiled functions, which write into tensors that are made here. `kernels.tape`
    derives from this class and notes the calls instead.
    """

    def __init__(self, isa: str | None, threads: int) -> None:
        module: Any = importlib.import_module(_MODULE)
        self._module = module
        self._kernels: Any = module.Kernels(_best_isa(isa), threads)
        self.isa: str = self._kernels.isa
        self.threads: int = self._kernels.threads

    def make_tape(self) -> Any:
        """An empty tape: it has the functions of these kernels as methods that add a call, and `run`."""
        return self._module.Tape(self._kernels)

    def embedding(self, ids: Tensor, weight: LinearWeight, scale: float = 1.0) -> Tensor:
        """y[r] = scale * W[ids[r]]. ids (rows,) int64 -> (rows, inputs)."""
        y = self._new(ids, weight.inputs)
        if weight.format == QUANT_FORMAT:
            self._call("quant_embedding", ids=ids, linear=weight.handle, scale=scale, y=y)
        elif weight.format == "rows":
            self._call("table_rows", ids=ids, table=weight.data, scale=scale, y=y)
        else:
            self._call("embedding", ids=ids, weights=_panels(weight), outputs=weight.outputs, scale=scale, y=y)
        return y

    def linear(self, x: Tensor, weight: LinearWeight) -> Tensor:
        """y = x W^T + b. x (rows, inputs) -> (rows, outputs)."""
        return self._linear(x, weight, None)

    def linear_add(self, x: Tensor, weight: LinearWeight, residual: Tensor) -> Tensor:
        """y = residual + (x W^T + b) -> (rows, outputs)."""
        return self._linear(x, weight, residual)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y, of one shape."""
        total = self._new(x, *x.shape[1:])
        self._call("add", x=x, z=y, y=total)
        return total

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """y = x / sqrt(mean(x^2) + eps) * w over the last dimension."""
        x = x.contiguous()
        y = self._new(x, *x.shape[1:])
        self._call("rms_norm", x=x, weight=weight, eps=eps, y=y)
        return y

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """y = (x - mean(x)) / sqrt(var(x) + eps) * w + b over the last dimension."""
        x = x.contiguous()
        y = self._new(x, *x.shape[1:])
        self._call("layer_norm", x=x, weight=weight, bias=bias, eps=eps, y=y)
        return y

    def activation(self, x: Tensor, kind: Activation) -> Tensor:
        """Elementwise activation."""
        x = x.contiguous()
        y = self._new(x, *x.shape[1:])
        self._call("activation", kind=kind, x=x, y=y)
        return y

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        """y = cap * tanh(x / cap)."""
        x = x.contiguous()
        y = self._new(x, *x.shape[1:])
        self._call("soft_cap", x=x, cap=cap, y=y)
        return y

    def rope_angles(
        self, position: Tensor, variant: Tensor, frequencies: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """cos and sin of each row's angles, times scale: (rows, d) each."""
        cos, sin = self._new(position, frequencies.shape[1]), self._new(position, frequencies.shape[1])
        self._call(
            "rope_angles", position=position, variant=variant, frequencies=frequencies, scale=scale, cos=cos, sin=sin
        )
        return cos, sin

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> Tensor:
        """Rotate the first 2 * d dims of each head. x (rows, heads, dim); cos, sin (rows, d)."""
        x = x.contiguous()
        y = self._new(x, *x.shape[1:])
        self._call("rope", x=x, cos=cos, sin=sin, pairing=pairing, y=y)
        return y

    def qkv_rope_store(
        self, x: Tensor, weight: LinearWeight, spec: QkvSpec, cos: Tensor, sin: Tensor, store: KVStore, rows: GroupRows
    ) -> Tensor:
        """q, k, v = split(x W^T + b); normalise and rotate q and k; store k and v. -> q (rows, heads, head_dim)."""
        q = self._new(x, spec.heads, spec.head_dim)
        self._call(
            "qkv_store",
            x=self.linear(x, weight),
            q_norm=spec.q_norm,
            k_norm=spec.k_norm,
            eps=spec.norm_eps,
            pairing=spec.pairing,
            cos=cos,
            sin=sin,
            slot=rows.slot,
            **_tensors(store),
            q=q,
        )
        return q

    def gated_mlp(
        self, x: Tensor, gate_up: LinearWeight, down: LinearWeight, kind: Activation, residual: Tensor | None
    ) -> Tensor:
        """y = residual + (act(x Wg^T) * (x Wu^T)) Wd^T -> (rows, outputs)."""
        (gate, _), (up, _) = gate_up.slices["gate"], gate_up.slices["up"]
        hidden = self._new(x, down.inputs)
        self._call("gate", kind=kind, x=self.linear(x, gate_up), gate=gate, up=up, y=hidden)
        return self._linear(hidden, down, residual)

    def draw(self, x: Tensor, spec: DrawSpec, uniforms: Tensor) -> Tensor:
        """One id of each row, from the scores that are kept: (rows,) int64. uniforms (rows,) float64."""
        y = self._new(x, dtype=torch.int64)
        kept = {"temperature": spec.temperature, "top_k": spec.top_k, "top_p": spec.top_p, "min_p": spec.min_p}
        self._call("draw", x=x, **kept, uniforms=uniforms, y=y)
        return y

    def route(self, logits: Tensor, spec: RouteSpec, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The experts of each row and their weights, the best first: int32 and float32 of (rows, count)."""
        chosen, weights = self._new(logits, spec.count, dtype=torch.int32), self._new(logits, spec.count)
        self._call(
            "route",
            logits=logits,
            bias=bias,
            is_sigmoid=spec.scoring == "sigmoid",
            groups=spec.groups,
            kept_groups=spec.kept_groups,
            group_best=spec.group_best,
            is_normalized=spec.is_normalized,
            scale=spec.scale,
            chosen=chosen,
            weights=weights,
        )
        return chosen, weights

    def grouped_linear(self, x: Tensor, chosen: Tensor, weights: ExpertWeights) -> Tensor:
        """y[r, j] = W_e x[r] + b_e with e = chosen[r, j], or of x[r, j] -> (rows, count, outputs)."""
        y = self._new(x, chosen.shape[1], weights.experts[0].outputs)
        self._call("grouped_linear", x=x, chosen=chosen, experts=weights.handle, y=y)
        return y

    def combine(self, x: Tensor, weights: Tensor, residual: Tensor | None) -> Tensor:
        """y[r] = residual[r] + sum_j weights[r, j] * x[r, j]. x (rows, count, width)."""
        y = self._new(x, x.shape[2])
        self._call("combine", x=x, weights=weights, residual=residual, y=y)
        return y

    def expert_mlp(
        self,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        gate_up: ExpertWeights,
        down: ExpertWeights,
        kind: Activation,
        residual: Tensor | None,
    ) -> Tensor:
        """y[r] = residual[r] + sum_j weights[r, j] * gated_mlp of expert chosen[r, j] of x[r] -> (rows, outputs)."""
        slices = gate_up.experts[0].slices
        (gate, _), (up, _) = slices["gate"], slices["up"]
        hidden = self._new(x, chosen.shape[1], down.experts[0].inputs)
        self._call("gate", kind=kind, x=self.grouped_linear(x, chosen, gate_up), gate=gate, up=up, y=hidden)
        return self.combine(self.grouped_linear(hidden, chosen, down), weights, residual)

    def attention(
        self, q: Tensor, store: KVStore, rows: Rows, group: str, spec: AttentionSpec, sinks: Tensor | None = None
    ) -> Tensor:
        """Attention over the store. q (rows, heads, head_dim) -> (rows, heads * value_dim)."""
        where, y = rows.groups[group], self._new(q, spec.heads, store.values.shape[-1])
        self._call(
            "attention",
            q=q.contiguous(),
            **_tensors(store),
            table=where.table,
            page_size=where.page_size,
            **self._sequences(rows),
            sinks=sinks,
            **_scoring(spec),
            y=y,
        )
        return y.flatten(1)

    def attention_packed(self, qkv: Tensor, rows: Rows, spec: AttentionSpec) -> Tensor:
        """Attention within each sequence. qkv (rows, all heads * head_dim) -> (rows, heads * head_dim)."""
        y = self._new(qkv, spec.heads * spec.head_dim)
        self._call(
            "attention_packed",
            qkv=qkv.contiguous(),
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            starts=self._sequences(rows)["starts"],
            **_scoring(spec),
            y=y,
        )
        return y

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        """y[i] = x[rows[i]]. x (.., width), rows (n,) int64 -> (n, width)."""
        y = self._new(rows, x.shape[1])
        self._call("take_rows", x=x, rows=rows, y=y)
        return y

    def mean_rows(self, x: Tensor, first: Tensor, last: Tensor) -> Tensor:
        """y[i] = the mean of the rows first[i] .. last[i] - 1. x (.., width), first, last (n,) int64 -> (n, width)."""
        y = self._new(first, x.shape[1])
        self._call("mean_rows", x=x, first=first, last=last, y=y)
        return y

    def unit_rows(self, x: Tensor) -> Tensor:
        """y = x / max(||x||, 1e-12). x (rows, width)."""
        y = self._new(x, x.shape[1])
        self._call("unit_rows", x=x, y=y)
        return y

    def argmax(self, x: Tensor) -> Tensor:
        """The place of the largest element of each row, the lowest one of equals: (rows,) int64."""
        y = self._new(x, dtype=torch.int64)
        self._call("argmax", x=x, y=y)
        return y

    def kv_copy(self, store: KVStore, sources: Tensor, targets: Tensor) -> None:
        """Copy whole pages, in the order given."""
        self._call("kv_copy", **_tensors(store), sources=sources, targets=targets)

    def kv_move(self, store: KVStore, sources: Tensor, targets: Tensor) -> None:
        """Copy single slots; all reads happen before the first write."""
        self._call("kv_move", **_tensors(store), sources=sources, targets=targets)

    def kv_rotate(self, store: KVStore, slots: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> None:
        """Rotate stored keys in place by further angles. cos, sin (slots, d)."""
        self._call("kv_rotate", **_tensors(store), slots=slots, cos=cos, sin=sin, pairing=pairing)

    def multiply_add(self, rounds: int) -> float:
        """Keep every thread busy; returns the operations done. Timed, it is the processor's ceiling."""
        return float(self._kernels.multiply_add(rounds))

    def byte_dots(self, rounds: int) -> float:
        """Keep every thread busy with dot products of bytes; returns the operations done: the integer ceiling."""
        return float(self._kernels.byte_dots(rounds))

    def read_memory(self, x: Tensor) -> None:
        """Read a flat tensor once. Timed, it is the memory's ceiling."""
        self._call("read_memory", x=x)

    def _linear(self, x: Tensor, weight: LinearWeight, residual: Tensor | None) -> Tensor:
        y = self._new(x, weight.outputs)
        if weight.format == QUANT_FORMAT:
            self._call("quant_linear", x=x, linear=weight.handle, bias=weight.bias, residual=residual, y=y)
        else:
            self._call("linear", x=x, weights=_panels(weight), bias=weight.bias, residual=residual, y=y)
        return y

    def _sequences(self, rows: Rows) -> dict[str, Tensor | None]:
        """The arguments that tell which rows belong to which sequence."""
        parent = None if rows.is_chain else rows.parent
        starts, context = torch.tensor(rows.starts), torch.tensor(rows.context, dtype=torch.int64)
        return {"starts": starts, "context": context, "parent": parent}

    def _new(self, like: Tensor, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor for a result: as many rows as `like`, (rows, *sizes)."""
        return torch.empty(like.shape[0], *sizes, dtype=dtype)

    def _call(self, function: str, **arguments: Any) -> None:
        """Call a compiled function."""
        # A DLPack capsule made by torch's C++ side crosses in 0.2 us; handing over the tensor itself costs 1.7 us.
        views = {name: to_dlpack(x) if isinstance(x, Tensor) else x for name, x in arguments.items()}
        getattr(self._kernels, function)(**views)


def _best_isa(highest: str | None) -> str:
    """The best instruction set of this machine up to `highest`."""
    if highest is not None and highest not in ISAS:
        message = f"instruction set '{highest}' is not known, expected one of {', '.join(ISAS)}"
        raise ConfigError(message, hint=nearest(highest, ISAS))
    allowed = ISAS if highest is None else ISAS[ISAS.index(highest) :]
    return next(isa for isa in allowed if isa in supported_isas())


def _panels(weight: LinearWeight) -> Tensor:
    assert weight.format in PANEL_FORMATS.values(), f"native linear reads no {weight.format}: pack_linear at load"
    return weight.data


def _tensors(store: KVStore) -> dict[str, Tensor | None]:
    """The arguments that tell what a store holds."""
    return {name: getattr(store, name) for name in ("keys", "values", "key_scales", "value_scales")}


def _scoring(spec: AttentionSpec) -> dict[str, Any]:
    """The arguments that tell how units are scored and which are seen."""
    where = {"window": spec.window or 0, "is_causal": spec.is_causal}
    biases = {"slopes": spec.slopes, "biases": spec.biases}
    return {"scale": spec.scale, "soft_cap": spec.soft_cap or 0.0, **where, **biases}
