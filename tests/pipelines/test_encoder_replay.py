"""An encoder's recorded step: the vectors of any batch are the bits of the model called layer by layer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.pipelines.test_replay import RandomWeights
from vivace.config import EngineConfig
from vivace.engine.batch import Batch, Span
from vivace.engine.limits import SchedulerConfig
from vivace.engine.loop import Loop
from vivace.kernels import select
from vivace.kernels.cpu.bind import supported_isas, why_missing
from vivace.kernels.ops import f32_weight
from vivace.layers.linear import Linear, Loader
from vivace.models.encoders import bert
from vivace.pipelines.embed import EmbedPipeline
from vivace.pipelines.pooling import Dense
from vivace.pipelines.requests import EmbedRequest, Reply, Vector
from vivace.pipelines.sentence import DenseConfig, Normalize, SentenceConfig

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=f"no native kernels: {why_missing()}")

VOCAB, CONTEXT, SIZE = 70, 64, 64
SMALL = EngineConfig(step_budget=120, max_jobs=9)
CONFIGS = {
    "stored": {},
    "bf16": {"weights": "bf16"},
    "int8": {"weights": "int8", "activations": "int8"},
    "int8, int14": {"weights": "int8"},
}


def model(ops: select.BoundOps) -> bert.Bert:
    sizes = {"vocab_size": VOCAB, "hidden_size": SIZE, "intermediate_size": 96, "num_hidden_layers": 2}
    config = {**sizes, "num_attention_heads": 4, "max_position_embeddings": CONTEXT, "layer_norm_eps": 1e-6}
    weights: Any = RandomWeights()
    return bert.load(bert.BertConfig.from_dict(config), Loader(weights, ops))


def make(config: EngineConfig, *, threads: int = 1, isa: str | None = None, **options: Any) -> EmbedPipeline:
    ops = select.resolve(
        choice="native", threads=threads, isa=isa, weights=config.weights, activations=config.activations
    )
    sentence = options.pop("sentence", SentenceConfig(steps=(Normalize(),)))
    return EmbedPipeline(model(ops), ops, name="embed", sentence=sentence, config=config, **options)


def requests(count: int = 26) -> list[EmbedRequest]:
    """Texts of any length, some with what the recorded step does not know: other pooling, types, a prompt to skip."""
    draw = random.Random(5)
    choices: Sequence[Callable[[int], dict[str, Any]]] = (
        lambda length: {},
        lambda length: {},
        lambda length: {"normalize": False},
        lambda length: {"pooling": {"cls": {}, "lasttoken": {}}},
        lambda length: {"token_types": tuple(draw.choices((0, 1), k=length))},
        lambda length: {"skip": draw.randrange(length)},
    )
    found = []
    for _ in range(count):
        length = draw.randint(1, CONTEXT)
        found.append(EmbedRequest(tuple(draw.choices(range(VOCAB), k=length)), **draw.choice(choices)(length)))
    return found


def vectors(pipeline: EmbedPipeline, texts: Sequence[EmbedRequest], budget: int) -> list[bytes]:
    loop = Loop([pipeline], SchedulerConfig(step_budget=budget, max_jobs=9))
    replies: dict[int, Reply] = {}
    for number, text in enumerate(texts):
        loop.submit(pipeline.make_job(text, number, lambda reply, number=number: replies.setdefault(number, reply)))
    loop.run_until_idle()
    outputs = [replies[number].output for number in range(len(texts))]
    assert all(isinstance(output, Vector) for output in outputs)
    return [output.data for output in outputs if isinstance(output, Vector)]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_vector_is_the_same_bits_in_any_batch_recorded_or_not_on_any_set_and_threads(name: str) -> None:
    config = replace(SMALL, **CONFIGS[name])  # type: ignore[arg-type]
    texts = requests()
    eager = make(EngineConfig(replay=False, **CONFIGS[name]))  # type: ignore[arg-type]
    assert eager.replay is None
    alone = [vectors(eager, [text], 1)[0] for text in texts]
    for threads, isa in ((2, None), *((1, isa) for isa in supported_isas())):
        pipeline = make(config, threads=threads, isa=isa)
        assert pipeline.replay is not None
        for budget in (1, 48, 120):
            assert vectors(pipeline, texts, budget) == alone, f"{isa}, {threads} threads, budget {budget}"
        assert pipeline.replay.steps > 26
        assert (pipeline.replay.cut_steps > 3) == (threads > 1)


def test_a_step_is_cut_fairly_or_not_at_all() -> None:
    replay = make(SMALL, threads=2).replay
    assert replay is not None
    assert replay.cut([10, 60, 30, 20]) == [[1], [2, 3, 0]]
    assert replay.cut([10, 61, 9]) == [[0, 1, 2]]  # two parts of 61 and 19 tokens
    assert replay.cut([20, 20]) == [[0, 1]]  # too small
    assert make(SMALL, threads=1).replay.cut([60, 60]) == [[0, 1]]  # type: ignore[union-attr]


def test_a_part_that_fails_fails_the_step_and_the_next_one_runs() -> None:
    pipeline = make(SMALL, threads=2)
    good = requests(1)[0]
    expected = vectors(make(SMALL), [good], 120)
    jobs = [pipeline.make_job(EmbedRequest((1,) * 60), number, print) for number in range(2)]
    jobs[1].keys[:4] = b"\xff" * 4  # an id that no check saw
    with pytest.raises(ValueError, match="ids holds"):
        pipeline.launch(Batch("embed", tuple(Span(job, 0, 60) for job in jobs))).outcomes()
    assert pipeline.replay is not None
    assert pipeline.replay.cut_steps == 1
    assert vectors(pipeline, [good], 120) == expected


def test_formats_differ_a_little_and_only_a_little() -> None:
    texts = [EmbedRequest(request.ids) for request in requests(12)]
    found = {name: vectors(make(EngineConfig(**CONFIGS[name])), texts, 48) for name in CONFIGS}  # type: ignore[arg-type]
    exact = np.stack([np.frombuffer(data, "<f4") for data in found["stored"]])
    for name in ("bf16", "int8", "int8, int14"):
        ours = np.stack([np.frombuffer(data, "<f4") for data in found[name]])
        assert found[name] != found["stored"]
        assert (exact * ours).sum(1).min() > 0.998, name


def test_a_step_beyond_the_tape_is_called_layer_by_layer() -> None:
    pipeline = make(EngineConfig(step_budget=8, max_jobs=2))
    text = EmbedRequest(tuple(range(20)))
    assert vectors(pipeline, [text], 8) == vectors(make(SMALL), [text], 48)
    assert pipeline.replay is not None
    assert pipeline.replay.steps == 0


def test_dense_layers_read_the_recorded_hidden_states() -> None:
    sentence, weight = SentenceConfig(steps=(DenseConfig(Path("unused"), SIZE, 3),)), f32_weight(torch.randn(3, SIZE))
    texts = [EmbedRequest(request.ids) for request in requests(9)]
    found = []
    for config in (SMALL, replace(SMALL, replay=False)):
        dense = Dense(Linear(select.resolve(choice="native", threads=1).pack_linear(weight)), "tanh")
        found.append(vectors(make(config, sentence=sentence, dense=(dense,)), texts, 48))
    assert found[0] == found[1]


def test_a_text_that_is_no_number_fails_alone() -> None:
    pipeline = make(SMALL)
    pipeline.model.words.weight.data[13] = float("nan")  # type: ignore[attr-defined]
    loop, replies = Loop([pipeline], SchedulerConfig(step_budget=48, max_jobs=9)), []
    for number, ids in enumerate(((1, 2), (1, 13), (2, 1))):
        loop.submit(pipeline.make_job(EmbedRequest(ids), number, replies.append))
    loop.run_until_idle()
    assert sorted(str(reply.finished) for reply in replies) == ["error", "stop", "stop"]
