"""The text side of a model: its tokenizer, its chat template, and what its files say about embedding prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vivace.api.info import ModelInfo
from vivace.errors import InvalidRequest, ModelError, UnknownName, nearest
from vivace.media.text import load_tokenizer
from vivace.media.text.chat import ChatTemplate, encode_chat, load_chat_template
from vivace.media.text.tokenizer import Tokenizer
from vivace.pipelines.checks import Limits, check_embed
from vivace.pipelines.requests import EmbedRequest
from vivace.pipelines.sentence import SentenceConfig, read_sentence_config, shortened

Message = Mapping[str, Any]


@dataclass(frozen=True)
class TextSide:
    """What turns text into requests for one model. Light: no weights are read for it."""

    tokenizer: Tokenizer
    template: ChatTemplate | None = None
    sentence: SentenceConfig = field(default_factory=SentenceConfig)

    def chat_ids(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of a conversation; only the template makes control tokens.

        Raises InvalidRequest if there is no template or it refuses the conversation, ModelError if it runs wild.
        """
        if self.template is None:
            raise InvalidRequest(
                "this model has no chat template", field="messages", hint="use a raw completion, or a chat model"
            )
        _need_list(messages)
        segments = self.template.render(
            [_with_text(index, message) for index, message in enumerate(messages)],
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )
        return encode_chat(self.tokenizer, segments)

    def embed_requests(
        self, info: ModelInfo, texts: Sequence[str | Sequence[int]], prompt_name: str | None, *, truncate: bool
    ) -> list[EmbedRequest]:
        """Requests for the vectors of texts or ids; the model's prompt of that name goes in front of texts.

        Raises for an unknown prompt, an id outside the vocabulary, and a text that is too long unless it may be cut.
        """
        prompt = self._prompt(prompt_name)
        limits = Limits(info.vocab_size, info.context_length)
        found = []
        for text in texts:
            ids = self.encode_whole(prompt + text) if isinstance(text, str) else list(text)
            if truncate and len(ids) > limits.max_length:
                has_end = ids[-1] in self.tokenizer.special_ids
                ids = shortened(ids, limits.max_length, num_suffix=int(has_end))
            has_skip = isinstance(text, str) and prompt and not self.sentence.include_prompt
            skip = len(self.encode_whole(prompt)) - 1 if has_skip else 0
            request = EmbedRequest(ids=tuple(ids), skip=skip)
            check_embed(request, limits)
            found.append(request)
        return found

    def _prompt(self, name: str | None) -> str:
        name = self.sentence.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in self.sentence.prompts:
            raise UnknownName(
                f"prompt_name is '{name}', which this model does not have",
                field="prompt_name",
                hint=nearest(name, self.sentence.prompts),
            )
        return self.sentence.prompts[name]

    def encode_whole(self, text: str) -> list[int]:
        """Ids of a text as an encoder takes it, such as [CLS] text [SEP]."""
        text = text.lower() if self.sentence.lower_case else text
        encode = getattr(self.tokenizer, "encode_with_template", self.tokenizer.encode_prompt)
        ids: list[int] = encode(text)
        return ids


def _need_list(messages: object) -> None:
    if not isinstance(messages, Sequence):
        message = f"messages is of type {type(messages).__name__}, expected a list of messages"
        raise InvalidRequest(message, field="messages", hint='such as [{"role": "user", "content": "Hello"}]')


def _with_text(index: int, message: Message) -> Message:
    """The message with its content as one text: a template that knows no parts would write a list as Python does."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if content is None or isinstance(content, str):
        return message
    parts = content if isinstance(content, list | tuple) else [None]
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        field = f"messages.{index}.content"
        message_text = f"{field} is of type {type(content).__name__}, expected a text or a list of text parts"
        raise InvalidRequest(message_text, field=field, hint='a part is {"type": "text", "text": ...}')
    return {**message, "content": "\n".join(map(str, texts))}


def load_text(path: Path) -> TextSide:
    """The text side of a model folder, a .gguf file or a llama2.c checkpoint. Raises ModelError."""
    if path.is_dir():
        tokenizer = load_tokenizer(path)
        return TextSide(tokenizer, load_chat_template(path, tokenizer), read_sentence_config(path))
    if path.suffix == ".gguf":
        from vivace.weights.files import open_weights  # the metadata alone is read, but the module needs torch

        file = open_weights(path)
        try:
            tokenizer = load_tokenizer(file.metadata)
            return TextSide(tokenizer, load_chat_template(file.metadata, tokenizer))
        finally:
            file.close()
    return TextSide(load_tokenizer(_llama2c_tokenizer(path)))


def _llama2c_tokenizer(checkpoint: Path) -> Path:
    """The tokenizer file beside a llama2.c checkpoint, whose format has no place for its name."""
    found = sorted(checkpoint.parent.glob("tok*.bin"))
    if len(found) != 1:
        listed = ", ".join(path.name for path in found) or "none"
        raise ModelError(
            f"{checkpoint.name} needs one tokenizer file (tok*.bin) beside it, found: {listed}",
            hint="put the checkpoint and its tokenizer into a folder of their own",
        )
    return found[0]
