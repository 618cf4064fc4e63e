"""What branches buy: the oracle's own credit against K, the other methods as lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from agentjax.viz import style
from agentjax.viz.resolution import estimate
from agentjax.viz.rows import Rows, Where, gain
from agentjax.viz.statistics import Interval, interval
from agentjax.viz.style import Arm


def ladder(rows: Rows, measure: str, method: str, where: Where) -> dict[int, str]:
    """K -> the method's name at that K, rising: "oracle_token" is K = 1, "oracle_token@16" K = 16."""
    names = rows.distinct("method", measure, step=0, **where)
    found = {int(tail or 1): name for name in names for head, _, tail in [name.partition("@")] if head == method}
    return dict(sorted(found.items()))


def worth(level: float, points: Sequence[tuple[int, float]]) -> float:
    """K at which a rising line through (K, value) reaches the level, straight in log K: inf if it never does, 0 if it
    is there from the first point on.

    (1, -21), (4, -18) and level -19.5: K = 2.
    """
    if not points or points[0][1] >= level:
        return 0.0 if points else math.inf
    for (k0, v0), (k1, v1) in zip(points, points[1:], strict=False):
        if v0 < level <= v1:
            return k0 * (k1 / k0) ** ((level - v0) / (v1 - v0))
    return math.inf


@style.drawing
def branches(rows: Rows, arms: Sequence[Arm], where: Where, path: Path, *, method: str = "oracle_token") -> bool:
    """`branches.png`: SNR and gain of the oracle's token credit against K; every other arm that is not the oracle's as
    a line, named at the right. A panel needs two K; False, and no file, without any."""
    by_k = ladder(rows, "gradient/snr_db", method, where)
    if len(by_k) < 2:
        return False
    others = [arm for arm in arms if arm.source != "oracle" and not arm.control]
    panels = [
        ("SNR of the gradient at the start (dB)", lambda n: estimate(rows, "gradient/snr_db", n, where), by_k),
        ("learning gain", lambda n: interval(gain(rows, method=n, **where)), ladder(rows, "success", method, where)),
    ]  # fmt: skip
    panels = [panel for panel in panels if len(panel[2]) >= 2]  # trained with one K only: nothing to compare
    figure, axes = style.figure(4.6, 1, len(panels))
    for panel, (title, value, names) in zip(axes[0], panels, strict=True):
        points: list[tuple[int, Interval]] = [(k, value(name)) for k, name in names.items()]
        mark = next(arm for arm in arms if arm.name == method).marker
        panel.plot([k for k, _ in points], [each.mean for _, each in points], **{**mark, "lw": 1.6})
        for k, each in points:
            panel.errorbar(k, each.mean, yerr=style.bars(each), color=mark["color"], capsize=2, lw=1)
        panel.set_xscale("log", base=4)
        panel.set_xticks(list(by_k), [str(k) for k in by_k])
        panel.set_xlim(0.8, max(by_k) * 1.25)
        panel.set_xlabel("K, branches a place")
        panel.set_title(title)
        panel.grid()
        lines = [(arm, value(arm.name)) for arm in others]
        ends = []
        for arm, each in lines:
            if each.seeds and math.isfinite(each.mean):
                panel.axhline(each.mean, color=arm.colour, lw=1, ls="--")
                ends.append((max(by_k) * 1.25, each.mean, arm.label, arm.colour))
        if ends:
            style.label_ends(panel, ends)
    figure.suptitle("Oracle token credit (line with marks) against the other signals (dashed)")
    style.save(figure, path)
    return True
