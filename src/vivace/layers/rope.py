"""Rotary tables of a model: which frequencies a job uses, and the cos and sin of each row of a step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vivace.kernels.ops import Ops
from vivace.layers.rope_scaling import RopeConfig, inverse_frequencies


class Ropes:
    """The rotary tables of a model by name (Gemma has one for local and one for global layers).

    Some scalings depend on the length. Vivace resolves that once per job, from the longest it may become, so that keys
    stored early and late agree: `variant(limit)` gives the number of the job's frequencies, which each of its rows
    carries. Jobs of different variants must not share stored keys.
    """

    def __init__(
        self,
        configs: Mapping[str, RopeConfig],
        factors: Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """factors (dim / 2,): divide the frequencies of every table, as GGUF files state Llama 3.1's scaling."""
        self.configs = dict(configs)
        self._factors = factors
        self._device = torch.device(device)
        self._variants: dict[tuple[int, ...], int] = {}
        self._frequencies: dict[str, Tensor] = {name: torch.empty(0) for name in configs}  # (variants, dim / 2)
        self._scale: dict[str, float] = {}
        self.variant(0)

    def variant(self, limit: int) -> int:
        """The number of the frequencies for a job of at most `limit` units; 0 within the trained context."""
        key = tuple(config.length_class(limit) for config in self.configs.values())
        if key not in self._variants:
            for name, config in self.configs.items():
                self._append(name, config, limit)
            self._variants[key] = len(self._variants)
        return self._variants[key]

    @property
    def count(self) -> int:
        """How many variants there are by now."""
        return len(self._variants)

    @property
    def tables(self) -> Mapping[str, Tensor]:
        """Inverse frequencies (variants, dim / 2) by table."""
        return self._frequencies

    def frequencies(self, name: str, variant: int = 0) -> tuple[Tensor, float]:
        """Inverse frequencies (dim / 2,) of a table and the factor on its cos and sin."""
        return self._frequencies[name][variant], self._scale[name]

    def angles(self, position: Tensor, variant: Tensor, ops: Ops) -> dict[str, tuple[Tensor, Tensor]]:
        """cos and sin of every table, (rows, dim / 2) each, float32.

        position (rows, axes) int64, of which rotary tables of text use the first axis; variant (rows,) int32.
        """
        tables = self._frequencies.items()
        return {name: ops.rope_angles(position, variant, table, self._scale[name]) for name, table in tables}

    def _append(self, name: str, config: RopeConfig, limit: int) -> None:
        frequencies, scale = inverse_frequencies(config, limit)
        if self._factors is not None:
            frequencies = frequencies / self._factors
        row = frequencies.to(self._device)[None]
        table = self._frequencies[name]
        self._frequencies[name] = torch.cat([table, row]) if len(self._variants) else row
        self._scale[name] = scale
