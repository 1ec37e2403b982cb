"""MiniLM in fp32, bf16 and int8: speed beside the machine's ceiling and the peers, cosines, and STS-B.

All engines get token ids and give vectors of length one; tokenizing is timed apart. Rounds are interleaved: ceiling,
fp32, peers, int8, bf16, ceiling; a ratio is the median over the rounds. Operations are counted on real tokens: two for
each parameter of a linear map and token, and those of attention.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np

from benchmarks.contenders import SCRIPTS, ContenderFailed, Worker
from benchmarks.pairs import median_interval
from tests.proof import Proof
from tests.real.data import data_folder
from tests.real.prove_embeddings import Matrix, spearman
from vivace.api import load
from vivace.api.model import Model
from vivace.config import EngineConfig
from vivace.kernels.cpu.bind import NativeOps
from vivace.lab.ceilings import ROUNDS, best_time
from vivace.weights.catalog import resolve

THREADS = 2
LAYERS, HIDDEN, INNER = 6, 384, 1536  # of all-MiniLM-L6-v2
PARAMETERS = LAYERS * (4 * HIDDEN * HIDDEN + 2 * HIDDEN * INNER)  # of linear maps
FORMATS = {"fp32": {}, "bf16": {"weights": "bf16"}, "int8": {"weights": "int8", "activations": "int8"}}
PEERS = ("sentence-transformers", "onnxruntime")
Texts = dict[str, list[list[int]]]  # name of a set -> ids of its texts


@dataclass(frozen=True)
class Pass:
    """What a peer is asked: embed the texts of a set, and perhaps keep the vectors in a file."""

    texts: str
    vectors: str = ""


@dataclass
class Readings:
    """Seconds of each round, by engine and set, and the ceiling of each round in operations per second."""

    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    ceilings: list[float] = field(default_factory=list)

    def add(self, engine: str, name: str, seconds: float) -> None:
        self.seconds.setdefault(engine, {}).setdefault(name, []).append(seconds)

    def total(self, engine: str) -> list[float]:
        """Seconds of all sets together, by round."""
        return [sum(row) for row in zip(*self.seconds[engine].values(), strict=True)]

    def ratios(self, engine: str, other: str) -> list[float]:
        """How many times as fast as the other one, by round."""
        return [b / a for a, b in zip(self.total(engine), self.total(other), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--onnxruntime", default=sys.executable, help="a Python with onnxruntime, onnx and onnxscript")
    with Proof("encoders", __doc__, arguments=parser) as proof, ExitStack() as stack:
        pairs = sts_pairs(None if proof.is_full else 40)
        models = {
            name: stack.enter_context(load("minilm", config=EngineConfig(threads=THREADS, **options)))  # type: ignore[arg-type]
            for name, options in FORMATS.items()
        }
        texts = read_texts(proof, models["fp32"], pairs)
        peers = stack.enter_context(started_peers(proof, texts))
        if proof.is_full:
            report(proof, texts, measure(models, peers, texts, rounds=9), list(peers))
        check_vectors(proof, models, peers, texts)
        check_sts(proof, models, pairs)
        say_latency(proof, models)


def sts_pairs(count: int | None) -> list[list[str]]:
    with (data_folder() / "evals" / "stsb-test.csv").open(newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:count]


def read_texts(proof: Proof, model: Model, pairs: Sequence[Sequence[str]]) -> Texts:
    """Short texts are sentences of STS-B, long ones paragraphs of WikiText."""
    whole = (data_folder() / "text" / "wikitext2-test.raw").read_text(encoding="utf-8")
    paragraphs = [line.strip() for line in whole.splitlines() if len(line) > 200]
    count = 320 if proof.is_full else 12
    chosen = {"short": [text for row in pairs for text in row[5:7]][:count], "long": paragraphs[: count // 8]}
    found: Texts = {}
    for name, some in chosen.items():
        began = time.perf_counter()
        found[name] = [list(request.request.ids) for request in model.embed_sessions(some)]
        seconds, tokens = time.perf_counter() - began, sum(map(len, found[name]))
        proof.say(
            f"  {name}: {len(some)} texts, {tokens} tokens, {tokens / len(some):.1f} a text; "
            f"tokenized, apart from all below, in {seconds / len(some) * 1e6:.0f} us a text"
        )
    return found


@contextmanager
def started_peers(proof: Proof, texts: Texts) -> Iterator[dict[str, Worker]]:
    """Each peer in a process of its own; one that does not start is said and left out."""
    folder, env = str(resolve("minilm").path), {"OMP_NUM_THREADS": str(THREADS)}
    found: dict[str, Worker] = {}
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "texts.json"
        file.write_text(json.dumps(texts))
        for name in PEERS if proof.is_full else PEERS[:1]:
            python = proof.options.onnxruntime if name == "onnxruntime" else sys.executable
            command = [python, str(SCRIPTS / "encoder_worker.py"), name, folder, str(THREADS), str(file)]
            try:
                found[name] = Worker(name, command, {}, env)
            except ContenderFailed as error:
                proof.demand(not proof.is_full, f"{name} is there ({error})")
        try:
            yield found
        finally:
            for worker in found.values():
                worker.close()


def measure(models: dict[str, Model], peers: dict[str, Worker], texts: Texts, rounds: int) -> Readings:
    native, readings = NativeOps(None, THREADS), Readings()
    for name, ids in texts.items():  # warm; the peers choose the size of their batches
        for model in models.values():
            model.embed(ids)
        for peer in peers.values():
            peer.measure(cast(Any, Pass(name)))
    for _ in range(rounds):
        around = [ceiling(native)]
        for name, ids in texts.items():
            readings.add("fp32", name, timed(lambda ids=ids: models["fp32"].embed(ids)))
            for peer, worker in peers.items():
                readings.add(peer, name, cast(Any, worker.measure(cast(Any, Pass(name))))["seconds"])
            for other in ("int8", "bf16"):
                readings.add(other, name, timed(lambda ids=ids, other=other: models[other].embed(ids)))
            around.append(ceiling(native))
        readings.ceilings.append(median(around))
    return readings


def ceiling(native: NativeOps) -> float:
    """Float operations per second of a loop that does nothing else."""
    return native.multiply_add(ROUNDS) / best_time(lambda: native.multiply_add(ROUNDS), 0.05)


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def operations(ids: Sequence[Sequence[int]]) -> float:
    return sum(2 * PARAMETERS * len(text) + LAYERS * 4 * HIDDEN * len(text) ** 2 for text in ids)


def report(proof: Proof, texts: Texts, readings: Readings, peers: Sequence[str]) -> None:
    proof.say(f"  ceiling of fused multiply-adds, {THREADS} threads: {median(readings.ceilings) / 1e9:.0f} Gflop/s")
    for engine, sets in readings.seconds.items():
        for name, seconds in sets.items():
            tokens, work = sum(map(len, texts[name])), operations(texts[name])
            shares = [work / s / top for s, top in zip(seconds, readings.ceilings, strict=True)]
            proof.say(
                f"  {engine:22} {name:6} {tokens / median(seconds):8.0f} tokens/s {work / median(seconds) / 1e9:6.0f} "
                f"Gop/s {median(shares):7.1%} of the ceiling"
            )
    work = sum(map(operations, texts.values()))
    share = median(work / s / top for s, top in zip(readings.total("fp32"), readings.ceilings, strict=True))
    proof.demand(share >= 0.75, f"fp32 on all texts: {share:.1%} of the ceiling, at least 75%")
    rounds = len(readings.ceilings)
    for engine, other, least in (*(("fp32", peer, 1.0) for peer in peers), ("int8", "fp32", 2.0)):
        ratios = readings.ratios(engine, other)
        low, high, _ = median_interval(ratios)
        claim = f"{engine} against {other}: {median(ratios):.2f} x ({low:.2f} to {high:.2f}), at least {least:.1f} x"
        proof.demand(median(ratios) >= least, f"{claim}, {rounds} pairs")


def vectors_of(model: Model, ids: Sequence[Any]) -> Matrix:
    return np.stack([item.vector for item in model.embed(list(ids))])


def check_vectors(proof: Proof, models: dict[str, Model], peers: dict[str, Worker], texts: Texts) -> None:
    """Cosines to our fp32, smallest and mean: of our other formats, and of the peers, so that all did the same work."""
    exact = {name: vectors_of(models["fp32"], ids) for name, ids in texts.items()}
    others: dict[str, Callable[[str], Matrix]] = {
        name: lambda texts_name, model=model: vectors_of(model, texts[texts_name])
        for name, model in models.items()
        if name != "fp32"
    }
    with tempfile.TemporaryDirectory() as place:
        for name, worker in peers.items():
            others[name] = lambda texts_name, name=name, worker=worker: _peer_vectors(
                worker, texts_name, Path(place) / f"{name}.npy"
            )
        for name, embed in others.items():
            cosines = np.concatenate([(exact[part] * embed(part)).sum(1) for part in texts])
            least = {"bf16": 0.999, "int8": 0.999}.get(name, 0.9999)
            claim = f"cosine to fp32: {name} {cosines.min():.6f} at least, {cosines.mean():.6f} in the mean"
            proof.demand(float(cosines.min()) > least, f"{claim}; over {least}")


def _peer_vectors(worker: Worker, texts: str, file: Path) -> Matrix:
    answer = cast(Any, worker.measure(cast(Any, Pass(texts, str(file)))))
    assert answer["seconds"] > 0
    return cast(Matrix, np.load(file))


def check_sts(proof: Proof, models: dict[str, Model], pairs: Sequence[Sequence[str]]) -> None:
    gold, scores = [float(row[4]) for row in pairs], {}
    for name, model in models.items():
        left, right = (vectors_of(model, [row[column] for row in pairs]) for column in (5, 6))
        scores[name] = spearman((left * right).sum(1).tolist(), gold)
    listed = ", ".join(f"{score:.5f} {name}" for name, score in scores.items())
    gap = abs(scores["fp32"] - scores["int8"])
    proof.demand(gap < 2e-3, f"STS-B test, {len(pairs)} pairs, Spearman: {listed}; int8 within 0.002 of fp32")


def say_latency(proof: Proof, models: dict[str, Model]) -> None:
    for name, model in models.items():
        ids = model.tokenize("How long does one sentence alone take?")
        times = sorted(timed(lambda model=model, ids=ids: model.embed(ids)) for _ in range(31))
        proof.say(f"  one text of {len(ids)} tokens alone, {name}: {times[15] * 1e3:.2f} ms in the median")


if __name__ == "__main__":
    main()
