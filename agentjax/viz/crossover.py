"""When noise makes a finer signal worse: a judge's error rate against the outcome's fixed quality."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from agentjax.viz import style
from agentjax.viz.resolution import estimate
from agentjax.viz.rows import Rows, Where, gain
from agentjax.viz.statistics import Interval, interval, resampled, tails


def crossing(x: Sequence[float], y: Sequence[float], level: float) -> float:
    """Where the polyline (x, y) first falls below the level; inf if never, the first x if it starts below.

    x = [0, .1, .2], y = [4, 2, 0], level 1: .15. A y of -inf counts as far below: the crossing is then at that x.
    """
    if y[0] < level:
        return float(x[0])
    for (x0, y0), (x1, y1) in zip(zip(x, y, strict=True), list(zip(x, y, strict=True))[1:], strict=False):
        if y1 < level:
            return float(x0 + (x1 - x0) * (y0 - level) / (y0 - y1)) if math.isfinite(y1) else float(x1)
    return math.inf


def crossing_interval(values: np.ndarray, x: Sequence[float], level: np.ndarray) -> Interval:
    """`crossing` of the means of values[seeds, len(x)] with the mean of level[seeds], and its interval over seeds."""
    count = values.shape[0]
    centre = crossing(x, values.mean(axis=0).tolist(), float(level.mean()))
    if count < 2:
        return Interval(centre, math.nan, math.nan, count)
    draws = resampled(count, resamples=1000)
    found = [crossing(x, values[i].mean(axis=0).tolist(), float(level[i].mean())) for i in draws]
    low, high = np.percentile(found, tails(count), method="nearest")
    return Interval(centre, float(low), float(high), count)


def snr_crossing(rows: Rows, where: Where, *, judge: str, reference: str) -> tuple[list[float], Interval] | None:
    """Error rates of the sweep, and the rate at which the judge's SNR falls below the reference's."""
    errors = sorted(rows.distinct("error", "gradient/snr_db", method=judge, **where))
    level = rows.values("gradient/snr_db", method=reference, step=0, **where)
    table = [rows.values("gradient/snr_db", method=judge, error=error, step=0, **where) for error in errors]
    seeds = sorted(set(level).intersection(*table)) if table else []
    if len(errors) < 2 or not seeds:
        return None
    values = np.array([[each[seed] for each in table] for seed in seeds])
    levels = np.array([level[seed] for seed in seeds])
    found = crossing_interval(values, errors, levels)
    return errors, found if len(seeds) > 1 else _one_seed(rows, where, judge, reference, errors, values[0], found)


def _one_seed(
    rows: Rows, where: Where, judge: str, reference: str, errors: list[float], values: np.ndarray, found: Interval
) -> Interval:
    """`found` with the interval that the measurement's own standard errors give, where there are any."""
    at = [{"method": judge, "error": error} for error in errors] + [{"method": reference, "error": None}]
    room = [list(rows.values("gradient/snr_db_se", step=0, **{**where, **one}).values()) for one in at]
    if not all(room):
        return found
    level = list(rows.values("gradient/snr_db", method=reference, step=0, **where).values())
    noise = np.random.default_rng(0).normal(size=(1000, len(at))) * np.array([each[0] for each in room])
    draws = np.append(values, level[0])[None, :] + noise
    low, high = np.percentile([crossing(errors, d[:-1].tolist(), d[-1]) for d in draws], (2.5, 97.5), method="nearest")
    return found._replace(low=float(low), high=float(high))


def gain_crossing(rows: Rows, where: Where, *, judges: Mapping[str, float], reference: str) -> Interval | None:
    """The rate at which the gain of a judge of that error rate (method -> rate) falls below the reference's."""
    found = {name: gain(rows, method=name, **where) for name in sorted(judges, key=judges.__getitem__)}
    found = {name: values for name, values in found.items() if values}
    level = gain(rows, method=reference, **where)
    seeds = sorted(set(level).intersection(*found.values())) if found else []
    if len(found) < 2 or not seeds:
        return None
    values = np.array([[each[seed] for each in found.values()] for seed in seeds])
    return crossing_interval(values, [judges[name] for name in found], np.array([level[seed] for seed in seeds]))


@style.drawing
def crossover(rows: Rows, where: Where, path: Path, *, judge: str, judges: Mapping[str, float], reference: str) -> bool:
    """`crossover.png`: SNR of the swept `judge`, and gain of the trained `judges` (method -> error rate).

    The reference is a horizontal band in both.
    """
    swept = snr_crossing(rows, where, judge=judge, reference=reference)
    learned = gain_crossing(rows, where, judges=judges, reference=reference)
    panels = []
    if swept is not None:
        points = [(error, estimate(rows, "gradient/snr_db", judge, {**where, "error": error})) for error in swept[0]]
        level = estimate(rows, "gradient/snr_db", reference, where)
        panels.append(("SNR of the gradient at the start (dB)", points, level, swept[1]))
    if learned is not None:
        named = sorted(judges, key=judges.__getitem__)
        points = [(judges[name], interval(gain(rows, method=name, **where))) for name in named]
        panels.append(("learning gain", points, interval(gain(rows, method=reference, **where)), learned))
    if not panels:
        return False
    figure, axes = style.figure(4.2, 1, len(panels))
    for panel, (name, points, level, at) in zip(axes[0], panels, strict=True):
        _panel(panel, points, level, at, reference)
        panel.set_title(f"{name}\n{describe(at)}")
        panel.set_xlabel("error rate of the judge")
    seeds = style.over([at.seeds for *_, at in panels])
    figure.suptitle(f"Judge against outcome: when errors make the finer signal worse; {seeds}")
    style.save(figure, path)
    return True


def describe(at: Interval) -> str:
    """The crossover in words."""
    if math.isinf(at.mean):
        return "no crossover in this range"
    if at.mean <= 0:
        return "below it without any error"
    high = "beyond" if math.isinf(at.high) else f"{at.high:.2f}"
    return f"crossover at {at.mean:.2f}" + (f" [{at.low:.2f}, {high}]" if not math.isnan(at.low) else "")


def _panel(panel, points: Sequence[tuple[float, Interval]], level: Interval, at: Interval, reference: str) -> None:
    blue, purple = style.COLOURS["turn"], style.COLOURS["episode"]
    finite = [(x, each) for x, each in points if each.seeds and math.isfinite(each.mean)]
    panel.plot([x for x, _ in finite], [each.mean for _, each in finite], "s-", color=blue, ms=5)
    for x, each in finite:
        panel.errorbar(x, each.mean, yerr=style.bars(each), color=blue, lw=1, capsize=2)
    for x, each in points:
        if each.seeds and not math.isfinite(each.mean):
            panel.annotate("slope\nbelow 0", (x, 0.02), xycoords=("data", "axes fraction"), color=blue, ha="center")
    if math.isfinite(level.mean):
        panel.axhline(level.mean, color=purple, lw=1.4)
    if level.bounded:
        panel.axhspan(level.low, level.high, color=purple, alpha=0.15, lw=0)
    if math.isfinite(at.mean) and at.mean > 0 and math.isfinite(level.mean):
        panel.plot(at.mean, level.mean, "o", ms=12, mfc="none", color="black")
    panel.grid()
    panel.set_xlim(-0.03, 1.06 * max(x for x, _ in points) + 0.01)
    ends = [(finite[-1][0], finite[-1][1].mean, "judge", blue)] if finite else []
    if math.isfinite(level.mean):
        ends.append((panel.get_xlim()[1], level.mean, reference.upper(), purple))
    if ends:
        style.label_ends(panel, ends)
