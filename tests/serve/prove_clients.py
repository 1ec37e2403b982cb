"""The official openai client against a real server: chat, completions, embeddings, logprobs, seed, stop, errors.

Small size: the tiny models of the tests. Full size: smollm2 and minilm, fetched if they are not cached.
"""

from __future__ import annotations

import base64
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openai

from tests.proof import Proof
from tests.serve.encoder import make_tiny_encoder
from tests.serve.server import TINY, Server, serving

MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]


def main() -> None:
    with Proof("clients", __doc__) as proof, tempfile.TemporaryDirectory() as folder:
        tiny = [TINY, make_tiny_encoder(Path(folder) / "tiny-bert")]
        models = ["smollm2", "minilm"] if proof.is_full else tiny
        engine = {"kernels": "auto", "kv_bytes": 256 << 20, "threads": None} if proof.is_full else {}
        with serving(models, engine=engine) as server:
            client = server.client()
            chat, embed = (model.id for model in client.models.list())
            proof.say(f"models: {chat}, {embed}; openai {openai.__version__}")
            check_chat(proof, client, chat)
            check_completions(proof, client, chat)
            check_logprobs(proof, client, chat)
            check_embeddings(proof, client, server, embed)
            check_errors(proof, client, chat)
            proof.demand(server.jobs() == 0 and server.taken_pages() == 0, "no job and no page is left")


def check_chat(proof: Proof, client: openai.OpenAI, model: str) -> None:
    """Whole and streamed, n choices, usage, stop, seed."""
    options: dict[str, Any] = {"model": model, "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**options)
    text = whole.choices[0].message.content or ""
    proof.say(f"  answer: {text!r}")
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    joined = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    proof.demand(bool(text) and joined == text, "chat: the streamed text equals the whole one")
    proof.demand(
        chunks[-1].choices == [] and _same_counts(chunks[-1], whole),
        "chat: the last chunk has empty choices and the usage of the whole answer",
    )
    stop = text[len(text) // 2 :][:3]
    stopped = client.chat.completions.create(**options, stop=stop).choices[0]
    proof.demand(
        stopped.message.content == text[: text.index(stop)] and stopped.finish_reason == "stop",
        f"chat: the stop string {stop!r} ends the answer before it",
    )
    hot = {**options, "temperature": 2.0, "seed": 42, "n": 3}
    first, second = (client.chat.completions.create(**hot) for _ in range(2))
    texts = [[choice.message.content for choice in found.choices] for found in (first, second)]
    proof.demand(texts[0] == texts[1], "chat: the same seed gives the same three choices")
    proof.demand(len(set(texts[0])) > 1, "chat: choices of one request differ")


def check_completions(proof: Proof, client: openai.OpenAI, model: str) -> None:
    """Several prompts, echo, streaming."""
    options: dict[str, Any] = {"model": model, "prompt": "One day the", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**options)
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**options, stream=True))
    proof.demand(streamed == whole.choices[0].text, "completions: the streamed text equals the whole one")
    several = client.completions.create(**{**options, "prompt": ["One day the", "The sun"]})
    proof.demand(several.choices[0].text == whole.choices[0].text, "completions: a batch of prompts keeps its order")
    echoed = client.completions.create(**options, echo=True).choices[0].text
    proof.demand(echoed == "One day the" + whole.choices[0].text, "completions: echo puts the prompt in front")


def check_logprobs(proof: Proof, client: openai.OpenAI, model: str) -> None:
    """Both schemas."""
    found = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=12, temperature=0, logprobs=True, top_logprobs=5
    ).choices[0]
    entries = (found.logprobs and found.logprobs.content) or []
    data = b"".join(bytes(entry.bytes or []) for entry in entries)
    proof.demand(bool(entries) and data.decode() == found.message.content, "logprobs: bytes of the tokens are the text")
    proof.demand(
        all(entry.logprob == entry.top_logprobs[0].logprob for entry in entries),
        "logprobs: at temperature 0 the token is the likeliest candidate",
    )
    proof.demand(
        all(sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1 + 1e-6 for entry in entries),
        "logprobs: candidates are probabilities",
    )
    scores = client.completions.create(model=model, prompt="One day the", max_tokens=0, echo=True, logprobs=1).choices[
        0
    ]
    tokens = (scores.logprobs and scores.logprobs.tokens) or []
    proof.demand("".join(tokens) == scores.text == "One day the", "logprobs: a prompt is scored token by token")


def check_embeddings(proof: Proof, client: openai.OpenAI, server: Server, model: str) -> None:
    """Floats and base64."""
    texts = ["the cat sat on the mat", "the sun is bright"]
    by_default = [item.embedding for item in client.embeddings.create(model=model, input=texts).data]
    floats = [
        item.embedding for item in client.embeddings.create(model=model, input=texts, encoding_format="float").data
    ]
    reply = server.post("/v1/embeddings", {"model": model, "input": texts, "encoding_format": "base64"}).json()
    raw = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in reply["data"]]
    same = np.array_equal(np.float32(by_default), np.float32(floats)) and np.array_equal(raw, np.float32(floats))
    proof.demand(same, f"embeddings: floats and base64 hold the same {len(raw[0])} numbers")


def check_errors(proof: Proof, client: openai.OpenAI, model: str) -> None:
    """Errors become the client's own classes, with field and code."""
    wrong: list[tuple[dict[str, Any], type[openai.APIStatusError], str | None]] = [
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"max_tokens": 10**6}, openai.BadRequestError, "max_tokens"),
        ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "temprature"),
        ({"model": "nothing"}, openai.NotFoundError, "model"),
        ({"messages": []}, openai.BadRequestError, "messages"),
    ]
    for change, kind, field in wrong:
        try:
            client.chat.completions.create(**{"model": model, "messages": MESSAGES, **change})
            caught: openai.APIStatusError | None = None
        except openai.APIStatusError as error:
            caught = error
        is_right = isinstance(caught, kind) and caught.param == field
        proof.demand(is_right, f"errors: {change} raises {kind.__name__} for '{field}'")


def _same_counts(chunk: Any, whole: Any) -> bool:
    keys = ("prompt_tokens", "completion_tokens", "total_tokens")
    return all(getattr(chunk.usage, key) == getattr(whole.usage, key) for key in keys)


if __name__ == "__main__":
    main()
