"""Reports of `bench engine` as text: tables for the terminal, and the ratios of two reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from rich.table import Table

from vivace.errors import ConfigError
from vivace.lab.bench_engine import KIND, Report, is_rate

UNITS = {"_per_s": "/s", "_ms": " ms", "_us": " us"}


def engine_tables(report: Report) -> list[Table]:
    """The results, then memory, then the profile if there is one."""
    tables = [_results(report), _memory(report)]
    if report["profile"]:
        tables.append(profile_table(report["profile"]))
    return tables


def heading(report: Report) -> str:
    """What was measured, on what, with which settings."""
    model, machine, settings, ceilings = (report[key] for key in ("model", "machine", "settings", "ceilings"))
    software = " ".join(f"{name} {version}" for name, version in report["software"].items())
    formats = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in model["formats"].items())
    load = " to ".join(f"{value:.1f}" for value in machine["load_average"])
    reading = " ".join(f"{rate / 1e9:.1f}" for rate in ceilings["bytes_per_s"])
    integers = ceilings["integers_per_s"]
    return "\n".join(
        [
            f"{model['name']}: weights {formats}; KV {' '.join(settings['kv_format'])}, page {settings['page_size']}",
            f"{machine['cpu']}, {settings['threads']} threads, load {load}; {software}",
            f"kernels {settings['kernels']}: {', '.join(sorted(set(settings['operations'].values())))}",
            f"ceilings: read {reading} GB/s with 1 to {ceilings['threads']} threads, "
            f"{ceilings['floats_per_s'] / 1e9:.0f} Gflop/s"
            + (f", {integers / 1e9:.0f} Gop/s on bytes ({ceilings['integers_by']})" if integers else ""),
        ]
    )


def profile_table(profile: Report) -> Table:
    """Where a step's time goes, one column per work, the stages in the order of their largest share."""
    table = Table(title="where a step's time goes; a name with ':' is the Python in between")
    table.add_column("stage", no_wrap=True)
    for work in profile:
        table.add_column(work, justify="right", no_wrap=True)
    totals = {work: sum(stages.values()) or 1.0 for work, stages in profile.items()}
    shares = {work: {stage: time / totals[work] for stage, time in stages.items()} for work, stages in profile.items()}
    largest = {
        stage: max(found.get(stage, 0.0) for found in shares.values()) for found in shares.values() for stage in found
    }
    for stage in sorted(largest, key=lambda stage: -largest[stage]):
        cells = ((profile[work].get(stage, 0.0), shares[work].get(stage, 0.0)) for work in profile)
        table.add_row(stage, *(f"{short_time(time)} {share:3.0%}" for time, share in cells))
    table.add_section()
    table.add_row("step", *(f"{short_time(total)}    " for total in totals.values()))
    return table


def short_time(us: float) -> str:
    """Microseconds in three figures or so."""
    if us < 1000:
        return f"{us:.0f}us"
    return f"{us / 1e3:.1f}ms" if us < 1e5 else f"{us / 1e3:.0f}ms"


def compare_table(before: Report, after: Report) -> Table:
    """The ratios of two reports, of the best readings and of the medians; over 1 means the second one is better."""
    for report in (before, after):
        if report.get("kind") != KIND:
            raise ConfigError(
                f"a report of kind {report.get('kind')!r} came, expected {KIND!r}", hint="check the files"
            )
    table = Table("work", title="second / first, over 1 is better")
    table.add_column("reading", no_wrap=True)
    for name in ("first", "second", "ratio of best", "ratio of medians"):
        table.add_column(name, justify="right")
    known = {(row["work"], row["metric"]): row for row in before["results"]}
    for row in after["results"]:
        old = known.get((row["work"], row["metric"]))
        if old is not None:
            metric = row["metric"]
            table.add_row(
                row["work"],
                metric,
                *(with_unit(metric, found["best"]) for found in (old, row)),
                f"{gain(metric, old['best'], row['best']):.2f}",
                f"{gain(metric, median(old['values']), median(row['values'])):.2f}",
            )
    return table


def gain(metric: str, before: float, after: float) -> float:
    """How many times better the second is."""
    better, worse = (after, before) if is_rate(metric) else (before, after)
    return better / worse if worse else float("inf")


def with_unit(metric: str, value: float) -> str:
    """A reading for people."""
    unit = next((unit for ending, unit in UNITS.items() if metric.endswith(ending)), "")
    return f"{value:,.0f}{unit}" if value >= 100 else f"{value:.3g}{unit}"


def _results(report: Report) -> Table:
    table = Table("work", title="best of several, and all of them")
    table.add_column("reading", no_wrap=True)
    for name in ("best", "ceiling", "share", "all"):
        table.add_column(name, justify="right")
    for previous, row in zip([None, *report["results"]], report["results"], strict=False):
        if previous is not None and previous["work"] != row["work"]:
            table.add_section()
        share = f"{row['share']:.0%}" if "share" in row else ""
        values = " ".join(_short(row["values"]))
        table.add_row(
            row["work"], row["metric"], with_unit(row["metric"], row["best"]), row.get("ceiling", ""), share, values
        )
    return table


def _memory(report: Report) -> Table:
    table = Table("memory", title="resident memory")
    table.add_column("MiB", justify="right")
    for name, value in report["memory"].items():
        if name.endswith("_bytes"):
            table.add_row(name.removesuffix("_bytes").replace("_", " "), f"{value / 2**20:,.0f}")
    return table


def _short(values: Sequence[float]) -> Iterable[str]:
    return (f"{value:.0f}" if value >= 100 else f"{value:.3g}" for value in values)
