"""Every setting of Vivace: frozen dataclasses with their defaults, the table of environment variables, and `resolve`.

A part takes only the fields it needs. `resolve` fills what was left to the machine (None) from its hardware and returns
a new object; `describe` prints it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, get_args

from vivace.errors import ConfigError, nearest

KernelChoice = Literal["auto", "native", "ref", "rows"]
ActivationFormat = Literal["int14", "int8", "auto", "f32"]
WeightFormat = Literal["stored", "bf16", "int8"]
KVFormat = Literal["f32", "f16", "bf16", "i8"]
CheckMode = Literal["off", "weights", "steps"]

MAX_THREADS = 1024  # each is a thread of the native pool
MAX_JSON_DEPTH = 256  # far below Python's own limit of recursion


@dataclass(frozen=True)
class Hardware:
    """What a machine offers to this process; container limits are already applied."""

    cpu: str = "unknown"
    isa: tuple[str, ...] = ()
    cores: int = 1
    memory_bytes: int = 0
    memory_free_bytes: int = 0
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineConfig:
    """How models are run. What is left out (None) is resolved from the hardware.

    kernels       implementation of the operations: auto, native, ref (batched torch) or rows (one row at a time)
    weights       how matrices that a file holds as floats are kept: stored (as they are), or rounded at load to bf16 or
                  int8 (32 inputs share a scale); tables that are only looked up stay as they are
    activations   what native kernels turn the inputs of quantized weights into: int14 (rounded to 14 bits), int8
                  (faster, rounded to 8 bits), auto (int8 for the layers that a check at load finds insensitive), f32
                  (not rounded; weights become float32 when they are loaded)
    kl_target     KL divergence from exact scores that auto may cause on the built-in text, in nats
    kl_limit      KL divergence above which a lossy setting (int8 or auto activations, a kv_format but f32) is refused
    threads       threads that compute; left out: one for each core this process may use
    page_size     units a KV page holds
    packed_bytes  disk for the packed weights of all models, which later starts read instead of packing again; those not
                  used for longest go first; 0 keeps none
    kv_format     how keys and values are kept: f32, half the bytes as f16 or bf16, about a quarter as i8 (all lossy)
    kv_bytes      memory of the KV pages of one model; left out: half of what is free, or what all jobs need
    max_length    longest context a job may reach; left out: the model's own limit
    step_budget   cost granted per step over all jobs
    max_jobs      jobs in one step
    max_waiting   jobs that may queue before new ones are refused
    max_gap_ms    bound of a step while answers are written: prompts are read in chunks that keep it; 0: none
    prefix_cache  share prefixes between jobs of one tenant
    replay        record the steps of a model once and replay them, where its operations are native; off: call by call
    speculation   drafter of requests that name none, such as ngram; off: none
    check         look for NaN and infinity, and name where they are: in weights when they are loaded, in steps also in
                  the result of every operation (slow); off: do not look
    """

    kernels: KernelChoice = "auto"
    weights: WeightFormat = "stored"
    activations: ActivationFormat = "int14"
    kl_target: float = 0.001
    kl_limit: float = 0.05
    threads: int | None = None
    page_size: int = 16
    packed_bytes: int = 16 << 30
    kv_format: KVFormat = "f32"
    kv_bytes: int | None = None
    max_length: int | None = None
    step_budget: int = 512
    max_jobs: int = 64
    max_waiting: int = 1024
    max_gap_ms: int = 100
    prefix_cache: bool = True
    replay: bool = True
    speculation: str = "off"
    check: CheckMode = "off"


@dataclass(frozen=True)
class ServeConfig:
    """How the server listens. Loopback only by default; a public bind without a key prints a warning.

    host            address to listen on
    port            port to listen on; 0 takes a free one
    api_key         key that clients must send
    max_body_bytes  longest body of a request
    max_json_depth  deepest nesting of a body
    drain_seconds   time that running requests get when the server is told to end
    engine          how models are run
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    max_body_bytes: int = 8 << 20
    max_json_depth: int = 64
    drain_seconds: float = 30.0
    engine: EngineConfig = field(default_factory=EngineConfig)


@dataclass(frozen=True)
class Variable:
    """One environment variable: its name, what it sets, and its default as text."""

    name: str
    meaning: str
    default: str


