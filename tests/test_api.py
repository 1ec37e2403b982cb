"""The Python interface: load, generate, stream, chat, embed, their async twins, and options that check themselves."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vivace
from tests.serve.encoder import make_tiny_encoder
from vivace.api import Completion, Engine, Model, Options
from vivace.api.session import Collector, Session, error_of
from vivace.config import EngineConfig
from vivace.errors import (
    ConfigError,
    ContextLengthExceeded,
    EngineDied,
    EngineError,
    InvalidRequest,
    StepFailed,
    UnknownModel,
    UnknownName,
)
from vivace.pipelines.requests import EmbedRequest, GenerateRequest, Reply, TokenLogprob, Tokens, Usage, described
from vivace.techniques import index
from vivace.techniques.base import Real, Whole

TINY = Path(__file__).parent / "assets" / "tiny-llama"
CONFIG = EngineConfig(kernels="rows", threads=1, kv_bytes=16 << 20)  # "rows": equal to the bit in any batch
PROMPT = "One day the bear found"
REPEATING = "One day the cat found a red ball. One day the cat"
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with vivace.load(str(TINY), config=CONFIG) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with vivace.load(str(make_tiny_encoder(tmp_path_factory.mktemp("models") / "bert")), config=CONFIG) as loaded:
        yield loaded


def test_joined_deltas_equal_the_completion(model: Model) -> None:
    whole = model.generate(PROMPT, max_tokens=20, logprobs=1)
    deltas = list(model.stream(PROMPT, max_tokens=20, logprobs=1))
    assert "".join(delta.text for delta in deltas) == whole.text == str(whole)
    assert tuple(token for delta in deltas for token in delta.tokens) == whole.tokens
    assert deltas[-1].finish_reason == whole.finish_reason and deltas[-1].usage is not None
    assert whole.usage.generated == len(whole.ids) == 20
    assert "".join(token.text for token in whole.tokens) == whole.text


def test_a_batch_comes_back_in_order(model: Model) -> None:
    prompts = [PROMPT, "The cat", "One day"]
    together = model.generate(prompts, max_tokens=10)
    assert [found.text for found in together] == [model.generate(each, max_tokens=10).text for each in prompts]


def test_ids_are_a_prompt_too(model: Model) -> None:
    assert model.generate(model.tokenize(PROMPT), max_tokens=10).text == model.generate(PROMPT, max_tokens=10).text
    assert model.detokenize(model.tokenize(PROMPT)) == PROMPT


def test_chat_uses_the_template(model: Model) -> None:
    by_text = model.chat("What is the capital of France?", max_tokens=10)
    by_messages = model.chat(MESSAGES, max_tokens=10)
    by_ids = model.generate(model.chat_ids(MESSAGES), max_tokens=10)
    assert by_text.text == by_messages.text == by_ids.text
    assert "".join(delta.text for delta in model.chat_stream(MESSAGES, max_tokens=10)) == by_text.text


def test_async_twins_give_the_same(model: Model, encoder: Model) -> None:
    async def ask() -> tuple[Completion, Any, list[str], Completion, str, Any]:
        first, several = await asyncio.gather(
            model.agenerate(PROMPT, max_tokens=10), model.agenerate([PROMPT, "The cat"], max_tokens=10)
        )
        pieces = [delta.text async for delta in model.astream(PROMPT, max_tokens=10)]
        chat = await model.achat(MESSAGES, max_tokens=10)
        chat_text = "".join([delta.text async for delta in model.achat_stream(MESSAGES, max_tokens=10)])
        return first, several, pieces, chat, chat_text, await encoder.aembed(["the cat", "moon"])

    first, several, pieces, chat, chat_text, vectors = asyncio.run(ask())
    expected = model.generate(PROMPT, max_tokens=10).text
    assert first.text == several[0].text == "".join(pieces) == expected
    assert chat.text == chat_text == model.chat(MESSAGES, max_tokens=10).text
    assert np.array_equal(vectors[1].vector, encoder.embed("moon").vector)


def test_leaving_a_stream_early_cancels_the_job(model: Model) -> None:
    engine = model._port
    assert isinstance(engine, Engine)
    before = engine.stats()["jobs_cancelled"]
    for _ in model.stream(PROMPT, max_tokens=900, ignore_eos=True):
        break

    async def leave() -> None:
        async with aclosing(model.astream(PROMPT, max_tokens=900, ignore_eos=True)) as deltas:
            async for _ in deltas:
                break

    asyncio.run(leave())
    model.generate(PROMPT, max_tokens=1)  # a step later
    assert engine.stats()["jobs_cancelled"] == before + 2


def test_embeddings_have_the_stated_size_and_may_be_cut(encoder: Model) -> None:
    one = encoder.embed("the cat sat")
    several = encoder.embed(["the cat sat", "a dog"])
    assert one.vector.shape == (32,) and one.vector.dtype == np.float32 and one.usage.prompt == 5
    assert np.array_equal(several[0].vector, one.vector)
    assert np.isclose(np.linalg.norm(one.vector), 1)
    assert encoder.embed("the cat", dimensions=8).vector.shape == (8,)
    assert not np.isclose(np.linalg.norm(encoder.embed("the cat", normalize=False).vector), 1)
    assert np.array_equal(encoder.embed("cat " * 50).vector, encoder.embed("cat " * 22).vector), "cut as its files say"
    with pytest.raises(ContextLengthExceeded, match="52 tokens"):
        encoder.embed("cat " * 50, truncate=False)


def test_one_engine_holds_several_models(tmp_path: Path) -> None:
    with Engine(CONFIG) as engine:
        engine.add_model(str(TINY), name="a")
        engine.add_model(str(make_tiny_encoder(tmp_path / "bert")), name="b")
        with pytest.raises(ConfigError, match="its name is taken"):
            engine.add_model(str(TINY), name="a")
        first = Model(engine.models["a"], engine.texts["a"], engine)
        second = Model(engine.models["b"], engine.texts["b"], engine)
        assert first.generate(PROMPT, max_tokens=3).usage.generated == 3
        assert second.embed("moon").vector.shape == (32,)
        with pytest.raises(InvalidRequest, match="is for 'embed'"):
            second.generate(PROMPT)
        with pytest.raises(InvalidRequest, match="is for 'generate'"):
            first.embed("moon")
        with pytest.raises(ConfigError, match="runs already"):
            engine.add_model(str(TINY), name="c")
        with pytest.raises(InvalidRequest, match="the request is not"):
            engine.submit("a", EmbedRequest((1,)), lambda reply: None)
        with pytest.raises(UnknownModel, match="unknown model 'x'"):
            engine.submit("x", GenerateRequest((1,)), lambda reply: None)


def test_engines_side_by_side_do_not_disturb_each_other() -> None:
    """Four engines, each with a pool of its own, answer at once what each of them answers alone."""
    with ExitStack() as stack:
        models = [
            stack.enter_context(vivace.load(str(TINY), config=replace(CONFIG, kernels="auto", threads=threads)))
            for threads in (1, 2, 2, 7)
        ]

        def answer(model: Model) -> Completion:
            return model.generate(PROMPT, max_tokens=40, ignore_eos=True, logprobs=2)

        alone = answer(models[0])
        with ThreadPoolExecutor(len(models)) as callers:
            for _ in range(5):
                assert all(found.tokens == alone.tokens for found in callers.map(answer, models))


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="this system cannot signal a thread")
def test_ctrl_c_ends_the_request_and_the_model_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with vivace.load(str(TINY), config=replace(CONFIG, kernels="auto", threads=2)) as model:
        expected = model.generate(PROMPT, max_tokens=10)
        engine, main, submit = model._port, threading.main_thread().ident, model._port.submit
        assert isinstance(engine, Engine) and main is not None

        def submit_and_interrupt(name: str, request: Any, take: Callable[[Reply], None], *more: Any) -> Any:
            places = itertools.count()

            def take_and_interrupt(reply: Reply) -> None:
                take(reply)
                if next(places) == 3:
                    signal.pthread_kill(main, signal.SIGINT)

            return submit(name, request, take_and_interrupt, *more)

        with monkeypatch.context() as patch:
            patch.setattr(engine, "submit", submit_and_interrupt)
            with pytest.raises(KeyboardInterrupt):
                model.generate(PROMPT, max_tokens=1000, ignore_eos=True)
        assert model.generate(PROMPT, max_tokens=10).tokens == expected.tokens  # a step later
        assert engine.stats()["jobs_cancelled"] == 1


def test_closing_ends_what_is_in_flight_and_refuses_more() -> None:
    engine = Engine(CONFIG)
    info = engine.add_model(str(TINY))
    ended = threading.Event()
    replies: list[Reply] = []

    def take(reply: Reply) -> None:
        replies.append(reply)
        if reply.finished:
            ended.set()

    engine.submit(info.name, GenerateRequest((5, 6), max_tokens=1000, ignore_eos=True), take)
    engine.close()
    assert ended.wait(30)
    assert replies[-1].finished in ("cancelled", "error")
    with pytest.raises(EngineDied):
        engine.submit(info.name, GenerateRequest((5, 6)), take)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"max_token": 1}, "did you mean 'max_tokens'"),
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_k": True}, "top_k is True"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5"),
        ({"logprobs": 21}, "from 0 to 20"),
        ({"logit_bias": {"a": 1}}, "expected token ids as keys"),
        ({"logit_bias": {5: 101}}, "logit_bias.5 is 101"),
        ({"logit_bias": {384: 1}}, "the vocabulary of 'tiny-llama' has 384"),
        ({"stop": ""}, "stop is ''"),
        ({"stop": [1]}, "none of them empty"),
        ({"stop_token_ids": [384]}, "stop_token_ids has the token id 384"),
        ({"stop_token_ids": "1"}, "a list of token ids"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"ignore_eos": 1}, "ignore_eos is 1"),
        ({"max_tokens": 1024}, "the context holds 1024 tokens, the prompt has"),
        ({"min_tokens": 5, "max_tokens": 2}, "expected at most max_tokens, 2"),
    ],
)
def test_a_wrong_option_is_refused_by_name(model: Model, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        model.generate(PROMPT, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize("prompt", [b"abc", None, 5, {"a": 1}, {"a"}, np.array([5, 6]), ["a", 5], ["a", b"b"], [1.5]])
def test_what_is_no_prompt_is_refused_by_its_type(model: Model, encoder: Model, prompt: Any) -> None:
    with pytest.raises(InvalidRequest, match="is of type"):
        model.generate(prompt, max_tokens=1)
    with pytest.raises(InvalidRequest, match="is of type"):
        encoder.embed(prompt)


def test_ids_may_come_as_any_sequence(model: Model) -> None:
    assert model.generate((5, 6), max_tokens=3).text == model.generate(range(5, 7), max_tokens=3).text
    assert model.generate([], max_tokens=1) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 10**400}, "temperature is a number of 1329 bits"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"seed": 10**5000}, "seed is a number of 16610 bits"),
        ({"logit_bias": {5: -(10**400)}}, "logit_bias.5 is a number of"),
    ],
)
def test_a_number_beyond_all_bounds_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        Options(**options)


def test_parts_of_a_message_are_its_text(model: Model) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert model.chat_ids([{"role": "user", "content": parts}]) == model.chat_ids("one\ntwo")
    for content in (5, [{"type": "image_url", "image_url": {}}], ["one"], {"type": "text", "text": "one"}):
        with pytest.raises(InvalidRequest, match=r"messages\.0\.content is of type"):
            model.chat([{"role": "user", "content": content}])
    with pytest.raises(InvalidRequest, match="messages is of type NoneType"):
        model.chat(None)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="did you mean 'add_generation_prompt'"):
        model.chat("one", template={"add_generation_promt": False})


def test_a_fork_is_told_to_load_the_model_itself(model: Model) -> None:
    model.generate(PROMPT, max_tokens=1)
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        status = 1
        try:
            model.generate(PROMPT, max_tokens=1)
        except EngineDied as error:
            status = 0 if "load the model in the process" in error.hint else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert model.generate(PROMPT, max_tokens=1).usage.generated == 1


def test_a_wrong_prompt_is_refused(model: Model) -> None:
    with pytest.raises(InvalidRequest, match="prompt is empty"):
        model.generate("")
    with pytest.raises(InvalidRequest, match="prompt has the token id 384"):
        model.generate([384])
    with pytest.raises(ContextLengthExceeded, match="shorten the prompt"):
        model.generate([5] * 1024)
    assert model.generate([5] * 1020, ignore_eos=True).usage.generated == 4, (
        "without max_tokens the context is the limit"
    )


def test_options_accept_what_techniques_accept() -> None:
    defaults = Options()
    for name in index.SAMPLING:
        if name in ("logit_bias", "min_tokens"):
            continue
        (field,) = dataclasses.fields(index.SAMPLING.load(name))
        assert getattr(defaults, name) == field.default, f"{name}: both must be off by default"
        check = field.metadata["check"]
        assert isinstance(check, Real | Whole)
        low = check.low if check.low is not None else getattr(check, "above", None)
        for value in (low, check.high):
            if value is None:
                continue
            options = Options(**{name: max(value, 1e-3) if name == "repetition_penalty" else value})
            index.parse(index.SAMPLING, options.request([1]).sampling)
            with pytest.raises(InvalidRequest):
                Options(**{name: value + 1 if value == check.high else value - 1})


def test_every_option_reaches_the_engine() -> None:
    options = Options(
        max_tokens=5, temperature=0.5, top_k=3, top_p=0.0, min_p=0.1, presence_penalty=1.0, frequency_penalty=-1.0,
        repetition_penalty=1.2, logit_bias={7: -100}, min_tokens=2, stop="x", stop_token_ids=[9], ignore_eos=True,
        seed=-1, logprobs=2, prompt_logprobs=0,
    )  # fmt: skip
    request = options.request([1, 2])
    assert request.sampling.keys() == set(index.SAMPLING) - {"min_tokens"}
    assert request.seed == 2**64 - 1 and request.stop_ids == (9,) and request.min_tokens == 2
    assert (request.logprobs, request.prompt_logprobs, request.ignore_eos) == (2, 0, True)
    assert Options().request([1]).sampling == {}, "without options the engine takes the likeliest token"
    assert Options().request([1]).seed != Options().request([1]).seed
    with pytest.raises(UnknownName):
        Options.of({"nonsense": 1})


def test_any_grouping_of_replies_gives_the_same_answer(model: Model) -> None:
    """Chunk invariance of text, tokens and log-probabilities, with stop strings and characters cut in two."""
    tokenizer = model.text.tokenizer
    ids = tokenizer.encode("héllo wörld 日本語 🙂 the end. And a stop<|im_end|>here, then more")
    entries = [TokenLogprob(token_id, -0.1 * place, ((token_id, -0.1 * place),)) for place, token_id in enumerate(ids)]
    random_cuts = random.Random(5)
    for stop in ((), ("stop<|im",), ("本",), ("end. A", "zzz"), ("🙂",), ("more and",)):
        options = Options(stop=stop, logprobs=1, seed=1)
        found = set()
        for group in [1, 2, 3, 7, len(ids), 0, 0, 0]:
            session, collector = Session(tokenizer, [5], options), Collector()
            for first, last in _cuts(len(ids), group, random_cuts):
                _feed(session, collector, Reply(Tokens(tuple(ids[first:last]), tuple(entries[first:last]))))
            _feed(session, collector, Reply(finished="length", usage=Usage(1, len(ids), 0)))
            answer = collector.completion()
            assert "".join(token.text for token in answer.tokens) == answer.text
            found.add((answer, answer.usage.generated))
        assert len(found) == 1
        answer, _ = found.pop()
        text = tokenizer.decode(ids)
        cut = min((text.index(each) for each in stop if each in text), default=len(text))
        assert answer.text == text[:cut]


def test_errors_travel_as_code_and_message() -> None:
    assert isinstance(error_of("step_failed", "m", "h"), StepFailed)
    assert isinstance(error_of("context_length_exceeded", "m", "h"), ContextLengthExceeded)
    assert isinstance(error_of("nobody knows", "m", ""), EngineError)
    assert error_of("invalid_value", "m", "h").hint == "h"
    named = InvalidRequest("m", field="max_tokens", hint="h")
    found = error_of(*described(named))
    assert isinstance(found, InvalidRequest) and found.field == "max_tokens"


def test_public_names_are_all_there() -> None:
    assert all(hasattr(vivace, name) for name in vivace.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = vivace.nothing
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = vivace.api.nothing


@pytest.mark.parametrize("module", ["vivace", "vivace.api", "vivace.serve.run"])
def test_importing_does_not_bring_torch(module: str) -> None:
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def _cuts(count: int, group: int, chooser: random.Random) -> Iterator[tuple[int, int]]:
    """Ranges that cover 0 .. count: of `group` each, or random ones for 0."""
    edges = list(range(0, count, group)) if group else sorted(chooser.sample(range(1, count), count // 3))
    return itertools.pairwise([0, *(edge for edge in edges if edge), count])


def _feed(session: Session, collector: Collector, reply: Reply) -> None:
    delta = session.feed(reply)
    if delta is not None:
        collector.add(delta)


def test_speculation_changes_no_answer_and_is_counted(model: Model) -> None:
    for options in ({}, {"temperature": 0.8, "seed": 3}, {"stop": " the"}, {"stop": "e"}):
        plain = model.generate(PROMPT, max_tokens=60, logprobs=1, **options)
        for choice in ("ngram", {"ngram": {"k": 12, "min_n": 1}}):
            drafted = model.generate(PROMPT, max_tokens=60, logprobs=1, speculation=choice, **options)
            assert (drafted.text, drafted.tokens, drafted.finish_reason) == (
                plain.text,
                plain.tokens,
                plain.finish_reason,
            )
            assert drafted.usage.generated == plain.usage.generated
    told = model.generate(PROMPT, max_tokens=60, speculation={"ngram": {"min_n": 1}}).usage
    assert told.accepted + told.rejected > 0


def test_stats_say_what_guessing_was_worth() -> None:
    with Engine(dataclasses.replace(CONFIG, speculation="ngram")) as engine:
        info = engine.add_model(str(TINY), name="tiny")
        loaded = Model(info, engine.texts["tiny"], engine)
        loaded.generate(REPEATING, max_tokens=40)
        lane = engine.stats()["lanes"]["tiny"]
        loaded.generate(REPEATING, max_tokens=40, speculation="off")
        assert engine.stats()["lanes"]["tiny"]["speculation"] == lane["speculation"]
    report = lane["speculation"]
    assert report["drafted"] >= report["accepted"] == report["steps_saved"]
    assert report["drafted"] > 0 and report["acceptance_rate"] == report["accepted"] / report["drafted"]


@pytest.mark.parametrize("choice", ["ngrams", {"ngram": {"k": -1}}, 7, {"ngram": 3}])
def test_a_bad_speculation_is_refused(choice: Any) -> None:
    with pytest.raises(InvalidRequest):
        Options(speculation=choice)
