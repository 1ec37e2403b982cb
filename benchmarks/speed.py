"""What the speed claims demand of a file of `benchmarks.peers`: each line with its ratio, its target, and met or not.

A target is a ratio to the prototype, to the fastest peer of the file, or the share of the memory's reading ceiling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import Any

PROTOTYPE_SHARE = 0.85
WORKS = ("decode 1", "decode 16", "decode 32", "prefill 512")
# Of each variant, in the order of WORKS: how many times the best peer's speed.
PEER_TARGETS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {"int14": (1.6, 1.7, 1.5, 0.85), "int8": (1.6, 2.1, 1.9, 1.4)}
)
GEMMA_TARGETS: Mapping[str, float] = MappingProxyType({"decode 16": 1.5, "prefill 512": 1.5})
CEILING_SHARE = 0.85


@dataclass(frozen=True)
class Line:
    """One claim. `found` is None where the file holds no measurement of it."""

    text: str
    target: float
    found: float | None
    detail: str = ""

    @property
    def is_met(self) -> bool:
        return self.found is not None and self.found >= self.target

    def describe(self) -> str:
        """As printed: what, the figure, the target, met or not."""
        if self.found is None:
            return f"{self.text:44} not measured   target {self.target:.2f}"
        word = "met" if self.is_met else "NOT MET"
        return f"{self.text:44} {self.found:6.2f}         target {self.target:.2f}   {word}{self.detail}"


def smollm2_lines(report: Mapping[str, Any]) -> Iterator[Line]:
    """Shows 1 and 2: every work and variant beside the prototype, then beside the best peer."""
    for variant, targets in PEER_TARGETS.items():
        for work in WORKS:
            beside = _ratios(report, work, variant, is_prototype=True)
            yield _line(f"{variant} {work} / prototype", PROTOTYPE_SHARE, beside)
        for work, target in zip(WORKS, targets, strict=True):
            yield _line(f"{variant} {work} / best peer", target, _ratios(report, work, variant, is_prototype=False))


def gemma_lines(report: Mapping[str, Any]) -> Iterator[Line]:
    """Show 5: one stream beside the memory's ceiling; 16 streams and prompts beside the best peer."""
    variants = sorted({row["vivace_name"] for row in report["rows"]})
    for variant in variants:
        yield _ceiling_line(report, variant)
        for work, target in GEMMA_TARGETS.items():
            yield _line(f"{variant} {work} / best peer", target, _ratios(report, work, variant, is_prototype=False))


def _ratios(report: Mapping[str, Any], work: str, variant: str, *, is_prototype: bool) -> list[dict[str, Any]]:
    return [
        ratio
        for ratio in report["ratios"]
        if (ratio["work"], ratio["vivace_name"]) == (work, variant)
        and ratio["peer_name"].startswith("prototype") == is_prototype
    ]


def _line(text: str, target: float, beside: list[dict[str, Any]]) -> Line:
    """The claim beside the fastest of those: the smallest ratio."""
    if not beside:
        return Line(text, target, None)
    best = min(beside, key=lambda ratio: float(ratio["median"]))
    speeds = f"{best['vivace']:.0f} and {best['peer']:.0f} tokens/s, {best['pairs']} pairs"
    detail = f"   {best['peer_name']}: {speeds}, interval {best['low']:.2f} to {best['high']:.2f}"
    return Line(text, target, best["median"], detail)


def _ceiling_line(report: Mapping[str, Any], variant: str) -> Line:
    """Bytes that one stream's steps read a second, over what the machine reads at most."""
    text = f"{variant} decode 1 / reading ceiling"
    rates = [
        row["vivace"]["tokens_per_s"]
        for row in report["rows"]
        if (row["work"], row["vivace_name"]) == ("decode 1", variant)
    ]
    about = report["contenders"].get(variant, {})
    if not rates or "weight_bytes" not in about:
        return Line(text, CEILING_SHARE, None)
    rate, ceiling = median(rates), report["ceilings"]["bytes_per_s"][-1]
    share = rate * (about["weight_bytes"] + about["unit_bytes"] * _MIDDLE_CONTEXT) / ceiling
    return Line(text, CEILING_SHARE, share, f"   {rate:.0f} tokens/s, ceiling {ceiling / 1e9:.1f} GB/s")


_MIDDLE_CONTEXT = 160  # units before a row in the middle of decode's 64 tokens after 128
