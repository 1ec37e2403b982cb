"""Scale the vector to length one: v / max(||v||, 1e-12), so that a dot product is the cosine.

Origin: the Normalize module of sentence-transformers. Cost: one pass over the vector. Use it unless the model was
trained for plain dot products. The null value is false.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vivace.techniques.pooling.base import Finish, FinishConfig, Flag, Parts, option, unit_length


@dataclass(frozen=True)
class Config(FinishConfig):
    """value: whether to normalise; false is off."""

    name: ClassVar[str] = "normalize"
    origin: ClassVar[str] = "sentence-transformers"
    value: bool = option(False, Flag())


def make(config: Config, parts: Parts) -> Finish:
    """The vector at unit length."""

    def finish(vector: Tensor) -> Tensor:
        return unit_length(vector) if config.value else vector

    return finish
