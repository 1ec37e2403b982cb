"""vLLM on the CPU as a worker. Usage: vllm_worker.py FOLDER THREADS"""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version

from protocol import Ids, measured_by, serve, take_stdout


def main(folder: str, threads: str) -> None:
    take_stdout()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # its engine in this process, so that its steps can be timed
    os.environ["OMP_NUM_THREADS"] = threads
    from vllm import EngineArgs, LLMEngine, SamplingParams

    arguments = EngineArgs(
        model=folder,
        dtype="bfloat16",
        max_model_len=2048,
        enable_prefix_caching=False,
        max_num_seqs=64,
        max_num_batched_tokens=2048,
    )
    engine = LLMEngine.from_engine_args(arguments)

    class Running:
        number = 0

        def __init__(self, prompts: list[Ids], tokens: int) -> None:
            params = SamplingParams(max_tokens=tokens, min_tokens=tokens, ignore_eos=True, temperature=0)
            self.found: dict[str, int] = {}
            for ids in prompts:
                Running.number += 1
                self.found[str(Running.number)] = 0
                engine.add_request(str(Running.number), {"prompt_token_ids": ids}, params)

        def step(self) -> None:
            for output in engine.step():
                self.found[output.request_id] = len(output.outputs[0].token_ids)

        def counts(self) -> list[int]:
            return list(self.found.values())

    flags = {"dtype": "bfloat16", "OMP_NUM_THREADS": threads}
    serve({"version": _version(), "kv": "bf16", "flags": flags}, measured_by(Running))


def _version() -> str:
    for name in ("vllm-cpu", "vllm"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "not known"


if __name__ == "__main__":
    main(*sys.argv[1:3])
