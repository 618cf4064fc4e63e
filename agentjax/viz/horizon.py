"""The chart of signal-to-noise against horizon, from result rows only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

LABELS = {
    "exact": "exact advantage",
    "gae_0": "GAE λ=0, exact V",
    "gae_1": "GAE λ=1, exact V",
    "reward_to_go": "reward-to-go",
    "full_return": "full return",
    "rloo": "RLOO, G=8",
}


def draw(rows: Sequence[dict[str, Any]], path: Path, *, measure: str = "snr_db_raw") -> None:
    """Points with two standard errors are measured, lines are closed forms; writes `path` (.png).

    Rows: {"measure", "estimator", "L", "value", "se", "closed_form"}; those of another measure are passed over.
    """
    chosen = [row for row in rows if row["measure"] == measure]
    if not chosen:
        raise ValueError(f"no rows of the measure {measure!r}; there are: {sorted({row['measure'] for row in rows})}")
    figure, axes = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    for index, (name, label) in enumerate(LABELS.items()):
        mine = sorted((row for row in chosen if row["estimator"] == name), key=lambda row: row["L"])
        if not mine:
            continue
        length, style = [row["L"] for row in mine], {"color": f"C{index}"}
        axes.plot(length, [row["closed_form"] for row in mine], lw=1.2, **style)
        value, error = [row["value"] for row in mine], [2 * row["se"] for row in mine]
        axes.errorbar(length, value, yerr=error, fmt="o", ms=4, label=label, **style)
    axes.set(
        xscale="log", xlabel="horizon L (steps)", ylabel="signal-to-noise per trajectory (dB)",
        title="Umbrella chain: points measured, lines closed form",
    )  # fmt: skip
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)
