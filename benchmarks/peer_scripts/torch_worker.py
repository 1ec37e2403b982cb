"""transformers on torch as a worker, one forward pass a measurement. Usage: torch_worker.py FOLDER THREADS DTYPE"""

from __future__ import annotations

import os
import sys

from protocol import Ids, measured_by, serve, take_stdout


def main(folder: str, threads: str, dtype: str) -> None:
    take_stdout()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the files are local: nothing may be looked up
    import torch
    import transformers

    torch.set_num_threads(int(threads))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    class Running:
        """Prompts of one length that decode greedily together."""

        def __init__(self, prompts: list[Ids], tokens: int) -> None:
            # The ids are those of any real vocabulary; a small one takes them modulo its size.
            self.step_ids, self.tokens = torch.tensor(prompts) % model.config.vocab_size, tokens
            self.past, self.count = None, 0

        def step(self) -> None:
            if self.count == self.tokens:
                return
            with torch.inference_mode():
                # Only the last position goes through the head, as it does in an engine.
                found = model(self.step_ids, past_key_values=self.past, use_cache=True, logits_to_keep=1)
                self.step_ids, self.past = found.logits[:, -1].argmax(-1, keepdim=True), found.past_key_values
            self.count += 1

        def counts(self) -> list[int]:
            return [self.count] * len(self.step_ids)

    flags = {"dtype": dtype, "threads": threads, "attention": str(model.config._attn_implementation)}
    version = f"transformers {transformers.__version__}, torch {torch.__version__}"
    serve({"version": version, "format": dtype, "kv": dtype, "flags": flags}, measured_by(Running))


if __name__ == "__main__":
    main(*sys.argv[1:4])
