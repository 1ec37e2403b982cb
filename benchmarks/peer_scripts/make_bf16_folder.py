"""Make a Hugging Face folder in bf16 or float32 from a GGUF file, for peers that do not read GGUF.

Usage: make_bf16_folder.py FILE.gguf OUT [bfloat16|float32]
It needs transformers, accelerate, gguf and torch, as vLLM's environment has.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(file: str, out: str, dtype: str = "bfloat16") -> None:
    folder, name = str(Path(file).parent), Path(file).name
    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    config = read.config.to_dict()
    config.pop("quantization_config", None)  # the weights are plain from here on
    model = type(read)(type(read.config)(**config))
    model.load_state_dict(read.state_dict())
    model.to(getattr(torch, dtype)).save_pretrained(out)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:4])
