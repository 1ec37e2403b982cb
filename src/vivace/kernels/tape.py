"""Record the native operations of a step, and replay them without Python.

    with Recorder(native, key, capacity, constants) as recorder:
        x = recorder.input("ids", "rows", dtype=torch.int64)
        recorder.output("y", recorder.linear(recorder.embedding(x, table), head))
    replay = Replay(recorder.program(), constants, native)

A recorder is a set of operations whose tensors hold nothing: the functions that the native operations call are noted
with their arguments instead of called. So what is recorded does not depend on how an operation works inside. While it
records, torch may only take views: any other call raises and names itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]  # public, but not listed in __all__

from vivace.errors import NotRecordable
from vivace.kernels.cpu.bind import NativeOps
from vivace.kernels.ops import Rows
from vivace.kernels.rooms import huge_bytes
from vivace.runtime.graphs import Buffer, Call, Program, Ref, Scalar, place

ROWS, CHOSEN, SEQUENCES, BOUNDS = "rows", "chosen", "sequences", "sequences + 1"
_GROUPS = (ROWS, CHOSEN)  # what the calls of a tape are counted by, in the order of the compiled Tape
_VIEWS = frozenset(
    ("view", "slice", "select", "split", "split_with_sizes", "alias", "detach", "as_strided", "t", "_unsafe_view")
)


def named_parts(name: str, value: Any) -> Iterator[tuple[str, object]]:
    """The tensors and other objects of a model, each with the path that leads to it: blocks.0.norm.weight."""
    if isinstance(value, Mapping):
        parts: list[tuple[str, Any]] = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(str(index), item) for index, item in enumerate(value)]
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [(field.name, getattr(value, field.name)) for field in fields(value)]
    else:
        if not isinstance(value, int | float | str | None):
            yield name, value
        return
    for part, item in parts:
        yield from named_parts(f"{name}.{part}" if name else part, item)


class Recorder(NativeOps):
    """The native operations, noted instead of computed.

    key        what the step is recorded for: model, formats and hooks
    capacity   most of each count: rows, chosen rows, sequences
    constants  name -> object, for everything that a call may use besides inputs and results
    """

    def __init__(
        self, native: NativeOps, key: str, capacity: Mapping[str, int], constants: Mapping[str, object]
    ) -> None:
        self.isa, self.threads = native.isa, native.threads
        self._key = key
        self._capacity = {**capacity, BOUNDS: capacity[SEQUENCES] + 1}
        self._constants = {id(value): name for name, value in reversed(list(constants.items()))}
        self._inputs: dict[str, Tensor] = {}
        self._known: dict[int, tuple[Buffer, Tensor]] = {}  # by the storage, which the tensor keeps alive
        self._written: dict[str, Buffer] = {}
        self._used: dict[str, None] = {}
        self._outputs: dict[str, str] = {}
        self._calls: list[Call] = []
        self._mode = _OnlyViews()
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        # In inference mode torch hands over flatten and its like whole; outside it they arrive as the views they are.
        self._entered.enter_context(torch.inference_mode(False))
        self._entered.enter_context(self._mode)
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    def input(self, name: str, count: str, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor (count, *sizes) that the caller of the program fills."""
        self._inputs[name] = self._make(name, count, sizes, dtype)
        return self._inputs[name]

    def output(self, name: str, x: Tensor) -> None:
        """Keep a result until the next run."""
        self._outputs[name] = self._buffer(x, f"the output {name}").name

    def program(self) -> Program:
        """What was recorded."""
        inputs = tuple(buffer for buffer, _ in self._known.values() if buffer.name in self._inputs)
        return Program(
            key=self._key,
            capacity=self._capacity,
            inputs=inputs,
            buffers=tuple(self._written.values()),
            constants=tuple(self._used),
            calls=tuple(self._calls),
            outputs=self._outputs,
        )

    def _sequences(self, rows: Rows) -> dict[str, Tensor | None]:
        return {name: self._inputs[name] for name in ("starts", "context", "parent")}

    def _new(self, like: Tensor, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        count = self._buffer(like, "an operation").count
        return self._make("", count, sizes, dtype)  # its number comes with the call that writes it

    def _make(self, name: str, count: str, sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        with self._mode.paused():
            x = torch.empty(self._capacity[count], *sizes, dtype=dtype, device="meta")
        self._known[_storage(x)] = Buffer(name, str(dtype).removeprefix("torch."), count, sizes), x
        return x

    def _call(self, function: str, **arguments: Any) -> None:
        writes = [name for name, value in arguments.items() if self._is_fresh(value)]
        if not writes:
            raise NotRecordable(f"{function} gives no result that a recorded step could hold")
        for name in writes:
            self._number(arguments[name])
        refs = tuple((name, self._argument(value, function)) for name, value in arguments.items())
        count = self._buffer(arguments[writes[0]], function).count
        self._calls.append(Call(function, count, refs, tuple(writes)))

    def _is_fresh(self, value: Any) -> bool:
        """Whether it is the tensor of a result that no call has written yet."""
        known = self._known.get(_storage(value)) if isinstance(value, Tensor) else None
        return known is not None and not known[0].name

    def _number(self, x: Tensor) -> None:
        buffer, kept = self._known[_storage(x)]
        buffer = replace(buffer, name=f"%{len(self._written)}")
        self._written[buffer.name] = buffer
        self._known[_storage(x)] = buffer, kept

    def _argument(self, value: Any, function: str) -> Scalar | Ref:
        if isinstance(value, int | float | str | None):
            return value
        name = self._constants.get(id(value))
        if name is not None:
            self._used[name] = None
            return Ref(name)
        if not isinstance(value, Tensor):
            raise NotRecordable(f"{function} takes a {type(value).__name__} that is no part of the model")
        return Ref(self._buffer(value, function).name, tuple(value.shape[1:]))

    def _buffer(self, x: Tensor, reader: str) -> Buffer:
        """The buffer that the tensor is a view of: all its rows, perhaps in another shape."""
        known = self._known.get(_storage(x))
        shape = tuple(x.shape)
        if known is None:
            raise NotRecordable(f"{reader} takes a tensor {shape} that is neither input, nor result, nor weight")
        if not x.is_contiguous() or x.numel() != known[1].numel() or shape[0] != known[1].shape[0]:
            raise NotRecordable(f"{reader} takes a part of {known[0].describe()}, expected all of it")
        return known[0]


class Replay:
    """A program with its tensors, which stay where they are.

    constants  name -> object for every constant of the program
    inputs     input name -> tensor to use for it; others are made
    results    output name -> tensor (capacity, ...), of which a run fills the first rows
    """

    def __init__(
        self,
        program: Program,
        constants: Mapping[str, Any],
        native: NativeOps,
        inputs: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.program = program
        self._native = native
        given = inputs or {}
        self.inputs = {buffer.name: self._input(buffer, given.get(buffer.name)) for buffer in program.inputs}
        offsets, total = place(program)
        memory = huge_bytes(max(1, total))
        self._tensors = {**self.inputs, **{b.name: self._view(memory, offsets[b.name], b) for b in program.buffers}}
        self.results = {name: self._tensors[buffer] for name, buffer in program.outputs.items()}
        self.bind(constants)

    def bind(self, constants: Mapping[str, Any]) -> None:
        """Use other objects for the constants. Raises NotRecordable if one is missing."""
        missing = [name for name in self.program.constants if name not in constants]
        if missing:
            raise NotRecordable(f"the recorded step needs {', '.join(missing[:5])}", hint="record the step again")
        tape = self._native.make_tape()
        for call in self.program.calls:
            values = {name: self._value(argument, constants) for name, argument in call.arguments}
            getattr(tape, call.function)(group=_GROUPS.index(call.count), **values)
        self._tape, self._constants = tape, constants  # a tape keeps tensors alive, but nothing else

    def run(self, rows: int, chosen: int, sequences: int) -> None:
        """Compute a step whose inputs stand in the first rows of `inputs`.

        Raises ValueError when the step is larger than the capacity, and for an index that is out of range.
        """
        self._tape.run(rows, chosen, sequences)

    def run_timed(self, rows: int, chosen: int, sequences: int) -> list[tuple[str, int]]:
        """Like `run`; the function of each call and the nanoseconds that it took."""
        times = self._tape.run_timed(rows, chosen, sequences)
        return [(call.function, time) for call, time in zip(self.program.calls, times, strict=True)]

    def _shape(self, buffer: Buffer) -> tuple[int, ...]:
        return (self.program.capacity[buffer.count], *buffer.sizes)

    def _input(self, buffer: Buffer, given: Tensor | None) -> Tensor:
        dtype: torch.dtype = getattr(torch, buffer.dtype)
        if given is None:
            return torch.zeros(self._shape(buffer), dtype=dtype)
        assert (tuple(given.shape), given.dtype) == (self._shape(buffer), dtype), f"{buffer.describe()} does not fit"
        return given

    def _view(self, memory: Tensor, offset: int, buffer: Buffer) -> Tensor:
        dtype: torch.dtype = getattr(torch, buffer.dtype)
        return (
            memory[offset : offset + self.program.bytes_of(buffer)]
            .view(dtype)[: self._count(buffer)]
            .view(self._shape(buffer))
        )

    def _count(self, buffer: Buffer) -> int:
        return torch.Size(self._shape(buffer)).numel()

    def _value(self, argument: Scalar | Ref, constants: Mapping[str, Any]) -> Any:
        """An argument as the compiled functions take it."""
        if not isinstance(argument, Ref):
            return argument
        value = constants[argument.name] if argument.sizes is None else self._tensors[argument.name]
        if not isinstance(value, Tensor):
            return value
        return to_dlpack(value if argument.sizes is None else value.view(value.shape[0], *argument.sizes))


class _OnlyViews(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises NotRecordable for every call into torch that is no view."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._is_paused = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled: true would import the compiler, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split("::")[-1].split(".")[0]
        if not self._is_paused and name not in _VIEWS:
            hint = "call an operation of kernels.ops instead"
            raise NotRecordable(f"torch.{name} is called while a step is recorded", hint=hint)
        return func(*args, **(kwargs or {}))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let every call pass for a while."""
        self._is_paused = True
        yield
        self._is_paused = False


def _storage(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)
