"""What this machine offers to the process: processor, usable cores, memory, GPUs; limits of containers applied.

Linux is read from /proc and the control groups (both versions); elsewhere only what Python itself tells is known.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

import torch

from vivace.config import Hardware

# Instruction sets that kernels care about, as /proc/cpuinfo spells them.
_ISA_FLAGS = (
    *(
        "avx2",
        "fma",
        "f16c",
        "avx_vnni",
        "avx512f",
        "avx512bw",
        "avx512vl",
        "avx512_vnni",
        "avx512_bf16",
        "avx512_fp16",
    ),
    *("amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve"),
)
_UNLIMITED_V1 = 1 << 60  # version 1 writes a number near 2^63 for "no limit"


def probe_hardware(root: Path = Path("/")) -> Hardware:
    """Read the machine. `root` holds proc and sys, so that tests can show another machine."""
    name, flags = _processor(root / "proc/cpuinfo")
    total, free = _memory(root)
    return Hardware(
        cpu=name,
        isa=tuple(flag for flag in _ISA_FLAGS if flag in flags),
        cores=_usable_cores(root),
        memory_bytes=total,
        memory_free_bytes=free,
        gpus=_gpus(root),
    )


def describe(hardware: Hardware) -> str:
    """One line per property, for `vivace info`."""
    return "\n".join(
        [
            f"cpu     {hardware.cpu}, {hardware.cores} usable cores",
            f"isa     {' '.join(hardware.isa) or 'unknown'}",
            f"memory  {hardware.memory_free_bytes / 2**30:.1f} of {hardware.memory_bytes / 2**30:.1f} GiB free",
            f"gpus    {', '.join(hardware.gpus) or 'none'}",
        ]
    )


def _processor(path: Path) -> tuple[str, frozenset[str]]:
    fields: dict[str, str] = {}
    for line in _lines(path):
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    name = fields.get("model name") or platform.processor() or platform.machine() or "unknown"
    return name, frozenset((fields.get("flags") or fields.get("features") or "").split())


def _usable_cores(root: Path) -> int:
    """Cores that the scheduler lets this process run on, cut by the quota of its control groups."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups(root, "cpu"):
        quota, period = _quota(group)
        if quota is not None and period > 0:
            cores = min(cores, max(1, quota // period))
    return cores


def _quota(group: Path) -> tuple[int | None, int]:
    """Microseconds of processor time per period, None without a limit."""
    words = " ".join(_lines(group / "cpu.max")).split()
    if len(words) == 2:
        return (None if words[0] == "max" else int(words[0])), int(words[1])
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return (quota if quota is not None and quota > 0 else None), period or 0


def _memory(root: Path) -> tuple[int, int]:
    """Total and free bytes: of the machine, or of the tightest control group above this process."""
    fields = {key: value for key, _, value in (line.partition(":") for line in _lines(root / "proc/meminfo"))}
    total, free = (int(fields.get(key, "0 kB").split()[0]) << 10 for key in ("MemTotal", "MemAvailable"))
    for group in _groups(root, "memory"):
        limit = _first_number(group / "memory.max", group / "memory.limit_in_bytes")
        if limit is not None and limit < _UNLIMITED_V1:
            used = _first_number(group / "memory.current", group / "memory.usage_in_bytes") or 0
            total, free = min(total, limit), min(free, max(0, limit - used + _reclaimable(group)))
    return total, free


def _reclaimable(group: Path) -> int:
    """Bytes counted as used that are only cached files: the kernel takes them back when memory is asked for."""
    stat = dict(line.split() for line in _lines(group / "memory.stat") if len(line.split()) == 2)
    return int(stat.get("total_inactive_file") or stat.get("inactive_file") or 0)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the control groups that this process is in and of all groups above them."""
    mount = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = mount / controller if controllers else mount
        inner = path.strip("/")
        while inner:
            yield base / inner
            inner = inner.rpartition("/")[0]
        yield base


def _gpus(root: Path) -> tuple[str, ...]:
    """Names of the GPUs that torch can use, without starting CUDA: its device count asks the driver only."""
    if torch.version.cuda is None:
        return ()
    named = []
    for information in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        models = [line.partition(":")[2].strip() for line in _lines(information) if line.startswith("Model:")]
        named.append(models[0] if models else "unknown")
    count = torch.cuda.device_count()
    return tuple((named + ["unknown"] * count)[:count])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """The number that a file holds; None if there is no such file or it says "max"."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.lstrip("-").isdecimal() else None


def _first_number(*paths: Path) -> int | None:
    return next((number for number in map(_number, paths) if number is not None), None)
