"""Resident memory of this process, now and at its peak."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Resident:
    """Bytes of memory: now, and the most since `reset_peak` or, where the system cannot forget a peak, the start."""

    now: int
    peak: int


def resident() -> Resident:
    """Read it from the system; on systems without /proc only the peak is known, and given for both."""
    try:
        lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        now, peak = (int(lines[key].split()[0]) << 10 for key in ("VmRSS", "VmHWM"))
        return Resident(now, peak)
    except (OSError, KeyError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return Resident(peak, peak)


def reset_peak() -> None:
    """Let the peak be counted anew from here, where the system can."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return
