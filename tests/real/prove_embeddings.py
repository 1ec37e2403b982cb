"""MiniLM equals sentence-transformers: 200 texts of mixed length and script in random batches, and STS-B."""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tests.proof import Proof
from tests.real.data import data_folder
from vivace.api import load
from vivace.weights.catalog import resolve

SCRIPTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "素早い茶色の狐がのろまな犬を飛び越える。",
    "敏捷的棕色狐狸跳过了懒狗。",
    "Быстрая коричневая лиса прыгает.",
    "الثعلب البني السريع يقفز فوق الكلب الكسول",
    "तेज़ भूरी लोमड़ी आलसी कुत्ते पर कूदती है।",
    "빠른 갈색 여우가 게으른 개를 뛰어넘는다.",
    "🙂🚀 emoji and ZWJ 👩‍🚀",
    "x",
    "1234567890 ١٢٣٤",
    "tabs\tand\nnewlines   and  spaces",
)
Matrix = NDArray[np.float32]


def texts(count: int) -> list[str]:
    rng = random.Random(7)
    return [" ".join(rng.choices(SCRIPTS, k=rng.choice((1, 1, 2, 5, 20, 60)))) for _ in range(count)]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation, ties sharing their mean rank."""

    def ranks(values: Sequence[float]) -> NDArray[np.float64]:
        _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
        last = np.cumsum(counts)
        return ((last - counts + 1 + last) / 2)[inverse]

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def main() -> None:
    from sentence_transformers import SentenceTransformer  # here, since this import alone takes seconds

    with Proof("embeddings", __doc__) as proof:
        count, pairs = (200, None) if proof.is_full else (40, 100)
        peer = SentenceTransformer(str(resolve("minilm").path), device="cpu", local_files_only=True)
        sentences = texts(count)
        with load("minilm") as model:
            ours = embed_in_batches(model, sentences)
            theirs = peer.encode(sentences, normalize_embeddings=True)
            cosine = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
            proof.demand(cosine.min() >= 0.9999, f"{count} texts in random batches: smallest cosine {cosine.min():.7f}")
            check_sts(proof, model, peer, pairs)


def embed_in_batches(model, sentences: list[str]) -> Matrix:  # type: ignore[no-untyped-def]
    rng, found = random.Random(3), []
    rest = list(sentences)
    while rest:
        size = rng.randint(1, 24)
        found += [item.vector for item in model.embed(rest[:size])]
        rest = rest[size:]
    return np.stack(found)


def check_sts(proof: Proof, model, peer, pairs: int | None) -> None:  # type: ignore[no-untyped-def]
    with (data_folder() / "evals" / "stsb-test.csv").open(newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:pairs]
    gold = [float(row[4]) for row in rows]
    left, right = [row[5] for row in rows], [row[6] for row in rows]
    scores = {}
    for name, encode in (
        ("vivace", lambda batch: np.stack([item.vector for item in model.embed(batch)])),
        ("sentence-transformers", lambda batch: peer.encode(batch, normalize_embeddings=True)),
    ):
        scores[name] = spearman((encode(left) * encode(right)).sum(1).tolist(), gold)
        proof.say(f"  STS-B test, {len(rows)} pairs: Spearman {scores[name]:.5f} {name}")
    gap = abs(scores["vivace"] - scores["sentence-transformers"])
    proof.demand(gap <= 1e-3, f"difference {gap:.1e} is at most 1e-3")


if __name__ == "__main__":
    main()
