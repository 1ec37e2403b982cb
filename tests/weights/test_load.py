"""Strict loading: names, shapes, ties, fusing, and that nothing is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vivace.errors import WeightError
from vivace.weights.files import TensorInfo
from vivace.weights.load import Weights
from vivace.weights.rename import LEGACY_NORM_NAMES, Rename, with_prefix


class DictFile:
    """A weight file that is a dict."""

    path = Path("fake.gguf")
    format = "gguf"
    metadata: dict[str, str] = {}  # noqa: RUF012 - never written to

    def __init__(self, **tensors: torch.Tensor) -> None:
        self._held = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
        self.tensors = {
            name: TensorInfo(name, "F32", tuple(tensor.shape), tensor.nbytes, f"fake.gguf at byte {32 * k}")
            for k, (name, tensor) in enumerate(self._held.items())
        }

    def raw(self, name: str) -> torch.Tensor:
        return self._held[name].reshape(-1).view(torch.uint8)

    def read(self, name: str, dtype: torch.dtype | None = torch.float32) -> torch.Tensor:
        return self._held[name].to(dtype or torch.float32)

    def let_go(self, name: str, begin: int, end: int) -> None: ...

    def close(self) -> None:
        self._held.clear()


RULES = (
    Rename("model.embed_tokens.weight", "token_embd.weight"),
    Rename("lm_head.weight", "output.weight"),
    Rename("model.layers.{i}.self_attn.q_proj.weight", "blk.{i}.attn_q.weight", "unpermute_rope", by="num_heads"),
)


def test_take_renames_transforms_and_converts() -> None:
    rows = torch.arange(8.0).reshape(8, 1)
    weights = Weights(DictFile(blk__0__attn_q__weight=rows), RULES, {"num_heads": 1})
    taken = weights.take("model.layers.0.self_attn.q_proj.weight", (8, 1), torch.float64)
    assert taken.dtype == torch.float64
    assert taken.flatten().tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    weights.finish()


def test_wrong_shape_names_tensor_expected_and_found() -> None:
    weights = Weights(DictFile(token_embd__weight=torch.zeros(3, 2)), RULES)
    message = (
        r"'token_embd.weight' in fake.gguf at byte 0 has shape \[3, 2\], 'model.embed_tokens.weight' must have \[2, 3\]"
    )
    with pytest.raises(WeightError, match=message):
        weights.take("model.embed_tokens.weight", (2, 3))


def test_missing_tensor_names_the_nearest() -> None:
    weights = Weights(DictFile(token_embed__weight=torch.zeros(1)), RULES)
    with pytest.raises(WeightError, match=r"'model.embed_tokens.weight' \(there: token_embd.weight\)") as caught:
        weights.take("model.embed_tokens.weight")
    assert "did you mean 'token_embed.weight'?" in str(caught.value)
    assert not weights.has("model.embed_tokens.weight")
    assert weights.take_optional("model.embed_tokens.weight") is None


def test_names_that_could_upset_a_terminal_are_not_suggested() -> None:
    file = DictFile(**{"token_embd.weight\x1b[31m": torch.zeros(1), "x" * 70_000: torch.zeros(1), "y": torch.zeros(1)})
    with pytest.raises(WeightError, match="no tensor") as caught:
        Weights(file, RULES).take("model.embed_tokens.weight")
    assert caught.value.hint == "known: y"


def test_a_tensor_feeds_one_weight_only() -> None:
    weights = Weights(DictFile(a=torch.zeros(1)), (Rename("b", "a"),))
    weights.take("a")
    for name in ("a", "b"):
        with pytest.raises(WeightError, match=f"wanted as '{name}' but was already taken as 'a'"):
            weights.take(name)


def test_a_tied_weight_equal_to_its_source_is_not_kept_twice() -> None:
    weights = Weights(DictFile(token_embd__weight=torch.ones(3, 2), output__weight=torch.ones(3, 2)), RULES)
    weights.take("model.embed_tokens.weight")
    assert weights.take_own("lm_head.weight", "model.embed_tokens.weight", (3, 2)) is None
    weights.finish()


def test_a_tied_weight_with_values_of_its_own_keeps_them() -> None:
    weights = Weights(DictFile(token_embd__weight=torch.ones(3, 2), output__weight=torch.zeros(3, 2)), RULES)
    weights.take("model.embed_tokens.weight")
    own = weights.take_own("lm_head.weight", "model.embed_tokens.weight", (3, 2))
    assert own is not None and own.outputs == 3
    weights.finish()


def test_a_weight_that_is_nowhere_is_missing() -> None:
    with pytest.raises(WeightError, match=r"no tensor 'lm_head.weight'"):
        Weights(DictFile(a=torch.zeros(1)), RULES).take_own("lm_head.weight", "model.embed_tokens.weight", (3, 2))


def test_fused_weights_keep_named_slices() -> None:
    file = DictFile(q=torch.ones(4, 2), k=torch.full((2, 2), 2.0), v=torch.full((3, 2), 3.0))
    fused, slices = Weights(file).take_fused(("q", "k", "v"), ((4, 2), (2, 2), (3, 2)))
    assert slices == {"q": slice(0, 4), "k": slice(4, 6), "v": slice(6, 9)}
    assert [set(fused[rows].flatten().tolist()) for rows in slices.values()] == [{1.0}, {2.0}, {3.0}]


def test_finish_names_what_is_left_and_the_nearest_name() -> None:
    file = DictFile(**{f"layer__{i}__weigth": torch.zeros(2) for i in range(7)}, norm=torch.zeros(1))
    weights = Weights(file)
    weights.take("norm")
    with pytest.raises(
        WeightError, match=r"7 tensors of fake.gguf have no place in this model: 'layer.0.weigth' \[2\]"
    ) as caught:
        weights.finish()
    assert "'layer.4.weigth'" in caught.value.message
    assert "'layer.5.weigth'" not in caught.value.message
    weights.finish(ignored=("layer.{i}.weigth",))


def test_finish_hint_is_the_models_own_name() -> None:
    weights = Weights(DictFile(norm__weight=torch.zeros(1), norm__weights=torch.zeros(1)))
    weights.take("norm.weight")
    with pytest.raises(WeightError, match=r"for 'norm.weights' did you mean 'norm.weight'\?"):
        weights.finish()


def test_a_second_spelling_in_the_same_file_is_left_over() -> None:
    file = DictFile(LayerNorm__weight=torch.ones(1), bert__LayerNorm__gamma=torch.zeros(1))
    weights = Weights(file, (*LEGACY_NORM_NAMES, with_prefix("bert.")))
    assert weights.take("LayerNorm.weight").item() == 1
    with pytest.raises(WeightError, match=r"'bert.LayerNorm.gamma'"):
        weights.finish()


def test_transform_that_does_not_fit_names_the_tensor() -> None:
    weights = Weights(DictFile(blk__3__attn_q__weight=torch.zeros(9, 2)), RULES, {"num_heads": 2})
    with pytest.raises(WeightError, match=r"'blk.3.attn_q.weight' in fake.gguf at byte 0: 9 rows cannot be split"):
        weights.take("model.layers.3.self_attn.q_proj.weight")
