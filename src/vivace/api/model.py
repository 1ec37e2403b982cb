"""A model at the level of text: prompts and conversations in, answers and vectors out; blocking, streaming, async."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, overload

from vivace.api.embedding import EmbedSession
from vivace.api.info import ModelInfo, Port
from vivace.api.options import Options
from vivace.api.results import Completion, Delta, Embedding
from vivace.api.running import arun, run
from vivace.api.session import Collector, Session
from vivace.api.text import Message, TextSide
from vivace.errors import InvalidRequest, UnknownName, nearest

Prompt = str | Sequence[int]
Conversation = str | Sequence[Message]

_TEMPLATE_NAMES = ("add_generation_prompt", "continue_final_message", "variables")  # keywords of `Model.chat_ids`

DEFAULT_MAX_TOKENS = 1024  # where max_tokens is not given: less if the context has less room


class Model:
    """One model behind a port. Options are the fields of `Options`, given as keywords; an unknown one is an error.

    A prompt is a text or token ids; a conversation is a list of {"role": ..., "content": ...} or the text of one user
    message. A list of prompts or texts gives a list of results, computed together.
    """

    def __init__(self, info: ModelInfo, text: TextSide, port: Port, *, owns_port: bool = False) -> None:
        self.info = info
        self.text = text
        self._port = port
        self._owns_port = owns_port

    @overload
    def generate(self, prompt: Prompt, **options: Any) -> Completion: ...
    @overload
    def generate(self, prompt: Sequence[str] | Sequence[Sequence[int]], **options: Any) -> list[Completion]: ...

    def generate(self, prompt: Any, **options: Any) -> Completion | list[Completion]:
        """Continue a prompt, or each of several."""
        prompts, is_one = _listed("prompt", prompt)
        found = self._collect([self._session(ids, options) for ids in map(self.prompt_ids, prompts)])
        return found[0] if is_one else found

    def stream(self, prompt: Prompt, **options: Any) -> Generator[Delta, None, None]:
        """Continue a prompt, piece by piece. Closing the iterator ends the work."""
        return self._deltas(self._session(self.prompt_ids(prompt), options))

    def chat(self, messages: Conversation, *, template: Mapping[str, Any] | None = None, **options: Any) -> Completion:
        """The assistant's next message. `template`: keywords of `chat_ids`, such as continue_final_message."""
        return self._collect([self._session(self._templated(messages, template), options)])[0]

    def chat_stream(
        self, messages: Conversation, *, template: Mapping[str, Any] | None = None, **options: Any
    ) -> Generator[Delta, None, None]:
        """The assistant's next message, piece by piece."""
        return self._deltas(self._session(self._templated(messages, template), options))

    @overload
    def embed(self, text: Prompt, **options: Any) -> Embedding: ...
    @overload
    def embed(self, text: Sequence[str] | Sequence[Sequence[int]], **options: Any) -> list[Embedding]: ...

    def embed(self, text: Any, **options: Any) -> Embedding | list[Embedding]:
        """The vector of a text, or of each of several. Options are those of `embed_sessions`."""
        texts, is_one = _listed("text", text)
        sessions = self.embed_sessions(texts, **options)
        found: dict[int, Embedding] = {}
        with closing(run(self._port, self.info.name, sessions)) as items:
            found.update(items)
        vectors = [found[index] for index in range(len(texts))]
        return vectors[0] if is_one else vectors

    async def agenerate(self, prompt: Any, **options: Any) -> Any:
        """`generate` for event loops."""
        prompts, is_one = _listed("prompt", prompt)
        found = await self.acollect([self._session(ids, options) for ids in map(self.prompt_ids, prompts)])
        return found[0] if is_one else found

    def astream(self, prompt: Prompt, **options: Any) -> AsyncGenerator[Delta, None]:
        """`stream` for event loops."""
        return self._adeltas(self._session(self.prompt_ids(prompt), options))

    async def achat(
        self, messages: Conversation, *, template: Mapping[str, Any] | None = None, **options: Any
    ) -> Completion:
        """`chat` for event loops."""
        return (await self.acollect([self._session(self._templated(messages, template), options)]))[0]

    def achat_stream(
        self, messages: Conversation, *, template: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncGenerator[Delta, None]:
        """`chat_stream` for event loops."""
        return self._adeltas(self._session(self._templated(messages, template), options))

    async def aembed(self, text: Any, **options: Any) -> Any:
        """`embed` for event loops."""
        texts, is_one = _listed("text", text)
        sessions = self.embed_sessions(texts, **options)
        found: dict[int, Embedding] = {}
        async with aclosing(self.arun_embed(sessions)) as items:
            async for index, embedding in items:
                found[index] = embedding
        vectors = [found[index] for index in range(len(texts))]
        return vectors[0] if is_one else vectors

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text. `parse_special`: text that spells control tokens becomes them."""
        if add_special and self.info.kind == "embed":
            return self.text.encode_whole(text)
        if add_special:
            return self.text.tokenizer.encode_prompt(text, parse_special=parse_special)
        return self.text.tokenizer.encode(text, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of token ids."""
        return self.text.tokenizer.decode(ids, skip_special=skip_special)

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Ids of a raw prompt; ids are taken as they are."""
        _need_prompt("prompt", prompt)
        return self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)

    def chat_ids(
        self,
        messages: Conversation,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of a conversation as the model's chat template writes it. Only the template makes control tokens.

        continue_final_message  the answer goes on with the last message instead of beginning a new one
        variables               further names for the template, such as enable_thinking
        """
        self.need("generate")
        return self.text.chat_ids(
            [{"role": "user", "content": messages}] if isinstance(messages, str) else messages,
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            continue_final_message=continue_final_message,
            variables=variables,
        )

    def sessions(self, prompt_ids: Sequence[int], options: Options, *, count: int = 1) -> list[Session]:
        """Sessions of `count` answers to one prompt, seeded seed, seed + 1, ... Raises for what the model cannot do."""
        self.need("generate")
        options.check(self.info, prompt_ids)
        tokenizer = self.text.tokenizer
        seeded = options.with_seed()
        return [Session(tokenizer, prompt_ids, seeded.with_seed(offset)) for offset in range(count)]

    def embed_sessions(
        self,
        texts: Sequence[Prompt],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        truncate: bool = True,
    ) -> list[EmbedSession]:
        """Sessions of the vectors of `texts`. Raises for what the model cannot do.

        dimensions   Matryoshka: cut to so many numbers
        normalize    scale to length one; None: as the model's files say
        prompt_name  the text of the model's files that goes in front, such as "query"
        truncate     cut a text that is too long at its end, as sentence-transformers does, instead of refusing it
        """
        self.need("embed")
        requests = self.text.embed_requests(self.info, texts, prompt_name, truncate=truncate)
        return [
            EmbedSession(self.info, replace(request, dimensions=dimensions, normalize=normalize))
            for request in requests
        ]

    def arun(self, sessions: Sequence[Session]) -> AsyncGenerator[tuple[int, Delta], None]:
        """(index, delta) of several sessions at once. Use it within contextlib.aclosing."""
        return arun(self._port, self.info.name, sessions)

    def arun_embed(self, sessions: Sequence[EmbedSession]) -> AsyncGenerator[tuple[int, Embedding], None]:
        """(index, vector) of several sessions as they are done. Use it within contextlib.aclosing."""
        return arun(self._port, self.info.name, sessions)

    async def acollect(self, sessions: Sequence[Session]) -> list[Completion]:
        """The whole answers of several sessions."""
        collectors = [Collector() for _ in sessions]
        async with aclosing(self.arun(sessions)) as items:
            async for index, delta in items:
                collectors[index].add(delta)
        return [collector.completion() for collector in collectors]

    def need(self, kind: str) -> None:
        """Raises InvalidRequest unless this model does `kind`."""
        if self.info.kind != kind:
            raise InvalidRequest(
                f"the model '{self.info.name}' is for '{self.info.kind}', not for '{kind}'",
                field="model",
                hint=f"choose a model for '{kind}'",
            )

    def close(self) -> None:
        """End the engine, if this model has its own."""
        close = getattr(self._port, "close", None)
        if self._owns_port and close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _templated(self, messages: Conversation, template: Mapping[str, Any] | None) -> list[int]:
        for name in template or {}:
            if name not in _TEMPLATE_NAMES:
                hint = nearest(name, _TEMPLATE_NAMES)
                raise UnknownName(f"unknown setting of the template '{name}'", field="template", hint=hint)
        return self.chat_ids(messages, **(template or {}))

    def _session(self, prompt_ids: Sequence[int], options: Mapping[str, Any]) -> Session:
        chosen = Options.of(options)
        if "max_tokens" not in options:
            room = self.info.context_length - len(prompt_ids)
            chosen = replace(chosen, max_tokens=min(DEFAULT_MAX_TOKENS, room) if room > 0 else None)
        return self.sessions(prompt_ids, chosen)[0]

    def _deltas(self, session: Session) -> Generator[Delta, None, None]:
        with closing(run(self._port, self.info.name, [session])) as items:
            for _, delta in items:
                yield delta

    async def _adeltas(self, session: Session) -> AsyncGenerator[Delta, None]:
        async with aclosing(self.arun([session])) as items:
            async for _, delta in items:
                yield delta

    def _collect(self, sessions: Sequence[Session]) -> list[Completion]:
        collectors = [Collector() for _ in sessions]
        with closing(run(self._port, self.info.name, sessions)) as items:
            for index, delta in items:
                collectors[index].add(delta)
        return [collector.completion() for collector in collectors]


def _listed(name: str, value: Any) -> tuple[list[Any], bool]:
    """(prompts, whether there was one): a text or a list of ids is one prompt, a list of those is several.

    Raises InvalidRequest for anything else, such as bytes, whose items would pass for ids.
    """
    _need_prompt(name, value)
    if isinstance(value, str) or (value and isinstance(value[0], int)):
        return [value], True
    for index, item in enumerate(value):
        _need_prompt(f"{name}.{index}", item)
    return list(value), False


def _need_prompt(name: str, value: Any) -> None:
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return
    expected = "a text or a list of token ids" if "." in name else "a text, a list of token ids, or a list of those"
    hint = "call its tolist()" if hasattr(value, "tolist") else "such as 'Once upon a time'"
    raise InvalidRequest(f"{name} is of type {type(value).__name__}, expected {expected}", field=name, hint=hint)
