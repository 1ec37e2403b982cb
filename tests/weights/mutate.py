"""Damages good weight files at random and reports how the readers take it: run by test_mutations.py as a program.

`python -m tests.weights.mutate SEED COUNT FILE...` prints one JSON object: for each file, how many mutants loaded,
how many were refused, and every other outcome. The process limits its own memory, so that a huge allocation fails.
"""

from __future__ import annotations

import json
import random
import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from vivace.errors import WeightError
from vivace.weights import gguf, llama2c, safetensors  # noqa: F401 - loaded before the limit is set
from vivace.weights.files import open_weights

HEADROOM_BYTES = 256 << 20
EXTREMES = [0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**48, 2**60, 2**63 - 1, 2**63, 2**64 - 1]

Mutation = Callable[[random.Random, bytearray, int], None]


def flip_bits(rng: random.Random, data: bytearray, head: int) -> None:
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(head)] ^= 1 << rng.randrange(8)


def write_extreme(rng: random.Random, data: bytearray, head: int) -> None:
    form = rng.choice(["<Q", "<I"])
    value = rng.choice(EXTREMES) & (2 ** (8 * struct.calcsize(form)) - 1)
    struct.pack_into(form, data, rng.randrange(0, head - 8, rng.choice([1, 4, 8])), value)


def change_number(rng: random.Random, data: bytearray, head: int) -> None:
    """Replace a digit of a JSON header by a number, or a byte elsewhere."""
    digits = [place for place in range(head) if chr(data[place]).isdigit()] or list(range(head))
    place = rng.choice(digits)
    data[place : place + 1] = str(rng.choice([*EXTREMES, -1, 10**30, 1.5])).encode()


def truncate(rng: random.Random, data: bytearray, head: int) -> None:
    del data[rng.choice([rng.randrange(head), rng.randrange(len(data))]) :]


def remove(rng: random.Random, data: bytearray, head: int) -> None:
    start = rng.randrange(head)
    del data[start : start + rng.randint(1, 32)]


def repeat(rng: random.Random, data: bytearray, head: int) -> None:
    start = rng.randrange(head)
    piece = data[start : start + rng.randint(1, 64)]
    data[start:start] = piece


def flip_data(rng: random.Random, data: bytearray, head: int) -> None:
    data[rng.randrange(head, len(data))] ^= 1 << rng.randrange(8)


MUTATIONS: list[Mutation] = [flip_bits, flip_bits, write_extreme, change_number, truncate, remove, repeat, flip_data]


def read_all(path: Path) -> None:
    file = open_weights(path)
    for key in file.metadata:
        file.metadata[key]
    for name in file.tensors:
        file.raw(name)
        file.read(name)
    file.close()


def data_start(good: Path) -> int:
    """The first byte that belongs to a tensor."""
    return min(int(info.place.rsplit(" ", 1)[1]) for info in open_weights(good).tensors.values())


def outcomes(good: Path, seed: int, count: int) -> dict[str, object]:
    rng = random.Random(f"{good.name} {seed}")
    original = good.read_bytes()
    head = data_start(good)
    mutant = good.with_name(f"mutant{good.suffix}")
    loaded, refused, other = 0, 0, []
    for index in range(count):
        data = bytearray(original)
        mutation = rng.choice(MUTATIONS)
        mutation(rng, data, head)
        mutant.unlink(missing_ok=True)  # a new file: the old one may still be mapped
        mutant.write_bytes(data)
        try:
            read_all(mutant)
            loaded += 1
        except WeightError as error:
            if mutant.name in str(error):
                refused += 1
            else:
                other.append(f"mutation {index} ({mutation.__name__}): names no file: {error}")
        except BaseException as error:
            other.append(f"mutation {index} ({mutation.__name__}): {type(error).__name__}: {error}")
    return {"loaded": loaded, "refused": refused, "other": other}


def check_guard() -> None:
    """A huge allocation must fail now, or the limit proves nothing."""
    try:
        torch.empty(2 * HEADROOM_BYTES, dtype=torch.uint8)
    except RuntimeError:
        return
    raise SystemExit("the memory limit does not hold")


def main() -> None:
    torch.set_num_threads(1)
    seed, count, files = int(sys.argv[1]), int(sys.argv[2]), [Path(name) for name in sys.argv[3:]]
    for file in files:
        read_all(file)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + HEADROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    check_guard()
    json.dump({file.name: outcomes(file, seed, count) for file in files}, sys.stdout)


if __name__ == "__main__":
    main()
