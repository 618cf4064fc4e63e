"""The committed results: the rows give the figures and the ranks that the report claims."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from agentjax.viz.rows import read
from experiments import figures, signal_resolution, signal_resolution_report

PUBLISHED = Path(signal_resolution.__file__).parent / "results" / "signal_resolution"

pytestmark = pytest.mark.skipif(PUBLISHED not in figures.published(PUBLISHED.parent), reason="no finished run")


def table(report: str) -> list[list[str]]:
    """Cells of the first table, without header."""
    lines = [line for line in report.splitlines() if line.startswith("|")]
    first = lines[: next((i for i, line in enumerate(lines) if i > 1 and line.startswith("| fidelity")), len(lines))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in first[2:]]


def test_report_and_figures_come_from_the_rows(tmp_path):
    shutil.copy(PUBLISHED / "results.jsonl", tmp_path / "results.jsonl")
    signal_resolution_report.write(tmp_path, "paper", signal_resolution.PREDICTIONS)
    assert (tmp_path / "report.md").read_text() == (PUBLISHED / "report.md").read_text()
    assert {p.name for p in tmp_path.glob("*.png")} == {p.name for p in PUBLISHED.glob("*.png")}


def test_first_table_ranks_fidelity_and_cost_as_the_rows_do():
    rows, cells = read(PUBLISHED / "results.jsonl"), table((PUBLISHED / "report.md").read_text())
    where = {"env": "pivot", "p0": 0.1}
    names = [line[1] for line in cells]
    snr = {m: np.mean(list(rows.values("gradient/snr_db", method=m, step=0, **where).values())) for m in names}
    assert names == sorted(names, key=lambda m: -snr[m])
    level = 0.8 * rows.values("expert_success", method="expert", **where)[0]
    episodes = {}
    for name in names:
        seeds = rows.distinct("seed", "success", method=name, **where)
        reached = []
        for seed in seeds:
            curve = {r["step"]: r["value"] for r in rows.select("success", method=name, seed=seed, **where)}
            spent = {r["step"]: r["value"] for r in rows.select("episodes", method=name, seed=seed, **where)}
            reached.append(min((spent.get(s, 0.0) for s, v in curve.items() if v >= level), default=np.inf))
        episodes[name] = np.median(reached) if reached else np.inf
    ranks = {line[1]: line[9] for line in cells}
    for name in names:
        cheaper = sum(episodes[other] < episodes[name] for other in names)
        assert re.match(r"\d+|-", ranks[name])
        assert ranks[name] == (str(cheaper + 1) if np.isfinite(episodes[name]) else "-")


def test_every_arm_has_five_paired_seeds():
    rows = read(PUBLISHED / "results.jsonl")
    for name in signal_resolution.PRESETS["paper"].arms:
        assert len(rows.distinct("seed", "success", method=name, env="pivot", p0=0.1)) >= 5
