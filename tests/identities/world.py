"""Seeded schedules on the tiny trained models: every request must come out as if it had been alone, bit for bit.

A `World` is one model in one set of operations and the results of its requests when each runs alone in a fresh engine
with room for everything, no cache, no chunks and no recorded steps. `run_schedule` sends the same requests through the
real scheduler, pages, prefix tree and pipeline under a random configuration, with neighbours that are cancelled or
fail. `World.on` is the same world on another instruction set or with other threads: its results must be the same too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vivace.config import ActivationFormat, EngineConfig, KernelChoice, KVFormat
from vivace.engine.batch import Batch, Keep
from vivace.engine.job import Job
from vivace.engine.loop import Loop
from vivace.engine.scheduler import SchedulerConfig
from vivace.errors import ConfigError
from vivace.kernels import select
from vivace.kernels.ops import Ops
from vivace.layers.precision import integer_layers, with_lossy
from vivace.media.text import load_tokenizer
from vivace.models.base import Decoder
from vivace.models.load import load_model
from vivace.pipelines.generate import GeneratePipeline
from vivace.pipelines.requests import GenerateRequest, Reply, TokenLogprob
from vivace.pipelines.sampler import Scored

ASSETS = Path(__file__).resolve().parents[1] / "assets"
PAGE_SIZES = (1, 2, 3, 8, 16, 17, 32, 48)
BUDGETS = (1, 2, 3, 5, 8, 13, 32, 64, 512)
FAULT = "a planted fault"


@dataclass
class Result:
    """What a request led to. `logits` maps the position of each draw to the bytes of its scores."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    logits: dict[int, bytes] = field(default_factory=dict)
    finished: str = ""
    prompt: int = 0
    generated: int = 0

    def take(self, reply: Reply) -> None:
        if reply.output is not None:
            self.ids += reply.output.ids
            self.logprobs += reply.output.logprobs
            self.prompt_logprobs += reply.output.prompt_logprobs
        if reply.finished is not None:
            self.finished = reply.finished
            self.prompt, self.generated = reply.usage.prompt, reply.usage.generated


class Recorder:
    """A sampler that notes the scores of each draw; a draw that is made again must see the same bits."""

    def __init__(self, sampler: Any, result: Result, *, fails_at: int | None = None) -> None:
        self.sampler, self.result, self.fails_at = sampler, result, fails_at

    def draw(self, scored: Scored, history: Callable[[], Any], position: int) -> int:
        if position == self.fails_at:
            raise RuntimeError(FAULT)
        seen = scored.row.numpy().tobytes()
        assert self.result.logits.setdefault(position, seen) == seen, f"two draws at {position} differ"
        drawn: int = self.sampler.draw(scored, history, position)
        return drawn


