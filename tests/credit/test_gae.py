"""Advantages over turns and over action tokens, against hand arithmetic."""

import jax.numpy as jnp
import numpy as np
import pytest

from agentjax.credit import ESTIMATORS
from agentjax.types import Signals
from tests.factories import written


def turn_gae(trajectory, value, **options):
    signals = Signals(value=jnp.asarray(value, jnp.float32))
    return np.asarray(ESTIMATORS["gae"].apply(trajectory, signals, **options).advantage)


def token_gae(trajectory, token_value, value, **options):
    signals = Signals(token_value=jnp.asarray(token_value, jnp.float32), value=jnp.asarray(value, jnp.float32))
    return np.asarray(ESTIMATORS["token_gae"].apply(trajectory, signals, **options).advantage)


@pytest.mark.parametrize(
    ("lam", "want"),
    # deltas .8 - .5 = .3 and 1 - .8 = .2
    [(0.0, [0.3, 0.2]), (1.0, [0.5, 0.2]), (0.5, [0.4, 0.2])],
)
def test_turns(lam, want):
    trajectory = written("a0 a1", reward=[[0, 1]])
    np.testing.assert_allclose(turn_gae(trajectory, [[0.5, 0.8, 9]], lam=lam), [want], atol=1e-6)


def test_truncated_bootstraps_and_terminated_does_not():
    # V = [.5, .8 | 2]; gamma 1/2, lambda 0: .4 - .5 = -.1, and r + gamma V - .8 = .2 + (1 or 0)
    rows = dict(reward=[[0, 1, 0]] * 4, turns=3)
    trajectory = written(
        *["a0 a1"] * 4, **rows, terminated=[True, False, True, False], truncated=[False, True, True, False]
    )
    got = turn_gae(trajectory, [[0.5, 0.8, 2, 7]] * 4, gamma=0.5, lam=0.0)
    np.testing.assert_allclose(got, [[-0.1, 0.2], [-0.1, 1.2], [-0.1, 0.2], [-0.1, 0.2]], atol=1e-6)


def test_the_value_after_a_split_rollout_is_that_of_its_last_part():
    trajectory = written(
        "a0 .", ". a1", reward=[[0, 5], [5, 1]], rollout=[1, 1], terminated=[False, False], truncated=[False, True]
    )
    got = turn_gae(trajectory, [[0.5, 9, 9], [9, 0.8, 2]], gamma=1.0, lam=1.0)
    # delta 1: 1 + 2 - .8 = 2.2; delta 0: .8 - .5 = .3
    np.testing.assert_allclose(got, [[2.5, 0], [0, 2.2]], atol=1e-6)


def test_tokens_step_over_observations():
    trajectory = written("a0 o1 a1 o2", reward=[[0, 1]])
    junk = [[0, 100, 0, 100]]
    np.testing.assert_allclose(token_gae(trajectory, junk, [[0, 0, 0]], lam=0.95), [[0.95, 0, 1, 0]], atol=1e-6)
    np.testing.assert_allclose(
        token_gae(trajectory, junk, [[0, 0, 0]], lam=1.0, gamma=0.5), [[0.5, 0, 1, 0]], atol=1e-6
    )


def test_the_reward_of_a_turn_lands_on_its_last_token():
    # V = [.1, .2, .4], gamma .5, lam 0: .1 - .1, 1 + .2 - .2, 3 - .4
    trajectory = written("a0 a0 o1 a1", reward=[[1, 3]])
    got = token_gae(trajectory, [[0.1, 0.2, 9, 0.4]], [[9, 9, 9]], gamma=0.5, lam=0.0)
    np.testing.assert_allclose(got, [[0, 1, 0, 2.6]], atol=1e-6)


def test_a_token_reward_on_a_masked_token_moves_to_the_action_before():
    # prompt reward 5 pays nothing; 1 on o1 pays a0's last token; 2 on a1; 4 on the closing observation pays a1
    trajectory = written("p a0 a0 o1 a1 o2", token_reward=[[5, 0, 0, 1, 2, 4]])
    got = token_gae(trajectory, np.zeros((1, 6)), [[0, 0, 0]], gamma=1.0, lam=1.0)
    np.testing.assert_allclose(got, [[0, 7, 7, 0, 6, 0]], atol=1e-6)
    # and at turn level: turn 0 earns 1, turn 1 earns 6
    np.testing.assert_allclose(turn_gae(trajectory, [[0, 0, 0]], lam=0.0)[0, [1, 4]], [1, 6], atol=1e-6)


def test_a_token_reward_at_the_start_of_a_part_pays_the_part_before():
    whole = written("a0 o1 a1", token_reward=[[0, 3, 1]])
    parts = written("a0 . .", "p o1 a1", rollout=[0, 0], token_reward=[[0, 0, 0], [0, 3, 1]])
    for gamma, lam in ((1.0, 1.0), (0.5, 0.5)):
        want = token_gae(whole, np.zeros((1, 3)), [[0, 0, 0]], gamma=gamma, lam=lam)[0, [0, 2]]
        got = token_gae(parts, np.zeros((2, 3)), np.zeros((2, 3)), gamma=gamma, lam=lam)
        np.testing.assert_allclose([got[0, 0], got[1, 2]], want, atol=1e-6)
        np.testing.assert_allclose(want[0], 3 + gamma * lam * 1, atol=1e-6)


def test_lambda_one_is_the_return_to_go_less_the_value():
    trajectory = written("a0 o1 a1 a1 o2 a2", reward=[[1, 2, 4]])
    value = np.array([[0.1, 0, 0.2, 0.3, 0, 0.4]])
    got = token_gae(trajectory, value, np.zeros((1, 4)), gamma=1.0, lam=1.0)
    np.testing.assert_allclose(got, [[7 - 0.1, 0, 6 - 0.2, 6 - 0.3, 0, 4 - 0.4]], atol=1e-6)


@pytest.mark.allow_nan
def test_a_missing_reward_silences_its_rollout_only():
    trajectory = written("a0 a1", "a0 a1", reward=[[np.nan, 1], [0, 1]])
    value = np.zeros((2, 3))
    np.testing.assert_allclose(turn_gae(trajectory, value, lam=1.0), [[0, 0], [1, 1]], atol=1e-6)
    np.testing.assert_allclose(token_gae(trajectory, np.zeros((2, 2)), value, lam=1.0), [[0, 0], [1, 1]], atol=1e-6)
