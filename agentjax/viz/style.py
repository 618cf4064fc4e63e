"""How every figure looks: one width and one size of letters, one colour per resolution, one marker per source of
information, labels beside the data.

Every function that draws is wrapped in `drawing`, makes its figure with `figure` and ends with `save`. Since all
figures have the same width, a page that shows them at one width shows all text at one size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from agentjax.viz.statistics import Interval

RESOLUTIONS = ("trajectory", "episode", "turn", "token")
COLOURS = {"trajectory": "#D55E00", "episode": "#AA3377", "turn": "#0072B2", "token": "#00855F"}
MARKERS = {"oracle": "D", "outcome": "o", "judge": "s", "hint": "^", "judge and hint": "P"}
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))  # with CYCLE: told apart in grey too
GREY, LIGHT = "#6b6b6b", "#d9d9d9"
WIDTH, DPI, LETTERS = 9.0, 140, 10.0  # inches, dots an inch, points

_SIZES = ("font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "figure.titlesize",
          "figure.labelsize")  # fmt: skip
drawing = matplotlib.rc_context(
    {**dict.fromkeys(_SIZES, LETTERS), "axes.spines.top": False, "axes.spines.right": False, "grid.alpha": 0.3}
)  # a decorator


@dataclasses.dataclass(frozen=True)
class Arm:
    """A method as the figures know it."""

    name: str
    label: str
    resolution: str  # of RESOLUTIONS
    source: str  # of MARKERS
    control: bool = False  # drawn hollow

    @property
    def colour(self) -> str:
        """By resolution."""
        return COLOURS[self.resolution]

    @property
    def marker(self) -> dict[str, Any]:
        """Arguments of plot and errorbar."""
        face = "white" if self.control else self.colour
        return {"marker": MARKERS[self.source], "color": self.colour, "markerfacecolor": face, "ms": 6}


def in_order(arms: Sequence[Arm]) -> list[Arm]:
    """From coarse to fine; within a resolution, controls last."""
    return sorted(arms, key=lambda arm: (RESOLUTIONS.index(arm.resolution), arm.control))


def figure(height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, np.ndarray]:
    """A figure of the one width and that height in inches, and its axes as an array [rows, columns]."""
    result = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(result)
    axes = result.subplots(rows, columns, squeeze=False, **options)
    for one in axes.flat:
        one.locator_params(nbins=5)
    return result, axes


def save(result: Figure, path: Path) -> None:
    """Writes a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    result.savefig(path, dpi=DPI, metadata={"Software": None})


def bars(interval: Interval) -> np.ndarray | None:
    """The interval as errorbar wants it, [2,1] below and above the mean; None if there is none."""
    if not interval.bounded:
        return None
    return np.maximum(np.array([[interval.mean - interval.low], [interval.high - interval.mean]]), 0.0)


def name_rows(axes: Axes, arms: Sequence[Arm]) -> None:
    """Arms as rows from the top, named at the left in their colour, with a line between resolutions.

    Of panels that share the axis, the first carries the names.
    """
    divide(axes, arms)
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    if not axes.get_subplotspec().is_first_col():
        return
    axes.set_yticks(range(len(arms)), [arm.label for arm in arms])
    for text, arm in zip(axes.get_yticklabels(), arms, strict=True):
        text.set_color(arm.colour)


def divide(axes: Axes, arms: Sequence[Arm]) -> None:
    """A thin line wherever the resolution changes between rows."""
    for i in range(1, len(arms)):
        if arms[i].resolution != arms[i - 1].resolution:
            axes.axhline(i - 0.5, color=GREY, lw=0.7)


def name_resolutions(axes: Axes, arms: Sequence[Arm]) -> None:
    """The name of each resolution at the right edge of its rows."""
    for resolution in RESOLUTIONS:
        places = [i for i, arm in enumerate(arms) if arm.resolution == resolution]
        if places:
            axes.annotate(
                resolution, (1.02, float(np.mean(places))), xycoords=("axes fraction", "data"), va="center",
                ha="left", color=COLOURS[resolution], annotation_clip=False,
            )  # fmt: skip


