"""Masked, segment and per-turn statistics, against hand arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax import ops
from tests.factories import random_trajectory, written


def ids(*values):
    return jnp.asarray(values, jnp.int32)


def test_segment_moments():
    # segment 0: 1, 3 (weight 2), mean 7/3, squares (16/9 + 2 * 4/9) = 8/3; segment 2: alone; segment 1: empty
    x, weight = jnp.array([1.0, 3.0, 5.0, 9.0]), jnp.array([1.0, 2.0, 1.0, 0.0])
    mean, std, total = ops.segment_moments(x, ids(0, 0, 2, 2), weight, 3, ddof=1)
    np.testing.assert_allclose(mean, [7 / 3, 0, 5], rtol=1e-6)
    np.testing.assert_allclose(std, [np.sqrt(8 / 3 / 2), 0, 0], rtol=1e-6)
    np.testing.assert_allclose(total, [3, 0, 1])
    np.testing.assert_allclose(
        ops.segment_moments(x, ids(0, 0, 2, 2), weight, 3, ddof=0)[1][0], np.sqrt(8 / 9), rtol=1e-6
    )


@pytest.mark.parametrize("value", [0.1, 123456.7, -3e9])
def test_equal_values_have_exactly_no_spread(value):
    std = ops.segment_moments(jnp.full(9, value), ids(*[0] * 9), jnp.ones(9), 1, ddof=1)[1]
    assert std[0] == 0


def test_group_advantage_weighs_votes():
    # votes 1 and 3: mean (0 + 12) / 4 = 3; the mean of the others is 4 for the first and 0 for the second
    x, votes = jnp.array([0.0, 4.0]), jnp.array([1.0, 3.0])
    run = lambda baseline: ops.group_advantage(  # noqa: E731
        x, ids(0, 0), votes, votes, 2, baseline=baseline, scale="none", ddof=1, eps=0.0
    )
    np.testing.assert_allclose(run("mean"), [-3, 1], rtol=1e-6)
    np.testing.assert_allclose(run("loo"), [-4, 4], rtol=1e-6)


@pytest.mark.allow_nan
def test_rollout_return():
    reward = jnp.array([1.0, 2.0, jnp.nan, 4.0, 5.0, 9.0])
    returns, vote, missing = ops.rollout_return(reward, ids(0, 0, 1, 1, 2, 2), jnp.array([1.0, 1, 1, 1, 1, 0]))
    np.testing.assert_allclose(returns, [3, 3, 0, 0, 5, 5])
    np.testing.assert_allclose(vote, [0.5, 0.5, 0, 0, 1, 0])
    np.testing.assert_array_equal(missing, [False, False, True, True, False, False])


@pytest.mark.allow_nan
def test_row_reward_and_outcome():
    trajectory = written(
        "a0 a1 o2", "a0 o1 .", "a0 o1 .", "p o0 .", reward=[[1, 2], [3, 99], [np.nan, 0], [7, 7]],
        token_reward=[[0, 1, 4], [0, 0, 50], [0, 0, 0], [0, 0, 0]], rollout=[0, 1, 2, 0],
    )  # fmt: skip
    np.testing.assert_allclose(ops.row_reward(trajectory), [8, 3, np.nan, 0])
    returns, vote, missing = ops.outcome(trajectory)  # the last row acts nothing: it has no part in rollout 0
    np.testing.assert_allclose(returns, [8, 3, 0, 8])
    np.testing.assert_allclose(vote, [1, 1, 0, 0])
    np.testing.assert_array_equal(missing, [False, False, True, False])


@pytest.mark.allow_nan
def test_turn_rewards_take_in_token_rewards():
    trajectory = written(
        "p a0 o1 a1 o2", "p p o2 a2 .", reward=[[1, 0, 5], [5, 5, np.nan]], turns=3,
        token_reward=[[9, 0, 2, 3, 4], [0, 0, 6, 1, 9]],
    )  # fmt: skip
    table, absent = ops.turn_rewards(trajectory)
    # row 0: 1 + 2 on turn 0, 3 + 4 on turn 1; row 1: 1 on turn 2 (its reward is missing), 6 paid back to turn 1
    np.testing.assert_allclose(table, [[3, 7, 0], [0, 6, 1]])
    np.testing.assert_array_equal(absent, [[False] * 3, [False, False, True]])


def test_discounted_advantage():
    mask = jnp.array([[True, False, True, True]])
    reward, value = jnp.array([[1.0, 9, 2, 4]]), jnp.array([[0.5, 9, 1, 2]])
    got = ops.discounted_advantage(reward, value, jnp.array([8.0]), mask, gamma=0.5, lam=0.5)
    # deltas: 4 + 4 - 2 = 6; 2 + 1 - 1 = 2; 1 + .5 - .5 = 1. Sums with 1/4: 6; 3.5; 1.875
    np.testing.assert_allclose(got, [[1.875, 0, 3.5, 6]], rtol=1e-6)


def test_spreading_and_summing():
    trajectory = written("p a0 a0 o1 a1 .")
    np.testing.assert_array_equal(ops.turns_to_tokens(jnp.array([[3.0, 5.0]]), trajectory), [[0, 3, 3, 0, 5, 0]])
    np.testing.assert_array_equal(ops.rows_to_tokens(jnp.array([7.0]), trajectory), [[0, 7, 7, 0, 7, 0]])
    np.testing.assert_array_equal(ops.tokens_to_turns(jnp.array([[9.0, 1, 2, 9, 4, 9]]), trajectory), [[3, 4]])
    np.testing.assert_array_equal(ops.action_counts(trajectory), [[2, 1]])
    np.testing.assert_array_equal(ops.paid_slot(trajectory), [[-1, 1, 2, 2, 4, 4]])
    np.testing.assert_array_equal(ops.first_turn(written("p o0 a1", "p o1 o1")), [1, 2])


def test_positions():
    valid = jnp.array([[True, True, False, True]])
    np.testing.assert_array_equal(ops.positions(valid), [[0, 1, 1, 2]])
    np.testing.assert_array_equal(ops.previous_valid(valid), [[0, 0, 1, 1]])


def test_over_rollouts_joins_parts_and_drops_dead_rows():
    trajectory = written("a0 . .", ". a1 a2", "a0 a1 a2", rollout=[2, 2, 2], weight=[1, 1, 0])
    table = jnp.array([[1.0, 0, 0], [0, 2, 3], [9, 9, 9]])
    joined = ops.over_rollouts(lambda mask, x: jnp.where(mask, x, -1.0), trajectory, table, axis_name=None)
    np.testing.assert_array_equal(joined, [[1, 2, 3]] * 3)


def test_globally_gathers_and_cuts():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("data")
    x = jnp.arange(16, dtype=jnp.float32)
    run = jax.shard_map(
        lambda x: ops.globally(lambda whole: whole - whole.sum(), x, axis_name="data"),
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
    )
    np.testing.assert_array_equal(jax.jit(run)(x), x - 120)


def test_correlation():
    mask = jnp.array([True, True, True, False])
    # deviations -1, 0, 1 and -4/3, -1/3, 5/3: 3 / sqrt(2 * 42/9) = .98198
    x, y = jnp.array([1.0, 2, 3, 99]), jnp.array([1.0, 2, 4, -99])
    np.testing.assert_allclose(ops.correlation(x, y, mask), 0.98198, rtol=1e-5)
    assert ops.correlation(jnp.full(4, 0.1), y, mask) == 0
    assert ops.correlation(x, y, jnp.zeros(4, bool)) == 0


def test_hash_tokens_tells_vectors_apart():
    keys = [tuple(np.asarray(ops.hash_tokens(ids(*v)))) for v in ((1, 2), (2, 1), (1, 2, 0), (0, 1, 2))]
    assert len(set(keys)) == 4
    assert tuple(np.asarray(ops.hash_tokens(ids(1, 2)))) == keys[0]


def test_random_batches_are_valid():
    from agentjax.types import validate

    validate(random_trajectory(jax.random.key(0), 8, 5))
