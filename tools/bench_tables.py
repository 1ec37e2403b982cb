"""Write the tables of measurements into README.md and benchmarks/README.md, from the files in benchmarks/results.

    python -m tools.bench_tables            # write what stands between <!-- bench:begin --> and <!-- bench:end -->
    python -m tools.bench_tables --check    # exit 1 if a table is not what the files say

README.md gets the fastest peer of each work; benchmarks/README.md gets every peer, and the engine beside the ceilings
of its machine. Ratios under 1 stand there like the others.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pairs import Ratio, best_peers, ratios

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
NOTHING = "Not measured yet: `make bench-peers` and `make bench-engine` write the results that this table is made of."
Report = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if a table is out of date")
    options = parser.parse_args()
    peers, engines = read_results(RESULTS)
    wanted = {
        ROOT / "README.md": short_text(peers),
        ROOT / "benchmarks" / "README.md": full_text(peers, engines),
    }
    stale = []
    for path, text in wanted.items():
        before = path.read_text()
        after = replaced(before, text)
        if after != before:
            stale.append(path.relative_to(ROOT))
            if not options.check:
                path.write_text(after)
    print(f"{'out of date' if options.check else 'written'}: {', '.join(map(str, stale)) or 'nothing'}")
    return 1 if options.check and stale else 0


def read_results(folder: Path) -> tuple[list[Report], list[Report]]:
    """(reports of pairs with peers in full size, reports of the engine alone), by file name."""
    reports = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    peers = [report for report in reports if report.get("kind") == "vivace bench peers" and report["size"] == "full"]
    return peers, [report for report in reports if report.get("kind") == "vivace bench engine"]


def replaced(text: str, table: str) -> str:
    """The text with `table` between its markers."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    assert begin and end, f"the markers {BEGIN} and {END} are missing"
    return f"{head}{BEGIN}\n{table.strip()}\n{END}{tail}"


def short_text(peers: Sequence[Report]) -> str:
    """Of each run the fastest peer of each work."""
    parts = []
    for report in peers:
        found = best_peers(ratios(report["rows"]))
        parts += [_setting(report), "", _ratio_table(report, found), ""]
    return "\n".join(parts) or NOTHING


def full_text(peers: Sequence[Report], engines: Sequence[Report]) -> str:
    """Every ratio, what each contender ran with, who did not take part; then the engine alone."""
    parts = []
    for report in peers:
        parts += [f"### Beside other engines: {report['model']}, KV {report['kv']}", "", _setting(report), ""]
        parts += [_ratio_table(report, ratios(report["rows"])), "", _contender_table(report), ""]
        parts += [f"Not measured: {name}: {reason}" for name, reason in report["skipped"].items()]
        parts += [f"Note: {note}" for note in report["notes"]] + [""]
    for report in engines:
        parts += [f"### The engine alone: {report['model']['name']}", "", _engine_setting(report), ""]
        parts += [_engine_table(report), ""]
    return "\n".join(parts) or NOTHING


def _setting(report: Report) -> str:
    machine = report["machine"]
    load = " to ".join(f"{value:.1f}" for value in machine["load_average"])
    return (
        f"{report['model']} on {machine['cpu']}, {machine['threads']} threads, load {load}; peers' KV {report['kv']}; "
        f"tokens per second are medians, ratios are medians of interleaved pairs with their interval."
    )


def _ratio_table(report: Report, found: Iterable[Ratio]) -> str:
    rows = [("work", "Vivace", "tokens/s", "peer", "tokens/s", "ratio", "pairs")]
    for ratio in found:
        value = f"**{ratio.median:.2f}** ({ratio.low:.2f} to {ratio.high:.2f})"
        kv = report["contenders"][ratio.vivace_name]["kv"]
        peer_kv = report["contenders"][ratio.peer_name]["kv"]
        rates = f"{ratio.vivace:,.0f}", f"{ratio.peer:,.0f}"
        names = f"{ratio.vivace_name}, KV {kv}", f"{ratio.peer_name}, KV {peer_kv}"
        rows.append((ratio.work, names[0], rates[0], names[1], rates[1], value, str(ratio.pairs)))
    return _markdown(rows, "llrlrrr")


def _contender_table(report: Report) -> str:
    rows = [("contender", "version", "weights", "KV", "flags")]
    for name, about in report["contenders"].items():
        flags = about.get("flags", "")
        text = flags if isinstance(flags, str) else " ".join(f"{key}={value}" for key, value in flags.items())
        rows.append((name, str(about["version"]), str(about["format"]), str(about["kv"]), text))
    return _markdown(rows, "lllll")


def _engine_setting(report: Report) -> str:
    machine, ceilings, formats = report["machine"], report["ceilings"], ", ".join(report["model"]["formats"])
    load = " to ".join(f"{value:.1f}" for value in machine["load_average"])
    integers = ceilings["integers_per_s"]
    return (
        f"{machine['cpu']}, {ceilings['threads']} threads, load {load}; weights {formats}, "
        f"KV {', '.join(report['settings']['kv_format'])}; commit {report['software']['commit'][:12]}; ceilings of the "
        f"same run: {ceilings['bytes_per_s'][-1] / 1e9:.1f} GB/s, {ceilings['floats_per_s'] / 1e9:.0f} Gflop/s"
        + (f", {integers / 1e9:.0f} Gop/s on bytes" if integers else "")
        + ". Best of all readings, which the file keeps."
    )


def _engine_table(report: Report) -> str:
    rows = [("work", "reading", "best", "share of its ceiling")]
    for row in report["results"]:
        share = f"{row['share']:.0%} of {row['ceiling']}" if "share" in row else ""
        rows.append((row["work"], row["metric"], f"{row['best']:,.4g}", share))
    memory = report["memory"]
    rows += [("memory", name, f"{memory[name] / 2**20:,.0f} MiB", "") for name in memory if name.endswith("_bytes")]
    return _markdown(rows, "llrl")


def _markdown(rows: Sequence[Sequence[str]], align: str) -> str:
    head, *body = rows
    rule = ["---:" if letter == "r" else "---" for letter in align]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, rule, *body))


if __name__ == "__main__":
    sys.exit(main())
