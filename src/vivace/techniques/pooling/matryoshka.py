"""Keep the first numbers of the vector, then scale what is left to length one: v_1..d / ||v_1..d||.

Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022. Cost: none; what is stored and compared later gets
smaller. Use it with models trained for it: others put meaning into every number. The null value is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vivace.errors import InvalidRequest
from vivace.techniques.pooling.base import Finish, FinishConfig, Parts, Whole, option, unit_length


@dataclass(frozen=True)
class Config(FinishConfig):
    """value: numbers to keep; 0 is off."""

    name: ClassVar[str] = "matryoshka"
    origin: ClassVar[str] = "Kusupati et al. 2022, arXiv:2205.13147"
    value: int = option(0, Whole(low=0))


def make(config: Config, parts: Parts) -> Finish:
    """Cuts, then normalises. Raises InvalidRequest for more numbers than the vector has."""
    if config.value > parts.size:
        message = f"dimensions is {config.value}, expected at most {parts.size}, the size of the model's vectors"
        raise InvalidRequest(message, field="dimensions", hint="leave dimensions out for the whole vector")

    def finish(vector: Tensor) -> Tensor:
        return unit_length(vector[: config.value]) if config.value else vector

    return finish
