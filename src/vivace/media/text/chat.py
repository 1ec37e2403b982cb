"""Chat templates: messages to typed segments, rendered as transformers renders them, and those to token ids.

Only what the template itself wrote may become special tokens. Text of messages, names, tools and variables stays plain
text, whatever the template does with it (see `provenance`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from types import CodeType
from typing import Any

import jinja2

from vivace.errors import InvalidRequest, ModelError, UnknownName, nearest
from vivace.media.text.builtin_templates import BUILTIN_TEMPLATES
from vivace.media.text.meter import BudgetSpentError, Meter
from vivace.media.text.provenance import CONTINUED, TEMPLATE, join, mark_data, mark_whole, marks_of
from vivace.media.text.sandbox import MAX_SOURCE, ChatEnvironment, TemplateError
from vivace.media.text.tokenizer import Segment, Tokenizer

# Stands at the end of the message to continue. Its space shows whether the template trims the ends of messages.
_CONTINUE_MARK = "\uf8ff "
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """A compiled chat template. `special_tokens` are variables for it, such as bos_token."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        """Raises ModelError when the template is damaged, too long, or uses what the sandbox does not offer."""
        self.source = source
        self.special_tokens = dict(special_tokens or {})
        self._code = _compile(source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> list[Segment]:
        """Return the conversation as typed segments.

        `continue_final_message` ends the text within the last message, so that the answer goes on with it; it excludes
        `add_generation_prompt`. `variables` are further names for the template, such as enable_thinking; `now` is the
        time that it sees. Raises InvalidRequest (field "messages") where the template refuses or cannot render the
        messages, ModelError where it exceeds its bounds.
        """
        chat = _normalise(messages)
        if continue_final_message:
            if add_generation_prompt:
                raise InvalidRequest(
                    "continue_final_message and add_generation_prompt exclude each other",
                    field="continue_final_message",
                    hint="set add_generation_prompt to false",
                )
            final = _mark_final(chat)
        context = {
            "documents": None,
            **self.special_tokens,
            **mark_data(dict(variables or {})),
            "messages": chat,
            "tools": mark_data(tools),
            "add_generation_prompt": add_generation_prompt,
        }
        text = _render(self._code, context, now)
        if continue_final_message:
            text = _cut_after_final(text, final)
        return _segments(text)


def encode_chat(tokenizer: Tokenizer, segments: Sequence[Segment]) -> list[int]:
    """Return the ids of a rendered conversation, with at most one BOS in front.

    As in transformers, a template that writes no BOS gets none.
    """
    ids = tokenizer.encode_segments(segments)
    while tokenizer.bos_id is not None and ids[:2] == [tokenizer.bos_id] * 2:
        del ids[0]
    return ids


def load_chat_template(
    source: Path | Mapping[str, Any], tokenizer: Tokenizer, name: str = "default"
) -> ChatTemplate | None:
    """Return the template of a Hugging Face folder or of a GGUF file's metadata, or None if there is none.

    Files may hold several, told apart by `name`.
    """
    if isinstance(source, Mapping):
        text = source.get("tokenizer.chat_template" if name == "default" else f"tokenizer.chat_template.{name}")
        return ChatTemplate(text, _token_names(tokenizer)) if isinstance(text, str) else None
    config = _read_object(source / "tokenizer_config.json")
    text = _folder_template(source, config, name)
    if text is None:
        return None
    names = {key: _content(config[key]) for key in _NAMED_TOKENS if config.get(key)}
    return ChatTemplate(text, {**_token_names(tokenizer), **names})


def builtin_chat_template(name: str, tokenizer: Tokenizer) -> ChatTemplate:
    """Return a template of this module's own list, for a file that brings none. Raises UnknownName."""
    if name not in BUILTIN_TEMPLATES:
        raise UnknownName(
            f"unknown chat template '{name}'", field="chat_template", hint=nearest(name, BUILTIN_TEMPLATES)
        )
    return ChatTemplate(BUILTIN_TEMPLATES[name], _token_names(tokenizer))


def _compile(source: str) -> CodeType:
    if len(source) > MAX_SOURCE:
        raise ModelError(f"the chat template has {len(source)} characters, at most {MAX_SOURCE} are allowed")
    try:
        return ChatEnvironment(Meter()).compile(source)
    except (jinja2.TemplateError, SyntaxError, ValueError, RecursionError, MemoryError, BudgetSpentError) as error:
        raise ModelError(
            f"the model's chat template cannot be used: {error}",
            hint="use the model without a template: --raw, or /v1/completions",
        ) from error


