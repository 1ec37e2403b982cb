"""The same tiny models from their GGUF files and from their Hugging Face folders give the same scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.oracle import test_gemma3, test_llama, test_qwen3
from tests.oracle.compare import SAME, Case, Made, Maker, error, our_scores
from tests.oracle.gguf_files import llama3_factors, write_gguf
from vivace.kernels.select import BoundOps
from vivace.models.load import load_model

pytestmark = pytest.mark.oracle

LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0, "rope.freq_base": 100.0}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
    "rope.freq_base": 100.0,
}
GEMMA = {
    "attention.sliding_window": 9,
    "attention.sliding_window_pattern": [True, False, True, True, False],
    "rope.freq_base": 500.0,
    "rope.freq_base_swa": 30.0,
}
GEMMA_OPTIONS = {**test_gemma3.BASE, "query_pre_attn_scalar": 16}  # GGUF cannot state another than the head's width

Extra = Callable[[Made], dict[str, Tensor]]


def nothing(made: Made) -> dict[str, Tensor]:
    return {}


def factors(made: Made) -> dict[str, Tensor]:
    return {"rope_freqs.weight": llama3_factors(made.peer)}


LLAMA = {case.name: case for case in test_llama.CASES}
QWEN = {case.name: case for case in test_qwen3.CASES}
FILES: list[tuple[str, Case, dict[str, Any], Extra]] = [
    ("llama", LLAMA["grouped-heads"], {"rope.freq_base": 10000.0, "rope.dimension_count": 8}, nothing),
    ("llama", LLAMA["biases"], {}, nothing),
    ("llama", LLAMA["tied"], {}, nothing),
    ("llama", LLAMA["one-head-each"], {}, nothing),
    ("llama", LLAMA["linear"], LINEAR, nothing),
    ("llama", LLAMA["llama3"], {"rope.freq_base": 100.0}, factors),
    ("qwen3", QWEN["dense"], {"rope.freq_base": 100.0}, nothing),
    ("qwen3", QWEN["biases"], {"rope.freq_base": 100.0}, nothing),
    ("qwen3", QWEN["yarn"], YARN, nothing),
    ("gemma3", Case("gemma", GEMMA_OPTIONS), GEMMA, nothing),
    (
        "gemma3",
        Case("gemma-stretched", {**GEMMA_OPTIONS, "rope_parameters": test_gemma3.STRETCHED}),
        {**GEMMA, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
        nothing,
    ),
    (
        "gemma3",
        Case("gemma-capped", {**GEMMA_OPTIONS, "final_logit_softcapping": 1.5}),
        {**GEMMA, "final_logit_softcapping": 1.5},
        nothing,
    ),
]
CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
}


@pytest.mark.parametrize(
    ("arch", "case", "metadata", "extra"), FILES, ids=[f"{arch}-{case}" for arch, case, _, _ in FILES]
)
def test_gguf_and_folder_give_the_same_scores(
    arch: str, case: Case, metadata: dict[str, Any], extra: Extra, tmp_path: Path, ops: BoundOps
) -> None:
    made = Maker(tmp_path, *CLASSES[arch])(case)
    file = tmp_path / "model.gguf"
    write_gguf(file, made.peer, arch, metadata, extra(made))
    scores, _, _ = our_scores(load_model(file, ops), ops, made.prompt)
    from_folder, _, _ = our_scores(made.load(ops), ops, made.prompt)
    assert error(scores, made.scores) < SAME
    if extra is nothing:
        assert torch.equal(scores, from_folder)


def test_llama3_factors_left_out_are_seen(tmp_path: Path, ops: BoundOps) -> None:
    made = Maker(tmp_path, LlamaConfig, LlamaForCausalLM)(LLAMA["llama3"])
    write_gguf(tmp_path / "model.gguf", made.peer, "llama", {"rope.freq_base": 100.0}, {})
    scores, _, _ = our_scores(load_model(tmp_path / "model.gguf", ops), ops, made.prompt)
    assert error(scores, made.scores) > 100 * SAME