class World:
    """A tiny model, its requests, and what each of them gives alone.

    weights      a file or folder that holds the asset's model in other weights
    activations  what quantized weights meet; auto is a mix of int8 and int14
    isa          highest instruction set of native kernels
    """

    def __init__(
        self,
        asset: str,
        kernels: KernelChoice = "rows",
        kv_format: KVFormat = "f32",
        *,
        weights: Path | None = None,
        activations: ActivationFormat = "int14",
        isa: str | None = None,
        threads: int = 1,
    ) -> None:
        self.kernels, self.kv_format, self.activations, self.threads = kernels, kv_format, activations, threads
        self.asset, self.weights = asset, weights or ASSETS / asset
        self.ops: Ops = select.resolve(choice=kernels, isa=isa, threads=threads, activations=activations)
        model = load_model(self.weights, self.ops)
        assert isinstance(model, Decoder)
        if activations == "auto":  # a mix that does not hang on measured sensitivities: every second layer
            model = with_lossy(model, frozenset(sorted(integer_layers(model))[::2]))
        self.model: Decoder = model
        self.tokenizer = load_tokenizer(ASSETS / asset)
        self.requests = self._make_requests()
        self._alone: dict[int, Result] = {}

    def on(self, isa: str, threads: int) -> World:
        """This world on another instruction set, with what requests gave alone on this one."""
        other = World(
            self.asset,
            self.kernels,
            self.kv_format,
            weights=self.weights,
            activations=self.activations,
            isa=isa,
            threads=threads,
        )
        other._alone = self._alone
        return other

    def alone(self, index: int) -> Result:
        """What a request gives undisturbed, found once."""
        if index not in self._alone:
            self._alone[index] = self.run_alone(self.requests[index])
        return self._alone[index]

    def pipeline(self, config: EngineConfig) -> GeneratePipeline:
        return GeneratePipeline(
            self.model, self.ops, config, name="tiny", end_ids=sorted(self.tokenizer.eos_ids), digest=self.asset
        )

    def config(self, pages: int, page_size: int, *, prefix_cache: bool) -> EngineConfig:
        """A configuration with about `pages` pages in each group."""
        groups = self.model.page_groups(page_size, self.kv_format)
        page_bytes = sum(group.unit_bytes * page_size for group in groups)
        return EngineConfig(
            kernels=self.kernels,
            kv_format=self.kv_format,
            activations=self.activations,
            threads=self.threads,
            page_size=page_size,
            kv_bytes=page_bytes * pages,
            prefix_cache=prefix_cache,
        )

    def needs(self, requests: list[GenerateRequest], page_size: int) -> int:
        """Pages that the largest of some requests needs alone."""
        longest = max(len(request.ids) + (request.max_tokens or 0) for request in requests)
        return -(-longest // page_size) + 1

    def run_alone(self, request: GenerateRequest) -> Result:
        pipeline = self.pipeline(replace(self.config(64, 16, prefix_cache=False), replay=False))
        loop, result = Loop([pipeline], SchedulerConfig(step_budget=4096)), Result()
        loop.submit(make_job(pipeline, request, 1, result))
        loop.run_until_idle()
        return result

    def _make_requests(self) -> list[GenerateRequest]:
        rng = random.Random(11)
        heads = ["", "Ada had a red horse. ", "Count: one, two, three, four. Ada had a red horse. The horse lived in "]
        tails = ["the", "Tell me", "Ben found", "What is the capital of Peru?", "Mia asked Leo: whose", "x", "The café"]
        texts = [head + tail for head in heads for tail in tails]
        questions = ["What is two plus five?", "Tell me a story.", "Hello, I am Finn.", "What is the capital of Japan?"]
        texts += [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in questions]
        requests = []
        for index, text in enumerate(texts):
            ids = tuple(self.tokenizer.encode(text, parse_special=True))
            sampling: dict[str, dict[str, float]] = {}
            if index % 3:
                sampling = {
                    "temperature": {"value": 0.9},
                    "top_p": {"value": 0.95},
                    "repetition_penalty": {"value": 1.1},
                }
            requests.append(
                GenerateRequest(
                    ids,
                    max_tokens=rng.randint(1, 24),
                    sampling=sampling,
                    seed=index,
                    logprobs=3 if index % 2 else None,
                    prompt_logprobs=1 if index % 7 == 3 else None,
                    ignore_eos=index % 5 == 0,
                    tenant="ab"[index % 2],
                )
            )
        return requests


def make_job(
    pipeline: GeneratePipeline, request: GenerateRequest, job_id: int, result: Result, *, fails_at: int | None = None
) -> Job:
    job = pipeline.make_job(request, job_id, result.take)
    job.payload.sampler = Recorder(job.payload.sampler, result, fails_at=fails_at)
    return job


@dataclass
class Watched:
    """A pipeline that counts what its steps hold and asks for things to happen between them."""

    inner: GeneratePipeline
    seen: Counter[str]
    between: Callable[[], None]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def launch(self, batch: Batch) -> Any:
        self.seen["steps"] += 1
        self.seen["steps with neighbours"] += len(batch.spans) > 1
        self.seen["mixed steps"] += len({span.count == 1 for span in batch.spans}) > 1
        self.between()
        return self.inner.launch(batch)


def run_schedule(
    world: World, seed: int, seen: Counter[str], spoil: Callable[[GeneratePipeline], None] = lambda pipeline: None
) -> None:
    """One random schedule; raises AssertionError at the first result that differs from the undisturbed one.

    `spoil` is called before each step: tests of the test damage something there.
    """
    rng = random.Random(seed)
    chosen = [rng.randrange(len(world.requests)) for _ in range(rng.randint(2, 7))]
    if rng.random() < 0.6:
        chosen += rng.choices(chosen, k=3)  # the same prompts again: prefix hits
    page_size = rng.choice(PAGE_SIZES)
    needed = world.needs([world.requests[index] for index in chosen], page_size)
    pages = needed + rng.choice((0, 1, needed // 2, 4 * needed))
    has_cache = rng.random() < 0.75
    budget, max_jobs = rng.choice(BUDGETS), rng.randint(1, 8)
    pipeline = _pipeline_that_fits(world, pages, page_size, has_cache, [world.requests[index] for index in chosen])
    results = [Result() for _ in chosen]
    doomed = {place for place in range(len(chosen)) if rng.random() < 0.15}
    faulty = {place for place in range(len(chosen)) if place not in doomed and rng.random() < 0.06}
    waiting = list(range(len(chosen)))

    def between() -> None:
        spoil(pipeline)
        for place in list(doomed & set(running)):
            if rng.random() < 0.2 and loop.cancel(place + 1):
                seen["cancelled neighbours"] += 1
        if waiting and rng.random() < 0.4:
            submit(waiting.pop(0))

    def submit(place: int) -> None:
        request = world.requests[chosen[place]]
        fails_at = len(request.ids) + rng.randrange(2) if place in faulty else None
        job = make_job(pipeline, request, place + 1, results[place], fails_at=fails_at)
        job.priority = rng.randrange(3)
        running.append(place)
        loop.submit(job)

    running: list[int] = []
    watched = Watched(pipeline, seen, between)
    loop = Loop([watched], SchedulerConfig(step_budget=budget, max_jobs=max_jobs, watermark=0))
    while waiting:
        submit(waiting.pop(0))
        loop.run_until_idle()
        loop.scheduler.check()
    loop.scheduler.check_idle()
    _count(loop, page_size, seen)
    seen["replayed steps"] += pipeline.replay.steps if pipeline.replay else 0
    for place, index in enumerate(chosen):
        _compare(results[place], world.alone(index), place in doomed, place in faulty, f"seed {seed} place {place}")
    seen["requests"] += len(chosen)


def run_schedules(world: World, count: int, spoil: Callable[[GeneratePipeline], None] = lambda pipeline: None) -> None:
    """Schedules 0 .. count."""
    for seed in range(count):
        run_schedule(world, seed, Counter(), spoil)


def _pipeline_that_fits(
    world: World, pages: int, page_size: int, has_cache: bool, requests: list[GenerateRequest]
) -> GeneratePipeline:
    """A pipeline with about `pages` pages; a few more if its longest job needs them."""
    while True:
        try:
            pipeline = world.pipeline(world.config(pages, page_size, prefix_cache=has_cache))
            for request in requests:
                pipeline.check(request)
            return pipeline
        except (ConfigError, ValueError):
            pages += 1


def _count(loop: Loop, page_size: int, seen: Counter[str]) -> None:
    stats = loop.scheduler.stats
    seen["preemptions"] += stats.preemptions
    seen["cut chunks"] += stats.cut_spans
    seen["failed steps"] += stats.failed_steps
    seen["prefix units hit"] += stats.cached_units
    seen["schedules with prefix hits"] += stats.cached_units > 0
    seen["schedules with prefix misses"] += stats.missed_units > 0
    seen[f"page size {page_size}"] += 1
    lane = next(iter(loop.pipelines.values())).lane
    seen["schedules with windows"] += any(group.keep is Keep.LAST for group in lane.groups)


def _compare(found: Result, alone: Result, is_doomed: bool, is_faulty: bool, where: str) -> None:
    """Equal in all, or a prefix of it when the job was cancelled or made to fail."""
    shared = [position for position in found.logits if position in alone.logits]
    assert len(shared) == len(found.logits), f"{where}: draws at positions that the undisturbed run has not"
    for position in shared:
        assert found.logits[position] == alone.logits[position], f"{where}: logits differ at position {position}"
    assert found.ids == alone.ids[: len(found.ids)], f"{where}: ids differ"
    assert found.logprobs == alone.logprobs[: len(found.logprobs)], f"{where}: log-probabilities differ"
    if is_faulty and found.finished == "error":
        return
    if is_doomed and found.finished == "cancelled":
        return
    assert found == alone, f"{where}: {found.finished}, {found.prompt}+{found.generated}, alone {alone.finished}"
