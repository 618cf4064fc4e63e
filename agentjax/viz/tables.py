"""Where the credit goes that should go nowhere, and which sign it has: leakage and sign tables as figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agentjax.viz import style
from agentjax.viz.resolution import estimate
from agentjax.viz.rows import Rows, Where
from agentjax.viz.style import Arm

ENDINGS, TRUTHS, SIGNS = ("success", "failure"), ("good", "neutral", "bad"), ("plus", "zero", "minus")
SIGN_COLOURS = ("#0072B2", "#dddddd", "#E69F00")


@style.drawing
def leakage(rows: Rows, arms: Sequence[Arm], where: Where, path: Path) -> bool:
    """`leakage.png`: share of |credit| on turns that do not matter, in one trajectory and in the mean over rollouts."""
    measures = ("fidelity/leakage_trajectory", "fidelity/leakage_averaged")
    arms = style.in_order([a for a in arms if rows.values(measures[0], method=a.name, step=0, **where)])
    if not arms:
        return False
    figure, axes = style.figure(1.6 + 0.25 * len(arms))
    panel = axes[0, 0]
    counts = []
    for i, arm in enumerate(arms):
        each, mean = (estimate(rows, m, arm.name, where) for m in measures)
        counts.append(each.seeds)
        panel.plot([each.mean, mean.mean], [i, i], color=style.LIGHT, lw=3, zorder=0)
        for found, face, offset in ((each, "white", -0.1), (mean, arm.colour, 0.1)):
            if found.seeds:
                panel.errorbar(
                    found.mean, i + offset, xerr=style.bars(found), fmt="o", ms=6, color=arm.colour, mfc=face, capsize=2
                )
    style.name_rows(panel, arms)
    style.name_resolutions(panel, arms)
    panel.set_xlim(-0.02, 1.02)
    panel.grid(axis="x")
    panel.set_xlabel(
        "share of |credit| on turns whose true advantage is 0\nhollow: within a trajectory; filled: averaged over the"
        " rollouts of a task (what is left is bias)"
    )  # fmt: skip
    panel.set_title(f"Leakage: {style.over(counts)}")
    style.save(figure, path)
    return True


def sign_table(rows: Rows, method: str, where: Where) -> np.ndarray | None:
    """Mean over seeds of the share of turns [outcome, truth, sign of credit], 2 x 3 x 3; None if not measured."""
    table = np.full((2, 3, 3), np.nan)
    for i, ending in enumerate(ENDINGS):
        for j, truth in enumerate(TRUTHS):
            for k, sign in enumerate(SIGNS):
                values = rows.values(f"fidelity/sign_{ending}_{truth}_{sign}", method=method, step=0, **where)
                if values:
                    table[i, j, k] = np.mean(list(values.values()))
    return None if np.isnan(table).any() else table


@style.drawing
def signs(rows: Rows, arms: Sequence[Arm], where: Where, path: Path) -> bool:
    """`signs.png`: for every arm and cell (outcome, truth), how its turns' credit splits into +, 0 and -."""
    arms = style.in_order([arm for arm in arms if sign_table(rows, arm.name, where) is not None])
    if not arms:
        return False
    found = np.array([sign_table(rows, arm.name, where) for arm in arms]).reshape(len(arms), 6, 3)
    total = found.sum(axis=2, keepdims=True)
    split = found / np.where(total > 0, total, 1.0)
    figure, axes = style.figure(1.9 + 0.25 * len(arms), 1, 6, sharey=True)
    names = [(ending, truth) for ending in ENDINGS for truth in TRUTHS]
    for cell, (panel, (ending, truth)) in enumerate(zip(axes[0], names, strict=True)):
        left = np.zeros(len(arms))
        for k, colour in enumerate(SIGN_COLOURS):
            panel.barh(range(len(arms)), split[:, cell, k], left=left, color=colour, height=0.72)
            left = left + split[:, cell, k]
        if not total[:, cell].any():
            box = {"fc": "white", "ec": "none"}
            middle = {"rotation": 90, "ha": "center", "va": "center"}
            panel.text(0.5, len(arms) / 2 - 0.5, "no such turn", bbox=box, **middle)
        style.name_rows(panel, arms)
        panel.set_xlim(0, 1)
        panel.set_xticks([0, 1], ["0", "1"])
        right = {"good": "right: +", "neutral": "right: 0", "bad": "right: -"}[truth]
        panel.set_title(f"{ending},\n{truth} turn\n({total[:, cell, 0].mean():.0%} of all)\n{right}")
        panel.spines[:].set_visible(False)
    style.name_resolutions(axes[0, -1], arms)
    count = len(rows.values(f"fidelity/sign_{ENDINGS[0]}_good_plus", method=arms[0].name, step=0, **where))
    figure.supxlabel(
        "share of the cell's turns with credit above 0 (blue), 0 (grey), below 0 (orange);"
        f" {count} seed{'s' if count > 1 else ''}"
    )  # fmt: skip
    style.save(figure, path)
    return True
