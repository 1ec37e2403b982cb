"""Bodies of the OpenAI routes: every field typed and bounded; what has no effect or is not served stands in two tables.

Field names, types and ranges are those of the official OpenAPI description, as the official Python client types them;
fields under "beyond the official schema" are ours. Types are strict: "1" is no number, 1.0 no integer, true no float.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vivace.pipelines.checks import MAX_LOGPROBS

MAX_CHOICES = 128
MAX_STOPS = 16
MAX_INPUTS = 2048
INT64 = 2**63 - 1

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
Seed = Annotated[int, Field(ge=-(2**63), le=INT64)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Bias = Annotated[float, Field(ge=-100.0, le=100.0)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
StopText = Annotated[str, Field(min_length=1, max_length=1024)]
# Lists of unbounded length end at their first wrong item: millions of complaints would take longer than any answer.
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Inputs = (
    str
    | TokenIds
    | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
)

# Fields of the official schema that are accepted and change nothing, with the reason. The docs are generated from this.
IGNORED = {
    "user": "the caller is told apart by the API key, never by the body",
    "safety_identifier": "the caller is told apart by the API key, never by the body",
    "metadata": "nothing is stored",
    "store": "nothing is stored",
    "service_tier": "there is one tier",
    "prompt_cache_key": "prefixes are found by their content",
    "prompt_cache_options": "prefixes are found by their content",
    "prompt_cache_retention": "pages stay as long as memory allows",
    "prediction": "an answer does not depend on a predicted text",
    "parallel_tool_calls": "no tools are called",
    "verbosity": "the model has no such setting",
    "reasoning_effort": "the model has no such setting",
}

# Fields of the official schema that would change the answer but are not served: the values that ask for nothing pass.
NOT_SERVED: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "function_call": (None, "none"),
    "functions": (None, []),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "response_format": (None, {"type": "text"}),
    "suffix": (None,),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "web_search_options": (None,),
}


def _state_what_passes(schema: dict[str, Any]) -> None:
    """Put the values that pass for fields of NOT_SERVED into the JSON schema."""
    for name in NOT_SERVED.keys() & schema.get("properties", {}).keys():
        schema["properties"][name]["enum"] = list(NOT_SERVED[name])


class Wire(BaseModel):
    """Base of all bodies: strict types, no unknown fields, fields of NOT_SERVED refused by name."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, json_schema_extra=_state_what_passes)

    @model_validator(mode="before")
    @classmethod
    def _refuse_not_served(cls, data: Any) -> Any:
        for name in NOT_SERVED.keys() & (data.keys() if isinstance(data, dict) else ()) & cls.model_fields.keys():
            if data[name] not in NOT_SERVED[name]:
                raise ValueError(f"{name}: not served by this version")
        return data


class StreamOptions(Wire):
    """What a stream holds besides the answer."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[bool | None, Field(description="Accepted, no padding is ever sent.")] = None


class Sampling(Wire):
    """Fields that chat and text completions share."""

    model: Name
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Bias] | None, Field(max_length=1024)] = None
    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    presence_penalty: Penalty | None = None
    seed: Seed | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Probability | None = None
    user: Annotated[str, Field(max_length=4096)] | None = None
    # Beyond the official schema.
    ignore_eos: bool | None = None
    min_p: Probability | None = None
    min_tokens: Count | None = None
    repetition_penalty: Annotated[float, Field(gt=0.0, le=10.0)] | None = None
    speculation: Annotated[
        Name | Annotated[dict[Name, dict[str, Any]], Field(max_length=8)] | None,
        Field(description="A drafter by name, or with its fields; off: none. Changes the speed, never the answer."),
    ] = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=256)] | None = None
    top_k: Count | None = None

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Sampling:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed with stream: true")
        return self


class ContentPart(Wire):
    """A part of a message. Parts other than text need a model that takes them."""

    type: Literal["text", "refusal", "image_url", "input_audio", "file"]
    text: str | None = None
    refusal: str | None = None
    image_url: dict[str, Any] | None = None
    input_audio: dict[str, Any] | None = None
    file: dict[str, Any] | None = None
    prompt_cache_breakpoint: Any = None

    @model_validator(mode="after")
    def _has_its_content(self) -> ContentPart:
        if getattr(self, self.type) is None:
            raise ValueError(f"{self.type}: required in a part of type '{self.type}'")
        return self


class ToolFunction(Wire):
    """A call as the assistant wrote it: arguments are JSON text."""

    name: Name
    arguments: str


class ToolCall(Wire):
    id: Name
    type: Literal["function"]
    function: ToolFunction


class ChatMessage(Wire):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[ContentPart], Field(min_length=1, max_length=1024, fail_fast=True)] | None = None
    name: Name | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128, fail_fast=True)] | None = None
    tool_call_id: Name | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> ChatMessage:
        if self.content is None and not (self.role == "assistant" and (self.tool_calls or self.refusal)):
            raise ValueError("content: required in this message")
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError(f"tool_calls: only allowed in an assistant message, not in role '{self.role}'")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("tool_call_id: required in a message of role 'tool'")
        return self


class ChatRequest(Sampling):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096, fail_fast=True)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    max_completion_tokens: Count | None = None
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    metadata: Annotated[dict[str, str] | None, Field(max_length=64)] = None
    modalities: Any = None
    moderation: Any = None
    parallel_tool_calls: bool | None = None
    prediction: dict[str, Any] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=4096)] | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    reasoning_effort: Annotated[str, Field(max_length=16)] | None = None
    response_format: Any = None
    safety_identifier: Annotated[str, Field(max_length=4096)] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    store: bool | None = None
    tool_choice: Any = None
    tools: Any = None
    verbosity: Literal["low", "medium", "high"] | None = None
    web_search_options: Any = None
    # Beyond the official schema.
    add_generation_prompt: bool | None = None
    chat_template_kwargs: Annotated[dict[str, bool | int | float | str] | None, Field(max_length=64)] = None
    continue_final_message: bool | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: only allowed with logprobs: true")
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise ValueError("max_tokens: different from max_completion_tokens; give one of them")
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("continue_final_message: not possible together with add_generation_prompt")
        return self


class CompletionRequest(Sampling):
    """POST /v1/completions."""

    prompt: Inputs
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    suffix: Any = None
    # Beyond the official schema.
    parse_special: Annotated[bool | None, Field(description="Text that spells control tokens becomes them.")] = None

    @model_validator(mode="after")
    def _best_of_is_n(self) -> CompletionRequest:
        if self.best_of not in (None, self.n or 1):
            raise ValueError(f"best_of: {self.best_of}, expected {self.n or 1} (n): candidates are not ranked")
        return self


class EmbeddingRequest(Wire):
    """POST /v1/embeddings."""

    model: Name
    input: Inputs
    dimensions: Annotated[int, Field(ge=1, le=2**20)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: Annotated[str, Field(max_length=4096)] | None = None
    # Beyond the official schema.
    normalize: bool | None = None
    prompt_name: Name | None = None
    truncate: Annotated[bool, Field(description="Cut an input that is too long instead of refusing it.")] = False


class TokenizeRequest(Wire):
    """POST /tokenize: a text (`prompt`) or a conversation (`messages`) as the model would receive it."""

    model: Name
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096, fail_fast=True)] | None = None
    add_special_tokens: bool = True
    parse_special: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt: to be given without messages, or messages without prompt")
        return self


class DetokenizeRequest(Wire):
    """POST /detokenize."""

    model: Name
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]
