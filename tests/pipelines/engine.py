"""The tiny models behind the real scheduler, and a plain loop without cache, chunks or batches to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from vivace.config import EngineConfig
from vivace.engine.limits import SchedulerConfig
from vivace.engine.loop import Loop
from vivace.kernels import select
from vivace.kernels.ops import GroupRows, Ops, Rows
from vivace.layers.context import Context
from vivace.layers.state import make_stores
from vivace.models.base import Decoder
from vivace.models.load import load_model
from vivace.pipelines.generate import GeneratePipeline
from vivace.pipelines.requests import GenerateRequest, Reply, TokenLogprob, Tokens

ASSETS = Path(__file__).resolve().parents[1] / "assets"
TINY = ("tiny-llama", "tiny-gemma3")
TEXTS = (
    "Ada had a red fox.",
    "Count: two, three, four,",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "Ben had a blue cat. The cat lived in the garden. One day the cat found a",
    "Ben had a blue cat. The cat lived in the garden. One day the cat went",
    "The",
)
CONFIG = EngineConfig(page_size=4, kv_bytes=4 << 20, step_budget=16, max_jobs=8)


@cache
def rows_ops() -> Ops:
    """The bitwise invariant reference."""
    return select.resolve(choice="rows")


@cache
def tiny(name: str) -> Decoder:
    """A tiny trained decoder."""
    model = load_model(ASSETS / name, rows_ops())
    assert isinstance(model, Decoder)
    return model


@cache
def prompts(name: str) -> tuple[tuple[int, ...], ...]:
    """The texts as ids of a tiny model."""
    tokenizer = Tokenizer.from_file(str(ASSETS / name / "tokenizer.json"))
    return tuple(tuple(tokenizer.encode(text).ids) for text in TEXTS)


@dataclass
class Result:
    """All replies about one request, put together."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    last: Reply = field(default_factory=Reply)

    def take(self, reply: Reply) -> None:
        assert self.last.finished is None, "a reply after the last one"
        if isinstance(reply.output, Tokens):
            self.ids += reply.output.ids
            self.logprobs += reply.output.logprobs
            self.prompt_logprobs += reply.output.prompt_logprobs
        self.last = reply

    def same(self) -> tuple[object, ...]:
        """What must not depend on neighbours, chunks, cache or preemption."""
        last = self.last
        return self.ids, self.logprobs, self.prompt_logprobs, last.finished, last.stop_id, last.usage.generated


class Engine:
    """One pipeline under the real loop, run in the caller's thread."""

    def __init__(self, model: Decoder, config: EngineConfig = CONFIG, end_ids: Sequence[int] = ()) -> None:
        self.pipeline = GeneratePipeline(model, rows_ops(), config, name="tiny", end_ids=end_ids)
        limits = SchedulerConfig(step_budget=config.step_budget, max_jobs=config.max_jobs)
        self.loop = Loop([self.pipeline], limits)
        self._ids = 0

    def submit(self, request: GenerateRequest) -> Result:
        result = Result()
        self._ids += 1
        self.loop.submit(self.pipeline.make_job(request, self._ids, result.take))
        return result

    def run(self, *requests: GenerateRequest) -> list[Result]:
        """Submit all, run until idle, check that nothing is left behind."""
        results = [self.submit(request) for request in requests]
        self.loop.run_until_idle()
        self.loop.scheduler.check_idle()
        return results


def alone(model: Decoder, request: GenerateRequest, end_ids: Sequence[int] = ()) -> Result:
    """The request in an engine of its own: nothing shared, nothing cut, nothing preempted."""
    config = replace(CONFIG, step_budget=4096, prefix_cache=False)
    return Engine(model, config, end_ids).run(request)[0]


def plain_logits(model: Decoder, ids: Sequence[int]) -> Tensor:
    """Scores after each of `ids` (n, vocab), computed in one go on fresh stores: the plainest forward pass there is."""
    count = len(ids)
    table = torch.ones(1, 1, dtype=torch.int32)  # one page that holds everything
    groups = model.page_groups(count)
    rows = Rows(
        position=torch.arange(count)[:, None],
        parent=torch.arange(-1, count - 1, dtype=torch.int32),
        sequence=torch.zeros(count, dtype=torch.int32),
        starts=(0, count),
        context=(0,),
        variant=torch.zeros(count, dtype=torch.int32),
        groups={group.name: GroupRows(count + torch.arange(count), table, count) for group in groups},
    )
    with torch.inference_mode():
        stores = make_stores(model.layout, {group.name: 1 for group in groups}, count, rows_ops())
        ctx = Context(rows_ops(), rows, stores, model.ropes.angles(rows.position, rows.variant, rows_ops()))
        return model.logits(model.forward(torch.tensor(ids), ctx), ctx)


def plain_greedy(model: Decoder, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy decoding that computes everything again for each token."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(plain_logits(model, ids)[-1].argmax()))
    return ids[len(prompt) :]
