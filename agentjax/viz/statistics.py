"""Intervals over seeds: paired bootstrap, rank correlation, and the smallest difference that so many seeds can show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, stdtrit

RESAMPLES = 4000


class Interval(NamedTuple):
    """A mean, its 95% interval (nan if nothing says how uncertain it is) and the number of seeds."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def bounded(self) -> bool:
        """Is there an interval?"""
        return not (math.isnan(self.low) or math.isnan(self.high))


def resampled(count: int, *, resamples: int = RESAMPLES) -> np.ndarray:
    """int[resamples, count]: indices drawn with replacement, the same ones at every call."""
    return np.random.default_rng(count).integers(0, count, (resamples, count))


def tails(count: int, *, level: float = 0.95) -> tuple[float, float]:
    """The two percentiles of the bootstrap distribution that give an interval of `level` for a mean of `count` values.

    A plain percentile interval is too narrow for few values (no n / (n-1), no t); this expands it: the tail mass is
    Phi(-sqrt(n / (n-1)) t_{n-1}) (Hesterberg 2015, "What teachers should know about the bootstrap", section 5.3).
    2.5% becomes 0.1% at n = 5 and 1.2% at n = 20.
    """
    if count < 2:
        return math.nan, math.nan
    t = -float(stdtrit(count - 1, (1 - level) / 2))
    tail = 100 * float(ndtr(-math.sqrt(count / (count - 1)) * t))
    return tail, 100 - tail


def inflation(count: int) -> float:
    """By how much a bootstrap distribution of `count` values must be stretched for plain 95% percentiles to do.

    sqrt(n / (n-1)) t_{n-1, .975} / 1.96: 1.58 at n = 5. nan for one value.
    """
    return math.nan if count < 2 else math.sqrt(count / (count - 1)) * float(stdtrit(count - 1, 0.975)) / 1.96


def bootstrap(
    values: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Low and high end of the 95% interval of a statistic of values[n, ...] over its n independent entries.

    `statistic` maps [resamples, n, ...] to [resamples, ...] and defaults to the mean over axis 1. n = 1 gives nan.
    """
    values = np.asarray(values, float)
    count = values.shape[0]
    centre = (statistic or (lambda x: x.mean(axis=1)))(values[resampled(count)])
    if count < 2:
        return np.full(centre.shape[1:], np.nan), np.full(centre.shape[1:], np.nan)
    low, high = np.percentile(centre, tails(count), axis=0)
    return low, high


def interval(by_seed: Mapping[int, float]) -> Interval:
    """Mean over seeds with its interval. An infinite entry makes the mean infinite and leaves no interval."""
    values = np.array([by_seed[seed] for seed in sorted(by_seed)], float)
    if not values.size:
        return Interval(math.nan, math.nan, math.nan, 0)
    if not np.isfinite(values).all():
        return Interval(float(values.mean()), math.nan, math.nan, values.size)
    low, high = bootstrap(values)
    return Interval(float(values.mean()), float(low), float(high), values.size)


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> dict[int, float]:
    """first - second by seed, over the seeds that both have. {0: 3., 1: 5.} and {1: 1.} give {1: 4.}."""
    return {seed: first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())}


def kendall(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Kendall's tau-b of x[..., n] and y[..., n], ties counted; 0 where one of them is constant; -inf is a value.

    x = [1, 2, 3], y = [1, 3, 2]: two pairs agree, one does not: 1/3.
    """

    def order(a: np.ndarray) -> np.ndarray:
        later, earlier = a[..., :, None], a[..., None, :]
        return (later > earlier).astype(float) - (later < earlier)

    sx, sy = order(x), order(y)
    room = np.sqrt(np.sum(sx * sx, axis=(-1, -2)) * np.sum(sy * sy, axis=(-1, -2)))
    return np.where(room > 0, np.sum(sx * sy, axis=(-1, -2)) / np.where(room > 0, room, 1.0), 0.0)


def smallest_difference(differences: np.ndarray) -> float:
    """The true difference that a paired t-test on so many seeds finds with probability .8 (5%, two-sided).

    differences[pairs, seeds], the seed-by-seed differences of every pair of arms: (t_.975 + t_.8) s / sqrt(n), s the
    root mean square over pairs of their standard deviations; nan with one seed. s = .1, n = 5: .166.
    """
    differences = np.atleast_2d(np.asarray(differences, float))
    count = differences.shape[1]
    if count < 2 or not differences.shape[0]:
        return math.nan
    spread = math.sqrt(float(np.mean(np.var(differences, axis=1, ddof=1))))
    return float(stdtrit(count - 1, 0.975) + stdtrit(count - 1, 0.8)) * spread / math.sqrt(count)
