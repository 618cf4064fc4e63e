"""Pairs of rollouts: the two readings of DPO, and the oracle's comparison."""

import jax
import jax.numpy as jnp
import numpy as np

from agentjax.credit import ESTIMATORS
from agentjax.losses import AGGREGATIONS, LOSSES
from agentjax.types import Outputs, Signals
from tests.factories import random_signals, random_trajectory, written


def pairs(*rows):
    return jnp.asarray(rows, jnp.int32)


def test_weight_at_the_reference_is_half_of_beta():
    trajectory = written("p a0 o1 a1", "p a0 o1 a1", "p a0 . .", turns=2)
    signals = Signals(reference_logp=jnp.zeros((3, 4)), pairs=pairs((2, 0), (-1, -1), (1, -1)))
    got = ESTIMATORS["dpo_weight"].apply(trajectory, signals).advantage
    np.testing.assert_allclose(got, [[0, -0.05, 0, -0.05], [0, 0, 0, 0], [0, 0.05, 0, 0]], atol=1e-7)


def test_weight_shrinks_with_the_margin_and_adds_over_pairs():
    # sums of log pi/pi_ref: 3, 1, 0; beta 1/2: margins 1 (0 over 1), 1.5 (0 over 2)
    trajectory = written("a0 a1", "a0 a1", "a0 a1", logp=[[1, 2], [1, 0], [0, 0]])
    signals = Signals(reference_logp=jnp.zeros((3, 2)), pairs=pairs((0, 1), (0, 2)))
    got = ESTIMATORS["dpo_weight"].apply(trajectory, signals, beta=0.5).advantage
    first, second = 0.5 / (1 + np.e), 0.5 / (1 + np.exp(1.5))
    np.testing.assert_allclose(got, [[first + second] * 2, [-first] * 2, [-second] * 2], rtol=1e-5)


def test_weight_is_what_the_loss_puts_on_each_score():
    trajectory = random_trajectory(jax.random.key(0))
    signals = random_signals(jax.random.key(1), trajectory)
    credit = ESTIMATORS["dpo_weight"].apply(trajectory, signals).advantage

    def loss(logp):
        outputs = Outputs(logp=logp, entropy=jnp.zeros_like(logp))
        return LOSSES["dpo"].apply(outputs, trajectory, signals, None, aggregate=AGGREGATIONS["token_mean"])[0]

    count = int((np.asarray(signals.pairs) >= 0).all(1).sum())
    np.testing.assert_allclose(-count * jax.grad(loss)(signals.current_logp), credit, atol=1e-6)


def test_implied_reward_per_token():
    trajectory = written("p a0 o1 a1", logp=[[9, -1, 9, -3]])
    signals = Signals(reference_logp=jnp.array([[7.0, -2.0, 7.0, -2.0]]))
    got = ESTIMATORS["dpo_logratio"].apply(trajectory, signals).advantage
    np.testing.assert_allclose(got, [[0, 0.1, 0, -0.1]], atol=1e-7)


def test_oracle_comparison_carries_half_the_difference_of_the_means():
    # means (1 + 3) / 2 = 2, -1 and 5; pairs 0 over 1, 2 over 0
    trajectory = written("p a0 a1", "p a0 .", "p a0 .", turns=2)
    signals = Signals(oracle_token=jnp.array([[8.0, 1, 3], [8, -1, 8], [8, 5, 8]]), pairs=pairs((0, 1), (2, 0)))
    got = ESTIMATORS["oracle_pair"].apply(trajectory, signals).advantage
    np.testing.assert_allclose(got, [[0, 1.5 - 1.5, 1.5 - 1.5], [0, -1.5, 0], [0, 1.5, 0]], atol=1e-6)
