"""One generate request as its client sees it: replies of the engine in, pieces of text out."""

from __future__ import annotations

from collections.abc import Sequence

from vivace.api.options import Options
from vivace.api.results import Candidate, Completion, Delta, Token
from vivace.errors import Cancelled, EngineError, InvalidRequest, VivaceError
from vivace.media.text.answer import Answer, Piece
from vivace.media.text.tokenizer import Tokenizer
from vivace.pipelines.requests import GenerateRequest, Reply, TokenLogprob, Tokens, Usage


class Session:
    """Feed every reply; a reply may lead to a delta. The joined deltas do not depend on how replies were grouped.

    is_over         the answer is complete: no more replies are wanted
    engine_is_done  the engine has ended the job itself; if not, an answer that is over must be cancelled
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], options: Options) -> None:
        self.request: GenerateRequest = options.request(prompt_ids)
        self.is_over = False
        self.engine_is_done = False
        self._tokenizer = tokenizer
        self._options = options
        self._answer = Answer(tokenizer, prompt_ids, tuple(options.stop))
        self._logprobs: list[TokenLogprob] = []
        self._prompt: tuple[Token, ...] = ()
        self._cached = 0

    def feed(self, reply: Reply) -> Delta | None:
        """The next piece, if this reply brings one. Raises the error that the reply carries."""
        if reply.finished is not None:
            self.engine_is_done = True
        if reply.error is not None:
            self.is_over = True
            raise error_of(*reply.error)
        if self.is_over:
            return None
        self._cached = max(self._cached, reply.usage.cached)
        text = ""
        tokens: tuple[Token, ...] = ()
        if isinstance(reply.output, Tokens):
            text, tokens = self._take(reply.output)
        if self._answer.is_stopped:
            self.is_over = True
            usage = Usage(
                len(self.request.ids), self._answer.count, self._cached, reply.usage.accepted, reply.usage.rejected
            )
            return self._delta(text, tokens, "stop", usage)
        if reply.finished is None:
            return self._delta(text, tokens)
        self.is_over = True
        if reply.finished not in ("stop", "length"):
            raise Cancelled(f"the request ended before its answer was complete ({reply.finished})")
        piece = self._answer.finish()
        finish = "stop" if self._answer.is_stopped else reply.finished
        return self._delta(text + piece.text, tokens + self._tokens(piece), finish, reply.usage)

    def _take(self, output: Tokens) -> tuple[str, tuple[Token, ...]]:
        if output.prompt_logprobs:
            self._prompt = prompt_tokens(self._tokenizer, self.request.ids, output.prompt_logprobs)
        self._logprobs += output.logprobs
        piece = self._answer.feed(output.ids)
        return piece.text, self._tokens(piece)

    def _tokens(self, piece: Piece) -> tuple[Token, ...]:
        found = []
        for item in piece.tokens:
            entry = self._logprobs[item.index] if self._options.logprobs is not None else None
            found.append(_token(self._tokenizer, item.id, item.text, entry))
        return tuple(found)

    def _delta(
        self, text: str, tokens: tuple[Token, ...], finish: str | None = None, usage: Usage | None = None
    ) -> Delta | None:
        prompt, self._prompt = self._prompt, ()
        if not (text or tokens or prompt or finish):
            return None
        return Delta(text, tokens, prompt, finish, usage)


class Collector:
    """Joins deltas into a completion."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._tokens: list[Token] = []
        self._prompt: tuple[Token, ...] = ()
        self._finish = ""
        self._usage = Usage()

    def add(self, delta: Delta) -> None:
        self._text.append(delta.text)
        self._tokens += delta.tokens
        self._prompt = self._prompt or delta.prompt
        self._finish = delta.finish_reason or self._finish
        self._usage = delta.usage or self._usage

    def completion(self) -> Completion:
        return Completion("".join(self._text), self._finish, self._usage, tuple(self._tokens), self._prompt)


def prompt_tokens(tokenizer: Tokenizer, ids: Sequence[int], entries: Sequence[TokenLogprob] = ()) -> tuple[Token, ...]:
    """The prompt as tokens; entry i belongs to token i + 1, since the first one has nothing before it."""
    answer = Answer(tokenizer)
    pieces = [answer.feed(ids), answer.finish()]
    found = [item for piece in pieces for item in piece.tokens]
    aligned = (None, *entries) if entries else (None,) * len(found)
    return tuple(_token(tokenizer, item.id, item.text, entry) for item, entry in zip(found, aligned, strict=True))


def error_of(code: str, message: str, hint: str, field: str = "") -> VivaceError:
    """The error that travelled as these; an unknown code is an EngineError."""
    for kind in _tree(VivaceError):
        if kind.code == code and issubclass(kind, InvalidRequest):
            return kind(message, field=field or None, hint=hint)
        if kind.code == code and kind.__init__ is VivaceError.__init__:
            return kind(message, hint=hint)
    return EngineError(f"{code}: {message}", hint=hint)


def _tree(kind: type[VivaceError]) -> list[type[VivaceError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in _tree(child))]


def _token(tokenizer: Tokenizer, token_id: int, text: str, entry: TokenLogprob | None) -> Token:
    data = tokenizer.token_bytes(token_id)
    if entry is None:
        return Token(token_id, text, data)
    top = tuple(Candidate(other, tokenizer.token_bytes(other), logprob) for other, logprob in entry.top)
    return Token(token_id, text, data, entry.logprob, top)
