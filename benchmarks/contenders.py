"""The engines that `benchmarks.peers` runs: Vivace, llama.cpp, OpenVINO GenAI, vLLM and the prototype.

A contender that keeps running (a worker) is loaded once and answers one measurement at a time; llama.cpp and the
prototype are programs that are started for each measurement, and load in less than the time that is measured.
"""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

SCRIPTS = Path(__file__).parent / "peer_scripts"
START_S, MEASURE_S = 900.0, 600.0


class ContenderFailed(Exception):
    """A contender could not be started or measured; the text says why."""


@dataclass(frozen=True)
class Work:
    """`streams` prompts of `context` tokens; `tokens` decoded by each of them, or 0: the prompt itself is timed."""

    streams: int
    context: int
    tokens: int

    @property
    def name(self) -> str:
        return f"decode {self.streams}" if self.tokens else f"prefill {self.context}"


class Contender(Protocol):
    """An engine with a model. `about`: version, format of the weights, type of keys and values, flags."""

    name: str
    about: dict[str, Any]

    def measure(self, work: Work) -> dict[str, float]:
        """Do the work once: tokens_per_s, and whatever else the engine tells. Raises ContenderFailed."""
        ...

    def close(self) -> None:
        """End what runs."""
        ...


class Worker:
    """A script of peer_scripts, in a Python of its own. Raises ContenderFailed if it does not come up."""

    def __init__(self, name: str, command: Sequence[str], about: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._errors: list[str] = []
        targets = ((self._process.stdout, self._answers.put), (self._process.stderr, self._errors.append))
        self._readers = [threading.Thread(target=_drain, args=target, daemon=True) for target in targets]
        for reader in self._readers:
            reader.start()
        try:
            self.about = {**about, **self._answer(START_S)["ready"], "environment": dict(env)}
        except ContenderFailed:
            self.close()
            raise

    def measure(self, work: Work) -> dict[str, float]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(work)) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ContenderFailed(f"{self.name} is gone: {self._last_error()}") from error
        answer: dict[str, float] = self._answer(MEASURE_S)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        for reader in self._readers:
            reader.join(10)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise ContenderFailed(f"{self.name} gave no answer for {timeout_s:.0f} s") from None
        if not line:
            raise ContenderFailed(f"{self.name} ended: {self._last_error()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderFailed(f"{self.name}: {answer['error']}")
        return answer

    def _last_error(self) -> str:
        self._readers[1].join(10)  # what it said last
        lines = [line.strip() for line in self._errors if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"


class LlamaCpp:
    """llama-bench reads prompts, llama-batched-bench decodes streams. `programs` is the folder that holds both."""

    def __init__(self, name: str, programs: Path, model: Path, about: Mapping[str, Any], options: LlamaOptions) -> None:
        self.name = name
        self._programs, self._model, self._options = programs, model, options
        version = _run([str(programs / "llama-bench"), "--version"], may_fail=True)
        flags = [*options.flags(), "-fa", options.flash_attention]
        self.about = {**about, "version": _llama_version(version), "kv": options.kv, "flags": " ".join(flags)}

    def measure(self, work: Work) -> dict[str, float]:
        common = ["-m", str(self._model), *self._options.flags(), "-fa", self._options.flash_attention]
        if not work.tokens:
            program = [str(self._programs / "llama-bench"), *common, "-p", str(work.context), "-n", "0", "-r", "1"]
            [row] = json.loads(_run([*program, "-o", "json"]))
            return {"tokens_per_s": row["avg_ts"]}
        room = work.streams * (work.context + work.tokens)
        sizes = ["-c", str(room), "-b", "512", "-npp", str(work.context), "-ntg", str(work.tokens)]
        program = [str(self._programs / "llama-batched-bench"), *common, *sizes, "-npl", str(work.streams)]
        lines = [line for line in _run([*program, "--output-format", "jsonl"]).splitlines() if line.startswith("{")]
        [row] = [json.loads(line) for line in lines]
        return {"tokens_per_s": row["speed_tg"], "prompt_tokens_per_s": row["speed_pp"]}

    def close(self) -> None:
        return


@dataclass(frozen=True)
class LlamaOptions:
    """How llama.cpp is run: threads, type of keys and values, flash attention (on, off or auto)."""

    threads: int
    kv: str = "f16"
    flash_attention: str = "auto"

    def flags(self) -> list[str]:
        return ["-t", str(self.threads), "-ctk", self.kv, "-ctv", self.kv]


class Prototype:
    """The throw-away prototype: a program that knows one model and two threads, with w.bin in its folder."""

    KV = ("f32", "f16", "i8")
    CONTEXT, TOKENS, PROMPT = 128, 64, 512  # what the program does, written into it

    def __init__(self, name: str, program: Path, kv: str, about: Mapping[str, Any]) -> None:
        self.name = name
        self._program, self._kv = program, kv
        self.about = {**about, "version": "prototype", "kv": kv, "flags": "PFD=4096, 2 threads"}

    def measure(self, work: Work) -> dict[str, float]:
        env = {"KV": str(self.KV.index(self._kv)), "PFD": "4096", "BS": str(work.streams) if work.tokens else ""}
        if work.tokens:
            if (work.context, work.tokens) != (self.CONTEXT, self.TOKENS):
                raise ContenderFailed(f"the prototype decodes {self.TOKENS} tokens after {self.CONTEXT} only")
            env["NOPF"] = "1"
        elif work.context != self.PROMPT:
            raise ContenderFailed(f"the prototype reads prompts of {self.PROMPT} only")
        text = _run([str(self._program), "bench", "1"], cwd=self._program.parent, env=env)
        rates = re.findall(r"^(?:decode|prefill) .*: ([0-9.]+) tok/s", text, re.MULTILINE)
        if not rates:
            raise ContenderFailed("the prototype printed no rate")
        return {"tokens_per_s": max(map(float, rates))}  # prompts: in the chunks that suit it best

    def close(self) -> None:
        return


def run_script(python: str, script: str, *arguments: str) -> str:
    """What a script of peer_scripts prints. Raises ContenderFailed."""
    return _run([python, str(SCRIPTS / script), *arguments])


def worker_command(python: str, script: str, *arguments: str) -> list[str]:
    """The command line of a worker."""
    return [python, str(SCRIPTS / script), *arguments]


def build_prototype(sources: Path, model: Path, folder: Path) -> dict[str, Path]:
    """Compile the prototype of a folder and write the weights of a GGUF file for it: {"int8": ..., "int14": ...}."""
    common = ["g++", "-O3", "-march=native", "-std=c++17", "-w", "-I", str(sources)]
    variants = {"int8": ("a8_tile4x3.cpp", []), "int14": ("a14_tile6x2.cpp", ["-DA14"])}
    for name, (source, flags) in variants.items():
        _run([*common, *flags, str(sources / source), "-o", str(folder / name), "-lpthread"])
    _run([sys.executable, str(sources / "dump_weights.py"), str(model.resolve())], cwd=folder)
    for file in sources.glob("*.bin"):
        (folder / file.name).write_bytes(file.read_bytes())
    return {name: folder / name for name in variants}


def quantize(programs: Path, model: Path, kind: str, folder: Path) -> Path:
    """A copy of a GGUF file in another 4-bit format, by llama-quantize."""
    target = folder / f"{model.stem}-as-{kind}.gguf"
    _run([str(programs / "llama-quantize"), "--allow-requantize", str(model), str(target), kind])
    return target


def _run(
    command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, may_fail: bool = False
) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=MEASURE_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ContenderFailed(f"{Path(command[0]).name}: {error}") from error
    if done.returncode and not may_fail:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise ContenderFailed(f"{Path(command[0]).name} ended with {done.returncode}: {' '.join(last)[:300]}")
    return done.stdout + (done.stderr if may_fail else "")


def _llama_version(text: str) -> str:
    found = re.search(r"version: (.+)", text)
    return found[1].strip() if found else "not stated"


def _drain(stream: Any, target: Any) -> None:
    with stream:
        for line in stream:
            target(line)
    target("")  # the end
