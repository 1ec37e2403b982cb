"""The native CPU kernels as operations of the menu: allocates outputs, hands tensors to C++, packs weights."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]  # public, but not listed in __all__

from vivace.errors import ConfigError, nearest
from vivace.kernels.layout import PANEL_FORMAT
from vivace.kernels.ops import Activation, AttentionSpec, KVStore, LinearWeight, Rows
from vivace.kernels.ref.attention import seen_by_row

ISAS = ("avx512", "avx2", "portable")  # the best first; the last runs everywhere

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
    """

    def __init__(self, isa: str | None, threads: int) -> None:
        module: Any = importlib.import_module(_MODULE)
        self._kernels: Any = module.Kernels(_best_isa(isa), threads)
        self.isa: str = self._kernels.isa
        self.threads: int = self._kernels.threads

    def linear(self, x: Tensor, weight: LinearWeight) -> Tensor:
        """y = x W^T + b. x (rows, inputs) -> (rows, outputs)."""
        y = torch.empty(x.shape[0], weight.outputs)
        self._kernels.linear(_view(x), _panels(weight), _view_or_none(weight.bias), None, _view(y))
        return y

    def linear_add(self, x: Tensor, weight: LinearWeight, residual: Tensor) -> Tensor:
        """y = residual + (x W^T + b) -> (rows, outputs)."""
        y = torch.empty(x.shape[0], weight.outputs)
        self._kernels.linear(_view(x), _panels(weight), _view_or_none(weight.bias), _view(residual), _view(y))
        return y

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """y = x / sqrt(mean(x^2) + eps) * w over the last dimension."""
        x = x.contiguous()
        y = torch.empty_like(x)
        self._kernels.rms_norm(_view(_as_rows(x)), _view(weight), eps, _view(_as_rows(y)))
        return y

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """y = (x - mean(x)) / sqrt(var(x) + eps) * w + b over the last dimension."""
        x = x.contiguous()
        y = torch.empty_like(x)
        self._kernels.layer_norm(_view(_as_rows(x)), _view(weight), _view_or_none(bias), eps, _view(_as_rows(y)))
        return y

    def activation(self, x: Tensor, kind: Activation) -> Tensor:
        """Elementwise activation."""
        x = x.contiguous()
        y = torch.empty_like(x)
        self._kernels.activation(kind, _view(x.view(-1)), _view(y.view(-1)))
        return y

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        """y = cap * tanh(x / cap)."""
        x = x.contiguous()
        y = torch.empty_like(x)
        self._kernels.soft_cap(_view(x.view(-1)), cap, _view(y.view(-1)))
        return y

    def attention(
        self, q: Tensor, store: KVStore, rows: Rows, group: str, spec: AttentionSpec, sinks: Tensor | None = None
    ) -> Tensor:
        """Attention over the store. q (rows, heads, head_dim) -> (rows, heads * value_dim)."""
        where, y = rows.groups[group], torch.empty(q.shape[0], spec.heads, store.values.shape[-1])
        self._kernels.attention(
            q=_view(q.contiguous()),
            keys=_view(store.keys),
            values=_view(store.values),
            table=_view(where.table.contiguous()),
            page_size=where.page_size,
            starts=rows.starts,
            context=rows.context,
            seen=None if rows.is_chain or not spec.is_causal else seen_by_row(rows, spec),
            sinks=_view_or_none(sinks),
            scale=spec.scale,
            window=spec.window or 0,
            soft_cap=spec.soft_cap or 0.0,
            is_causal=spec.is_causal,
            y=_view(y),
        )
        return y.flatten(1)

    def attention_packed(self, q: Tensor, k: Tensor, v: Tensor, starts: tuple[int, ...], spec: AttentionSpec) -> Tensor:
        """Attention within each sequence. q (rows, heads, dim), k, v (rows, kv_heads, dim)."""
        y = torch.empty(q.shape[0], spec.heads, v.shape[-1])
        self._kernels.attention_packed(
            q=_view(q.contiguous()),
            keys=_view(k.contiguous()),
            values=_view(v.contiguous()),
            starts=starts,
            scale=spec.scale,
            window=spec.window or 0,
            soft_cap=spec.soft_cap or 0.0,
            is_causal=spec.is_causal,
            y=_view(y),
        )
        return y.flatten(1)

    def multiply_add(self, rounds: int) -> float:
        """Keep every thread busy; returns the operations done. Timed, it is the processor's ceiling."""
        return float(self._kernels.multiply_add(rounds))

    def byte_dots(self, rounds: int) -> float:
        """Keep every thread busy with dot products of bytes; returns the operations done: the integer ceiling."""
        return float(self._kernels.byte_dots(rounds))

    def read_memory(self, x: Tensor) -> None:
        """Read a flat tensor once. Timed, it is the memory's ceiling."""
        self._kernels.read_memory(_view(x))


def _best_isa(highest: str | None) -> str:
    """The best instruction set of this machine up to `highest`."""
    if highest is not None and highest not in ISAS:
        message = f"instruction set '{highest}' is not known, expected one of {', '.join(ISAS)}"
        raise ConfigError(message, hint=nearest(highest, ISAS))
    allowed = ISAS if highest is None else ISAS[ISAS.index(highest) :]
    return next(isa for isa in allowed if isa in supported_isas())


def _view(x: Tensor) -> Any:
    # A DLPack capsule made by torch's C++ side crosses in 0.2 us; handing over the tensor itself costs 1.7 us.
    return to_dlpack(x)


def _view_or_none(x: Tensor | None) -> Any:
    return None if x is None else to_dlpack(x)


def _as_rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.view(-1, x.shape[-1])


def _panels(weight: LinearWeight) -> Any:
    assert weight.format == PANEL_FORMAT, (
        f"native linear reads {PANEL_FORMAT}, not {weight.format}: pack_linear at load"
    )
    return to_dlpack(weight.data)
