"""Perplexity of SmolLM2 on WikiText-2 test, windows of 512 tokens without overlap, within 0.1% of transformers'."""

from __future__ import annotations

import math

import torch

from tests.proof import Proof
from tests.real.data import data_folder
from tests.real.peers import load_decoder, logits_of
from vivace.api import load
from vivace.config import EngineConfig
from vivace.weights.catalog import resolve

WINDOW = 512


def main() -> None:
    with Proof("perplexity", __doc__) as proof:
        windows = 16 if proof.is_full else 2
        text = (data_folder() / "text" / "wikitext2-test.raw").read_text()
        peer = load_decoder(resolve("smollm2").path)
        with load("smollm2", config=EngineConfig(kernels="ref")) as model:
            ids = model.tokenize(text[: windows * WINDOW * 8])[: windows * WINDOW]
            proof.demand(len(ids) == windows * WINDOW, f"{windows} windows of {WINDOW} tokens")
            ours = theirs = 0.0
            for start in range(0, len(ids), WINDOW):
                window = ids[start : start + WINDOW]
                scored = model.generate(window, max_tokens=1, temperature=0.0, prompt_logprobs=0)
                ours -= sum(token.logprob for token in scored.prompt[1:] if token.logprob is not None)
                rows = torch.log_softmax(logits_of(peer, window)[:-1].double(), -1)
                theirs -= float(rows.gather(1, torch.tensor(window[1:])[:, None]).sum())
        count = windows * (WINDOW - 1)
        mine, reference = math.exp(ours / count), math.exp(theirs / count)
        proof.say(f"perplexity over {count} tokens: vivace {mine:.5f}, transformers {reference:.5f}")
        gap = abs(mine / reference - 1)
        proof.demand(gap < 1e-3, f"relative difference {gap:.2e} is below 1e-3")


if __name__ == "__main__":
    main()
