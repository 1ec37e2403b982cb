"""Loading a model takes little more memory than its packed weights, packed now or kept by an earlier start."""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from tests.proof import ROOT, Proof
from vivace.kernels.layout import LAYOUT_VERSION
from vivace.kernels.ops import LinearWeight
from vivace.kernels.select import resolve as resolve_ops
from vivace.lab.memory import reset_peak, resident
from vivace.models.load import load_model, read_config
from vivace.runtime.threads import use_threads
from vivace.weights.catalog import resolve
from vivace.weights.files import open_weights
from vivace.weights.load import Weights
from vivace.weights.packed import open_rooms

LIMIT = 1.3
TINY = ROOT / "tests/assets/tiny-llama"
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", help="load this model, print its memory, and end")
    parser.add_argument("--activations", default="int14")
    if "--measure" in sys.argv:
        options = parser.parse_args()
        print(json.dumps(measure(options.measure, options.activations)))
        return
    with Proof("memory", __doc__, arguments=parser) as proof, tempfile.TemporaryDirectory() as folder:
        proof.say(
            "Peak of resident memory during load, less what was resident before it (interpreter and libraries, their"
        )
        proof.say(f"code touched by loading a tiny model), over the bytes of packed weights; the limit is {LIMIT}.")
        proof.say("Everything is counted: heap, packed weights, pages of the weight file.")
        works = full_works(Path(folder)) if proof.is_full else small_works(Path(folder))
        for name, path, activations in works:
            for start in ("packed now", "kept"):
                found = run(path, activations, Path(folder) / "cache")
                ratio = found["peak"] / found["packed"]
                shown = (
                    f"{name:28} {start:10} packed {found['packed'] / MIB:7.1f} MiB, peak {found['peak'] / MIB:7.1f} MiB"
                )
                made = f"{found['made']} of {found['weights']} weights packed"
                proof.demand(ratio < LIMIT, f"{shown} = {ratio:.2f} x, {found['seconds']:.2f} s, {made}")
            proof.demand(found["made"] == 0, f"{name:28} the second start packed nothing")


def run(path: str, activations: str, cache: Path) -> dict[str, float]:
    """One start in a process of its own, which finds the packed weights of those before."""
    words = [sys.executable, "-m", "tests.weights.prove_memory", "--measure", path, "--activations", activations]
    environment = {**os.environ, "VIVACE_CACHE": str(cache)}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(path: str, activations: Any) -> dict[str, float]:
    use_threads(2, native=True)
    ops = resolve_ops(choice="native", threads=2, activations=activations)
    load_model(TINY, ops)
    files = resolve(path)
    rooms = open_rooms(files, f"{LAYOUT_VERSION} {activations}", 1 << 40)
    gc.collect()
    reset_peak()
    before, began = resident().now, time.perf_counter()
    model = load_model(files.path, ops, rooms=rooms)
    seconds = time.perf_counter() - began
    weights = {id(weight.data): weight.data for weight in linear_weights(model)}
    peak = resident().peak
    problem = rooms.keep()
    assert not problem, problem
    return {
        "peak": peak - before,
        "packed": sum(data.nbytes for data in weights.values()),
        "seconds": seconds,
        "made": rooms.num_made,
        "weights": len(weights),
    }


def linear_weights(value: Any) -> list[LinearWeight]:
    if isinstance(value, LinearWeight):
        return [value]
    if isinstance(value, list | tuple):
        parts = list(value)
    elif isinstance(value, dict):
        parts = list(value.values())
    elif is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value)]
    else:
        return []
    return [weight for part in parts for weight in linear_weights(part)]


def small_works(folder: Path) -> list[tuple[str, str, str]]:
    """Random models, large enough that what every load takes is small beside them."""
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        found.append((f"random folder, {name}", str(random_folder(folder / name, dtype)), "int14"))
    return found


def full_works(folder: Path) -> list[tuple[str, str, str]]:
    smollm2, gemma3, minilm = (str(resolve(name).path) for name in ("smollm2", "gemma3", "minilm"))
    works = [("SmolLM2 135M, Q4_1", smollm2, "int14"), ("SmolLM2 135M, Q4_1 as f32", smollm2, "f32")]
    works += [("Gemma 3 270M, K-quants", gemma3, "int14"), ("MiniLM, float32", minilm, "int14")]
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        works.append((f"SmolLM2 135M folder, {name}", str(plain_folder(Path(smollm2), folder / name, dtype)), "int14"))
    return works


def random_folder(folder: Path, dtype: torch.dtype) -> Path:
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6, "vocab_size": 24000}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 512}
    config = {"architectures": ["LlamaForCausalLM"], **sizes, **heads, "tie_word_embeddings": True}
    draw = torch.Generator().manual_seed(0)
    shapes = llama_shapes(config)
    return save(folder, config, {name: torch.randn(shape, generator=draw).to(dtype) for name, shape in shapes.items()})


def plain_folder(gguf: Path, folder: Path, dtype: torch.dtype) -> Path:
    """A Llama of a GGUF file as a Hugging Face folder."""
    file = open_weights(gguf)
    family, read = read_config(file, None)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": read.hidden_size,
        "intermediate_size": read.intermediate_size,
        "num_hidden_layers": read.num_layers,
        "num_attention_heads": read.num_heads,
        "num_key_value_heads": read.num_kv_heads,
        "head_dim": read.head_dim,
        "max_position_embeddings": read.context_length,
        "vocab_size": read.vocab_size,
        "tie_word_embeddings": read.is_tied,
    }
    weights = Weights(file, family.renames["gguf"], family.sizes(read))
    return save(folder, config, {name: weights.take(name).to(dtype) for name in llama_shapes(config)})


def llama_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    kv = hidden // heads * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def save(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    safetensors.torch.save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(config))
    return folder


if __name__ == "__main__":
    main()
