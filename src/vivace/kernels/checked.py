"""The check mode of steps: operations that raise when a result is not finite, and name themselves and the layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vivace.errors import ModelError
from vivace.kernels.ops import KVStore, LinearWeight, StoreShape
from vivace.kernels.select import BoundOps
from vivace.kernels.tape import named_parts


class CheckedOps(BoundOps):
    """The operations of `ops`, called one by one (a recorded step would show no results), each result looked through.

    model  whose parts the messages name, such as blocks.3.mlp.gate_up

    A call whose result holds NaN or infinity raises ModelError. Results are those of `ops`, bit for bit.
    """

    def __init__(self, ops: BoundOps, model: object) -> None:
        super().__init__(ops.device, ops.weights)
        self._pack, self._pack_table, self._note = ops._pack, ops._pack_table, ops._note
        self._plain_store = ops.make_store
        self._names = {id(part): name for name, part in named_parts("", model) if isinstance(part, Tensor)}
        self._num_stores = 0
        self._last = "the first operation"
        for op, bound in ops.bound.items():
            self._bind(op, replace(bound, call=self._checked(op, bound.call)))

    def make_store(self, shape: StoreShape, store_format: str) -> KVStore:
        store = self._plain_store(shape, store_format)
        self._names[id(store.keys)] = f"layer {self._num_stores}"  # one each, in the order of layers
        self._num_stores += 1
        return store

    def _checked(self, op: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*arguments: Any, **named: Any) -> Any:
            results = call(*arguments, **named)
            given = (*arguments, *named.values())
            name = next(filter(None, map(self._name, given)), "")
            for result in _floats((results,)):
                if not bool(result.isfinite().all()):
                    raise ModelError(self._describe(op, name, result, given), hint=_HINT)
            self._last = f"{op} of {name}" if name else self._last
            return results

        return checked

    def _name(self, argument: object) -> str:
        if isinstance(argument, LinearWeight):
            return self._names.get(id(argument.data), "").removesuffix(".weight.data")
        if isinstance(argument, KVStore):
            return self._names.get(id(argument.keys), "")
        return self._names.get(id(argument), "").removesuffix(".weight")

    def _describe(self, op: str, name: str, result: Tensor, given: tuple[Any, ...]) -> str:
        flaws = ~result.isfinite()
        row = int(flaws.nonzero()[0, 0])
        word = "NaN" if bool(result.isnan().any()) else "infinity"
        was_finite = all(bool(x.isfinite().all()) for x in _floats(given))
        where = f"of {name}" if name else f"after {self._last}"
        return (
            f"{op} {where} gave {word}: {int(flaws.sum())} of {result.numel()} numbers, the first in row {row} of "
            f"{len(result)}; what went in was {'finite' if was_finite else 'not finite either'}"
        )


_HINT = "check=weights tells whether the weights are finite; if they are, the numbers of this input grow too large"


def _floats(values: tuple[Any, ...]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, tuple):
            yield from _floats(value)
        elif isinstance(value, Tensor) and value.dtype in (torch.float32, torch.float16, torch.bfloat16):
            yield value
