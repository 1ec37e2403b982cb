"""From files to a model: find the family, read the configuration, take every weight, pack it for the operations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vivace.errors import UnsupportedModel
from vivace.kernels.ops import Ops
from vivace.kernels.rooms import FRESH_MEMORY, Rooms
from vivace.layers.linear import Loader
from vivace.models.base import Decoder, Encoder, Family
from vivace.models.index import family_of_config, family_of_gguf
from vivace.weights.files import TensorFile, open_weights
from vivace.weights.load import Weights

MAX_CONFIG_BYTES = 1 << 24


def load_model(
    path: Path,
    ops: Ops,
    device: torch.device | str = "cpu",
    *,
    is_checked: bool = False,
    rooms: Rooms = FRESH_MEMORY,
) -> Decoder | Encoder:
    """The model of a Hugging Face folder, a .gguf file or a llama2.c checkpoint.

    is_checked  refuse weights that hold NaN or infinity
    rooms       where packed weights stand

    Raises WeightError for a damaged file or weights that do not fit, UnsupportedModel for an unknown architecture or
    an option of it that is not known.
    """
    file = open_weights(path)
    family, config = read_config(file, read_config_json(path))
    return build_model(file, family, config, ops, device, is_checked=is_checked, rooms=rooms)


def read_config(file: TensorFile, config_json: Mapping[str, Any] | None) -> tuple[Family, Any]:
    """The family of a file and its configuration. GGUF and llama2.c describe themselves, others need a config.json."""
    if file.format == "gguf":
        family = family_of_gguf(file.metadata)
    elif file.format == "llama2c":
        family = family_of_config(file.metadata)
    elif config_json is None:
        raise UnsupportedModel(f"no config.json beside {file.path.name}", hint="give the folder that holds both")
    else:
        family = family_of_config(config_json)
        return family, family.from_dict(config_json)
    if file.format not in family.readers:
        raise UnsupportedModel(f"models of the family '{family.name}' cannot be read from {file.format} files")
    return family, family.readers[file.format](file.metadata, file.tensors)


def build_model(
    file: TensorFile,
    family: Family,
    config: Any,
    ops: Ops,
    device: torch.device | str = "cpu",
    *,
    is_checked: bool = False,
    rooms: Rooms = FRESH_MEMORY,
) -> Decoder | Encoder:
    """The model of a configuration with the file's weights; every tensor is used once or listed as ignored."""
    weights = Weights(file, family.renames.get(file.format, ()), family.sizes(config), is_checked=is_checked)
    model: Decoder | Encoder = family.load(config, Loader(weights, ops, torch.device(device), rooms))
    weights.finish(family.ignored.get(file.format, ()))
    return model


def read_config_json(path: Path) -> Mapping[str, Any] | None:
    """The config.json of a model folder, or beside a weight file."""
    place = (path if path.is_dir() else path.parent) / "config.json"
    if not place.is_file():
        return None
    if place.stat().st_size > MAX_CONFIG_BYTES:
        raise UnsupportedModel(f"{place} has {place.stat().st_size} bytes, at most {MAX_CONFIG_BYTES} are read")
    try:
        config = json.loads(place.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnsupportedModel(f"{place} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise UnsupportedModel(f"{place} holds {type(config).__name__}, expected an object")
    return config
