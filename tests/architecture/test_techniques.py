"""What every technique states and keeps: origin, equation, cost, when to use it, a frozen Config, a null, a test."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from vivace.registry import Registry
from vivace.techniques import index
from vivace.techniques.base import TechniqueConfig
from vivace.techniques.pooling.base import ModeConfig
from vivace.techniques.speculation.base import EMPTY

ROOT = Path(__file__).resolve().parents[2]
TECHNIQUES = ROOT / "src" / "vivace" / "techniques"
SLOTS: dict[str, Registry] = {name.lower(): table for name, table in vars(index).items() if isinstance(table, Registry)}
ALL = [(slot, name) for slot, table in SLOTS.items() for name in table]
# Files of a slot that hold its shared maths instead of a choice.
NO_CHOICE = {("sampling", "draw")}
A_PAPER = re.compile(r"\b(19|20)\d\d\b|Origin: ")
AN_EQUATION = re.compile(r"\b[a-z](_[\w.]+)? (=|>=|\+|-|/) \S+|\bv / ")


@pytest.fixture(params=ALL, ids="-".join)
def technique(request: pytest.FixtureRequest) -> tuple[str, str, ModuleType]:
    slot, name = request.param
    return slot, name, importlib.import_module(f"vivace.techniques.{slot}.{name}")


def test_every_file_of_a_slot_is_registered_and_every_slot_has_files() -> None:
    files = {
        (path.parent.name, path.stem) for path in TECHNIQUES.glob("*/*.py") if path.stem not in ("__init__", "base")
    }
    assert files - NO_CHOICE == set(ALL)
    assert {path.parent.name for path in TECHNIQUES.glob("*/base.py")} == set(SLOTS)


def test_its_docstring_gives_origin_equation_cost_and_use(technique: tuple[str, str, ModuleType]) -> None:
    text = technique[2].__doc__ or ""
    assert A_PAPER.search(text), "no paper and no 'Origin:'"
    assert AN_EQUATION.search(text), "no equation"
    assert "Cost: " in text
    assert re.search(r"\b(Use|The usual mode|For decoders)\b", text), "not said when to use it"


def test_its_config_is_frozen_named_after_the_file_and_states_its_origin(
    technique: tuple[str, str, ModuleType],
) -> None:
    _, name, module = technique
    config: type[TechniqueConfig] = module.Config
    assert dataclasses.is_dataclass(config)
    assert config.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert config.name == name
    assert config.origin
    assert callable(module.make)


def test_its_null_is_off_bit_for_bit(technique: tuple[str, str, ModuleType]) -> None:
    slot, _, module = technique
    config = module.Config()
    if isinstance(config, ModeConfig):
        assert not config.is_null, "a mode is applied whenever it is chosen"
        return
    assert config.is_null
    if slot == "speculation":
        assert module.make(config, _parts(slot)).propose(np.array([1, 2, 1, 2]), 8) == EMPTY
        return
    values = torch.randn(64, generator=torch.Generator().manual_seed(1))
    before = values.clone()
    after = _apply(slot, module.make(config, _parts(slot)), values)
    assert torch.equal(after.view(torch.int32), before.view(torch.int32))


def test_it_has_a_test_of_its_name(technique: tuple[str, str, ModuleType]) -> None:
    slot, name, _ = technique
    folder = ROOT / "tests" / "techniques" / slot
    if (folder / f"test_{name}.py").exists():
        return
    # Techniques of a few lines that differ in one formula share the slot's file, where each is named.
    words = {node.value for node in ast.walk(ast.parse((folder / f"test_{slot}.py").read_text())) if _is_text(node)}
    assert name in words, f"neither test_{name}.py nor a case '{name}' in test_{slot}.py"


def _parts(slot: str) -> Any:
    base = importlib.import_module(f"vivace.techniques.{slot}.base")
    return {
        "sampling": lambda: base.Parts(64, (1, 2)),
        "pooling": lambda: base.Parts(64),
        "speculation": lambda: base.Parts(64),
    }[slot]()


def _apply(slot: str, made: Any, values: torch.Tensor) -> torch.Tensor:
    if slot == "pooling":
        return made(values)
    base = importlib.import_module("vivace.techniques.sampling.base")
    return made(values, base.History(torch.tensor([3, 4, 4, 5]), 2))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
