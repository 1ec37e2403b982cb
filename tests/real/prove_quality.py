"""What lossy settings change beside float32 on the same weights and text, and what llama.cpp's kernels change.

Windows as in llama-perplexity: each is read alone, and the positions of its second half count, so that both are asked
the same. llama.cpp is compared with its own float32 form of the file (llama-quantize ... F32), by its own program.

    python -m tests.real.prove_quality --size full --llama FOLDER_OF_ITS_PROGRAMS
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

import torch
from torch import Tensor

from tests.models.quantized import write_quantized
from tests.proof import Proof
from tests.real.data import data_folder
from vivace.api import Engine
from vivace.config import ActivationFormat, EngineConfig, KVFormat
from vivace.kernels.ops import Ops
from vivace.models.base import Decoder
from vivace.models.lossy import probe_text
from vivace.models.quality import against, read_text, scores_of
from vivace.weights.catalog import resolve
from vivace.weights.measured import Quality

MODELS = ("smollm2", "gemma3-270m")
WINDOWS, WINDOW = 9, 512  # 9 x 255 positions
LINE = re.compile(
    r"Mean PPL\(Q\)/PPL\(base\)\s*:\s*([\d.]+).*Mean\s+KLD:\s*([\d.]+).*Same top p:\s*([\d.]+)", re.DOTALL
)
NO_LLAMA = "skipped: llama.cpp (--llama names the folder of llama-perplexity and llama-quantize; none is on PATH)"


@dataclass(frozen=True)
class Reader:
    """A model in one format over the windows. hidden: states of each window, read when it is made."""

    model: Decoder
    ops: Ops
    hidden: tuple[Tensor, ...]
    stated: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama", type=Path, help="folder of llama-perplexity and llama-quantize")
    with Proof("quality", __doc__, arguments=parser) as proof, tempfile.TemporaryDirectory() as folder:
        programs = proof.options.llama or _on_path()
        proof.say(NO_LLAMA if programs is None else f"llama.cpp: {_run(programs, 'llama-perplexity', '--version')}")
        if proof.is_full:
            text = (data_folder() / "text" / "wikitext2-test.raw").read_text()[: WINDOWS * WINDOW * 8]
            for name in MODELS:
                _prove(proof, name, resolve(name).path, text, (WINDOWS, WINDOW), programs)
        else:
            path = write_quantized(Path(folder) / "tiny.gguf")
            _prove(proof, "tiny", path, probe_text(), (2, 128), programs)


def _prove(proof: Proof, name: str, path: Path, text: str, sizes: tuple[int, int], programs: Path | None) -> None:
    exact, windows = _read(path, text, sizes, EngineConfig(activations="f32"))
    perplexity = math.exp(_surprise(exact, windows))
    positions = sum(len(window) - _first(window) - 1 for window in windows)
    proof.say(f"\n{name}: {positions} positions, float32 perplexity {perplexity:.4f}")
    proof.say(f"{'':32} {'KL':>9} {'top-1':>8} {'perplexity':>10}")
    found = {}
    for config in _formats():
        reader, _ = _read(path, text, sizes, config)
        label = f"{config.activations}, {config.kv_format} KV"
        found[label] = _quality(exact, reader, windows)
        proof.say(_row(label, found[label]) + (f"  {reader.stated}" if config.activations == "auto" else ""))
    config = EngineConfig()
    limits = {"int14, f32 KV": 1e-4, "auto, f32 KV": 3 * config.kl_target}
    for label, quality in found.items():
        limit = limits.get(label, config.kl_limit)
        proof.demand(quality.divergence < limit, f"{label}: divergence below {limit:g}")
    proof.demand(found["int14, f32 KV"].agreement > 0.99, "int14: over 99% of the most likely tokens are float32's")
    if programs is not None:
        _prove_llama(proof, path, text, sizes, programs, perplexity, found)


def _formats() -> Iterator[EngineConfig]:
    """Every format of activations, then every one of keys and values, as the configuration lists them."""
    for activations in get_args(ActivationFormat):
        if activations != "f32":
            yield EngineConfig(activations=activations, kl_limit=1e9)
    for kv_format in get_args(KVFormat):
        if kv_format != "f32":
            yield EngineConfig(kv_format=cast(KVFormat, kv_format), kl_limit=1e9)
    yield EngineConfig(activations="int8", kv_format="i8", kl_limit=1e9)


def _read(path: Path, text: str, sizes: tuple[int, int], config: EngineConfig) -> tuple[Reader, list[list[int]]]:
    count, length = sizes
    with Engine(config) as engine, torch.inference_mode():
        info = engine.add_model(str(path))
        tokenizer, pipeline = engine.texts[info.name].tokenizer, engine.pipelines[info.name]
        assert isinstance(pipeline.model, Decoder)
        ids = tokenizer.encode_prompt(text)
        windows = [ids[start : start + length] for start in range(0, count * length, length)]
        assert len(windows[-1]) == length, f"the text has {len(ids)} tokens, {count * length} are needed"
        if tokenizer.add_bos and tokenizer.bos_id is not None:
            for window in windows:
                window[0] = tokenizer.bos_id
        hidden = tuple(read_text(pipeline.model, engine.ops, window, config.kv_format) for window in windows)
        return Reader(pipeline.model, engine.ops, hidden, info.activations), windows


def _quality(exact: Reader, found: Reader, windows: Sequence[Sequence[int]]) -> Quality:
    parts = []
    with torch.inference_mode():
        for ids, theirs, ours in zip(windows, exact.hidden, found.hidden, strict=True):
            first = _first(ids)
            parts.append(against((exact.model, theirs[first:]), (found.model, ours[first:]), found.ops, ids[first:]))
    positions = sum(part.positions for part in parts)

    def mean(values: Iterator[float]) -> float:
        return sum(part.positions * value for part, value in zip(parts, values, strict=True)) / positions

    return Quality(
        positions,
        mean(part.divergence for part in parts),
        mean(part.agreement for part in parts),
        math.expm1(mean(math.log1p(part.perplexity) for part in parts)),
    )


def _surprise(reader: Reader, windows: Sequence[Sequence[int]]) -> float:
    """Mean negative log-probability of the next token over the positions that count."""
    total, count = 0.0, 0
    with torch.inference_mode():
        for ids, hidden in zip(windows, reader.hidden, strict=True):
            first = _first(ids)
            scores = torch.cat(list(scores_of(reader.model, reader.ops, hidden[first:-1])))
            total += float(torch.nn.functional.cross_entropy(scores, torch.tensor(ids[first + 1 :]), reduction="sum"))
            count += len(scores)
    return total / count


def _first(ids: Sequence[int]) -> int:
    return len(ids) // 2


def _row(label: str, quality: Quality) -> str:
    return f"{label:32} {quality.divergence:>9.2e} {quality.agreement:>8.2%} {quality.perplexity:>+10.3%}"


def _prove_llama(
    proof: Proof,
    path: Path,
    text: str,
    sizes: tuple[int, int],
    programs: Path,
    perplexity: float,
    found: dict[str, Quality],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text").write_text(text)
        exact, base = folder / "exact.gguf", folder / "base.kld"
        _run(programs, "llama-quantize", "--allow-requantize", str(path), str(exact), "F32")
        shared = (
            "-c",
            str(sizes[1]),
            "-b",
            str(sizes[1]),
            "--chunks",
            str(sizes[0]),
            "--kl-divergence-base",
            str(base),
        )
        precise = ("-ctk", "f32", "-ctv", "f32")
        said = _run(programs, "llama-perplexity", "-m", str(exact), "-f", str(folder / "text"), *shared, *precise)
        estimate = re.search(r"Final estimate: PPL = ([\d.]+)", said)
        assert estimate is not None, said[-500:]
        gap = abs(float(estimate[1]) / perplexity - 1)
        proof.demand(gap < 2e-3, f"llama.cpp's float32 perplexity {estimate[1]} is ours within 0.2% ({gap:.2%})")
        for kv_format, flags in (("f32", precise), ("f16", ("-ctk", "f16", "-ctv", "f16"))):
            said = _run(programs, "llama-perplexity", "-m", str(path), *shared, *flags, "--kl-divergence")
            match = LINE.search(said)
            assert match is not None, said[-500:]
            change, divergence, same = map(float, match.groups())
            positions = found["int14, f32 KV"].positions
            theirs = Quality(positions, divergence, same / 100, change - 1)
            proof.say(_row(f"llama.cpp, {kv_format} KV", theirs))
            ours = found[f"int14, {kv_format} KV"].divergence
            proof.demand(ours < theirs.divergence, f"int14, {kv_format} KV is closer to float32 than llama.cpp")


def _run(programs: Path, program: str, *arguments: str) -> str:
    done = subprocess.run([str(programs / program), *arguments], capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise RuntimeError(f"{program} ended with {done.returncode}: {done.stderr[-500:]}")
    said = done.stdout + done.stderr
    version = re.search(r"version: (.+)", said)
    return version[1] if arguments == ("--version",) and version else said


def _on_path() -> Path | None:
    found = shutil.which("llama-perplexity")
    return Path(found).parent if found and shutil.which("llama-quantize") else None


if __name__ == "__main__":
    main()