def _render(code: CodeType, context: Mapping[str, Any], now: datetime | None) -> str:
    environment = ChatEnvironment(Meter.for_data(*context.values()), now)
    template = jinja2.Template.from_code(environment, code, environment.make_globals(None))
    try:
        return template.render(context)
    except TemplateError as error:
        raise InvalidRequest(f"the chat template refuses these messages: {error}", field="messages") from error
    except (BudgetSpentError, RecursionError, MemoryError, OverflowError) as error:
        raise ModelError(
            f"the chat template exceeds its bounds: {error}",
            hint="use the model without a template: --raw, or /v1/completions",
        ) from error
    except jinja2.exceptions.SecurityError as error:
        raise ModelError(
            f"the chat template does what is not allowed: {error}",
            hint="use the model without a template: --raw, or /v1/completions",
        ) from error
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise InvalidRequest(
            f"the chat template cannot render these messages: {error}",
            field="messages",
            hint="check that each message has the role and content that this model's template expects",
        ) from error


def _normalise(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages as marked plain data, without null fields, the reasoning under each name it goes by."""
    if not messages:
        raise InvalidRequest("there are no messages, expected at least one", field="messages")
    chat = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequest(
                f"message {index} is {type(message).__name__} without a role, expected an object with a role",
                field=f"messages.{index}",
            )
        present = {key: value for key, value in message.items() if value is not None}
        reasoning = next((present[key] for key in _REASONING_FIELDS if key in present), None)
        if reasoning is not None:
            present = {"thinking": reasoning, **present, "reasoning_content": reasoning}
        chat.append(mark_data(present))
    return chat


def _mark_final(chat: list[dict[str, Any]]) -> str:
    """Mark the text of the last message as the one to continue, and return that text."""
    content = chat[-1].get("content")
    holder, key = chat[-1], "content"
    if isinstance(content, list):
        texts = [part for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if texts:
            holder, key = texts[-1], "text"
    text = holder.get(key)
    if not isinstance(text, str):
        raise InvalidRequest(
            "continue_final_message is set, but the last message has no text to continue", field="messages"
        )
    holder[key] = text + mark_whole(_CONTINUE_MARK, CONTINUED)
    return str.__str__(text)


def _cut_after_final(text: str, final: str) -> str:
    """Return the text up to the end of the message to continue."""
    marks = marks_of(text)
    end = marks.rfind(CONTINUED)
    is_trimmed = end >= 0 and text[end] != _CONTINUE_MARK[-1]
    end -= 0 if is_trimmed else 1
    if end < 0 or text[end] != _CONTINUE_MARK[0] or final.strip() not in text:
        raise InvalidRequest(
            "continue_final_message is set, but this model's chat template leaves out or changes the last message",
            field="continue_final_message",
            hint="end with a message of the user and let the model begin a new answer",
        )
    # A template may write the message elsewhere too, so the mark is taken out there.
    kept = text[:end]
    if CONTINUED in marks[:end]:
        kept = join("", [char for char in kept if marks_of(char) != bytes([CONTINUED])])
    return kept.rstrip() if is_trimmed else kept


def _segments(text: str) -> list[Segment]:
    """Return runs of equal origin."""
    found = []
    position = 0
    for is_template, run in groupby(marks_of(text), key=TEMPLATE.__eq__):
        end = position + len(list(run))
        found.append(Segment(str.__str__(text[position:end]), bool(is_template)))
        position = end
    return found


def _token_names(tokenizer: Tokenizer) -> dict[str, str]:
    ids = {
        "bos_token": tokenizer.bos_id,
        "eos_token": tokenizer.vocabulary.eos_id,
        "unk_token": tokenizer.vocabulary.unk_id,
    }
    return {name: tokenizer.token_text(token_id) for name, token_id in ids.items() if token_id is not None}


def _folder_template(folder: Path, config: Mapping[str, Any], name: str) -> str | None:
    """Return the template text: chat_template.jinja comes before the entry in tokenizer_config.json."""
    if name != "default":
        extra = folder / "additional_chat_templates" / f"{Path(name).name}.jinja"
    else:
        extra = folder / "chat_template.jinja"
    if extra.is_file():
        return extra.read_text("utf-8")
    entry = config.get("chat_template") or _read_object(folder / "chat_template.json").get("chat_template")
    if isinstance(entry, list):
        entry = {item.get("name"): item.get("template") for item in entry if isinstance(item, Mapping)}
    if isinstance(entry, Mapping):
        entry = entry.get(name)
    elif name != "default":
        entry = None
    return entry if isinstance(entry, str) else None


def _read_object(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}", hint="download the file again") from error
    return value if isinstance(value, Mapping) else {}


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, Mapping) else token)
