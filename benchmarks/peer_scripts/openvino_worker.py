"""OpenVINO GenAI as a worker. Usage: openvino_worker.py FILE_OR_FOLDER THREADS KV_TYPE (u8, f16, f32, or default)."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

from protocol import Ids, measured_by, serve, take_stdout


def main(path: str, threads: str, kv_type: str) -> None:
    take_stdout()
    import numpy
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size, scheduler.enable_prefix_caching = 2, False
    scheduler.max_num_seqs, scheduler.max_num_batched_tokens = 64, 512
    properties = {"INFERENCE_NUM_THREADS": threads}
    if kv_type != "default":
        properties["KV_CACHE_PRECISION"] = kv_type
    pipe = openvino_genai.ContinuousBatchingPipeline(path, scheduler, "CPU", properties)

    class Running:
        def __init__(self, prompts: list[Ids], tokens: int) -> None:
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = config.min_new_tokens = tokens
            config.ignore_eos, config.do_sample = True, False
            arrays = [numpy.array([ids], dtype=numpy.int64) for ids in prompts]
            self.handles = [
                pipe.add_request(number, openvino.Tensor(array), config) for number, array in enumerate(arrays)
            ]
            self.found = [0] * len(prompts)

        def step(self) -> None:
            pipe.step()
            for index, handle in enumerate(self.handles):
                while handle.can_read():
                    self.found[index] += sum(len(output.generated_ids) for output in handle.read().values())

        def counts(self) -> list[int]:
            return self.found

    about = {
        "version": version("openvino-genai"),
        "kv": "u8 (its default)" if kv_type == "default" else kv_type,
        "flags": {
            **properties,
            "GGUF_READER": os.environ.get("GGUF_READER", "its default"),
            "max_num_batched_tokens": 512,
        },
    }
    serve(about, measured_by(Running))


if __name__ == "__main__":
    main(*sys.argv[1:4])
