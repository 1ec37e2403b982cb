"""The engine in this process: the one place where catalog, weights, model, operations, pipeline and loop are joined."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from vivace.api.info import ModelInfo, OnReply
from vivace.api.text import TextSide, load_text
from vivace.config import EngineConfig, cache_dir, resolve, with_environment
from vivace.engine.job import Job
from vivace.engine.loop import Loop
from vivace.engine.scheduler import SchedulerConfig
from vivace.errors import ConfigError, EngineDied, InvalidRequest, UnknownModel, nearest
from vivace.kernels import select
from vivace.kernels.checked import CheckedOps
from vivace.kernels.cpu import bind as native
from vivace.kernels.layout import LAYOUT_VERSION
from vivace.kernels.rooms import HugePages
from vivace.kernels.select import BoundOps
from vivace.layers.precision import formats_text
from vivace.models.base import Decoder, Encoder
from vivace.models.load import load_model
from vivace.models.lossy import Lossy, probe_text, verified
from vivace.pipelines.embed import EmbedPipeline
from vivace.pipelines.generate import GeneratePipeline
from vivace.pipelines.memory import kv_bytes_of
from vivace.pipelines.pooling import load_dense
from vivace.pipelines.requests import EmbedRequest, GenerateRequest
from vivace.runtime.device import probe_hardware
from vivace.runtime.threads import use_threads
from vivace.techniques.speculation import base as speculation
from vivace.weights import catalog
from vivace.weights.cache import ModelFiles
from vivace.weights.measured import MeasuredFolder, Quality
from vivace.weights.packed import open_rooms
from vivace.weights.progress import Progress, Silent

Pipeline = GeneratePipeline | EmbedPipeline

log = logging.getLogger("vivace.engine")


class Engine:
    """Several models behind one scheduler, in one thread of this process. It satisfies `api.info.Port`.

    Add all models, then submit requests: the first one starts the loop, and from then on the models are fixed.

    config      fields left at None are filled from the environment and the machine
    after_step  called from the loop's thread when all replies of a step were handed out
    """

    def __init__(self, config: EngineConfig | None = None, *, after_step: Callable[[], None] | None = None) -> None:
        """Raises ConfigError for a setting that cannot be, such as native kernels where there are none."""
        self.config = resolve(with_environment(config or EngineConfig()), probe_hardware())
        self._pool_bytes = 0  # of all models: their pages are taken from the machine when they are written
        self.texts: dict[str, TextSide] = {}
        self.ops = _bind(self.config)
        self._infos: dict[str, ModelInfo] = {}
        self._pipelines: dict[str, Pipeline] = {}
        self._after_step = after_step
        self._ids = itertools.count(1)
        self._lock = threading.Lock()  # guards the start and the end of the loop
        self._loop: Loop | None = None
        self._is_closed = False
        self._pid = os.getpid()

    @property
    def models(self) -> Mapping[str, ModelInfo]:
        """The models by name."""
        return self._infos

    @property
    def pipelines(self) -> Mapping[str, Pipeline]:
        """The pipelines by model name, for who measures them."""
        return self._pipelines

    @property
    def loop(self) -> Loop:
        """The running loop, for who measures it; it is started if need be, and the models are fixed from now on."""
        return self._running_loop()

    def add_model(self, source: str, *, name: str | None = None, progress: Progress | None = None) -> ModelInfo:
        """Load a model: `source` is a short name, a hub id or a path, `name` what requests call it.

        Raises UnknownModel, DownloadError, WeightError, UnsupportedModel, or ConfigError if the name is taken.
        """
        files = catalog.resolve(source, progress=progress)
        name = name or (files.name if files.origin.startswith("local ") else source)
        if name in self._infos or self._loop is not None:
            reason = "its name is taken" if name in self._infos else "the engine runs already"
            raise ConfigError(f"cannot add the model '{name}': {reason}", hint="add each model once, before requests")
        text = load_text(files.path)
        model, quality = self._load(files, progress or Silent()), None
        if isinstance(model, Decoder):
            model, quality = self._verified(model, files, text, progress.note if progress else log.info)
        # Every operation of the menu is bound, so nothing of it stays abstract.
        ops = CheckedOps(self.ops, model) if self.config.check == "steps" else self.ops  # type: ignore[abstract]
        self._pipelines[name], info = self._serve(name, files, model, text, ops)
        info = replace(info, activations=formats_text(model), quality=quality)
        self.texts[name] = text
        self._infos[name] = info
        return info

    def submit(
        self,
        model: str,
        request: GenerateRequest | EmbedRequest,
        on_reply: OnReply,
        *,
        request_id: int | None = None,
    ) -> int:
        """Start a request; `request_id` if the caller has its own numbers. See `api.info.Port`."""
        pipeline = self._pipelines.get(model)
        if pipeline is None:
            raise UnknownModel(f"unknown model '{model}'", field="model", hint=nearest(model, self._pipelines))
        job_id = next(self._ids) if request_id is None else request_id
        self._running_loop().submit(self._job(pipeline, request, job_id, on_reply))
        return job_id

    def cancel(self, request_id: int) -> None:
        """End a request within a step; an id that is over or unknown is no error."""
        if self._loop is not None:
            self._loop.cancel(request_id)

    def start(self) -> None:
        """Start the loop before the first request; the models are fixed from now on."""
        self._running_loop()

    def stats(self) -> dict[str, Any]:
        """Counters since the start, queues and pages as `engine.scheduler.Scheduler.snapshot` says, and per lane what
        guessing was worth."""
        counters = {} if self._loop is None else self._loop.snapshot()
        for lane in counters.get("lanes", {}).values():
            lane["speculation"] = speculation.report(lane["counts"])
        return counters

    def close(self) -> None:
        """End all requests and the loop; replies to what was in flight say "cancelled"."""
        if os.getpid() != self._pid:  # the loop is another process's
            return
        with self._lock:
            self._is_closed = True
            loop = self._loop
        if loop is not None:
            loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self, files: ModelFiles, progress: Progress) -> Decoder | Encoder:
        """The model of the files: its packed weights from an earlier start, else packed now and kept for the next."""
        config, is_checked = self.config, self.config.check != "off"
        if not config.packed_bytes or self.ops.native is None:
            return load_model(files.path, self.ops, is_checked=is_checked, rooms=HugePages())
        layout = f"layout {LAYOUT_VERSION}, weights {config.weights}, codes {config.activations != 'f32'}"
        rooms = open_rooms(files, layout, config.packed_bytes)
        model = load_model(files.path, self.ops, is_checked=is_checked, rooms=rooms)
        if problem := rooms.keep():
            progress.note(f"{files.name}: the packed weights are not kept for the next start: {problem}")
        return model

    def _job(self, pipeline: Pipeline, request: GenerateRequest | EmbedRequest, job_id: int, on_reply: OnReply) -> Job:
        if isinstance(pipeline, GeneratePipeline) and isinstance(request, GenerateRequest):
            return pipeline.make_job(request, job_id, on_reply)
        if isinstance(pipeline, EmbedPipeline) and isinstance(request, EmbedRequest):
            return pipeline.make_job(request, job_id, on_reply)
        name = pipeline.lane.name
        message = f"the model '{name}' is for '{self._infos[name].kind}', the request is not"
        raise InvalidRequest(message, field="model", hint="choose another model")

    def _running_loop(self) -> Loop:
        if os.getpid() != self._pid:  # before the lock, which nobody may be left to release
            message = f"the engine belongs to process {self._pid}; a fork of it has no thread that computes"
            raise EngineDied(message, hint="load the model in the process that uses it")
        with self._lock:
            if self._is_closed:
                raise EngineDied("the engine is closed", hint="load the model again")
            if self._loop is None:
                limits = SchedulerConfig(
                    step_budget=self.config.step_budget,
                    max_jobs=self.config.max_jobs,
                    max_waiting=self.config.max_waiting,
                    gap_limit=self.config.max_gap_ms * 1_000_000,  # costs are nanoseconds
                )
                self._loop = Loop(self._pipelines.values(), limits, after_events=self._after_step)
                self._loop.start()
            return self._loop

    def _verified(
        self, model: Decoder, files: ModelFiles, text: TextSide, say: Callable[[str], None]
    ) -> tuple[Decoder, Quality | None]:
        """The model as the settings want it, and what the lossy ones of them change."""
        config, probe = self.config, text.tokenizer.encode_prompt(probe_text())
        lossy = Lossy(config.activations, config.kv_format, config.weights, config.kl_target, config.kl_limit)
        return verified(model, self.ops, lossy, probe, MeasuredFolder(cache_dir(), files.digest), say)

    def _serve(
        self, name: str, files: ModelFiles, model: Decoder | Encoder, text: TextSide, ops: BoundOps
    ) -> tuple[Pipeline, ModelInfo]:
        """The pipeline of a model, and what the outside may know of it."""
        if isinstance(model, Decoder):
            end_ids = sorted(text.tokenizer.eos_ids)
            hardware, groups = probe_hardware(), model.page_groups(self.config.page_size, self.config.kv_format)
            kv_bytes = kv_bytes_of(groups, self.config, model.context_length, hardware, self._pool_bytes)
            self._pool_bytes += kv_bytes
            config = replace(self.config, kv_bytes=kv_bytes)
            generate = GeneratePipeline(model, ops, config, name=name, end_ids=end_ids, digest=files.digest)
            limits = generate.limits
            if self.config.max_gap_ms and self.config.check != "steps":  # whose times are no one's
                machine = f"{hardware.cpu}, {self.config.threads} threads, {self.ops.bound['linear'].name}"
                rows = min(self.config.max_jobs, self.config.step_budget)
                generate.bound_gaps(cache_dir() / "costs", machine, rows)
            return generate, ModelInfo(name, "generate", limits.max_length, limits.vocab_size, digest=files.digest)
        sentence = text.sentence
        dense = load_dense(sentence, self.ops)
        embed = EmbedPipeline(model, ops, name=name, sentence=sentence, dense=dense, config=self.config)
        return embed, ModelInfo(
            name,
            "embed",
            min(model.context_length, sentence.max_length or model.context_length),
            model.vocab_size,
            dimensions=embed.pooling.size,
            shorter=sentence.matryoshka,
            digest=files.digest,
        )


def _bind(config: EngineConfig) -> BoundOps:
    """The operations, after the threads were shared out: the pool of native kernels starts with them."""
    assert config.threads is not None, "resolve the config first"
    is_native = config.kernels in ("auto", "native") and native.why_missing() is None
    use_threads(config.threads, native=is_native)
    return select.resolve(
        choice=config.kernels,
        isa=os.environ.get("VIVACE_ISA") or None,
        threads=config.threads if is_native else None,
        weights=config.weights,
        activations=config.activations,
    )
