"""Greedy tokens of SmolLM2 (chat) and Gemma 3 270M (completion) equal transformers' on the same weights.

After a tie (the peer's best two logits closer than 1e-4, where the order of a sum may decide) the comparison goes on
teacher-forced with the peer's token. Ties are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.proof import Proof
from tests.real.peers import CHATS, COMPLETIONS, greedy, load_decoder
from vivace.api import Model, load
from vivace.config import EngineConfig
from vivace.weights.catalog import resolve

TIE_MARGIN = 1e-4


def compare(model: Model, peer: Any, prompt: Sequence[int], count: int) -> tuple[int, int, int]:
    """(equal tokens, ties, tokens) of one prompt; an answer that ends early counts with its end token."""
    expected = greedy(peer, prompt, count, tuple(model.text.tokenizer.eos_ids))
    ids = [token for token, _ in expected]
    equal, ties, place = 0, 0, 0
    while place < len(ids):
        answer = model.generate([*prompt, *ids[:place]], max_tokens=len(ids) - place, temperature=0.0)
        ours = list(answer.ids)
        if len(ours) < len(ids) - place:
            ours.append(ids[-1] if ids[-1] in model.text.tokenizer.eos_ids and answer.finish_reason == "stop" else -1)
        same = next((i for i, (a, b) in enumerate(zip(ours, ids[place:], strict=False)) if a != b), len(ids) - place)
        equal += same
        place += same
        if place < len(ids):
            if expected[place][1] >= TIE_MARGIN:
                break
            ties += 1
            place += 1
    return equal, ties, len(ids)


def check(proof: Proof, name: str, prompts: Sequence[str], count: int) -> None:
    """The reference must agree; what the kernels that run by default agree on is told beside it."""
    peer = load_decoder(resolve(name).path)
    equal, ties, total = agreement(proof, name, EngineConfig(kernels="ref"), peer, prompts, count)
    proof.demand(equal + ties == total, f"{name}, reference: {equal} of {total} tokens equal, {ties} ties")
    equal, ties, total = agreement(proof, name, EngineConfig(), peer, prompts, count)
    proof.say(
        f"        {name}, default kernels: {equal} of {total} tokens equal up to the first difference, {ties} ties"
    )


def agreement(
    proof: Proof, name: str, config: EngineConfig, peer: Any, prompts: Sequence[str], count: int
) -> tuple[int, int, int]:
    """(equal tokens, ties, tokens) over all prompts."""
    sums = (0, 0, 0)
    with load(name, config=config) as model:
        for text in prompts:
            is_chat = name == "smollm2"
            prompt = model.chat_ids([{"role": "user", "content": text}]) if is_chat else model.tokenize(text)
            same, tied, tokens = compare(model, peer, prompt, count)
            proof.say(f"  {name}, kernels {config.kernels}: {same}/{tokens} equal, {tied} ties: {text!r}")
            sums = (sums[0] + same, sums[1] + tied, sums[2] + tokens)
    return sums


def main() -> None:
    with Proof("tokens", __doc__) as proof:
        number, count = (8, 64) if proof.is_full else (1, 16)
        check(proof, "smollm2", CHATS[:number], count)
        check(proof, "gemma3-270m", COMPLETIONS[:number], count)


if __name__ == "__main__":
    main()
