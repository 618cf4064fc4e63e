"""Pairs by hand."""

import jax
import numpy as np
import pytest

from agentjax.signals.pairs import best_against_worst
from tests.factories import written

PAIRS = jax.jit(best_against_worst)


def pairs(reward, group=None, weight=None, seed=0):
    """Pairs of up to four rollouts; dead rows with absurd rewards fill the batch."""
    rows = len(reward)
    fill = lambda x, with_: [*x, *[with_] * (4 - rows)]  # noqa: E731
    trajectory = written(
        *["p o0 a0"] * 4, reward=[[r] for r in fill(reward, 1e3)], group=fill(group or [0] * rows, 0),
        weight=fill(weight or [1.0] * rows, 0.0),
    )  # fmt: skip
    found = np.asarray(PAIRS(jax.random.key(seed), trajectory))
    assert found.shape == (4, 2) and found.dtype == np.int32
    assert ((found == -1).all(axis=1) | (found >= 0).all(axis=1)).all()
    return {tuple(pair) for pair in found.tolist() if pair[0] >= 0}


def test_the_best_meets_the_worst():
    assert pairs([3.0, 1.0, 4.0, 2.0]) == {(2, 1), (0, 3)}
    assert pairs([5.0, 1.0, 3.0]) == {(0, 1)}, "the middle one has no partner"


def test_groups_stay_apart():
    assert pairs([0.0, 9.0, 1.0, 8.0], group=[2, 1, 2, 1]) == {(2, 0), (1, 3)}


def test_equal_returns_make_no_pair_and_ties_are_drawn():
    assert pairs([1.0, 1.0, 1.0, 1.0]) == set()
    assert pairs([1.0]) == set()
    seen = {frozenset(pairs([1.0, 0.0, 0.0, 1.0], seed=seed)) for seed in range(12)}
    assert seen == {frozenset({(0, 1), (3, 2)}), frozenset({(0, 2), (3, 1)})}
    assert len({frozenset(pairs([1.0, 1.0, 0.0], seed=seed)) for seed in range(12)}) == 2


@pytest.mark.allow_nan
def test_missing_returns_and_dead_rows_are_left_out():
    assert pairs([9.0, 1.0, np.nan, 2.0]) == {(0, 1)}
    assert pairs([9.0, 1.0, 0.0, 2.0], weight=[0, 1, 1, 1]) == {(3, 2)}
    assert pairs([np.nan, 1.0]) == set()
