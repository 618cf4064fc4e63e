"""The chart of a talk: rule kept and right answers by arm on held-out questions, and first replies by update."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

COLOURS = {"frozen": "0.5", "binary": "C1", "opd": "C0"}
PANELS = {"rule_kept": "rule kept", "accuracy": "answer right"}


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Bars are shares with 95% Wilson intervals, dots one batch of first replies each; writes `path` (.png).

    Rows: {"method", "measure", "step", "value"} with "low" and "high" on shares; arms without a panel are left out.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    arms = [arm for arm in COLOURS if any((r["method"], r["measure"]) == (arm, "rule_kept") for r in rows)]
    for offset, measure in enumerate(PANELS):
        for index, arm in enumerate(arms):
            row = next(r for r in rows if (r["method"], r["measure"]) == (arm, measure))
            error = [[row["value"] - row["low"]], [row["high"] - row["value"]]]
            left.bar(
                offset * (len(COLOURS) + 1) + index, row["value"], yerr=error, color=COLOURS[arm], capsize=3,
                label=arm if offset == 0 else None,
            )  # fmt: skip
    middle = (len(arms) - 1) / 2
    left.set_xticks([middle, len(COLOURS) + 1 + middle], list(PANELS.values()))
    left.set(ylim=(0, 1), ylabel="share of held-out replies")
    left.legend(fontsize=8)
    for arm in arms:
        mine = [r for r in rows if (r["method"], r["measure"]) == (arm, "first_reply_kept")]
        if mine:
            steps, values = [r["step"] for r in mine], [r["value"] for r in mine]
            right.plot(steps, values, "o-", ms=4, lw=1, color=COLOURS[arm], label=arm)
    frozen = next((r for r in rows if (r["method"], r["measure"]) == ("frozen", "rule_kept")), None)
    if frozen is not None:
        right.axhline(frozen["value"], color=COLOURS["frozen"], lw=1, ls="--", label="frozen, held-out")
    right.set(ylim=(0, 1), xlabel="updates before the reply", ylabel="rule kept in first replies")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)
