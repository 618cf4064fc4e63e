"""Result rows, indexed once and read by name; and what is derived from learning curves: gain, area, cost.

A row is a dict with "env", "p0", "method", "seed", "step", "measure", "value" and, for some measures, more fields. A
selection is given by keyword: `rows.values("success", env="pivot", p0=0.1, method="grpo", step=100)`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Row = dict[str, Any]
Where = Mapping[str, Any]


class Curve(NamedTuple):
    """A measure along training, at the steps that all seeds have."""

    steps: np.ndarray  # int[N], rising
    seeds: tuple[int, ...]
    value: np.ndarray  # float[seeds, N]


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows by measure, in file order."""

    by_measure: Mapping[str, list[Row]]

    def select(self, measure: str, **where: Any) -> list[Row]:
        """Rows of the measure whose fields have these values; a field that a row lacks counts as None."""
        wanted = where.items()
        return [row for row in self.by_measure.get(measure, ()) if all(row.get(k) == v for k, v in wanted)]

    def values(self, measure: str, **where: Any) -> dict[int, float]:
        """Value by seed; of several rows of a seed, the last."""
        return {row["seed"]: float(row["value"]) for row in self.select(measure, **where)}

    def distinct(self, field: str, measure: str, **where: Any) -> list[Any]:
        """The values that a field takes, in order of appearance, without None."""
        found = dict.fromkeys(row.get(field) for row in self.select(measure, **where))
        return [value for value in found if value is not None]

    def curve(self, measure: str, **where: Any) -> Curve | None:
        """The measure by seed and step; None if no step is shared by all seeds."""
        table: dict[int, dict[int, float]] = {}
        for row in self.select(measure, **where):
            table.setdefault(row["seed"], {})[row["step"]] = float(row["value"])
        if not table:
            return None
        shared = sorted(set.intersection(*(set(steps) for steps in table.values())))
        if not shared:
            return None
        seeds = tuple(sorted(table))
        return Curve(np.array(shared), seeds, np.array([[table[seed][step] for step in shared] for seed in seeds]))


def index(rows: Iterable[Row]) -> Rows:
    """Rows from dicts."""
    table: dict[str, list[Row]] = {}
    for row in rows:
        table.setdefault(row["measure"], []).append(row)
    return Rows(table)


def read(path: Path) -> Rows:
    """Rows from a file of one JSON object a line; a last line that was cut short is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")
    whole = lines[:-1] if lines[-1] else [line for line in lines if line]
    return index(json.loads(line) for line in whole if line)


def at_end(rows: Rows, measure: str, **where: Any) -> dict[int, float]:
    """Value at the last step that all seeds have, by seed."""
    curve = rows.curve(measure, **where)
    return {} if curve is None else dict(zip(curve.seeds, curve.value[:, -1].tolist(), strict=True))


def gain(rows: Rows, **where: Any) -> dict[int, float]:
    """Learning gain by seed: mean success over training less success at its start, so that speed counts and not only
    the end, where many arms meet.

    The mean is by trapezoids over steps. A curve .1, .3, .6 at steps 0, 10, 20 has mean .325 and gain .225.
    """
    curve = rows.curve("success", **where)
    if curve is None or len(curve.steps) < 2:
        return {}
    mean = np.trapezoid(curve.value, curve.steps, axis=1) / (curve.steps[-1] - curve.steps[0])
    return dict(zip(curve.seeds, (mean - curve.value[:, 0]).tolist(), strict=True))


def spent(rows: Rows, budget: str, **where: Any) -> Curve | None:
    """A budget along training, cumulative, with 0 at step 0 where the rows begin later."""
    curve = rows.curve(budget, **where)
    if curve is None or curve.steps[0] == 0:
        return curve
    zero = np.zeros((len(curve.seeds), 1))
    return Curve(np.append(0, curve.steps), curve.seeds, np.concatenate([zero, curve.value], axis=1))


def threshold(rows: Rows, share: float = 0.8, **where: Any) -> float:
    """That share of the expert's success in this setting, nan if it was not measured."""
    expert = list(rows.values("expert_success", **where).values())
    return share * float(np.mean(expert)) if expert else math.nan


def cost_to(rows: Rows, budget: str, level: float, **where: Any) -> dict[int, float]:
    """What a seed had spent of the budget when its success first reached the level; inf if it never did.

    Success .1, .5, .4 after 0, 64, 128 episodes, level .45: 64.
    """
    curve, paid = rows.curve("success", **where), spent(rows, budget, **where)
    if curve is None or paid is None or math.isnan(level):
        return {}
    cost = {}
    for seed, success in zip(curve.seeds, curve.value, strict=True):
        if seed not in paid.seeds:
            continue
        reached = curve.steps[success >= level]
        place = np.flatnonzero(paid.steps == reached[0]) if reached.size else reached
        cost[seed] = float(paid.value[paid.seeds.index(seed), place[0]]) if place.size else math.inf
    return cost


def median_cost(cost: Mapping[int, float]) -> float:
    """Median over seeds, inf if half of them or more never got there; of an even number, the upper middle one."""
    ordered = sorted(cost.values())
    return ordered[len(ordered) // 2] if ordered else math.nan
