"""Success against what it cost, in iterations and in three currencies; and gain against difficulty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import EngFormatter

from agentjax.viz import style
from agentjax.viz.resolution import estimate
from agentjax.viz.rows import Curve, Rows, Where, gain, spent, threshold
from agentjax.viz.statistics import Interval, bootstrap, interval
from agentjax.viz.style import Arm

BUDGETS = (
    ("step", "RL iterations"),
    ("episodes", "episodes"),
    ("gradient_tokens", "gradient tokens"),
    ("label_bits", "label bits"),
)
FAMILIES = (("trajectory", "episode"), ("turn",), ("token",))


def curves(
    rows: Rows, arms: Sequence[Arm], where: Where, path: Path, *, everywhere: Sequence[str] = ("grpo", "frozen")
) -> bool:
    """`learning.png`: a row of panels per resolution, a column per budget; the arms of `everywhere` in grey in each.

    Bands are 95% bootstrap intervals of the mean over seeds. The dotted line is 80% of the expert's success.
    """
    found = {arm.name: rows.curve("success", method=arm.name, **where) for arm in arms}
    families = [[a for a in arms if a.resolution in names and found[a.name] is not None] for names in FAMILIES]
    families = [family for family in families if family]
    if not families:
        return False
    grey = [arm for arm in arms if arm.name in everywhere and found[arm.name] is not None]
    level = threshold(rows, **where)
    figure, axes = style.figure(11, 0.6 + 2.3 * len(families), len(families), len(BUDGETS), sharey=True, sharex="col")
    for line, family in zip(axes, families, strict=True):
        colours = dict(zip([a.name for a in family], style.CYCLE * 2, strict=False))
        for panel, (budget, name) in zip(line, BUDGETS, strict=True):
            for arm in [*(a for a in grey if a not in family), *family]:
                _curve(rows, arm, where, panel, budget, found[arm.name], colours.get(arm.name, style.GREY))
            if not math.isnan(level):
                panel.axhline(level, color="black", lw=0.8, ls=":")
            if budget == "label_bits":
                panel.set_xscale("log")
            else:
                panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            panel.grid(alpha=0.25)
            panel.set_xlabel(name if family is families[-1] else "", fontsize=9)
        line[0].set_ylabel("success on the panel", fontsize=8)
        shown = [*family, *(a for a in grey if a not in family)]
        last = [(arm, float(found[arm.name].value[:, -1].mean())) for arm in shown]
        for i, (arm, value) in enumerate(sorted(last, key=lambda pair: -pair[1])):
            line[-1].text(
                1.04, 0.98 - 0.115 * i, f"{arm.label} {value:.2f}", transform=line[-1].transAxes, fontsize=8, va="top",
                color=colours.get(arm.name, style.GREY),
            )  # fmt: skip
    note = style.over([len(c.seeds) for c in found.values() if c is not None])
    figure.suptitle(f"Success against cost: {note}; at the right, at the end (dotted: 80% of the expert)", fontsize=10)
    style.save(figure, path)
    return True


def _curve(rows: Rows, arm: Arm, where: Where, panel, budget: str, curve: Curve, colour: str) -> None:
    x = curve.steps.astype(float)
    if budget != "step":
        paid = spent(rows, budget, method=arm.name, **where)
        if paid is None or not np.isin(curve.steps, paid.steps).all():
            return
        x = paid.value.mean(axis=0)[np.searchsorted(paid.steps, curve.steps)]
        if x[-1] <= 0:
            return
    drawn = x > 0 if budget == "label_bits" else x >= 0
    low, high = bootstrap(curve.value)
    panel.plot(x[drawn], curve.value.mean(axis=0)[drawn], color=colour, lw=1.5, ls="--" if arm.control else "-")
    if len(curve.seeds) > 1:
        panel.fill_between(x[drawn], low[drawn], high[drawn], color=colour, alpha=0.15, lw=0)


def difficulty(rows: Rows, arms: Sequence[Arm], where: Where, path: Path) -> bool:
    """`difficulty.png`: gain and SNR of each arm against p0, the success before RL; `where` without p0.

    Needs two values of p0.
    """
    rates = sorted(rows.distinct("p0", "success", **where))
    swept = [a for a in arms if sum(bool(gain(rows, method=a.name, p0=p0, **where)) for p0 in rates) >= 2]
    if not swept:
        return False
    panels = [("learning gain", lambda name, at: interval(gain(rows, method=name, **at)))]
    if len(rows.distinct("p0", "gradient/snr_db", step=0, **where)) >= 2:
        title = "slope-corrected SNR at the start (dB)"
        panels.append((title, lambda name, at: estimate(rows, "gradient/snr_db", name, at)))
    figure, axes = style.figure(1.5 + 4.5 * len(panels), 4.2, 1, len(panels))
    counts: list[int] = []
    for panel, (name, value) in zip(axes[0], panels, strict=True):
        ends = []
        for k, arm in enumerate(swept):
            shift = 0.04 * (k - len(swept) / 2)
            points = [(i + shift, value(arm.name, {**where, "p0": p0})) for i, p0 in enumerate(rates)]
            points = [(x, each) for x, each in points if each.seeds and math.isfinite(each.mean)]
            counts += [each.seeds for _, each in points]
            _line(panel, arm, points)
            if points:
                ends.append((points[-1][0], points[-1][1].mean, arm.label, arm.colour))
        panel.set_xticks(range(len(rates)), [f"{p0:g}" for p0 in rates])
        panel.set_xlabel("success before RL, p0", fontsize=9)
        panel.set_title(name, fontsize=9)
        panel.grid(alpha=0.25)
        panel.set_xlim(-0.3, len(rates) - 0.7)
        if ends:
            style.label_ends(panel, ends)
    axes[0, 0].axhline(0, color=style.GREY, lw=0.8)
    figure.suptitle(f"Difficulty: {style.over(counts)}", fontsize=10)
    style.save(figure, path)
    return True


def _line(panel, arm: Arm, points: Sequence[tuple[float, Interval]]) -> None:
    style_of_point = {**arm.marker, "ms": 5, "lw": 1.2, "ls": "--" if arm.control else "-"}
    panel.plot([x for x, _ in points], [each.mean for _, each in points], **style_of_point)
    for x, each in points:
        if each.bounded:
            panel.errorbar(x, each.mean, yerr=style.bars(each), color=arm.colour, lw=1, capsize=2)
