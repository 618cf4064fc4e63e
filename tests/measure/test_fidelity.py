"""Fidelity of credit, against hand arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax import ops
from agentjax.measure import fidelity as fi
from tests.factories import batch, insert_padding, random_trajectory, written

ALL = jnp.ones((1, 3), bool)


def row(*values):
    return jnp.array([values], jnp.float32)


def test_ranks_share_ties():
    np.testing.assert_allclose(
        fi.ranks(jnp.array([5.0, 2, 5, 9]), jnp.array([True, True, True, False]))[:3], [2.5, 1, 2.5]
    )


def test_correlations():
    got = fi.correlations(row(1, 2, 4), row(1, 2, 3), ALL, "token", jnp.float32(0.25))
    np.testing.assert_allclose(got["pearson_token"], 0.98198, rtol=1e-5)
    np.testing.assert_allclose(got["spearman_token"], 1, rtol=1e-6)
    np.testing.assert_allclose(got["pearson_token_disattenuated"], 2 * 0.98198, rtol=1e-5)
    assert got["constant_token"] == 0


def test_constant_credit_counts_as_no_correlation_and_is_reported():
    # constant in each row, not in the batch: truth 0, 1 under credit 1 and 2, 3 under credit 2: cov over var by hand
    credit, truth = jnp.array([[1.0, 1], [2, 2]]), jnp.array([[0.0, 1], [2, 3]])
    got = fi.correlations(credit, truth, jnp.ones((2, 2), bool), "turn")
    np.testing.assert_allclose(got["pearson_turn"], 2 / np.sqrt(1 * 5), rtol=1e-6)
    assert got["pearson_turn_rows"] == 0 and got["spearman_turn_rows"] == 0
    assert got["constant_turn_rows"] == 1 and got["constant_turn"] == 0
    got = fi.correlations(jnp.full((2, 2), 0.1), truth, jnp.ones((2, 2), bool), "turn")
    assert got["pearson_turn"] == 0 and got["spearman_turn"] == 0 and got["constant_turn"] == 1


@pytest.mark.parametrize(
    ("credit", "auc", "hit", "precision", "recall"),
    [
        ((3, 1, -2), 1, 1, 1 / 2, 1),  # turns 0 and 2 have at least half of 3
        ((1, 3, 2), 0, 0, 0, 0),
        ((2, 2, 2), 1 / 2, 1 / 3, 1 / 3, 1),  # constant: chance
        ((0, 0, 0), 1 / 2, 1 / 3, 0, 0),
    ],
)
def test_localisation(credit, auc, hit, precision, recall):
    got = fi.localisation(row(*credit), jnp.array([[True, False, False]]), ALL)
    want = dict(key_auc=auc, key_hit=hit, key_precision=precision, key_recall=recall)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6, err_msg=name)


def test_localisation_leaves_out_rows_without_key_turn():
    credit = jnp.array([[3.0, 1, 2], [5, 6, 7]])
    key = jnp.array([[True, False, False], [False, False, False]])
    got = fi.localisation(credit, key, jnp.ones((2, 3), bool))
    assert got["key_auc"] == 1 and got["key_hit"] == 1 and got["key_precision"] == 0.5


def test_signs_count_only_what_the_error_allows():
    truth = fi.truth_sign(row(1, -1, 0.1), row(0.1, 0.1, 0.1), ALL, 2.0)
    np.testing.assert_array_equal(truth, [[1, -1, 0]])
    np.testing.assert_array_equal(fi.truth_sign(row(1, -1, 0.1), None, ALL, 2.0), [[1, -1, 1]])
    got = fi.sign_agreement(row(2, 0, 5), truth, ALL, "token")
    assert got["sign_token"] == 0.5
    np.testing.assert_allclose(got["sign_token_share"], 2 / 3, rtol=1e-6)


def test_leakage_per_trajectory_and_averaged():
    truth = jnp.array([[0, 1, 0], [0, -1, 0]], jnp.int32)
    credit = jnp.array([[1.0, 1, 1], [-1, -1, -1]])  # an outcome of +-1 on everything
    turns = jnp.ones((2, 3), bool)
    np.testing.assert_allclose(fi.leakage(credit, truth, turns), 4 / 6, rtol=1e-6)
    # averaged over the two rollouts the useless turns cancel, the good and the bad turn do not
    mean = fi.averaged(credit, truth, turns, jnp.zeros(2, jnp.int32))
    np.testing.assert_allclose(mean, [[0, 1, 0], [0, -1, 0]], atol=1e-7)
    np.testing.assert_allclose(fi.leakage(mean, truth, turns), 0, atol=1e-6)
    # other tasks are not mixed
    mean = fi.averaged(credit, truth, turns, jnp.array([0, 1], jnp.int32))
    np.testing.assert_allclose(mean, credit)
    assert fi.leakage(jnp.zeros((2, 3)), truth, turns) == 0


def test_sign_table():
    truth = jnp.array([[1, 0, -1], [1, 0, -1]], jnp.int32)
    credit = jnp.array([[1.0, 1, 1], [-1, 0, -1]])
    turns = jnp.array([[True, True, True], [True, True, False]])
    table = np.asarray(fi.sign_table(credit, truth, turns, jnp.array([1.0, 0.0])))
    want = np.zeros((2, 3, 3))
    want[0, :, 0] = 1 / 5  # success: all turns praised
    want[1, 0, 2] = want[1, 1, 1] = 1 / 5  # failure: the good turn blamed, the neutral one left alone
    np.testing.assert_allclose(table, want, rtol=1e-6)


def test_zero_variance_groups():
    returns, group = jnp.array([1.0, 1, 0, 1, 5, 3]), jnp.array([0, 0, 1, 1, 2, 3], jnp.int32)
    vote = jnp.array([1.0, 1, 1, 1, 1, 0])
    np.testing.assert_allclose(fi.zero_variance_groups(returns, vote, group), 2 / 3, rtol=1e-6)


def test_episodes_to_a_threshold():
    assert fi.episodes_to(np.array([0, 64, 128]), np.array([0.1, 0.5, 0.4]), 0.45) == 64
    assert np.isnan(fi.episodes_to(np.array([0, 64]), np.array([0.1, 0.2]), 0.45))


def measured(trajectory, credit, truth):
    target = fi.Target(token=truth, turn=ops.tokens_to_turns(truth, trajectory))
    key = trajectory.turn_mask & (jnp.arange(trajectory.reward.shape[1])[None, :] == 0)
    return jax.jit(fi.fidelity)(credit, target, trajectory, key_step=key, outcome=ops.outcome(trajectory)[0])


def test_the_truth_is_perfectly_faithful_and_its_negative_is_not():
    trajectory = random_trajectory(jax.random.key(0))
    truth = jnp.where(trajectory.action_mask, jax.random.normal(jax.random.key(1), trajectory.tokens.shape), 0.0)
    good, bad = measured(trajectory, truth, truth), measured(trajectory, -3 * truth, truth)
    for name in ("pearson_token", "spearman_token", "pearson_turn", "spearman_turn"):
        np.testing.assert_allclose([good[name], bad[name]], [1, -1], rtol=1e-5)
    assert good["sign_token"] == 1 and bad["sign_token"] == 0 and good["leakage_trajectory"] == 0
    np.testing.assert_allclose(
        sum(v for k, v in good.items() if k.count("_") == 3 and k.startswith("sign")), 1, rtol=1e-6
    )


def test_padding_and_rejected_rows_change_nothing():
    trajectory = random_trajectory(jax.random.key(2), 8, 4, padded_rows=2)
    noise = jax.random.normal(jax.random.key(3), (2, *trajectory.tokens.shape))
    credit, truth = noise[0], noise[1]
    want = measured(trajectory, credit, truth)
    from agentjax.types import Signals

    changed, signals, _ = insert_padding(
        batch(trajectory, Signals(token_value=credit, oracle_token=truth)), jax.random.key(4), 5
    )
    got = measured(changed, signals.token_value, signals.oracle_token)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, atol=1e-6, err_msg=name)


def test_a_hand_made_batch_end_to_end():
    # two turns, the first matters: A^pi = +-1; credit of an episode method: +-1 on every token
    trajectory = written("p a0 a1", "p a0 a1", reward=[[0, 1], [0, 0]])
    truth = jnp.array([[0.0, 1, 0], [0, -1, 0]])
    got = measured(trajectory, jnp.array([[0.0, 1, 1], [0, -1, -1]]), truth)
    np.testing.assert_allclose(got["pearson_token"], 2 / np.sqrt(2 * 4), rtol=1e-6)
    assert got["sign_turn"] == 1 and got["leakage_trajectory"] == 0.5 and got["leakage_averaged"] == 0
    assert got["key_auc"] == 0.5 and got["key_hit"] == 0.5
    for name in ("success_good_plus", "success_neutral_plus", "failure_bad_minus", "failure_neutral_minus"):
        assert got[f"sign_{name}"] == 0.25
