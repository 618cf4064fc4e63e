"""The chart of signal-to-noise against horizon, from result rows only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentjax.viz import style

LABELS = {
    "exact": "exact advantage",
    "gae_0": "GAE λ=0, exact V",
    "gae_1": "GAE λ=1, exact V",
    "reward_to_go": "reward-to-go",
    "full_return": "full return",
    "rloo": "RLOO, G=8",
}


@style.drawing
def draw(rows: Sequence[dict[str, Any]], path: Path, *, measure: str = "snr_db_raw") -> None:
    """Points with two standard errors are measured, lines are closed forms; writes `path` (.png).

    Rows: {"measure", "estimator", "L", "value", "se", "closed_form"}; those of another measure are passed over.
    """
    chosen = [row for row in rows if row["measure"] == measure]
    if not chosen:
        raise ValueError(f"no rows of the measure {measure!r}; there are: {sorted({row['measure'] for row in rows})}")
    figure, [[axes]] = style.figure(4.6)
    ends = []
    for (name, label), colour, line in zip(LABELS.items(), style.CYCLE, style.LINES, strict=False):
        mine = sorted((row for row in chosen if row["estimator"] == name), key=lambda row: row["L"])
        if not mine:
            continue
        length, closed = [row["L"] for row in mine], [row["closed_form"] for row in mine]
        axes.plot(length, closed, lw=1.2, ls=line, color=colour)
        value, error = [row["value"] for row in mine], [2 * row["se"] for row in mine]
        axes.errorbar(length, value, yerr=error, fmt="o", ms=4, color=colour)
        ends.append((length[-1], closed[-1], label, colour))
    axes.set(
        xscale="log", xlabel="horizon L (steps)", ylabel="SNR per trajectory (dB)",
        title="Umbrella chain: points measured, lines closed form",
    )  # fmt: skip
    axes.grid()
    style.label_ends(axes, ends)
    style.save(figure, path)
