"""From the start of `vivace run` to its first token, cause by cause, beside llama.cpp on the same file."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from tests.proof import ROOT, Proof

PROMPT = "What is the capital of France?"
TINY = ROOT / "tests/assets/tiny-llama"
# What one answer does not need; the last three are what torch itself can do without until it compiles something.
UNWANTED = ("transformers", "fastapi", "uvicorn", "huggingface_hub", "zmq", "msgspec", "prometheus_client")
UNWANTED += ("safetensors.torch", "torch._dynamo", "torch._inductor", "sympy")

# (module, attribute, cause): functions whose time is told apart. Imports are timed by what is imported.
_STEPS = (
    ("vivace.weights.catalog", "resolve", "catalog: where the files are"),
    ("vivace.api.engine", "load_text", "tokenizer and template"),
    ("vivace.api.engine", "_bind", "hardware, operations, threads"),
    ("vivace.api.engine", "open_rooms", "digest of the files"),
    ("vivace.api.engine", "load_model", "weights: header, packing or reading them"),
    ("vivace.pipelines.generate", "make_stores", "pages of keys and values"),
    ("vivace.pipelines.generate", "try_replay", "recording the step"),
    ("vivace.api.text", "encode_chat", "prompt to ids"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timeline", type=float, help="run the command that follows, started at this moment")
    parser.add_argument("--model", default="")
    parser.add_argument("--llama", default=os.environ.get("LLAMA_CLI", ""), help="llama-cli to run beside it")
    if "--timeline" in sys.argv:
        options, words = parser.parse_known_args()
        timeline(options.timeline, words)
        return
    with Proof("cold", __doc__, arguments=parser) as proof:
        options = proof.options
        model = options.model or ("smollm2" if proof.is_full else str(TINY))
        repeats = 9 if proof.is_full else 1
        words = ["run", model, PROMPT, "--max-tokens", "1"]
        wall([sys.executable, "-m", "vivace", *words])  # the cache is warm from here on
        times: dict[str, list[float]] = defaultdict(list)
        causes: dict[str, list[float]] = defaultdict(list)
        for _ in range(repeats):
            times["vivace run"].append(wall([sys.executable, "-m", "vivace", *words]))
            if options.llama:
                times["llama.cpp"].append(wall(llama(options.llama, model)))
            times["python, import torch alone"].append(wall([sys.executable, "-c", "import torch"]))
            told = causes_of(words)
            for cause, seconds in told["causes"].items():
                causes[cause].append(seconds)
        proof.say(f"\n{'process from start to end, one token':44} median     best  ({repeats} rounds, interleaved)")
        for name, found in times.items():
            proof.say(f"  {name:42} {statistics.median(found):6.3f} s {min(found):6.3f} s")
        proof.say(f"\n{'of one run, by cause':44} median     best")
        for cause, found in causes.items():
            proof.say(f"  {cause:42} {statistics.median(found):6.3f} s {min(found):6.3f} s")
        proof.say("")
        proof.demand(not told["unwanted"], f"not imported: {', '.join(UNWANTED)}; found {told['unwanted']}")
        if proof.is_full:  # a tiny model is packed again: that is faster
            proof.demand(told["packed"] == 0, f"{told['packed']} weights were packed again")
        light = json.loads(subprocess.check_output([sys.executable, "-c", LIGHT], text=True))
        proof.demand(not light, f"--help and models import neither torch nor numpy; found {light}")


LIGHT = f"""
import contextlib, io, json, sys
from typer.testing import CliRunner
from vivace.cli.main import make_app
for words in (["--help"], ["models"]):
    assert CliRunner().invoke(make_app(), words).exit_code == 0, words
print(json.dumps([name for name in ("torch", "numpy", *{UNWANTED!r}) if name in sys.modules]))
"""


def wall(words: list[str]) -> float:
    """Seconds of a process from start to end. Its answer must not be empty."""
    began = time.perf_counter()
    done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, cwd=ROOT, check=False)
    seconds = time.perf_counter() - began
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return seconds


def llama(program: str, model: str) -> list[str]:
    from vivace.weights.catalog import resolve

    path, threads = resolve(model).path, len(os.sched_getaffinity(0))
    return [program, "-m", str(path), "-p", PROMPT, "-n", "1", "-st", "-t", str(threads), "--temp", "0", "-c", "8192"]


def causes_of(words: list[str]) -> dict[str, Any]:
    """One run that tells where its time went."""
    command = [sys.executable, "-m", "tests.cli.prove_cold", "--timeline", repr(time.monotonic()), *words]
    found: dict[str, Any] = json.loads(
        subprocess.check_output(command, cwd=ROOT, stderr=subprocess.DEVNULL).splitlines()[-1]
    )
    return found


def timeline(started: float, words: list[str]) -> None:
    clock = Clock(started)
    clock.lap("interpreter start")
    import vivace.cli.main

    clock.lap("import: command line (typer, rich, pydantic)")
    import numpy  # noqa: F401

    clock.lap("import: numpy")
    import torch  # noqa: F401

    clock.lap("import: torch")
    import vivace.api.engine
    from vivace.weights.packed import PackedRooms

    clock.lap("import: rest of vivace")
    packed = []
    keep = PackedRooms.keep
    PackedRooms.keep = lambda self: (packed.append(self.num_made), keep(self))[1]  # type: ignore[method-assign,assignment]
    for module, name, cause in _STEPS:
        clock.watch(sys.modules[module], name, cause)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        sys.argv = ["vivace", *words]
        vivace.cli.main.main()
    clock.lap("first step, the rest of the command, end")
    unwanted = [name for name in UNWANTED if name in sys.modules]
    assert output.getvalue().strip(), "no answer"
    print(json.dumps({"causes": clock.causes, "unwanted": unwanted, "packed": sum(packed)}))


class Clock:
    """Shares out the time since `started` among causes."""

    def __init__(self, started: float) -> None:
        self.causes: dict[str, float] = {}
        self._last = started

    def lap(self, cause: str) -> None:
        """All time since the last lap, less what inner functions took, has this cause."""
        now = time.monotonic()
        self.causes[cause] = self.causes.get(cause, 0.0) + now - self._last
        self._last = now

    def watch(self, module: Any, name: str, cause: str) -> None:
        call: Callable[..., Any] = getattr(module, name)

        @functools.wraps(call)
        def timed(*arguments: Any, **named: Any) -> Any:
            with self._inner(cause):
                return call(*arguments, **named)

        setattr(module, name, timed)

    @contextlib.contextmanager
    def _inner(self, cause: str) -> Iterator[None]:
        began, was = time.monotonic(), sum(self.causes.values())
        yield
        seconds = time.monotonic() - began - (sum(self.causes.values()) - was)
        self.causes[cause] = self.causes.get(cause, 0.0) + seconds
        self._last += seconds  # so that the lap around it does not count it again


if __name__ == "__main__":
    main()
