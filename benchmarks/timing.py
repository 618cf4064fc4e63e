"""Side-by-side timing: programs take turns in one run, so that whatever else the machine does falls on all alike."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

RESULTS = pathlib.Path(__file__).parent / "results"


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table. `target` 0: a figure without a target."""

    what: str
    value: float
    unit: str  # "x": a ratio, other / ours
    low: float
    high: float
    target: float = 0.0
    most: bool = False  # the target is an upper bound
    detail: str = ""

    @property
    def verdict(self) -> str:
        """met, missed, or nothing where there is no target."""
        if not self.target:
            return ""
        return "met" if (self.value <= self.target if self.most else self.value >= self.target) else "missed"


def interleaved(
    programs: Mapping[str, Callable[[], Any]], repeats: int = 5, warmup: int = 1, pause: float = 0.0
) -> dict[str, list[float]]:
    """Seconds of each program, A, B, A, B, ...; a program returns when its work is done.

    pause: seconds of rest before each, where one library's idle threads spin for a while and would slow the other.
    """
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(-warmup, repeats):
        for name, program in programs.items():
            time.sleep(pause)
            start = time.perf_counter()
            program()
            took = time.perf_counter() - start
            if turn >= 0:
                seconds[name].append(took)
    return seconds


def ratio_row(what: str, other: Sequence[float], ours: Sequence[float], target: float = 0.0, detail: str = "") -> Row:
    """other / ours: ratio of the medians, and the range of the ratios of neighbouring runs."""
    pairs = [a / b for a, b in zip(other, ours, strict=True)]
    middle = [statistics.median(x) for x in (other, ours)]
    times = f"{_time(middle[1])} against {_time(middle[0])}"
    ratio = middle[0] / middle[1]
    return Row(what, ratio, "x", min(pairs), max(pairs), target, detail="; ".join(filter(None, (times, detail))))


def peak_row(what: str, target: float = 0.0) -> Row:
    """The most memory that this process has held."""
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return Row(what, gigabytes, "GB", gigabytes, gigabytes, target, most=True)


def median_row(
    what: str, values: Sequence[float], unit: str, target: float = 0.0, most: bool = False, detail: str = ""
) -> Row:
    """Median of repeated values, with their range."""
    return Row(what, statistics.median(values), unit, min(values), max(values), target, most, detail)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _number(x: float) -> str:
    return f"{x:.0f}" if abs(x) >= 100 else f"{x:.3g}"


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| what | measured | range | target | | detail |", "|---|---|---|---|---|---|"]
    for row in rows:
        bound = f"{'at most' if row.most else 'at least'} {_number(row.target)} {row.unit}" if row.target else ""
        span = f"{_number(row.low)} to {_number(row.high)}" if row.low != row.high else ""
        lines.append(
            f"| {row.what} | {_number(row.value)} {row.unit} | {span} | {bound} | {row.verdict} | {row.detail} |"
        )
    return "\n".join(lines)


def report(name: str, rows: Sequence[Row]) -> None:
    """Prints the table and writes results/<name>.json, with what else the machine was doing."""
    load = os.getloadavg()[0]
    print(f"\n{name}: {os.cpu_count()} CPU cores, load average {load:.1f}\n{table(rows)}\n", flush=True)
    RESULTS.mkdir(exist_ok=True)
    content = {
        "cores": os.cpu_count(), "load_average": round(load, 2),
        "rows": [dataclasses.asdict(row) | {"verdict": row.verdict} for row in rows],
    }  # fmt: skip
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
