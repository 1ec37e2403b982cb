"""A second start of a model reads the packed weights of the first, gives the same bits, and knows a changed file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vivace.api import load
from vivace.cli.main import make_app
from vivace.config import EngineConfig
from vivace.kernels.cpu import bind
from vivace.weights import cache, packed
from vivace.weights.catalog import resolve
from vivace.weights.packed import PackedRooms

ASSETS = Path(__file__).resolve().parents[1] / "assets"
PROMPT = "One day the bear found"
REASON = bind.why_missing()


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An empty cache that keeps small models too; the list gets how many rooms each start had to fill."""
    made: list[int] = []
    keep = PackedRooms.keep

    def note(self: PackedRooms) -> str:
        made.append(self.num_made)
        return keep(self)

    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packed, "MIN_BYTES", 1)
    monkeypatch.setattr(PackedRooms, "keep", note)
    return made


def answer(model: Path, **settings: object) -> tuple[object, ...]:
    config = EngineConfig(threads=1, kv_bytes=16 << 20, **settings)  # type: ignore[arg-type]
    with load(str(model), config=config) as loaded:
        return loaded.generate(PROMPT, max_tokens=8, logprobs=1).tokens


def listed(*words: str) -> str:
    return CliRunner().invoke(make_app(), words).stdout


@pytest.mark.skipif(REASON is not None, reason=f"no native kernels: {REASON}")
@pytest.mark.parametrize("asset", ["tiny-llama", "tiny-gemma3"])
def test_the_second_start_packs_nothing_and_answers_the_same(kept: list[int], asset: str) -> None:
    first, second = (answer(ASSETS / asset) for _ in range(2))
    assert first == second == answer(ASSETS / asset, packed_bytes=0)
    assert len(kept) == 2 and kept[0] > 0 and kept[1] == 0


@pytest.mark.skipif(REASON is not None, reason=f"no native kernels: {REASON}")
def test_another_way_of_packing_or_other_weights_are_packed_anew(kept: list[int], tmp_path: Path) -> None:
    model = shutil.copytree(ASSETS / "tiny-llama", tmp_path / "model")
    answer(model)
    answer(model, weights="int8")
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    answer(model)
    answer(model)
    assert [count > 0 for count in kept] == [True, True, True, False]


@pytest.mark.skipif(REASON is not None, reason=f"no native kernels: {REASON}")
def test_models_lists_and_removes_them(kept: list[int]) -> None:
    answer(ASSETS / "tiny-llama")
    assert "packed: tiny-llama, " in listed("models")
    assert "removed" in listed("models", "--clear-packed")
    assert "packed: " not in listed("models")
    answer(ASSETS / "tiny-llama")
    assert kept[0] == kept[1] > 0


def test_the_digest_of_a_large_file_is_remembered_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Path] = []
    hash_file = cache._hash
    monkeypatch.setattr(cache, "_hash", lambda path: hashed.append(path) or hash_file(path))  # type: ignore[func-returns-value]
    monkeypatch.setattr(cache, "REMEMBERED_BYTES", 4)
    file = tmp_path / "m.gguf"

    def digest() -> str:
        return resolve(file, cache_dir=tmp_path / "cache").digest

    file.write_bytes(b"GGUF")
    assert len({digest(), digest()}) == 1 and len(hashed) == 2  # just written: not trusted yet
    monkeypatch.setattr(cache, "SETTLED_NS", -(10**10))
    before = digest()
    assert digest() == before and len(hashed) == 3
    stamp = file.stat()
    file.write_bytes(b"GGUG")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # size and time of contents as they were
    assert digest() != before and len(hashed) == 4
    assert digest() != before and len(hashed) == 4
    (next((tmp_path / "cache" / "digests").iterdir())).write_text("{")
    assert digest() != before and len(hashed) == 5
