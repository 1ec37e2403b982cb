"""Sentence encoders as workers. Usage: encoder_worker.py sentence-transformers|onnxruntime FOLDER THREADS TEXTS.json.

TEXTS.json maps names to lists of token ids. A measurement {"texts": name, "vectors": path or ""} embeds all of them, in
batches sorted by length and padded to the longest of each; answers {"seconds": ...}. The size of batches, and for
onnxruntime its fused graph or the plain one, are what was fastest in a first pass. onnxruntime needs the packages onnx
and onnxscript for the export; its graph holds mean pooling and unit length too.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from protocol import serve, take_stdout

SIZES = (8, 16, 32, 64)

Embed = Callable[[Any, Any], Any]  # ids, mask (texts, longest) int64 -> vectors (texts, size), numpy


def sentence_transformers(folder: str, threads: int) -> dict[str, Embed]:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(folder, device="cpu", local_files_only=True)

    def embed(ids: Any, mask: Any) -> Any:
        with torch.inference_mode():
            tensors = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
            return model({**tensors, "token_type_ids": torch.zeros_like(tensors["input_ids"])})[
                "sentence_embedding"
            ].numpy()

    return {"": embed}


def onnxruntime(folder: str, threads: int) -> dict[str, Embed]:
    import onnxruntime
    from onnxruntime.transformers.optimizer import optimize_model

    place = Path(tempfile.mkdtemp())
    config = export(folder, place / "plain.onnx")
    fused = optimize_model(
        str(place / "plain.onnx"), "bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size
    )
    fused.save_model_to_file(str(place / "fused.onnx"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1

    def embed(session: Any) -> Embed:
        return lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0]

    return {
        name: embed(onnxruntime.InferenceSession(str(place / f"{name}.onnx"), options, ["CPUExecutionProvider"]))
        for name in ("plain", "fused")
    }


def export(folder: str, path: Path) -> Any:
    """The model with its pooling as an ONNX graph; returns its configuration."""
    import torch
    from transformers import BertModel

    bert = BertModel.from_pretrained(folder, attn_implementation="eager", local_files_only=True).eval()
    bert.requires_grad_(False)

    class Sentence(torch.nn.Module):
        def forward(self, ids: Any, mask: Any) -> Any:
            hidden = bert(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(2).to(hidden.dtype)
            return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=1)

    ids = torch.ones(2, 9, dtype=torch.int64)
    axes = {0: "texts", 1: "longest"}
    torch.onnx.export(
        Sentence(),
        (ids, torch.ones_like(ids)),
        str(path),
        input_names=["ids", "mask"],
        output_names=["vectors"],
        dynamic_axes={"ids": axes, "mask": axes, "vectors": {0: "texts"}},
        dynamo=False,
    )
    return bert.config


def main(kind: str, folder: str, threads: str, texts: str) -> None:
    take_stdout()
    import numpy

    makers = {"sentence-transformers": sentence_transformers, "onnxruntime": onnxruntime}
    embeds = makers[kind](folder, int(threads))
    read = json.loads(Path(texts).read_text()).items()
    sets = {name: sorted(enumerate(ids), key=lambda item: len(item[1])) for name, ids in read}
    best: dict[str, tuple[Embed, int, str]] = {}

    def run(name: str, embed: Embed, size: int) -> tuple[float, list[Any]]:
        began, vectors = time.perf_counter(), []
        for first in range(0, len(sets[name]), size):
            some = [ids for _, ids in sets[name][first : first + size]]
            padded, mask = numpy.zeros((2, len(some), len(some[-1])), numpy.int64)
            for row, ids in enumerate(some):
                padded[row, : len(ids)], mask[row, : len(ids)] = ids, 1
            vectors.extend(embed(padded, mask))
        return time.perf_counter() - began, vectors

    def choose(name: str) -> tuple[Embed, int, str]:
        tries = []
        for (graph, embed), size in itertools.product(embeds.items(), SIZES):
            run(name, embed, size)
            tries.append((run(name, embed, size)[0], f"{graph} batches of {size}".strip(), embed, size))
        _, words, embed, size = min(tries, key=lambda entry: entry[0])
        return embed, size, words

    def measure(work: dict[str, Any]) -> dict[str, Any]:
        name = work["texts"]
        if name not in best:
            best[name] = choose(name)
        embed, size, words = best[name]
        seconds, vectors = run(name, embed, size)
        if work["vectors"]:
            order = numpy.argsort([index for index, _ in sets[name]])
            numpy.save(work["vectors"], numpy.stack(vectors)[order])
        return {"seconds": seconds, "flags": words}

    serve({"version": version(kind), "flags": {"threads": int(threads)}}, measure)


if __name__ == "__main__":
    main(*sys.argv[1:5])
