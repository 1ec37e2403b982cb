"""A decoder's recorded step: for random steps of any size it gives the bits of the model called layer by layer."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.identities.files import TYPES, make_weights
from tests.kernels.steps import assert_equal_stores
from tests.pipelines.engine import ASSETS, CONFIG, Engine, prompts, tiny
from vivace.config import ActivationFormat
from vivace.engine.batch import Span
from vivace.engine.job import Job
from vivace.errors import NotRecordable
from vivace.kernels import select
from vivace.kernels.cpu.bind import why_missing
from vivace.kernels.quantized import PlainMatrix, StoredMatrix
from vivace.kernels.select import BoundOps
from vivace.kernels.store import STORE_DTYPES
from vivace.layers.context import Context
from vivace.layers.linear import Loader
from vivace.layers.state import make_stores
from vivace.models.base import Decoder
from vivace.models.decoders import qwen3
from vivace.models.load import load_model
from vivace.pipelines.generate import GeneratePipeline
from vivace.pipelines.replay import DecoderReplay, try_replay
from vivace.pipelines.requests import GenerateRequest
from vivace.pipelines.rows import build_rows, keys_of, span_ids
from vivace.techniques.speculation.base import EMPTY, DraftTree

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=f"no native kernels: {why_missing()}")

PAGES, SEQUENCES, LIMIT = 120, 5, 90
CAPACITY = {"rows": 24, "chosen": 9, "sequences": SEQUENCES}


class RandomWeights:
    """Any tensor that is asked for, the same for the same name."""

    def has(self, name: str) -> bool:
        return True

    def take(self, name: str, shape: Sequence[int] | None = None) -> Tensor:
        assert shape is not None
        draw = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(sum(name.encode())))
        return draw.abs() if len(shape) == 1 else draw / shape[1] ** 0.5

    def take_stored(self, name: str, shape: tuple[int, int]) -> StoredMatrix:
        return PlainMatrix(self.take(name, shape))

    def take_fused(
        self, names: Sequence[str], shapes: Sequence[Sequence[int]] | None = None
    ) -> tuple[Tensor, dict[str, slice]]:
        assert shapes is not None
        ends = np.cumsum([shape[0] for shape in shapes]).tolist()
        slices = {name: slice(end - shape[0], end) for name, shape, end in zip(names, shapes, ends, strict=True)}
        return torch.cat([self.take(name, shape) for name, shape in zip(names, shapes, strict=True)]), slices


def qwen(ops: BoundOps) -> Decoder:
    """Qwen3 with windows, biases, and rotary frequencies that depend on a job's length."""
    sizes = {"vocab_size": 70, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 4, "head_dim": 16}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64, "attention_bias": True}
    windows = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2}
    config: dict[str, Any] = {**sizes, **heads, **windows, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    weights: Any = RandomWeights()
    return qwen3.load(qwen3.Qwen3Config.from_dict(config), Loader(weights, ops))


def asset(name: str) -> Callable[[BoundOps], Decoder]:
    def load(ops: BoundOps) -> Decoder:
        model = load_model(ASSETS / name, ops)
        assert isinstance(model, Decoder)
        return model

    return load


MODELS = {"llama": asset("tiny-llama"), "qwen3": qwen, "gemma3": asset("tiny-gemma3")}


@dataclass
class Pair:
    """One model over two equal sets of stores: one for calls, one for the tape."""

    model: Decoder
    ops: BoundOps
    store_format: str
    seed: int
    page_size: int = 4

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.groups = self.model.page_groups(self.page_size, self.store_format)
        counts = {group.name: PAGES for group in self.groups}
        layout, size = self.model.layout, self.page_size
        self.stores = [make_stores(layout, counts, size, self.ops, self.store_format) for _ in range(2)]
        assert self.ops.native is not None
        pages = {group.name: LIMIT // self.page_size + 2 for group in self.groups}
        self.replay = DecoderReplay(
            self.model, self.ops.native, self.stores[1], self.groups, key="test", capacity=CAPACITY, pages=pages
        )
        self.jobs = [self.job(number) for number in range(SEQUENCES)]
        for group in self.groups:
            free = self.rng.sample(range(1, PAGES + 1), PAGES)
            for job in self.jobs:
                job.tables[group.name] = array("i", [free.pop() for _ in range(-(-LIMIT // self.page_size))])

    def job(self, number: int) -> Job:
        keys = keys_of([self.rng.randrange(60) for _ in range(LIMIT)])
        variant = self.model.ropes.variant(self.rng.choice((40, 70, LIMIT)))
        return Job(number, "lane", 0, LIMIT, keys=keys, payload=SimpleNamespace(variant=variant))

    def spans(self) -> tuple[list[Span], list[DraftTree]]:
        """A random step: any of the jobs, one row or several, some ending with a tree of guesses."""
        spans, drafts, room = [], [], CAPACITY["rows"]
        for job in self.rng.sample(self.jobs, self.rng.randint(1, SEQUENCES)):
            count = min(self.rng.choice((1, 1, 2, 7, 13)), room, LIMIT - job.done)
            if count:
                spans.append(Span(job, job.done, count))
                drafts.append(self.tree(self.rng.randrange(count)) if self.rng.random() < 0.3 else EMPTY)
                room -= count
        return spans, drafts

    def tree(self, count: int) -> DraftTree:
        parents = [self.rng.randrange(-1, place) for place in range(count)]
        return DraftTree(tuple(self.rng.randrange(60) for _ in range(count)), tuple(parents))

    def step(self) -> bool:
        """One random step, both ways; returns whether it had a tree in it."""
        spans, drafts = self.spans()
        if not spans:
            return False
        rows = build_rows(spans, self.groups, [span.job.payload.variant for span in spans], drafts)
        ids = span_ids(spans, drafts)
        chosen = self.rng.sample(range(len(ids)), self.rng.randint(0, min(len(ids), CAPACITY["chosen"])))
        assert self.replay.can_run(rows, len(chosen))
        hidden, scored = self.replay.run(ids, rows, chosen)
        scores = list(scored)
        tensors = rows.tensors(torch.device("cpu"))
        angles = self.model.ropes.angles(tensors.position, tensors.variant, self.ops)
        ctx = Context(self.ops, tensors, self.stores[0], angles)
        expected = self.model.forward(torch.from_numpy(ids), ctx)
        assert torch.equal(hidden[: len(ids)], expected)
        expected = self.model.logits(self.ops.take_rows(expected, torch.tensor(chosen, dtype=torch.int64)), ctx)
        assert len(scores) == len(chosen)
        for after, row in zip(scores, expected, strict=True):
            assert torch.equal(after.row, row)
            assert (after.best, after.largest) == (int(row.argmax()), float(row.max()))
        for span, draft in zip(spans, drafts, strict=True):
            span.job.done += span.count - len(draft)
        return not rows.is_chain


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("store_format", STORE_DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_replay_is_eager_bit_for_bit(name: str, store_format: str, threads: int) -> None:
    ops = select.resolve(choice="native", threads=threads)
    # Pages of 16 units stand in panels, smaller ones do not.
    pair = Pair(MODELS[name](ops), ops, store_format, seed=threads, page_size=16 if threads == 2 else 4)
    with torch.inference_mode():
        trees = sum(pair.step() for _ in range(25))
        for mine, other in zip(*pair.stores, strict=True):
            assert_equal_stores(mine, other)
    assert trees > 2
    assert pair.replay.steps > 20


@pytest.mark.parametrize("activations", ["int14", "int8"])
@pytest.mark.parametrize("weights", TYPES)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_replay_is_eager_on_quantized_weights(
    name: str, weights: str, activations: ActivationFormat, tmp_path: Path
) -> None:
    ops = select.resolve(choice="native", threads=2, activations=activations)
    model = load_model(make_weights(f"tiny-{name}", weights, tmp_path), ops)
    assert isinstance(model, Decoder)
    pair = Pair(model, ops, "f16", seed=len(weights), page_size=16)
    assert "quant_linear(" in str(pair.replay.program)
    with torch.inference_mode():
        assert sum(pair.step() for _ in range(25)) > 2
    assert pair.replay.steps > 20


def test_new_rotary_frequencies_are_taken_up() -> None:
    ops = select.resolve(choice="native", threads=1)
    model = qwen(ops)
    pair = Pair(model, ops, "f32", seed=5)
    with torch.inference_mode():
        pair.step()
        for job in pair.jobs:
            job.payload.variant = model.ropes.variant(80 + job.id)
        assert model.ropes.count > 5
        for _ in range(8):
            pair.step()


def test_a_step_that_does_not_fit_is_left_to_the_model() -> None:
    pair = Pair(MODELS["llama"](select.resolve(choice="native")), select.resolve(choice="native"), "f32", seed=1)
    rows = build_rows([Span(pair.jobs[0], 0, 25)], pair.groups, [0])
    assert not pair.replay.can_run(rows, 1)
    rows = build_rows([Span(pair.jobs[0], 0, 24)], pair.groups, [0])
    assert pair.replay.can_run(rows, 9)
    assert not pair.replay.can_run(rows, 10)


def native_engine(name: str, **fields: Any) -> Engine:
    """The tiny model with native operations behind the real loop."""
    ops, config = select.resolve(choice="native", threads=1), replace(CONFIG, **fields)
    engine = Engine(tiny(name), config)
    engine.pipeline = GeneratePipeline(MODELS[name.removeprefix("tiny-")](ops), ops, config, name="tiny")
    engine.loop.pipelines["tiny"] = engine.pipeline
    return engine


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma3"])
def test_answers_are_the_same_with_and_without_replay(name: str) -> None:
    requests = [
        GenerateRequest(ids, max_tokens=10, logprobs=2, prompt_logprobs=1 if place % 2 else None)
        for place, ids in enumerate(prompts(name))
    ]
    with_replay, without = native_engine(name), native_engine(name, replay=False)
    assert with_replay.pipeline.replay is not None
    assert without.pipeline.replay is None
    results = [engine.run(*requests) for engine in (with_replay, without)]
    assert [result.same() for result in results[0]] == [result.same() for result in results[1]]
    assert with_replay.pipeline.replay.steps > 10


def test_other_operations_are_not_recorded() -> None:
    assert Engine(tiny("tiny-llama")).pipeline.replay is None


@dataclass(frozen=True)
class Outsider:
    """A model that calls torch between two operations."""

    model: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, ids: Tensor, ctx: Context) -> Tensor:
        hidden: Tensor = self.model.forward(ids, ctx)
        return hidden * 2


def test_a_model_that_calls_torch_is_called_layer_by_layer() -> None:
    ops = select.resolve(choice="native", threads=1)
    model: Any = Outsider(MODELS["llama"](ops))
    groups = model.page_groups(4)
    stores = make_stores(model.layout, {group.name: 9 for group in groups}, 4, ops)
    arguments: dict[str, Any] = {"key": "test", "capacity": CAPACITY, "pages": {"full": 4}}
    assert try_replay(model, ops, stores, groups, **arguments) is None
    assert ops.native is not None
    with pytest.raises(NotRecordable, match=r"torch\.mul is called while a step is recorded"):
        DecoderReplay(model, ops.native, stores, groups, **arguments)
