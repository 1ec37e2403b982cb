"""The hardware probe reads a machine's files; container limits cut what it reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from vivace.runtime.device import describe, probe_hardware

MEMINFO = "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\n"
CPUINFO = (
    "processor : 0\nmodel name : Some CPU 9000\nflags : fpu avx2 fma avx512f\n\nprocessor : 1\nmodel name : other\n"
)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A root with 16 GiB of memory, half of it free, and no limits."""
    _write(tmp_path / "proc/meminfo", MEMINFO)
    _write(tmp_path / "proc/cpuinfo", CPUINFO)
    return tmp_path


def test_processor_and_memory_are_read(machine: Path) -> None:
    hardware = probe_hardware(machine)
    assert (hardware.cpu, hardware.isa) == ("Some CPU 9000", ("avx2", "fma", "avx512f"))
    assert (hardware.memory_bytes, hardware.memory_free_bytes) == (16 << 30, 8 << 30)
    assert hardware.cores >= 1


def test_version_2_limits_of_any_group_above_the_process_count(machine: Path) -> None:
    _write(machine / "proc/self/cgroup", "0::/outer/inner\n")
    _write(machine / "sys/fs/cgroup/outer/cpu.max", "100000 100000\n")
    _write(machine / "sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n")
    _write(machine / "sys/fs/cgroup/outer/memory.max", f"{4 << 30}\n")
    _write(machine / "sys/fs/cgroup/outer/memory.current", f"{3 << 30}\n")
    _write(machine / "sys/fs/cgroup/outer/memory.stat", f"anon 5\ninactive_file {1 << 30}\n")
    _write(machine / "sys/fs/cgroup/outer/inner/memory.max", "max\n")
    hardware = probe_hardware(machine)
    assert hardware.cores == 1
    assert (hardware.memory_bytes, hardware.memory_free_bytes) == (4 << 30, 2 << 30)


def test_version_1_limits_count(machine: Path) -> None:
    _write(machine / "proc/self/cgroup", "4:memory:/box\n1:cpu,cpuacct:/box\n")
    _write(machine / "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "150000\n")
    _write(machine / "sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n")
    _write(machine / "sys/fs/cgroup/memory/box/memory.limit_in_bytes", f"{2 << 30}\n")
    _write(machine / "sys/fs/cgroup/memory/box/memory.usage_in_bytes", f"{1 << 30}\n")
    _write(machine / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    hardware = probe_hardware(machine)
    assert hardware.cores == 1
    assert (hardware.memory_bytes, hardware.memory_free_bytes) == (2 << 30, 1 << 30)


def test_a_machine_without_these_files_is_still_described(tmp_path: Path) -> None:
    hardware = probe_hardware(tmp_path)
    assert hardware.cores >= 1
    assert hardware.memory_bytes == 0
    assert "usable cores" in describe(hardware)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
