"""One trajectory, turn by turn and token by token: every method's credit above the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from agentjax.viz import style
from agentjax.viz.rows import Rows
from agentjax.viz.style import Arm

MOST_TOKENS = 36


@style.drawing
def chapter(rows: Rows, arms: Sequence[Arm], path: Path, *, env: str = "chapter", truth: str = "truth") -> bool:
    """`chapter.png` from rows "credit" (turn, slot, word), "key_step" (turn) and "outcome" of one trajectory.

    Each row of the map is divided by its largest |credit|; the credit of a turn is the sum over its tokens.
    """
    credit: dict[str, dict[tuple[int, int], float]] = {}
    words: dict[tuple[int, int], str] = {}
    for row in rows.select("credit", env=env):
        place = (row["turn"], row["slot"])
        credit.setdefault(row["method"], {})[place] = float(row["value"])
        words[place] = row["word"]
    shown = style.in_order([arm for arm in arms if arm.name in credit])
    if truth not in credit or not shown:
        return False
    keys = {row["turn"] for row in rows.select("key_step", env=env) if row["value"]}
    places = sorted(credit[truth])
    turns = sorted({turn for turn, _ in places})
    names = [arm.name for arm in shown] + [truth]
    by_turn = np.array([[sum(credit[m].get(p, 0.0) for p in places if p[0] == t) for t in turns] for m in names])
    near = window(places, sorted(keys))
    by_token = np.array([[credit[m].get(p, 0.0) for p in near] for m in names])
    height = 0.2 * len(names)
    figure, axes = style.figure(2.6 + 2 * height, 2, 1)
    upper, lower = axes[:, 0]
    _map(upper, by_turn, shown)
    upper.set_xticks(range(len(turns)), [str(t) for t in turns])
    _mark(upper, [i for i, t in enumerate(turns) if t in keys])
    outcome = [row["value"] for row in rows.select("outcome", env=env)]
    ending = "" if not outcome else ", a success" if outcome[0] > 0 else ", a failure"
    title = f"Credit by turn of one trajectory of {len(turns)} turns{ending} (triangle: key turn)"
    upper.set_title(title, pad=14)
    image = _map(lower, by_token, shown)
    lower.set_xticks(range(len(near)), [words[p] for p in near], rotation=90)
    _mark(lower, [i for i, p in enumerate(near) if p[0] in keys])
    for i in range(1, len(near)):
        if near[i][0] != near[i - 1][0]:
            lower.axvline(i - 0.5, color="black", lw=0.8)
    part = "" if len(near) == len(places) else f", turns {near[0][0]} to {near[-1][0]}"
    lower.set_title(f"The same by token{part}", pad=14)
    bar = figure.colorbar(image, ax=[upper, lower], shrink=0.4, pad=0.02)
    bar.set_label("credit / largest |credit| of the row")
    style.save(figure, path)
    return True


def window(places: Sequence[tuple[int, int]], keys: Sequence[int]) -> list[tuple[int, int]]:
    """The (turn, slot) places of as many whole turns around the first key turn as `MOST_TOKENS` columns hold."""
    turns = sorted({turn for turn, _ in places})
    centre = keys[0] if keys else turns[len(turns) // 2]
    chosen: set[int] = set()
    for turn in sorted(turns, key=lambda t: (abs(t - centre), t)):
        if sum(p[0] in chosen | {turn} for p in places) > MOST_TOKENS:
            break
        chosen.add(turn)
    return [place for place in places if place[0] in chosen]


def _map(axes: Axes, values: np.ndarray, arms: Sequence[Arm]):
    size = np.max(np.abs(values), axis=1, keepdims=True)
    image = axes.imshow(
        values / np.where(size > 0, size, 1.0), cmap="RdBu", vmin=-1, vmax=1, aspect="auto", interpolation="nearest"
    )
    rows = len(values)
    axes.set_yticks(range(rows), [*(arm.label for arm in arms), "truth: A^pi"])
    for text, colour in zip(axes.get_yticklabels(), [*(arm.colour for arm in arms), "black"], strict=True):
        text.set_color(colour)
    axes.get_yticklabels()[-1].set_fontweight("bold")
    axes.axhline(rows - 1.5, color="black", lw=1.6)
    style.divide(axes, arms)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def _mark(axes: Axes, columns: Sequence[int]) -> None:
    for column in columns:
        axes.annotate("\u25bc", (column, -0.55), ha="center", va="bottom", annotation_clip=False)
    if columns:  # key turns that follow each other share a frame
        starts = [c for c in columns if c - 1 not in columns]
        ends = [c for c in columns if c + 1 not in columns]
        for start, end in zip(starts, ends, strict=True):
            axes.axvspan(start - 0.5, end + 0.5, fill=False, ec="black", lw=1.2)


def transcript(rows: Rows, *, env: str = "chapter", around: int = 2) -> list[str]:
    """Lines of the trajectory near its key turns: turn, what was seen, what was done."""
    keys = [row["turn"] for row in rows.select("key_step", env=env) if row["value"]]
    seen: Mapping[int, str] = {row["turn"]: row["text"] for row in rows.select("observation", env=env)}
    done: dict[int, dict[int, str]] = {}
    for row in rows.select("credit", env=env, method="truth"):
        done.setdefault(row["turn"], {})[row["slot"]] = row["word"]
    lines = []
    for turn in sorted(done):
        if any(abs(turn - key) <= around for key in keys):
            action = " ".join(done[turn][slot] for slot in sorted(done[turn]))
            lines.append(f"turn {turn:2d}{'*' if turn in keys else ' '} {seen.get(turn, ''):40s} > {action}")
    return lines
