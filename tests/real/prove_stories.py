"""The llama2.c checkpoint stories260K gives the 200 greedy tokens that were published with it."""

from __future__ import annotations

from tests.proof import Proof
from tests.real.data import data_folder
from vivace.api import load
from vivace.config import EngineConfig

COUNT = 200


def main() -> None:
    with Proof("stories", __doc__) as proof:
        folder = data_folder() / "models"
        published = (folder / "stories260K_greedy200.txt").read_text().rstrip("\n")
        with load(str(folder / "stories260K.bin"), config=EngineConfig(kernels="ref")) as model:
            answer = model.generate([model.text.tokenizer.bos_id], max_tokens=COUNT, temperature=0.0)
        text = answer.text.strip()
        proof.say(f"  {text[:72]!r} ...")
        proof.demand(len(answer.ids) == COUNT, f"{len(answer.ids)} tokens")
        proof.demand(text == published.strip(), "the text is the published one, character for character")


if __name__ == "__main__":
    main()
