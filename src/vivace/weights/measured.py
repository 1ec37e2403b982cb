"""What lossy features change in a model, measured once and kept in the cache folder by content.

<cache>/measured/<digest of the weights, 16 digits>/<key, 16 digits>.json
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from vivace.weights.cache import DIGITS


@dataclass(frozen=True)
class Quality:
    """How far the scores of a model are from those of its exact form.

    positions   of a text that were compared
    divergence  mean Kullback-Leibler divergence of the next token's distribution, in nats
    agreement   share of positions whose most likely token is the same
    perplexity  relative change: 0.01 is one percent more
    """

    positions: int
    divergence: float
    agreement: float
    perplexity: float

    def describe(self) -> str:
        """One line of text."""
        return (
            f"KL divergence {self.divergence:.2g}, top-1 agreement {self.agreement:.1%}, "
            f"perplexity {self.perplexity:+.2%} on {self.positions} positions"
        )


@dataclass(frozen=True)
class Measured:
    """One measurement: what was asked for, the layers with int8 inputs (their names), what the layers take as
    `layers.precision.formats_text` states it, and what all that changes."""

    features: str
    lossy: tuple[str, ...]
    activations: str
    quality: Quality

    def describe(self) -> str:
        """One line of text."""
        return f"{self.activations}: {self.quality.describe()}"


class MeasuredFolder:
    """The measurements of one model's weights under a cache folder."""

    def __init__(self, cache: Path, digest: str) -> None:
        self.path = cache / "measured" / digest[:DIGITS]
        self._digest = digest

    def all(self) -> list[Measured]:
        """Everything that was measured, in no order that means something."""
        found = (_read(path) for path in sorted(self.path.glob("*.json")))
        return [measured for measured in found if measured is not None]

    def find(self, key: Sequence[object]) -> Measured | None:
        """What was measured under a key; None if nothing was, or if its file is broken: then it is measured again."""
        return _read(self._file(key))

    def keep(self, key: Sequence[object], measured: Measured) -> None:
        """Save a measurement in one step; a folder that cannot be written only costs the next start its time."""
        path = self._file(key)
        temporary = path.with_suffix(f".{os.getpid()}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(asdict(measured), indent=1), encoding="utf-8")
            os.replace(temporary, path)
        except OSError:
            return

    def _file(self, key: Sequence[object]) -> Path:
        text = json.dumps([self._digest, *key])
        return self.path / f"{hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}.json"


def _read(path: Path) -> Measured | None:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        quality = {name: kind(table["quality"][name]) for name, kind in _QUALITY_KINDS.items()}
        lossy = tuple(map(str, table["lossy"]))
        return Measured(str(table["features"]), lossy, str(table["activations"]), Quality(**quality))
    except (OSError, ValueError, TypeError, KeyError):
        return None


_QUALITY_KINDS = {"positions": int, "divergence": float, "agreement": float, "perplexity": float}
