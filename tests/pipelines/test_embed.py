"""The embed pipeline under the real scheduler, with a tiny random BERT: vectors do not depend on neighbours."""

import math
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.pipelines.engine import rows_ops
from vivace.engine.limits import SchedulerConfig
from vivace.engine.loop import Loop
from vivace.errors import ContextLengthExceeded, InvalidRequest
from vivace.kernels.ops import f32_weight
from vivace.layers.linear import Linear
from vivace.models.base import Encoder
from vivace.pipelines.embed import EmbedPipeline
from vivace.pipelines.pooling import Dense, load_dense
from vivace.pipelines.requests import EmbedRequest, Reply, Vector
from vivace.pipelines.sentence import DenseConfig, Normalize, SentenceConfig

SIZE, VOCAB = 12, 50


class _Mixer:
    """An encoder whose tokens all see each other: each row is its own embedding plus the mean of its sequence's."""

    hidden_size, vocab_size, context_length = SIZE, VOCAB, 64

    def __init__(self) -> None:
        self.table = torch.randn(VOCAB, SIZE, generator=torch.Generator().manual_seed(1))

    def forward(self, ids: torch.Tensor, token_types: torch.Tensor, ctx: Any) -> torch.Tensor:
        own = self.table[ids] + token_types[:, None] + 0.01 * ctx.rows.position
        starts = ctx.rows.starts
        means = [own[a:b].mean(0, keepdim=True).expand(b - a, -1) for a, b in pairwise(starts)]
        return own + torch.cat(means)


@cache
def _mixer() -> Encoder:
    model = _Mixer()
    assert isinstance(model, Encoder)
    return model


def _run(pipeline: EmbedPipeline, requests: list[EmbedRequest], step_budget: int = 40) -> list[Reply]:
    loop = Loop([pipeline], SchedulerConfig(step_budget=step_budget))
    replies: dict[int, Reply] = {}
    for number, request in enumerate(requests):
        loop.submit(pipeline.make_job(request, number, lambda reply, number=number: replies.setdefault(number, reply)))
    loop.run_until_idle()
    loop.scheduler.check_idle()
    return [replies[number] for number in range(len(requests))]


def _vector(reply: Reply) -> np.ndarray:
    assert isinstance(reply.output, Vector)
    assert reply.finished == "stop"
    return np.frombuffer(reply.output.data, "<f4")


def _embed(config: SentenceConfig, dense: tuple[Dense, ...] = (), **fields: Any) -> np.ndarray:
    pipeline = EmbedPipeline(_mixer(), rows_ops(), name="embed", sentence=config, dense=dense)
    return _vector(_run(pipeline, [EmbedRequest(**{"ids": (3, 7, 9, 4), **fields})])[0])


def _hidden(ids: tuple[int, ...]) -> np.ndarray:
    own = _Mixer().table[list(ids)].double().numpy() + 0.01 * np.arange(len(ids))[:, None]
    return own + own.mean(0)


def test_texts_of_any_length_in_any_batch_give_their_own_vectors() -> None:
    pipeline = EmbedPipeline(_mixer(), rows_ops(), name="embed", sentence=SentenceConfig(steps=(Normalize(),)))
    rng = np.random.default_rng(0)
    requests = [EmbedRequest(tuple(rng.integers(0, VOCAB, rng.integers(1, 65)).tolist())) for _ in range(40)]
    together = _run(pipeline, requests)
    for request, reply in zip(requests, together, strict=True):
        (alone,) = _run(pipeline, [request], step_budget=1)  # a block over the budget runs alone and whole
        assert alone == reply
        assert reply.usage.prompt == len(request.ids)
        expected = _hidden(request.ids).mean(0)
        assert _vector(reply) == pytest.approx(expected / np.linalg.norm(expected), abs=1e-6)


def test_several_modes_are_concatenated_in_the_slots_order() -> None:
    ours = _embed(SentenceConfig(modes=("cls", "mean", "lasttoken")))
    hidden = _hidden((3, 7, 9, 4))
    assert ours == pytest.approx(np.concatenate([hidden[0], hidden.mean(0), hidden[-1]]), abs=1e-6)


