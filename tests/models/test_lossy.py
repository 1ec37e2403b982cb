"""Lossy settings are measured when a model is loaded: told, kept, chosen, refused; the same bits in any batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import vivace
from tests.identities.world import World, run_schedules
from tests.models.quantized import write_quantized
from vivace.api import Model
from vivace.config import EngineConfig
from vivace.errors import ConfigError
from vivace.kernels.cpu.bind import why_missing
from vivace.kernels.select import resolve
from vivace.layers.precision import formats_text, integer_layers, lossy_layers, with_lossy
from vivace.models import lossy
from vivace.models.base import Decoder
from vivace.models.load import load_model
from vivace.weights.measured import MeasuredFolder

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=f"no native kernels: {why_missing()}")

CONFIG = EngineConfig(kernels="native", threads=1, kv_bytes=4 << 20)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_quantized(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The settings that were measured, not found."""
    seen: list[str] = []
    measure = lossy._measure

    def noted(model: Decoder, ops: object, wanted: lossy.Lossy, ids: object) -> object:
        seen.append(wanted.describe())
        return measure(model, ops, wanted, ids)  # type: ignore[arg-type]

    monkeypatch.setattr(lossy, "_measure", noted)
    return seen


@pytest.fixture
def load(path: Path) -> Iterator[Callable[..., Model]]:
    models = []

    def load_with(source: Path = path, **settings: object) -> Model:
        models.append(vivace.load(str(source), config=replace(CONFIG, **settings)))  # type: ignore[arg-type]
        return models[-1]

    yield load_with
    for model in models:
        model.close()


def test_what_is_exact_is_not_measured(load: Callable[..., Model], measures: list[str]) -> None:
    assert (load().info.activations, load().info.quality) == ("int14", None)
    assert load(activations="f32").info.activations == "f32"
    assert load(kernels="rows", activations="int8").info.quality is None  # the reference rounds nothing
    assert not measures


@pytest.mark.parametrize("settings", [{"activations": "int8"}, {"kv_format": "f16"}, {"kv_format": "i8"}])
def test_a_lossy_setting_is_measured_and_told(load: Callable[..., Model], settings: dict[str, str]) -> None:
    quality = load(**settings).info.quality
    assert quality is not None and quality.positions > 100
    assert 0.0 < quality.divergence < 0.01 and quality.agreement > 0.95 and abs(quality.perplexity) < 0.01


def test_a_result_is_kept_by_content(load: Callable[..., Model], measures: list[str], tmp_path: Path) -> None:
    first = load(activations="int8").info.quality
    assert load(activations="int8").info.quality == first
    assert measures == ["activations=int8"]
    other = write_quantized(tmp_path / "other.gguf", kind="Q5_0")
    assert load(other, activations="int8").info.quality != first
    assert len(measures) == 2


@pytest.mark.parametrize("damage", ["{", "{}", '{"features": "x", "lossy": ["no.such.layer"], "quality": {}}'])
def test_a_broken_result_is_measured_again(
    load: Callable[..., Model], measures: list[str], cache: Path, damage: str
) -> None:
    first = load(activations="int8").info.quality
    (file,) = cache.glob("measured/*/*.json")
    file.write_text(damage)
    assert load(activations="int8").info.quality == first
    assert len(measures) == 2
    assert load(activations="int8").info.quality == first
    assert len(measures) == 2


def test_layers_that_the_model_has_not_are_measured_again(
    load: Callable[..., Model], measures: list[str], cache: Path
) -> None:
    load(activations="int8")
    (file,) = cache.glob("measured/*/*.json")
    file.write_text(file.read_text().replace("blocks.0.mlp.down", "blocks.9.mlp.down"))
    assert load(activations="int8").info.activations == "int8"
    assert len(measures) == 2


def test_a_model_that_a_setting_ruins_is_refused_with_the_numbers(load: Callable[..., Model], tmp_path: Path) -> None:
    ruined = write_quantized(tmp_path / "ruined.gguf", has_outliers=True)
    with pytest.raises(
        ConfigError, match=r"activations=int8 .* KL divergence \d.*, top-1 .*%, perplexity .*0\.05"
    ) as e:
        load(ruined, activations="int8")
    assert "int14" in e.value.hint
    assert load(ruined).info.activations == "int14"
    assert load(ruined, activations="int8", kl_limit=100.0).info.activations == "int8"


def test_auto_leaves_out_the_layers_that_int8_ruins(load: Callable[..., Model], tmp_path: Path) -> None:
    ruined = write_quantized(tmp_path / "ruined.gguf", has_outliers=True)
    model = load(ruined, activations="auto", kl_target=0.01)
    assert model.info.quality is not None and model.info.quality.divergence <= 0.01
    (measured,) = MeasuredFolder(tmp_path, model.info.digest).all()
    assert measured.activations == model.info.activations and measured.activations in measured.describe()
    assert measured.lossy and not any(name.endswith("mlp.down") for name in measured.lossy)


def test_auto_keeps_its_target_and_states_its_mix(load: Callable[..., Model]) -> None:
    whole = load(activations="auto", kl_target=0.04)
    assert whole.info.activations == "int8" and whole.info.quality is not None  # all layers fit
    target = whole.info.quality.divergence / 2
    mixed = load(activations="auto", kl_target=target)
    assert mixed.info.activations.startswith("mix ") and mixed.info.quality is not None
    assert 0.0 < mixed.info.quality.divergence <= target


def test_the_hash_of_a_mix_is_of_its_layers(path: Path) -> None:
    model = load_model(path, resolve(choice="native", threads=1))
    layers = sorted(integer_layers(model))
    assert len(layers) == 4 * 4 + 1
    one, other = (with_lossy(model, frozenset(layers[:count])) for count in (3, 4))
    assert lossy_layers(one) == frozenset(layers[:3])
    assert len({formats_text(one), formats_text(other), formats_text(model)}) == 3
    assert formats_text(with_lossy(other, lossy_layers(one))) == formats_text(one)
    assert formats_text(with_lossy(one, frozenset(layers))) == "int8"


def test_a_mix_gives_the_same_bits_in_any_batch_and_chunk(path: Path) -> None:
    world = World("tiny-llama", "native")
    model = load_model(path, world.ops)
    assert isinstance(model, Decoder)
    layers = sorted(integer_layers(model))
    mixed = World("tiny-llama", "native")
    world.model, mixed.model = model, with_lossy(model, frozenset(layers[::2]))
    run_schedules(mixed, 12)
    assert mixed.alone(0).logits != world.alone(0).logits


@pytest.mark.real
def test_plain_int8_of_real_models_starts(real_model: Callable[[str], Path], load: Callable[..., Model]) -> None:
    for name in ("smollm2", "gemma3-270m"):
        quality = load(real_model(name), activations="int8").info.quality
        assert quality is not None and quality.divergence < CONFIG.kl_limit / 2
