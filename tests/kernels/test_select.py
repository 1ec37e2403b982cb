"""What `resolve` binds, says and refuses."""

from __future__ import annotations

import pytest
import torch

from vivace.errors import ConfigError
from vivace.kernels import select
from vivace.kernels.cpu import bind
from vivace.kernels.ops import Ops, f32_weight

MENU = {name for name in vars(Ops) if not name.startswith(("_", "pack_"))} - {"make_store"}


@pytest.mark.parametrize("choice", ["auto", "ref", "rows"])
def test_every_operation_of_the_menu_is_bound(choice: str) -> None:
    ops = select.resolve(choice=choice)
    assert set(ops.bound) == MENU
    assert all(name in ops.describe() for name in MENU)


def test_rows_hold_the_determinism_contract_and_ref_does_not() -> None:
    assert select.resolve(choice="rows").is_invariant
    assert "determinism contract holds" in select.resolve(choice="rows").describe()
    assert "does not hold" in select.resolve(choice="ref").describe()


@pytest.mark.usefixtures("needs_native")
def test_native_kernels_hold_the_determinism_contract() -> None:
    assert select.resolve(choice="auto").is_invariant


def test_rows_keep_torch_on_one_thread() -> None:
    torch.set_num_threads(2)
    select.resolve(choice="rows")
    assert torch.get_num_threads() == 1


def test_the_reference_keeps_weights_as_they_are() -> None:
    weight = f32_weight(torch.ones(3, 2))
    assert select.resolve(choice="ref").pack_linear(weight) is weight


def test_unknown_choices_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'native'"):
        select.resolve(choice="nativ")


def test_without_native_kernels_auto_says_why_and_native_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind, "why_missing", lambda: "no compiler was found")
    assert "no native kernels: no compiler was found" in select.resolve(choice="auto").describe()
    with pytest.raises(ConfigError, match="no compiler was found"):
        select.resolve(choice="native")


@pytest.mark.usefixtures("needs_native")
def test_the_instruction_set_can_be_forced() -> None:
    assert select.resolve(choice="native", isa="portable").bound["linear"].name == "native portable"
