"""A forward pass calls operations, and besides them takes views only: what a recorded step needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    BertConfig,
    BertModel,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.oracle import test_bert, test_gemma3, test_llama, test_qwen3
from tests.oracle.compare import LIMIT, Maker
from tests.oracle.driver import Driver, encode
from vivace.kernels.select import BoundOps, resolve

pytestmark = pytest.mark.oracle

VIEWS = {"view", "slice", "select", "split", "split_with_sizes", "alias", "detach", "as_strided", "t", "_unsafe_view"}
DECODERS = [
    (test_llama.CASES[0], LlamaConfig, LlamaForCausalLM),
    (test_qwen3.CASES[0], Qwen3Config, Qwen3ForCausalLM),
    (test_gemma3.CASES[1], Gemma3TextConfig, Gemma3ForCausalLM),
]


class Watch(TorchDispatchMode):
    """Notes every call into torch that is made outside an operation and is no view."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0
        self.operations = 0
        self.outside: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split("::")[-1].split(".")[0]
        if not self.depth and name not in VIEWS:
            self.outside.append(name)
        return func(*args, **(kwargs or {}))

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.operations += not self.depth
            self.depth += 1
            try:
                return call(*args, **kwargs)
            finally:
                self.depth -= 1

        return wrapped


class WatchedModel:
    """A model whose methods run under a Watch."""

    def __init__(self, model: Any, watch: Watch) -> None:
        self._model, self._watch = model, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, *args: Any) -> Any:
        with self._watch:
            return self._model.forward(*args)

    def logits(self, *args: Any) -> Any:
        with self._watch:
            return self._model.logits(*args)


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def watched_ops(watch: Watch) -> BoundOps:
    ops = resolve(choice="ref")
    for name, bound in ops.bound.items():
        setattr(ops, name, watch.wrap(bound.call))
    return ops


@pytest.mark.parametrize(("case", "config", "kind"), DECODERS, ids=lambda value: str(getattr(value, "__name__", value)))
def test_a_decoders_step_is_operations_and_views(
    case: Any, config: Any, kind: Any, tmp_path: Path, watch: Watch, watched_ops: BoundOps
) -> None:
    made = Maker(tmp_path, config, kind)(case)
    driver = Driver(WatchedModel(made.load(watched_ops), watch), watched_ops)
    driver.prefill(driver.add(LIMIT), made.prompt, 7)
    assert watch.outside == []
    assert watch.operations > 6 * 4 * made.peer.config.num_hidden_layers


def test_an_encoders_step_is_operations_and_views(tmp_path: Path, watch: Watch, watched_ops: BoundOps) -> None:
    model: Any = WatchedModel(Maker(tmp_path, BertConfig, BertModel)(test_bert.CASE).load(watched_ops), watch)
    encode(model, watched_ops, *test_bert.texts())
    assert watch.outside == []
    assert watch.operations > 10


def test_a_call_outside_the_operations_is_noticed(watch: Watch) -> None:
    with watch:
        torch.ones(3)[:2] + 1
    assert watch.outside == ["ones", "add"]
