"""A hundred seeded mutations of a good file per format: each loads or raises WeightError, within bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch
from gguf import quants

from tests.weights.builders import llama2c_bytes, write

COUNT = 100
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def good_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("good")
    generator = torch.Generator().manual_seed(0)
    tensors = {f"layer.{i}.weight": torch.randn(8, 32, generator=generator).to(torch.bfloat16) for i in range(6)}
    safetensors.torch.save_file({**tensors, "ids": torch.arange(4)}, folder / "model.safetensors", {"format": "pt"})

    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_custom_alignment(32)
    writer.add_token_list([f"token {i}" for i in range(20)])
    writer.add_token_scores([float(i) for i in range(20)])
    weights = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    for name in ("F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q8_0"):
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(f"blk.0.{name}", quants.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    llama = write(folder / "model.bin", llama2c_bytes((16, 24, 2, 4, 2, 30, 8)))
    return [folder / "model.safetensors", folder / "model.gguf", llama]


def test_mutants_load_or_are_refused(good_files: list[Path]) -> None:
    command = [sys.executable, "-m", "tests.weights.mutate", "2", str(COUNT), *map(str, good_files)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    for name, outcome in report.items():
        print(f"{name}: {outcome['loaded']} loaded, {outcome['refused']} refused")
        assert outcome["other"] == []
        assert outcome["loaded"] + outcome["refused"] == COUNT
        assert outcome["refused"] >= COUNT // 2  # not blind: most mutations do damage
        assert outcome["loaded"] >= 5  # nor by refusing everything