def test_a_request_may_choose_its_own_pooling() -> None:
    config = SentenceConfig(steps=(Normalize(),))
    chosen = _embed(config, pooling={"lasttoken": {}}, normalize=False)
    assert chosen == pytest.approx(_hidden((3, 7, 9, 4))[-1], abs=1e-6)
    normal = _embed(SentenceConfig(), pooling={"normalize": {"value": True}})
    assert np.linalg.norm(normal) == pytest.approx(1, abs=1e-6)


def test_a_prompt_can_be_left_out_of_pooling() -> None:
    assert _embed(SentenceConfig(), skip=2) == pytest.approx(_hidden((3, 7, 9, 4))[2:].mean(0), abs=1e-6)


def test_token_types_reach_the_model() -> None:
    plain, typed = _embed(SentenceConfig()), _embed(SentenceConfig(), token_types=(0, 1, 1, 1))
    assert typed == pytest.approx(plain + 1.5, abs=1e-6)


def test_dimensions_cut_and_then_normalise() -> None:
    config = SentenceConfig(steps=(Normalize(),), matryoshka=())
    whole, cut = _embed(config), _embed(config, dimensions=5)
    assert cut == pytest.approx(whole[:5] / np.linalg.norm(whole[:5]), abs=1e-6)


@pytest.mark.parametrize(("matryoshka", "dimensions"), [(None, 5), ((4, 8), 5), ((), 13), ((), 0)])
def test_dimensions_that_the_model_does_not_have_are_refused(matryoshka: Any, dimensions: int) -> None:
    with pytest.raises(InvalidRequest, match=f"dimensions is {dimensions}"):
        _embed(SentenceConfig(matryoshka=matryoshka), dimensions=dimensions)


def test_dense_layers_follow_the_modes() -> None:
    weight = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(2))
    layer = Dense(Linear(f32_weight(weight, torch.tensor([0.1, 0.2, 0.3]))), "tanh")
    ours = _embed(SentenceConfig(steps=(DenseConfig(Path("unused"), SIZE, 3),)), (layer,))
    expected = np.tanh(weight.numpy() @ _hidden((3, 7, 9, 4)).mean(0) + [0.1, 0.2, 0.3])
    assert ours == pytest.approx(expected, abs=1e-5)


def test_dense_weights_are_read_from_their_folder(tmp_path: Path) -> None:
    weight = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(2))
    save_file({"linear.weight": weight, "linear.bias": torch.ones(3)}, tmp_path / "model.safetensors")
    config = SentenceConfig(steps=(DenseConfig(tmp_path, SIZE, 3, activation=None),))
    (layer,) = load_dense(config, rows_ops())
    assert _embed(config, (layer,)) == pytest.approx(weight.numpy() @ _hidden((3, 7, 9, 4)).mean(0) + 1, abs=1e-5)


@pytest.mark.parametrize(
    "fields",
    [{"ids": ()}, {"ids": (VOCAB,)}, {"token_types": (0,)}, {"skip": 4}, {"skip": -1}, {"pooling": {"avg": {}}}],
)
def test_a_bad_field_is_refused(fields: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        _embed(SentenceConfig(), **fields)


def test_too_long_a_text_is_refused_with_the_lengths() -> None:
    with pytest.raises(ContextLengthExceeded, match=r"65 tokens, expected at most 64"):
        _embed(SentenceConfig(), ids=(1,) * 65)


def test_a_vector_that_is_no_number_fails_its_own_request_only() -> None:
    model = _Mixer()
    model.table[13] = math.nan
    pipeline = EmbedPipeline(model, rows_ops(), name="embed")  # type: ignore[arg-type]
    replies = _run(pipeline, [EmbedRequest((1, 2)), EmbedRequest((1, 13)), EmbedRequest((2, 1))])
    assert [reply.finished for reply in replies] == ["stop", "error", "stop"]
    assert replies[1].error is not None
    assert replies[1].error[0] == "step_failed"
