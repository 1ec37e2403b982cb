"""From the token vectors of a text to its vector: modes, what the model's files put after them, what a request asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from vivace.errors import InvalidRequest
from vivace.kernels.ops import Activation, Ops
from vivace.layers.context import Context
from vivace.layers.linear import Linear, Loader
from vivace.pipelines.encoder_replay import MEAN, UNIT_MEAN
from vivace.pipelines.requests import EmbedRequest
from vivace.pipelines.sentence import DenseConfig, Normalize, SentenceConfig
from vivace.techniques import index
from vivace.techniques.base import TechniqueConfig
from vivace.techniques.pooling.base import Finish, ModeConfig, Parts, Pool
from vivace.weights.files import open_weights
from vivace.weights.load import Weights


@dataclass(frozen=True, eq=False)
class Dense:
    """act(v W^T + b), the Dense module of sentence-transformers."""

    linear: Linear
    activation: Activation | None

    def __call__(self, vector: Tensor, ctx: Context) -> Tensor:
        """(inputs,) -> (outputs,)."""
        out = self.linear(vector[None], ctx)
        return (out if self.activation is None else ctx.ops.activation(out, self.activation))[0]


Step = Dense | Finish

# What a recorded step computes too: the names of modes and steps -> its result.
_RECORDED: Mapping[tuple[str, ...], str] = MappingProxyType({("mean",): MEAN, ("mean", "normalize"): UNIT_MEAN})


@dataclass(frozen=True, eq=False)
class Pooler:
    """Modes are concatenated, then the steps follow in order.

    recorded  the result of a recorded step (pipelines.encoder_replay) that is the same vector bit for bit, or ""
    """

    modes: tuple[Pool, ...]
    steps: tuple[Step, ...]
    recorded: str = ""

    def __call__(self, rows: Tensor, skip: int, ctx: Context) -> Tensor:
        """rows (tokens, hidden) of one text, of which the first `skip` are left out -> (size,) float32."""
        vector = torch.cat([mode(rows, skip) for mode in self.modes])
        for step in self.steps:
            vector = step(vector, ctx) if isinstance(step, Dense) else step(vector)
        return vector


class Pooling:
    """What a model's files say, as a maker of poolers for requests. `size` is the length of its vectors."""

    def __init__(self, config: SentenceConfig, hidden_size: int, dense: Sequence[Dense] = ()) -> None:
        """dense: the layers of the config's Dense modules, in order."""
        self.config = config
        self._hidden_size = hidden_size
        self._dense = tuple(dense)
        sizes = [step.outputs for step in config.steps if isinstance(step, DenseConfig)]
        assert len(sizes) == len(self._dense), "one layer per Dense module"
        self.size = sizes[-1] if sizes else hidden_size * len(config.modes)
        self._usual = self._make(EmbedRequest(ids=()))

    def pooler(self, request: EmbedRequest) -> Pooler:
        """The pooler of a request. Raises InvalidRequest or UnknownName for what the model cannot do."""
        is_usual = not request.pooling and request.dimensions is None and request.normalize is None
        return self._usual if is_usual else self._make(request)

    def _make(self, request: EmbedRequest) -> Pooler:
        chosen = index.parse(index.POOLING, request.pooling)
        modes = {name: config for name, config in chosen.items() if isinstance(config, ModeConfig)}
        finishers = {name: config for name, config in chosen.items() if name not in modes}
        if request.dimensions is not None:
            self._check_dimensions(request.dimensions)
            finishers |= index.parse(index.POOLING, {"matryoshka": {"value": request.dimensions}})
        if modes and self._dense and len(modes) != len(self.config.modes):
            message = f"pooling names {len(modes)} modes, expected {len(self.config.modes)} as its Dense layer wants"
            raise InvalidRequest(message, field="pooling")
        configs = modes or index.parse(index.POOLING, {mode: {} for mode in self.config.modes})
        order = [name for name in index.POOLING if name in modes] or self.config.modes
        parts = Parts(self._hidden_size)
        steps = self._steps(request, finishers, self._hidden_size * len(order))
        return Pooler(
            tuple(index.make(configs[name], parts) for name in order),
            tuple(step for _, step in steps),
            _RECORDED.get((*order, *(name for name, _ in steps)), ""),
        )

    def _steps(
        self, request: EmbedRequest, finishers: Mapping[str, TechniqueConfig], size: int
    ) -> list[tuple[str, Step]]:
        """What follows the modes: the files' steps unless the request says otherwise, then the request's own."""
        normalize = index.parse(index.POOLING, {"normalize": {"value": True}})["normalize"]
        steps: list[tuple[str, Step]] = []
        dense = iter(self._dense)
        for step in self.config.steps:
            if isinstance(step, DenseConfig):
                steps.append(("dense", next(dense)))
                size = step.outputs
            elif isinstance(step, Normalize) and request.normalize is not False:
                steps.append(("normalize", index.make(normalize, Parts(size))))
        if request.normalize and Normalize() not in self.config.steps:
            steps.append(("normalize", index.make(normalize, Parts(size))))
        for name in index.POOLING:
            if name in finishers and not finishers[name].is_null:
                steps.append((name, index.make(finishers[name], Parts(size))))
        return steps

    def _check_dimensions(self, dimensions: int) -> None:
        allowed = self.config.matryoshka
        if allowed is None and dimensions != self.size:
            message = f"dimensions is {dimensions}, but the model was not trained so that its vectors may be cut"
            raise InvalidRequest(message, field="dimensions", hint=f"leave it out: vectors have {self.size} numbers")
        if dimensions < 1 or (allowed and dimensions not in (*allowed, self.size)):
            listed = ", ".join(str(size) for size in allowed or (self.size,))
            raise InvalidRequest(f"dimensions is {dimensions}, expected one of {listed}", field="dimensions")


def load_dense(config: SentenceConfig, ops: Ops, device: torch.device | str = "cpu") -> tuple[Dense, ...]:
    """The Dense layers that a sentence-transformers folder names. Raises WeightError if a file does not fit."""
    layers = []
    for step in config.steps:
        if isinstance(step, DenseConfig):
            weights = Weights(open_weights(step.folder))
            loader = Loader(weights, ops, torch.device(device))
            linear = Linear.load(loader, "linear", step.outputs, step.inputs, split="none", has_bias=step.has_bias)
            weights.finish()
            layers.append(Dense(linear, step.activation))
    return tuple(layers)
