"""The resolution spectrum with measured fidelity, and fidelity against what was learned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from agentjax.viz import style
from agentjax.viz.rows import Rows, Where, gain
from agentjax.viz.statistics import RESAMPLES, Interval, inflation, interval, kendall, resampled
from agentjax.viz.style import Arm

SPECTRUM = (
    ("gradient/snr_db", "SNR of the gradient,\nslope-corrected (dB)"),
    ("fidelity/pearson_turn", "correlation with the true\nadvantage, by turn"),
    ("fidelity/pearson_token", "correlation with the true\nadvantage, by token"),
)


def estimate(rows: Rows, measure: str, method: str, where: Where, *, step: int = 0) -> Interval:
    """Mean over seeds with its bootstrap interval; of a single seed, two standard errors of the measurement itself.

    Where a seed has no finite value (a gradient with slope <= 0 has no SNR) the mean is -inf.
    """
    values = rows.values(measure, method=method, step=step, **where)
    found = interval(values)
    if found.seeds != 1 or not math.isfinite(found.mean):
        return found
    error = list(rows.values(f"{measure}_se", method=method, step=step, **where).values())
    return found._replace(low=found.mean - 2 * error[0], high=found.mean + 2 * error[0]) if error else found


def slope(rows: Rows, method: str, where: Where, *, step: int = 0) -> str:
    """ "slope -21.7 [-24.0, -19.4]": E[g_hat].g / |g|^2, 1 if unbiased, below 0 if the mean gradient points away from
    the true one; "" if it was not measured."""
    found = estimate(rows, "gradient/slope", method, where, step=step)
    if not found.seeds:
        return ""
    return f"slope {found.mean:.2g}" + (f" [{found.low:.2g}, {found.high:.2g}]" if found.bounded else "")


@style.drawing
def spectrum(rows: Rows, arms: Sequence[Arm], where: Where, path: Path) -> bool:
    """`spectrum.png`: arms from coarse to fine, a panel per measure. False, and no file, if nothing was measured."""
    arms = style.in_order([a for a in arms if any(rows.values(m, method=a.name, step=0, **where) for m, _ in SPECTRUM)])
    if not arms:
        return False
    figure, axes = style.figure(1.7 + 0.25 * len(arms), 1, len(SPECTRUM), sharey=True)
    counts = []
    for panel, (measure, title) in zip(axes[0], SPECTRUM, strict=True):
        found = [estimate(rows, measure, arm.name, where) for arm in arms]
        counts += [f.seeds for f in found if f.seeds]
        for i, (arm, each) in enumerate(zip(arms, found, strict=True)):
            if math.isfinite(each.mean):
                panel.errorbar(each.mean, i, xerr=style.bars(each), capsize=2, lw=1.2, **arm.marker)
            elif each.seeds:
                edge = panel.get_yaxis_transform()
                text = slope(rows, arm.name, where)
                panel.text(0.02, i, text, va="center", color=arm.colour, transform=edge)
        panel.set_title(title)
        panel.grid(axis="x")
        if measure == "gradient/snr_db":
            style.frame(panel, [each.mean for each in found if math.isfinite(each.mean)])
        if measure.startswith("fidelity"):
            panel.axvline(0, color=style.GREY, lw=0.8)
        style.name_rows(panel, arms)
    style.name_resolutions(axes[0, -1], arms)
    figure.suptitle(f"Resolution of the signal and its fidelity: {style.over(counts)}")
    figure.supxlabel(
        "Bars: 95% intervals (of one seed: two standard errors). Diamond: oracle, circle: outcome,\nsquare: judge,"
        " triangle: hint, plus: judge and hint, hollow: control"
    )  # fmt: skip
    style.save(figure, path)
    return True


def rank_correlation(
    rows: Rows, arms: Sequence[Arm], where: Where, *, measure: str = "gradient/snr_db"
) -> tuple[Interval, list[str]]:
    """Kendall's tau over arms between a measure at step 0 and the gain, its interval over seeds, and the arms used.

    Seeds are drawn together for all arms; a measure with a single seed, from its standard errors if it has any.
    """
    at = {"step": 0, **where}
    scores = {arm.name: rows.values(measure, method=arm.name, **at) for arm in arms}
    gains = {arm.name: gain(rows, method=arm.name, **where) for arm in arms if scores[arm.name]}
    used = [name for name, values in gains.items() if values]
    if len(used) < 3:
        return Interval(math.nan, math.nan, math.nan, 0), used
    x, y = (_shared([table[name] for name in used]) for table in (scores, gains))
    if not x.size or not y.size:
        return Interval(math.nan, math.nan, math.nan, 0), used
    centre = float(kendall(x.mean(axis=1), y.mean(axis=1)))
    if y.shape[1] < 2:
        return Interval(centre, math.nan, math.nan, 1), used
    draws_x, draws_y = (_draws(a) for a in (x, y))
    if x.shape[1] == 1:
        errors = [list(rows.values(f"{measure}_se", method=name, **at).values()) or [0.0] for name in used]
        draws_x = draws_x + np.random.default_rng(0).normal(size=draws_x.shape) * np.array([e[0] for e in errors])
    low, high = np.percentile(kendall(draws_x, draws_y), (2.5, 97.5))
    return Interval(centre, float(low), float(high), y.shape[1]), used


def _draws(values: np.ndarray) -> np.ndarray:
    """[resamples, arms]: bootstrap means of values[arms, seeds], seeds drawn together, stretched for few seeds."""
    count, mean = values.shape[1], values.mean(axis=1)
    if count < 2:
        return np.tile(mean, (RESAMPLES, 1))
    found = values[:, resampled(count)].mean(axis=2).T
    with np.errstate(invalid="ignore"):
        stretched = mean + (found - mean) * inflation(count)
    return np.where(np.isfinite(stretched), stretched, found)


def _shared(tables: Sequence[Mapping[int, float]]) -> np.ndarray:
    """float[arms, seeds], over the seeds that all arms have."""
    seeds = sorted(set.intersection(*(set(table) for table in tables)))
    return np.array([[table[seed] for seed in seeds] for table in tables])


@style.drawing
def fidelity_learning(rows: Rows, arms: Sequence[Arm], settings: Sequence[tuple[str, Where]], path: Path) -> bool:
    """`fidelity_learning.png`: gain against SNR, a point per arm, a panel per setting (title, where)."""
    panels = [(title, where) for title, where in settings if len(rank_correlation(rows, arms, where)[1]) >= 2]
    if not panels:
        return False
    lines = (len(panels) + 1) // 2
    figure, axes = style.figure(0.5 + 4.6 * lines, lines, min(len(panels), 2))
    for panel in axes.flat[len(panels) :]:
        panel.set_axis_off()
    labels, counts = [], []
    for panel, (title, where) in zip(axes.flat, panels, strict=False):
        tau, used = rank_correlation(rows, arms, where)
        chosen = [arm for arm in arms if arm.name in used]
        x = [estimate(rows, "gradient/snr_db", arm.name, where) for arm in chosen]
        y = [interval(gain(rows, method=arm.name, **where)) for arm in chosen]
        finite = [each.mean for each in x if math.isfinite(each.mean)] or [0.0]
        lowest = min(finite) - 0.15 * max(max(finite) - min(finite), 1.0)  # where -inf is drawn
        places = [each.mean if math.isfinite(each.mean) else lowest for each in x]
        for arm, place, snr, learned in zip(chosen, places, x, y, strict=True):
            panel.errorbar(
                place, learned.mean, xerr=style.bars(snr), yerr=style.bars(learned), lw=0.8, alpha=0.9, **arm.marker
            )
        if len(finite) < len(chosen):
            panel.axvline(lowest, color=style.GREY, lw=0.6, ls=":")
            panel.text(lowest, 1.0, " slope below 0", transform=panel.get_xaxis_transform(), va="top")
        panel.axhline(0, color=style.GREY, lw=0.8)
        panel.set_xlabel("SNR of the gradient at the start (dB)")
        panel.set_title(
            f"{title}\nKendall tau {tau.mean:.2f}"
            + (f" [{tau.low:.2f}, {tau.high:.2f}]" if tau.bounded else "")
            + f" over {len(used)} arms"
        )  # fmt: skip
        counts += [each.seeds for each in y]
        labels.append((panel, [(p, e.mean, a.label, a.colour) for p, e, a in zip(places, y, chosen, strict=True)]))
        panel.margins(0.12, 0.1)
        style.frame(panel, places)
    figure.supylabel("learning gain: mean success over training less at its start")
    figure.suptitle(f"Does the gradient's fidelity at the start predict the gain? {style.over(counts)}")
    for panel, points in labels:
        style.label_points(panel, points)
    style.save(figure, path)
    return True
