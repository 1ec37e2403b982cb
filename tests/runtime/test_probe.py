"""Recordings of named tensors name the first difference."""

from __future__ import annotations

from pathlib import Path

import torch

from vivace.runtime.probe import Recording, differences, first_difference


def test_equal_recordings_have_no_difference() -> None:
    assert first_difference(_recording(a=[1.0, 2.0], b=[3.0]), _recording(a=[1.0, 2.0], b=[3.0])) is None


def test_the_first_difference_in_recorded_order_is_named() -> None:
    ours, theirs = _recording(z=[1.0], y=[2.0, 5.0], a=[0.0]), _recording(z=[1.0], y=[2.0, 4.0], a=[9.0])
    found = first_difference(ours, theirs)
    assert found is not None
    assert (found.name, found.error, found.relative, found.index) == ("y", 1.0, 0.25, (1,))


def test_differences_within_the_tolerance_pass() -> None:
    assert first_difference(_recording(a=[1.0, 100.0]), _recording(a=[1.0, 100.1]), tolerance=0.01) is None


def test_missing_tensors_other_shapes_and_nan_are_differences() -> None:
    ours = _recording(a=[1.0], b=[1.0, 2.0], c=[float("nan")])
    theirs = _recording(b=[1.0], c=[1.0], d=[1.0])
    found = {difference.name: difference.describe() for difference in differences(ours, theirs, tolerance=1.0)}
    assert list(found) == ["a", "b", "c", "d"]
    assert "their side" in found["a"]
    assert "(2,) against (1,)" in found["b"]
    assert "our side" in found["d"]


def test_a_tensor_is_kept_as_it_was_when_shown() -> None:
    recording, tensor = Recording(), torch.zeros(2)
    recording.tap("x", tensor)
    tensor += 1
    recording.tap("x", tensor)
    assert recording.tensors["x"].tolist() == [0.0, 0.0]
    assert recording.tensors["x#2"].tolist() == [1.0, 1.0]


def test_a_saved_recording_comes_back_in_order(tmp_path: Path) -> None:
    recording = _recording(z=[1.0], a=[2.0], m=[3.0])
    recording.save(tmp_path / "pass.safetensors")
    loaded = Recording.load(tmp_path / "pass.safetensors")
    assert list(loaded.tensors) == ["z", "a", "m"]
    assert first_difference(recording, loaded) is None


def _recording(**values: list[float]) -> Recording:
    recording = Recording()
    for name, value in values.items():
        recording.tap(name, torch.tensor(value))
    return recording
