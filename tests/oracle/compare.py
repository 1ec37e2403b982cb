"""Makes a tiny random model with the peer library, saves it, loads it with ours, and measures how far they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.oracle.driver import Driver
from tests.oracle.peers import peer_scores, redraw
from vivace.kernels.ops import Ops
from vivace.layers.linear import Loader
from vivace.models.load import load_model, read_config, read_config_json
from vivace.weights.files import open_weights
from vivace.weights.load import Weights

PROMPT, STEPS = 40, 16
LIMIT = PROMPT + STEPS
CHUNK, PAGE = 7, 4  # neither divides the prompt
SAME = 1e-4  # of the largest score: float32 sums in another order, through a few layers
OTHER = 100 * SAME  # a feature that is switched off must show at least this

Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """One peer model. `options` of its configuration; switches that must make the comparison fail:

    off   by name, configuration of ours -> changed configuration
    cut   by name, model of ours -> changed model, for features that no configuration turns off
    """

    name: str
    options: Mapping[str, Any]
    off: Mapping[str, Change] = field(default_factory=dict)
    cut: Mapping[str, Change] = field(default_factory=dict)
    spread: float = 0.6

    def __str__(self) -> str:
        return self.name


def switches(cases: list[Case]) -> list[tuple[Case, str]]:
    """Every (case, switch) pair, for parametrisation."""
    return [(case, name) for case in cases for name in (*case.off, *case.cut)]


@dataclass(frozen=True)
class Made:
    """A case with its peer model, saved in `folder`."""

    case: Case
    peer: Any
    folder: Path

    @cached_property
    def prompt(self) -> list[int]:
        generator = torch.Generator().manual_seed(3)
        return torch.randint(0, self.peer.config.vocab_size, (PROMPT,), generator=generator).tolist()

    @cached_property
    def scores(self) -> Tensor:
        """The peer's scores of the prompt (PROMPT, vocab)."""
        return peer_scores(self.peer, self.prompt)

    @cached_property
    def greedy(self) -> list[int]:
        """STEPS best tokens in a row by the peer, without a cache."""
        ids = list(self.prompt)
        for _ in range(STEPS):
            ids.append(int(peer_scores(self.peer, ids)[-1].argmax()))
        return ids[PROMPT:]

    def load(self, ops: Ops) -> Any:
        """Our model of the folder."""
        return load_model(self.folder, ops)

    def load_without(self, switch: str, ops: Ops) -> Any:
        """Our model with one feature switched off; weights that it then does not want stay unused."""
        file = open_weights(self.folder)
        family, config = read_config(file, read_config_json(self.folder))
        config = self.case.off.get(switch, _same)(config)
        weights = Weights(file, family.renames["safetensors"], family.sizes(config))
        return self.case.cut.get(switch, _same)(family.load(config, Loader(weights, ops)))


class Maker:
    """Makes each case once, with the peer's classes `config_class` and `model_class`."""

    def __init__(self, folder: Path, config_class: Any, model_class: Any) -> None:
        self._folder, self._config_class, self._model_class = folder, config_class, model_class
        self._made: dict[str, Made] = {}

    def __call__(self, case: Case) -> Made:
        if case.name not in self._made:
            torch.manual_seed(0)
            config = self._config_class(**case.options)
            config._attn_implementation = "eager"
            peer = self._model_class(config).eval()
            redraw(peer, seed=len(case.name), spread=case.spread)
            peer.save_pretrained(self._folder / case.name)
            self._made[case.name] = Made(case, peer, self._folder / case.name)
        return self._made[case.name]


def error(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference as a share of the largest value. NaN counts as infinite."""
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    return difference if difference == difference else float("inf")


def our_scores(model: Any, ops: Ops, prompt: list[int]) -> tuple[Tensor, Driver, int]:
    """Scores of the prompt through paged stores in chunks, and the driver and sequence to go on with."""
    driver = Driver(model, ops, page_size=PAGE)
    number = driver.add(LIMIT)
    return driver.prefill(number, prompt, CHUNK), driver, number


def _same(value: Any) -> Any:
    return value
