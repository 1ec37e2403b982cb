"""What the outside may know of a loaded model, and the port through which requests reach the engine that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from vivace.pipelines.requests import EmbedRequest, GenerateRequest, Reply
from vivace.weights.measured import Quality

OnReply = Callable[[Reply], None]


@dataclass(frozen=True)
class ModelInfo:
    """A loaded model as the text side sees it.

    name            the name it is asked for by
    kind            what it does: "generate" or "embed"
    context_length  most tokens of a request, prompt and answer together
    vocab_size      token ids are below it
    dimensions      length of its vectors (embed), else None
    shorter         Matryoshka: lengths its vectors may be cut to; empty: any; None: it was not trained for it
    digest          digest of its weights
    activations     what its layers take: f32, int14, int8, or a mix with its hash
    quality         what its lossy settings change, as measured on a built-in text; None: nothing is lossy
    """

    name: str
    kind: Literal["generate", "embed"]
    context_length: int
    vocab_size: int
    dimensions: int | None = None
    shorter: tuple[int, ...] | None = None
    digest: str = ""
    activations: str = "f32"
    quality: Quality | None = None


class Port(Protocol):
    """An engine, in this process or in another one."""

    @property
    def models(self) -> Mapping[str, ModelInfo]:
        """The models it can run now, by name."""
        ...

    def submit(self, model: str, request: GenerateRequest | EmbedRequest, on_reply: OnReply) -> int:
        """Start a request and return its id. `on_reply` is called in order, from a thread of the engine, until a reply
        with `finished` set. Raises UnknownModel, InvalidRequest, Overloaded or EngineDied."""
        ...

    def cancel(self, request_id: int) -> None:
        """Stop a request within a step; an id that is over or unknown is no error."""
        ...
