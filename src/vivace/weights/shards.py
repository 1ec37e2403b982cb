"""A safetensors model in several files, joined by the index `model.safetensors.index.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vivace.errors import WeightError
from vivace.weights.files import MAX_HEADER_BYTES, TensorInfo, broken, shown
from vivace.weights.mapped import parse_json_object
from vivace.weights.safetensors import SafetensorsFile


class ShardedSafetensors:
    """The tensors of all shards as one file. The index must name exactly the tensors that the shards hold."""

    format = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._shard_of = _read_index(path)
        self._shards = {name: self._open_shard(name) for name in sorted(set(self._shard_of.values()))}
        for shard_name, shard in self._shards.items():
            self.metadata.update(shard.metadata)
            for name, info in shard.tensors.items():
                if self._shard_of.get(name) != shard_name:
                    expected = self._shard_of.get(name, "nowhere")
                    raise broken(path, f"tensor {shown(name)}", f"is in {shard_name}, the index puts it {expected}")
                self.tensors[name] = info
        for name, shard_name in self._shard_of.items():
            if name not in self.tensors:
                raise broken(path, f"tensor {shown(name)}", f"is not in {shard_name}, where the index puts it")

    def raw(self, name: str) -> torch.Tensor:
        """The stored bytes of a tensor, uint8 (nbytes,), without a copy."""
        return self._shards[self._shard_of[name]].raw(name)

    def read(self, name: str, dtype: torch.dtype | None = torch.float32) -> torch.Tensor:
        """The tensor in `dtype`, or as stored if that is None."""
        return self._shards[self._shard_of[name]].read(name, dtype)

    def let_go(self, name: str, begin: int, end: int) -> None:
        """Bytes begin .. end - 1 of a tensor will not be read again soon."""
        self._shards[self._shard_of[name]].let_go(name, begin, end)

    def close(self) -> None:
        """Let go of all mappings; tensors already handed out keep theirs alive."""
        for shard in self._shards.values():
            shard.close()

    def _open_shard(self, shard_name: str) -> SafetensorsFile:
        shard = self.path.parent / shard_name
        if not shard.is_file():
            raise WeightError(
                f"{self.path.name} names the shard {shown(shard_name)}, which is not in {self.path.parent}",
                hint="fetch the missing file, or the model again",
            )
        return SafetensorsFile(shard)


def _read_index(path: Path) -> dict[str, str]:
    size = path.stat().st_size
    if size > MAX_HEADER_BYTES:
        raise broken(path, "byte 0", f"an index of {size} bytes, the limit is {MAX_HEADER_BYTES}")
    index = parse_json_object(path, "the index", path.read_bytes())
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise broken(path, "weight_map", f"a map from tensors to files was expected, found {shown(weight_map)}")
    for name, shard_name in weight_map.items():
        # Only a plain file name: a path could lead out of the model's folder.
        if not isinstance(shard_name, str) or not _is_plain_name(shard_name):
            raise broken(path, f"tensor {shown(name)}", f"a file name was expected, found {shown(shard_name)}")
    return weight_map


def _is_plain_name(name: str) -> bool:
    return name.endswith(".safetensors") and name.isprintable() and not any(mark in name for mark in "/\\:")
