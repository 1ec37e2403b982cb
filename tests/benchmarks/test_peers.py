"""`benchmarks.peers`: workers that answer, workers that fail, and a run without peers on the tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.contenders import ContenderFailed, LlamaCpp, LlamaOptions, Prototype, Work, Worker
from tools import bench_tables

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "assets" / "tiny-llama"

ECHO = """
from protocol import measured_by, serve, take_stdout
take_stdout()
print("what a library prints")
class Running:
    def __init__(self, prompts, tokens):
        self.found, self.tokens = [0] * len(prompts), tokens
        assert len(prompts) < 5, "five are too many"
    def step(self):
        self.found = [min(count + 1, self.tokens) for count in self.found]
    def counts(self):
        return self.found
serve({"version": "1", "kv": "f16", "flags": {}}, measured_by(Running))
"""


def worker(tmp_path: Path, text: str, name: str = "echo") -> Worker:
    script = tmp_path / "worker.py"
    script.write_text(text)
    env = {"PYTHONPATH": str(ROOT / "benchmarks" / "peer_scripts")}
    return Worker(name, [sys.executable, str(script)], {"format": "none"}, env)


def test_a_worker_is_loaded_once_and_answers_each_measurement(tmp_path: Path) -> None:
    echo = worker(tmp_path, ECHO)
    try:
        assert echo.about["version"] == "1"
        assert echo.about["format"] == "none"
        assert echo.measure(Work(1, 16, 0))["tokens_per_s"] > 0
        assert echo.measure(Work(4, 16, 8))["tokens_per_s"] > 0
        with pytest.raises(ContenderFailed, match="five are too many"):
            echo.measure(Work(5, 16, 8))
        assert echo.measure(Work(2, 16, 8))["tokens_per_s"] > 0
    finally:
        echo.close()


def test_a_worker_that_ends_says_why(tmp_path: Path) -> None:
    with pytest.raises(ContenderFailed, match="No module named 'not_there'"):
        worker(tmp_path, "import not_there")


def program(folder: Path, name: str, text: str) -> Path:
    """A program that is a Python script."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport os, sys\n{text}\n")
    path.chmod(0o755)
    return path


def test_llama_cpp_is_asked_for_the_same_work_and_its_rates_are_read(tmp_path: Path) -> None:
    program(tmp_path, "llama-bench", "print('version: 7' if '--version' in sys.argv else '[{\"avg_ts\": 250.5}]')")
    batched = 'assert sys.argv[sys.argv.index("-npl") + 1] == "4"; print(\'{"speed_tg": 99.0, "speed_pp": 500.0}\')'
    program(tmp_path, "llama-batched-bench", batched)
    llama = LlamaCpp("llama.cpp", tmp_path, Path("x.gguf"), {}, LlamaOptions(2, "q8_0"))
    assert llama.about["version"] == "7"
    assert "-ctk q8_0" in llama.about["flags"]
    assert llama.measure(Work(1, 512, 0)) == {"tokens_per_s": 250.5}
    assert llama.measure(Work(4, 128, 64))["tokens_per_s"] == 99.0


def test_the_prototype_does_the_work_that_is_written_into_it_and_no_other(tmp_path: Path) -> None:
    text = "print(f\"decode B={os.environ['BS']} kv{os.environ['KV']} ctx128-192: 251.5 tok/s\")"
    prototype = Prototype("prototype int8", program(tmp_path, "a8", text), "i8", {})
    assert prototype.measure(Work(16, 128, 64)) == {"tokens_per_s": 251.5}
    with pytest.raises(ContenderFailed, match="512 only"):
        prototype.measure(Work(1, 100, 0))


def test_without_peers_vivace_is_measured_alone_and_who_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "peers.json"
    monkeypatch.setenv("PATH", "")
    arguments = ["peers", str(TINY), "--threads", "1", "--streams", "1", "2", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", [*arguments, "--vivace", "small:kv_bytes=16M"])
    peers.main()
    assert "no peer took part" in capsys.readouterr().out
    report = json.loads(file.read_text())
    assert [row["work"] for row in report["rows"]] == ["prefill 128", "decode 1", "decode 2"]
    assert report["skipped"].keys() == {"prototype", "llama.cpp", "OpenVINO GenAI", "vLLM"}
    assert "pip install openvino-genai" in report["skipped"]["OpenVINO GenAI"]
    assert report["contenders"]["small"]["flags"]["kv_bytes"] == 16 << 20


def test_tables_stand_between_their_markers_with_losses_as_they_are() -> None:
    about = {"version": "1", "format": "Q4_1", "kv": "f16", "flags": {"threads": 2}}
    row = {"work": "decode 1", "vivace_name": "vivace", "peer_name": "llama.cpp as it is"}
    report = {
        "kind": peers.KIND,
        "size": "full",
        "model": "x.gguf",
        "kv": "f16",
        "notes": ["a busy machine"],
        "machine": {"cpu": "a processor", "threads": 2, "load_average": [0.1, 0.2]},
        "contenders": {"vivace": about, "llama.cpp as it is": about},
        "skipped": {"vLLM": "no --vllm was given"},
        "rows": [{**row, "vivace": {"tokens_per_s": 50.0}, "peer": {"tokens_per_s": 100.0}}],
    }
    text = bench_tables.replaced(
        f"a\n{bench_tables.BEGIN}\nold\n{bench_tables.END}\nb\n", bench_tables.short_text([report])
    )
    assert text.startswith(f"a\n{bench_tables.BEGIN}\nx.gguf on a processor")
    assert text.endswith(f"{bench_tables.END}\nb\n")
    assert "| decode 1 | vivace, KV f16 | 50 | llama.cpp as it is, KV f16 | 100 | **0.50** (0.50 to 0.50) | 1 |" in text
    full = bench_tables.full_text([report], [])
    assert "Not measured: vLLM: no --vllm was given" in full
    assert "Note: a busy machine" in full
    assert bench_tables.full_text([], []) == bench_tables.NOTHING
