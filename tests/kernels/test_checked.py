"""The check mode of steps names the operation and the layer whose result is not finite, and changes no result."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import safetensors.torch

import vivace
from vivace.config import CheckMode, EngineConfig, KernelChoice
from vivace.errors import StepFailed, WeightError

TINY = Path(__file__).resolve().parents[1] / "assets" / "tiny-llama"
PROMPT = "One day the bear found"


def load(folder: Path, kernels: KernelChoice, check: CheckMode = "steps") -> vivace.Model:
    config = EngineConfig(kernels=kernels, threads=1, kv_bytes=16 << 20, check=check)
    return vivace.load(str(folder), config=config)


def spoilt(folder: Path, name: str, factor: float | None) -> Path:
    """The tiny model with the numbers of one weight made larger, up to the largest that there are if None."""
    shutil.copytree(TINY, folder, dirs_exist_ok=True)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    by = 3e38 / float(tensors[name].abs().max()) if factor is None else factor
    tensors[name] = (tensors[name].double() * by).to(tensors[name].dtype)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("kernels", ["auto", "ref"])
def test_answers_are_those_of_an_unchecked_model(kernels: KernelChoice) -> None:
    answers = []
    for check in ("steps", "off"):
        with load(TINY, kernels, check) as model:  # type: ignore[arg-type]
            answers.append(model.generate(PROMPT, max_tokens=12, logprobs=1).tokens)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("kernels", ["auto", "ref"])
@pytest.mark.parametrize(
    ("weight", "operation"),
    [
        ("model.layers.1.mlp.up_proj.weight", r"gated_mlp of blocks\.1\.mlp\.gate_up gave (infinity|NaN)"),
        ("model.layers.0.input_layernorm.weight", r"rms_norm of blocks\.0\.attention_norm gave infinity"),
    ],
)
def test_an_overflow_names_operation_and_layer(
    tmp_path: Path, kernels: KernelChoice, weight: str, operation: str
) -> None:
    folder = spoilt(tmp_path, weight, 2e38)
    load(folder, kernels, "weights").close()  # the weights themselves are finite
    with load(folder, kernels) as model, pytest.raises(StepFailed, match=operation) as caught:
        model.generate(PROMPT, max_tokens=2)
    assert "what went in was finite" in caught.value.message


def test_values_that_overflow_show_in_the_attention_that_reads_them(tmp_path: Path) -> None:
    folder = spoilt(tmp_path, "model.layers.1.self_attn.v_proj.weight", None)
    with load(folder, "auto") as model, pytest.raises(StepFailed, match="attention of layer 1 gave"):
        model.generate(PROMPT, max_tokens=2)


def test_the_mode_covers_weights_too(tmp_path: Path) -> None:
    folder = spoilt(tmp_path, "model.embed_tokens.weight", 1e45)
    with pytest.raises(WeightError, match=r"embed_tokens\.weight.*infinity"):
        load(folder, "auto")