def frame(axes: Axes, places: Sequence[float]) -> None:
    """Horizontal limits around the points, not around bars that are several times as wide: those leave the frame."""
    if len(places):
        room = 0.2 * max(max(places) - min(places), 1.0)
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, min(places) - room), min(high, max(places) + room))


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Text at the right of curves that end at (x, y): (x, y, text, colour), a line of text apart.

    Call it when the limits are final.
    """
    gap = 1.2 * LETTERS / 72 * axes.figure.dpi / axes.get_window_extent().height
    low, high = axes.get_ylim()
    wanted = sorted(((y - low) / (high - low), x, text, colour) for x, y, text, colour in ends)
    places = [0.0] * len(wanted)
    for i, (y, *_) in enumerate(wanted):
        places[i] = y if i == 0 else max(y, places[i - 1] + gap)
    over = max(0.0, places[-1] - 1.0) if places else 0.0
    for i in reversed(range(len(places))):
        ceiling = 1.0 if i == len(places) - 1 else places[i + 1] - gap
        places[i] = min(places[i], ceiling) if over else places[i]
    right = axes.get_xlim()[1]
    for place, (y, x, text, colour) in zip(places, wanted, strict=True):
        axes.annotate(
            text, (x, low + y * (high - low)), (1.03, place), textcoords=axes.transAxes, color=colour, va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.5, "shrinkA": 0, "shrinkB": 2,
                        "relpos": (0, 0.5)} if x < right or
            abs(place - y) > gap / 2 else None,
        )  # fmt: skip


def label_points(axes: Axes, points: Sequence[tuple[float, float, str, str]]) -> None:
    """Text beside points (x, y, text, colour), each at the free one of 40 places around it that is nearest.

    Call it when the figure is complete: the layout is frozen.
    """
    canvas = axes.figure.canvas
    if axes.figure.get_layout_engine() is not None:
        canvas.draw()
        axes.figure.set_layout_engine("none")
    renderer, frame = canvas.get_renderer(), axes.get_window_extent()  # type: ignore[attr-defined]
    marks = axes.transData.transform([(x, y) for x, y, *_ in points])
    taken = [(px - 6, py - 6, px + 6, py + 6) for px, py in marks]
    for collection in axes.collections:  # error bars
        for segment in getattr(collection, "get_segments", list)():
            low, high = (axes.transData.transform(segment).min(axis=0), axes.transData.transform(segment).max(axis=0))
            taken.append((low[0] - 1, low[1] - 1, high[0] + 1, high[1] + 1))
    for x, y, text, colour in points:
        best: tuple[float, Text, tuple[float, ...]] | None = None
        for radius in (8, 15, 24, 36, 50):
            for angle in np.arange(8) * math.tau / 8:
                note = _note(axes, x, y, text, colour, radius, float(angle))
                note.update_positions(renderer)
                box = Text.get_window_extent(note, renderer)  # without the arrow
                cost = _overlap((box.x0, box.y0, box.x1, box.y1), taken) + 50 * max(
                    0.0, frame.x0 - box.x0, box.x1 - frame.x1, frame.y0 - box.y0, box.y1 - frame.y1
                )
                if best is None or cost < best[0] - 1e-9:
                    if best is not None:
                        best[1].remove()
                    best = (cost, note, (box.x0, box.y0, box.x1, box.y1))
                else:
                    note.remove()
            if best is not None and best[0] == 0:
                break
        assert best is not None
        taken.append(best[2])


def _note(axes: Axes, x: float, y: float, text: str, colour: str, radius: float, angle: float) -> Annotation:
    dx, dy = radius * math.cos(angle), radius * math.sin(angle)
    side = "left" if dx > 1 else "right" if dx < -1 else "center"
    arrow = {"arrowstyle": "-", "color": colour, "lw": 0.4} if radius > 12 else None
    return axes.annotate(
        text, (x, y), (dx, dy), textcoords="offset points", color=colour, va="center", ha=side,
        arrowprops=arrow,
    )  # fmt: skip


def _overlap(box: Sequence[float], others: Sequence[Sequence[float]]) -> float:
    """Area that the box (x0, y0, x1, y1) shares with the others."""
    x0, y0, x1, y1 = box
    shared = ((min(x1, o[2]) - max(x0, o[0]), min(y1, o[3]) - max(y0, o[1])) for o in others)
    return sum(max(0.0, width) * max(0.0, height) for width, height in shared)


def over(counts: Sequence[int]) -> str:
    """What the figure shows: "mean and 95% interval over 5 seeds", or "one seed"."""
    low, high = (min(counts), max(counts)) if counts else (0, 0)
    if high <= 1:
        return "one seed"
    return f"mean and 95% interval over {f'{low} to {high}' if low != high else high} seeds"
