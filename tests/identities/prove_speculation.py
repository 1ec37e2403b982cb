"""Speculation on equals off bit for bit: seeded schedules with n-gram drafts and with trees that are right in part.

Tiny trained models, one with a sliding window, in `rows` and native operations, there with recorded steps, dense and
quantized weights: token ids, logits of every draw, log-probabilities, usage and page accounting are those of each
request's plain run, under chunk and draft cuts, forced preemption, prefix hits, small pools, cancelled and failing
neighbours. Then what n-gram drafts are worth: tokens per
step on texts that repeat and on one that does not, on the tiny model and, where its weights are cached, on SmolLM2.
"""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tests.identities.files import make_weights
from tests.identities.speculation import EVENTS, TREE_EVENTS, NgramWorld, PlantedWorld
from tests.identities.world import ASSETS, run_schedule
from tests.proof import Proof
from vivace.api import Engine, Model
from vivace.config import EngineConfig, KernelChoice, KVFormat
from vivace.errors import DownloadError
from vivace.kernels.cpu.bind import why_missing
from vivace.weights.catalog import resolve

WORLDS = ((NgramWorld, "n-gram drafts", EVENTS), (PlantedWorld, "trees of guesses", (*EVENTS, *TREE_EVENTS)))
STORY = "Ada had a red horse. The horse lived in the garden. One day the horse went to the lake and found a blue ball."
MIXES: tuple[tuple[str, KVFormat], ...] = (("bf16", "f32"), ("mixed", "f16"), ("K", "i8"))
PROMPTS = {
    "'serving' 48 times": "serving " * 48,
    "a text to repeat": f"{STORY}\n\nThe same text again, word for word:\n\n{STORY[:40]}",
    "an ordinary question": "Write a short poem about the sea and a lonely lighthouse keeper.",
}


def compare(proof: Proof, kernels: KernelChoice, schedules: int, minimum: int, folder: Path) -> None:
    """Schedules of each kind of draft, dealt out to the models and mixes."""
    for kind, name, events in WORLDS:
        worlds = [
            kind(asset, kernels, kv_format, weights=make_weights(asset, weights, folder))
            for weights, kv_format in MIXES[: None if kernels == "native" else 1]
            for asset in ("tiny-llama", "tiny-gemma3")
        ]
        different = []
        for seed in range(schedules):
            world = worlds[seed % len(worlds)]
            try:
                run_schedule(world, seed, world.seen)
            except AssertionError as error:
                different.append(str(error))
        seen = sum((world.seen for world in worlds), Counter[str]())
        for line in different[:5]:
            proof.say(f"  {line}")
        claim = f"{kernels}, {name}: {schedules} schedules, {seen['requests']} requests: {len(different)} differ"
        proof.demand(not different, claim)
        if kernels == "native":
            proof.demand(seen["replayed steps"] == seen["steps"], f"  {seen['steps']} steps, all replayed")
        for event in (*events, "preemptions", "cut chunks", "failed steps", "schedules with prefix hits"):
            proof.demand(seen[event] >= minimum, f"  {seen[event]} {event}")


def measure(proof: Proof, path: Path, count: int) -> None:
    """Tokens per step of greedy answers, with and without drafts; the answers must be equal."""
    config = EngineConfig(speculation="ngram", prefix_cache=False, kv_bytes=256 << 20)
    with Engine(config) as engine:
        info = engine.add_model(str(path), name="model")
        model = Model(info, engine.texts["model"], engine)
        for name, prompt in PROMPTS.items():
            options = {"max_tokens": count, "logprobs": 1, "ignore_eos": True}
            plain = model.generate(prompt, speculation="off", **options)
            found = model.generate(prompt, **options)
            is_equal = (found.text, found.tokens) == (plain.text, plain.tokens)
            right, drafted = found.usage.accepted, found.usage.accepted + found.usage.rejected
            steps = found.usage.generated - right
            rate = f"{right} of {drafted} guesses right, {found.usage.generated / steps:.2f} tokens a step"
            proof.demand(is_equal, f"{path.name}, {name}: {found.usage.generated} tokens equal; {rate}")
            if name.startswith("'"):
                proof.demand(right > 0, "  guesses were right where the text repeats")


def main() -> None:
    with Proof("speculation", __doc__) as proof, TemporaryDirectory() as name:
        folder = Path(name)
        torch.set_num_threads(1)
        logging.disable(logging.WARNING)  # the planted faults
        compare(proof, "rows", 200 if proof.is_full else 40, 20 if proof.is_full else 2, folder)
        missing = why_missing()
        if missing is None:
            mixes = ", ".join(f"{weights} with KV pages {kv_format}" for weights, kv_format in MIXES)
            proof.say(f"native: weights {mixes}")
            compare(proof, "native", 1000 if proof.is_full else 60, 100 if proof.is_full else 5, folder)
        else:
            proof.say(f"native kernels are not compared: {missing}")
        measure(proof, ASSETS / "tiny-llama", 60)
        try:
            measure(proof, resolve("smollm2").path, 128 if proof.is_full else 48)
        except DownloadError as error:
            proof.say(f"SmolLM2 is not measured: {error.message}")


if __name__ == "__main__":
    main()
