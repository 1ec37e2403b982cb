"""Weight files as named tensors: what every reader offers, and `open_weights`, which tells the formats apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from vivace.errors import WeightError
from vivace.registry import Registry

MAX_HEADER_BYTES = 100_000_000  # of JSON in a safetensors file, the limit of the format's own library
MAX_SHOWN = 120  # characters of a name in a message

READERS = Registry(
    "weight format",
    {
        "safetensors": "vivace.weights.safetensors:SafetensorsFile",
        "sharded": "vivace.weights.shards:ShardedSafetensors",
        "gguf": "vivace.weights.gguf:GgufFile",
        "llama2c": "vivace.weights.llama2c:Llama2cFile",
    },
)


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file. `type` is the stored type ("F32", "Q4_0", ...), `shape` has the outermost dimension
    first, `place` names file and byte offset for errors."""

    name: str
    type: str
    shape: tuple[int, ...]
    nbytes: int
    place: str


class TensorFile(Protocol):
    """An open weight file. `format` is a name in READERS ("sharded" files say "safetensors")."""

    @property
    def path(self) -> Path: ...

    @property
    def format(self) -> str: ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors by their name in the file."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the file says about itself: GGUF keys, the safetensors `__metadata__`, a llama2.c configuration."""

    def raw(self, name: str) -> torch.Tensor:
        """The stored bytes, uint8 (nbytes,), mapped from the file without a copy. KeyError for an unknown name."""

    def read(self, name: str, dtype: torch.dtype | None = torch.float32) -> torch.Tensor:
        """The tensor in `dtype`, dequantized where it is packed; None keeps the stored type (float32 if packed).

        May share memory with the file's private mapping: writing to it never changes the file."""

    def let_go(self, name: str, begin: int, end: int) -> None:
        """Bytes begin .. end - 1 of a tensor will not be read again soon: their pages need not stay in memory."""

    def close(self) -> None:
        """Let go of the mapping. Tensors already handed out stay valid; it ends with the last of them."""


def open_weights(path: Path) -> TensorFile:
    """Open a weight file or a model folder, judging by content rather than by name.

    Files: .safetensors, .gguf, a llama2.c checkpoint. Folders: `model.safetensors`, else
    `model.safetensors.index.json` with its shards, else a single .gguf file. Raises WeightError for anything else or a
    damaged file.
    """
    try:
        return _open_by_content(Path(path))
    except OSError as error:
        raise WeightError(f"cannot read {path}: {error.strerror or error}") from error


def broken(path: Path, place: str, problem: str, *, hint: str = "") -> WeightError:
    """The error for a damaged file: file, place (a byte offset or a tensor) and what is wrong there."""
    return WeightError(f"{path.name}, {place}: {problem}", hint=hint or "the file may be damaged: fetch it again")


def shown(name: object) -> str:
    """A name or value from an untrusted file as it may stand in a message: escaped and cut."""
    try:
        text = ascii(name[:MAX_SHOWN] if isinstance(name, str) else name)
    except RecursionError:
        return f"a deeply nested {type(name).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 4]}...'"


def _open_by_content(path: Path) -> TensorFile:
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise WeightError(f"no weight file at {path}", hint="give a .safetensors or .gguf file or a model folder")
    if path.name.endswith(".index.json"):
        return _open("sharded", path)
    with path.open("rb") as stream:
        head = stream.read(16)
    return _open(_format_of(path, head), path)


def _open_folder(folder: Path) -> TensorFile:
    # The order of Hugging Face loaders: one whole file wins over an index of shards.
    if (folder / "model.safetensors").is_file():
        return _open("safetensors", folder / "model.safetensors")
    if (folder / "model.safetensors.index.json").is_file():
        return _open("sharded", folder / "model.safetensors.index.json")
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return _open("gguf", ggufs[0])
    if ggufs:
        names = ", ".join(file.name for file in ggufs[:5])
        raise WeightError(f"{folder} holds {len(ggufs)} GGUF files: {names}", hint="give the path of one of them")
    pickles = sorted([*folder.glob("*.bin"), *folder.glob("*.pth"), *folder.glob("*.pt")])
    for file in pickles:
        with file.open("rb") as stream:
            if _is_pickle(stream.read(16)):
                raise _pickle_refused(file)
    raise WeightError(
        f"no weights in {folder}", hint="a model folder holds model.safetensors, its index of shards, or one .gguf file"
    )


def _format_of(path: Path, head: bytes) -> str:
    if head[:4] == b"GGUF":
        return "gguf"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= MAX_HEADER_BYTES:
        return "safetensors"
    if _is_pickle(head):
        raise _pickle_refused(path)
    if path.suffix == ".bin":
        return "llama2c"
    if path.suffix in (".safetensors", ".gguf"):
        return path.suffix[1:]  # a damaged one: its reader names what is wrong
    raise WeightError(
        f"{path.name} is not a weight file that can be read (it begins with {head[:8]!r})",
        hint="known: safetensors, GGUF, llama2.c checkpoints (.bin)",
    )


def _is_pickle(head: bytes) -> bool:
    # torch.save writes a zip archive, or in its old form a bare pickle of protocol 2 or later. The third byte, an
    # opcode and never zero, tells it from a llama2.c checkpoint whose first number happens to look the same.
    if head[:4] == b"PK\x03\x04":
        return True
    return len(head) > 2 and head[0] == 0x80 and head[1] in (2, 3, 4, 5) and head[2] != 0


def _pickle_refused(path: Path) -> WeightError:
    return WeightError(
        f"{path.name} is a pickle, which can run any code when it is loaded",
        hint='convert it once, from a source that you trust: python -c "import torch, safetensors.torch as s; '
        f"s.save_file(torch.load('{path.name}', weights_only=True), 'model.safetensors')\"",
    )


def _open(format_name: str, path: Path) -> TensorFile:
    reader: TensorFile = READERS.load(format_name)(path)
    return reader
