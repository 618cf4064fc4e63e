"""Success against what it cost, in three currencies; and gain against difficulty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import EngFormatter, NullFormatter

from agentjax.viz import style
from agentjax.viz.resolution import estimate
from agentjax.viz.rows import Curve, Rows, Where, gain, spent, threshold
from agentjax.viz.statistics import Interval, bootstrap, interval
from agentjax.viz.style import Arm

BUDGETS = (("gradient_tokens", "gradient tokens"), ("label_bits", "label bits"), ("episodes", "episodes"))
FAMILIES = (("trajectory", "episode"), ("turn",), ("token",))


@style.drawing
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
    columns = [b for b in BUDGETS if any(_paid(rows, b[0], arm, where, found[arm.name]) is not None for arm in arms)]
    figure, axes = style.figure(0.8 + 2.5 * len(families), len(families), len(columns), sharey=True, sharex="col")
    labels = []
    for line, family in zip(axes, families, strict=True):
        shown = [*(a for a in grey if a not in family), *family]
        looks = {a.name: (style.GREY, "-") for a in grey}
        looks |= dict(zip([a.name for a in family], zip(style.CYCLE, style.LINES, strict=True), strict=False))
        for panel, (budget, name) in zip(line, columns, strict=True):
            for arm in shown:
                x = _paid(rows, budget, arm, where, found[arm.name])
                if x is not None:
                    _curve(panel, x, found[arm.name], budget == "label_bits", *looks[arm.name])
            if not math.isnan(level):
                panel.axhline(level, color="black", lw=0.8, ls=":")
            if budget == "label_bits":
                panel.set_xscale("log")
                panel.xaxis.set_minor_formatter(NullFormatter())
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            panel.grid()
            panel.set_xlabel(name if family is families[-1] else "")
        line[0].set_ylabel("success on the panel")
        last = [(arm, float(found[arm.name].value[:, -1].mean())) for arm in shown]
        labels.append([(value, f"{arm.label} {value:.2f}", looks[arm.name][0]) for arm, value in last])
    for panel, ends in zip(axes[:, -1], labels, strict=True):
        style.label_ends(panel, [(panel.get_xlim()[1], *end) for end in ends])
    note = style.over([len(c.seeds) for c in found.values() if c is not None])
    figure.suptitle(f"Success against cost: {note}\nat the right: at the end; dotted: 80% of the expert")
    style.save(figure, path)
    return True


def _paid(rows: Rows, budget: str, arm: Arm, where: Where, curve: Curve | None) -> np.ndarray | None:
    """What the arm had spent at each evaluation, mean over seeds; None if not written down, or nothing."""
    paid = spent(rows, budget, method=arm.name, **where) if curve is not None else None
    if paid is None or not np.isin(curve.steps, paid.steps).all():
        return None
    x = paid.value.mean(axis=0)[np.searchsorted(paid.steps, curve.steps)]
    return x if x[-1] > 0 else None


def _curve(panel, x: np.ndarray, curve: Curve, log: bool, colour: str, line) -> None:
    drawn = x > 0 if log else x >= 0
    low, high = bootstrap(curve.value)
    panel.plot(x[drawn], curve.value.mean(axis=0)[drawn], color=colour, lw=1.5, ls=line)
    if len(curve.seeds) > 1:
        panel.fill_between(x[drawn], low[drawn], high[drawn], color=colour, alpha=0.15, lw=0)


@style.drawing
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
    figure, axes = style.figure(4.4, 1, len(panels))
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
        panel.set_xlabel("success before RL, p0")
        panel.set_title(name)
        panel.grid()
        panel.set_xlim(-0.3, len(rates) - 0.7)
        if ends:
            style.label_ends(panel, ends)
    axes[0, 0].axhline(0, color=style.GREY, lw=0.8)
    figure.suptitle(f"Difficulty: {style.over(counts)}")
    style.save(figure, path)
    return True


def _line(panel, arm: Arm, points: Sequence[tuple[float, Interval]]) -> None:
    style_of_point = {**arm.marker, "ms": 5, "lw": 1.2, "ls": "--" if arm.control else "-"}
    panel.plot([x for x, _ in points], [each.mean for _, each in points], **style_of_point)
    for x, each in points:
        if each.bounded:
            panel.errorbar(x, each.mean, yerr=style.bars(each), color=arm.colour, lw=1, capsize=2)
