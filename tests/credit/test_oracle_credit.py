"""The truth at coarser resolutions, and in the wrong places."""

import jax
import jax.numpy as jnp
import numpy as np

from agentjax.credit import ESTIMATORS
from agentjax.types import Signals
from tests.factories import random_signals, random_trajectory, written

TRAJECTORY = written("p a0 a0 o1 a1 o2")
SIGNALS = Signals(oracle_token=jnp.array([[9.0, 1, 3, 9, -2, 9]]))


def test_token_turn_and_episode():
    want = {
        "oracle_token": [0, 1, 3, 0, -2, 0],
        "oracle_turn": [0, 2, 2, 0, -2, 0],
        "oracle_episode": [0, 2 / 3, 2 / 3, 0, 2 / 3, 0],
    }
    for name, credit in want.items():
        np.testing.assert_allclose(ESTIMATORS[name].apply(TRAJECTORY, SIGNALS).advantage, [credit], rtol=1e-6)


def test_every_resolution_keeps_the_sum():
    trajectory = random_trajectory(jax.random.key(2))
    signals = random_signals(jax.random.key(3), trajectory)
    names = ("oracle_token", "oracle_turn", "oracle_episode")
    sums = [ESTIMATORS[name].apply(trajectory, signals).advantage.sum(1) for name in names]
    np.testing.assert_allclose(sums[1], sums[0], atol=1e-5)
    np.testing.assert_allclose(sums[2], sums[0], atol=1e-5)


def test_permuted_turns_of_equal_length_move_as_blocks():
    trajectory = written("p a0 a0 o1 a1 a1 . o2 a2 a2")
    known = jnp.array([[9.0, 1, 2, 9, 3, 4, 9, 9, 5, 6]])
    mask = np.asarray(trajectory.action_mask)[0]
    seen = set()
    for seed in range(40):
        signals = Signals(oracle_token=known, permutation_key=jax.random.key(seed))
        credit = np.asarray(ESTIMATORS["permuted"].apply(trajectory, signals).advantage)[0]
        assert (credit[~mask] == 0).all()
        seen.add(tuple(credit[mask]))
    blocks = [(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)]
    # all six orders of three blocks turn up in 40 draws (a given one is missed with chance (5/6)^40 = .0007)
    assert seen == {(*blocks[i], *blocks[j], *blocks[3 - i - j]) for i in range(3) for j in range(3) if i != j}


def test_permuted_keeps_the_credits_of_every_row():
    trajectory = random_trajectory(jax.random.key(5), 8, 5)
    signals = random_signals(jax.random.key(6), trajectory)
    credit = np.asarray(ESTIMATORS["permuted"].apply(trajectory, signals).advantage)
    mask, truth = np.asarray(trajectory.action_mask), np.asarray(signals.oracle_token)
    moved = 0
    for row in range(8):
        np.testing.assert_array_equal(np.sort(credit[row][mask[row]]), np.sort(truth[row][mask[row]]))
        moved += (credit[row][mask[row]] != truth[row][mask[row]]).any()
    assert moved >= 4  # rows of one turn stay, rows draw on their own