VARIABLES = (
    Variable("VIVACE_CACHE", "folder for downloaded models", "$XDG_CACHE_HOME/vivace or ~/.cache/vivace"),
    Variable("VIVACE_KERNELS", "implementation of the operations: auto, native, ref, rows", "auto"),
    Variable(
        "VIVACE_ISA",
        "highest instruction set of native kernels: avx512vnni, avx512, avx2vnni, avx2, portable",
        "what the CPU has",
    ),
    Variable("VIVACE_THREADS", "threads that compute", "usable cores"),
    Variable("VIVACE_OFFLINE", "1: never use the network", "0"),
    Variable("VIVACE_API_KEY", "key that clients of the server must send", "none"),
    Variable("VIVACE_TEST_DATA", "folder with extra data for tests and benchmarks", "none: those tests skip"),
    Variable("VIVACE_REQUIRE_NATIVE", "at build time, 1: fail instead of installing without native kernels", "0"),
)


def read_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the set VIVACE_ variables; an unknown one is an error that names the nearest known."""
    known = {variable.name for variable in VARIABLES}
    found = {}
    for name, value in (os.environ if environ is None else environ).items():
        if not name.startswith("VIVACE_"):
            continue
        if name not in known:
            raise ConfigError(f"unknown environment variable {name}", hint=nearest(name, known))
        found[name] = value
    return found


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The folder for downloaded models."""
    env = os.environ if environ is None else environ
    if env.get("VIVACE_CACHE"):
        return Path(env["VIVACE_CACHE"]).expanduser()
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "vivace"


def with_environment(config: EngineConfig, environ: Mapping[str, str] | None = None) -> EngineConfig:
    """Return `config` with fields that are still at their default taken from the environment."""
    _check_type(config)
    env = read_environment(environ)
    changes: dict[str, object] = {}
    if config.kernels == "auto" and "VIVACE_KERNELS" in env:
        changes["kernels"] = _choice("VIVACE_KERNELS", env["VIVACE_KERNELS"], ("auto", "native", "ref", "rows"))
    if config.threads is None and "VIVACE_THREADS" in env:
        changes["threads"] = _positive("VIVACE_THREADS", env["VIVACE_THREADS"])
    return replace(config, **changes)  # type: ignore[arg-type]


def resolve(config: EngineConfig, hardware: Hardware) -> EngineConfig:
    """Return a config with the threads that the hardware decides. Memory for keys and values is shared out later, as
    models are loaded (pipelines.memory)."""
    _check(config)
    return replace(config, threads=config.threads or max(1, hardware.cores))


def describe(config: object) -> str:
    """One `name = value` line per field, for `vivace info` and the log at start."""
    return "\n".join(f"{item.name} = {getattr(config, item.name)}" for item in fields(config))  # type: ignore[arg-type]


def check_serve(config: ServeConfig) -> None:
    """Raises ConfigError for a setting of the server that is out of its range."""
    _check_whole("port", config.port, 0, 65535)
    _check_whole("max_body_bytes", config.max_body_bytes, 1)
    _check_whole("max_json_depth", config.max_json_depth, 1, MAX_JSON_DEPTH)
    if not 0.0 <= config.drain_seconds < math.inf:
        raise ConfigError(f"drain_seconds is {config.drain_seconds}, expected a number of seconds, 0 or more")
    if not config.host:
        raise ConfigError("host is empty, expected an address", hint="0.0.0.0 serves on all of them")
    if config.api_key is not None and not config.api_key.strip():
        raise ConfigError("api_key is empty, expected a key", hint="leave it out to serve without one")


def _check(config: EngineConfig) -> None:
    _check_type(config)
    for name in ("threads", "kv_bytes", "max_length"):
        if getattr(config, name) is not None:
            _check_whole(name, getattr(config, name), 1, MAX_THREADS if name == "threads" else None)
    for name in ("page_size", "step_budget", "max_jobs", "max_waiting"):
        _check_whole(name, getattr(config, name), 1)
    _check_whole("packed_bytes", config.packed_bytes, 0)
    _choice("check", config.check, get_args(CheckMode))
    for name in ("kl_target", "kl_limit"):
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < math.inf:
            raise ConfigError(f"{name} is {value!r}, expected a positive number", hint="leave it out for its default")
    _check_whole("max_gap_ms", config.max_gap_ms, 0)


def _check_type(config: object) -> None:
    if not isinstance(config, EngineConfig):
        raise ConfigError(f"config is of type {type(config).__name__}, expected an EngineConfig")


def _check_whole(name: str, value: object, low: int, high: int | None = None) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and low <= value and (high is None or value <= high):  # type: ignore[operator]
        return
    limits = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise ConfigError(f"{name} is {value!r}, expected a whole number {limits}", hint="leave it out for its default")


def _choice(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ConfigError(f"{name} is '{value}', expected one of {', '.join(known)}", hint=nearest(value, known))
    return value


def _positive(name: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"{name} is '{value}', expected a positive whole number", hint="unset it for the default")
    return int(value)
