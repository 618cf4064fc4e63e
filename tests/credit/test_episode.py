"""Group-relative credit, against hand arithmetic."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from agentjax.credit import ESTIMATORS
from agentjax.types import Signals
from tests.factories import written

NOTHING = Signals()


def one_token(reward, **fields):
    """A row of one action token for each reward."""
    return written(*["p a0"] * len(reward), reward=[[r] for r in reward], **fields)


def advantage(name, trajectory, **options):
    """float[B], the credit of each row's first action token."""
    credit = np.asarray(ESTIMATORS[name].apply(trajectory, NOTHING, **options).advantage)
    return credit[np.arange(credit.shape[0]), np.asarray(trajectory.action_mask).argmax(1)]


def test_one_success_in_four():
    # mean 1/4; deviations 3/4 and -1/4; ddof=1: sqrt((9 + 3) / 16 / 3) = 1/2
    trajectory = one_token([1, 0, 0, 0])
    np.testing.assert_allclose(advantage("grpo", trajectory), [1.5, -0.5, -0.5, -0.5], rtol=3e-6)
    np.testing.assert_allclose(advantage("dr_grpo", trajectory), [0.75, -0.25, -0.25, -0.25], rtol=1e-6)
    np.testing.assert_allclose(advantage("rloo", trajectory), [1, -1 / 3, -1 / 3, -1 / 3], rtol=1e-6)
    # population std sqrt(3)/4
    np.testing.assert_allclose(advantage("grpo", trajectory, ddof=0)[0], 3 / math.sqrt(3), rtol=1e-5)


def test_scale_by_the_batch():
    # groups [2, 0] and [5, 5]; centred [1, -1, 0, 0]; all four: mean 3, squares 1 + 9 + 4 + 4 = 18, std sqrt(18 / 3)
    trajectory = one_token([2, 0, 5, 5], group=[0, 0, 1, 1])
    want = np.array([1, -1, 0, 0]) / math.sqrt(6)
    np.testing.assert_allclose(advantage("grpo", trajectory, scale="batch"), want, rtol=1e-5)


def test_uneven_groups_in_any_order_centre_on_themselves():
    # groups of 4, 2 and 3, interleaved: means 2, 5, 1
    group = [7, 3, 0, 7, 3, 0, 7, 0, 7]
    reward = [0, 4, 0, 2, 6, 1, 2, 2, 4]
    want = [-2, -1, -1, 0, 1, 0, 0, 1, 2]
    np.testing.assert_allclose(advantage("dr_grpo", one_token(reward, group=group)), want, atol=1e-6)


def test_a_rollout_in_three_rows_votes_once():
    # one rollout of return 1 in three parts, one of return 0: mean 1/2 and not 1/4
    rows = ["p a0 .", "p a1 .", "p a2 .", "p a0 ."]
    trajectory = written(*rows, reward=[[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]], rollout=[0, 0, 0, 3])
    np.testing.assert_allclose(advantage("dr_grpo", trajectory), [0.5, 0.5, 0.5, -0.5], atol=1e-6)
    np.testing.assert_allclose(advantage("rloo", trajectory), [1, 1, 1, -1], atol=1e-6)
    np.testing.assert_allclose(advantage("grpo", trajectory), np.array([1, 1, 1, -1]) / math.sqrt(2), rtol=1e-5)


@pytest.mark.allow_nan
def test_missing_and_rejected_rollouts_have_no_vote():
    trajectory = one_token([1, np.nan, 0, 9], weight=[1, 1, 1, 0])
    np.testing.assert_allclose(advantage("dr_grpo", trajectory), [0.5, 0, -0.5, 0], atol=1e-6)
    # a missing part makes the rollout missing, its other part too
    trajectory = one_token([1, np.nan, 1, 0], rollout=[0, 1, 1, 3])
    np.testing.assert_allclose(advantage("dr_grpo", trajectory), [0.5, 0, 0, -0.5], atol=1e-6)


def test_a_group_of_one():
    trajectory = one_token([3, 1, 0], group=[0, 1, 1])
    for name in ("grpo", "dr_grpo", "rloo"):
        assert advantage(name, trajectory)[0] == 0
        assert advantage(name, trajectory, singleton="raw")[0] == 3


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e8, -1e-8])
def test_equal_rewards_give_exactly_zero(value):
    for name in ("grpo", "dr_grpo", "rloo"):
        assert (advantage(name, one_token([value] * 7)) == 0).all()


def test_half_precision_rewards_are_counted_in_float32():
    # 1001 rewards of bfloat16: a sum in bfloat16 would stop at 256
    trajectory = one_token([1.0] * 500 + [0.0] * 501)
    half = trajectory.__class__(**{**vars(trajectory), "reward": trajectory.reward.astype(jnp.bfloat16)})
    credit = ESTIMATORS["dr_grpo"].apply(half, NOTHING).advantage
    assert credit.dtype == jnp.float32
    np.testing.assert_allclose(credit[0, 1], 501 / 1001, rtol=1e-6)


def factor(name, size, p):
    """Expected gradient over the true one for G Bernoulli(p) rewards, score r - p, by counting successes."""
    total = 0.0
    for k in range(size + 1):
        reward = [1.0] * k + [0.0] * (size - k)
        a = advantage(name, one_token(reward))
        chance = math.comb(size, k) * p**k * (1 - p) ** (size - k)
        total += chance * float(np.mean(a * (np.array(reward) - p)))
    return total / (p * (1 - p))


def test_factors_on_the_gradient_by_enumeration():
    assert factor("dr_grpo", 2, 0.3) == pytest.approx(0.5, abs=1e-4)
    assert factor("dr_grpo", 8, 0.3) == pytest.approx(7 / 8, abs=1e-4)
    assert factor("rloo", 8, 0.3) == pytest.approx(1.0, abs=1e-4)
    assert factor("grpo", 2, 0.2) == pytest.approx(0.7071, abs=1e-4)
    assert factor("grpo", 8, 0.5) == pytest.approx(1.736, abs=1e-3)
    assert factor("grpo", 8, 0.05) == pytest.approx(2.313, abs=1e-3)


def test_unknown_options_are_named():
    trajectory = one_token([1, 0])
    for option in ({"baseline": "median"}, {"scale": "iqr"}, {"singleton": "nan"}):
        with pytest.raises(ValueError, match=f"{next(iter(option))} must be one of"):
            ESTIMATORS["grpo"].apply(trajectory, NOTHING, **option)


def test_returns_to_go():
    # rewards [1, 2] and [0, 4]: to go [3, 2] and [4, 4]
    trajectory = written("p a0 a1", "p a0 a1", reward=[[1, 2], [0, 4]])
    run = lambda name, **options: ESTIMATORS[name].apply(trajectory, NOTHING, **options).advantage[:, 1:]  # noqa: E731
    np.testing.assert_allclose(run("reward_to_go"), [[3, 2], [4, 4]])
    np.testing.assert_allclose(run("reward_to_go", gamma=0.5), [[2, 2], [2, 4]])
    np.testing.assert_allclose(run("reward_to_go_rloo"), [[-1, -2], [1, 2]], atol=1e-6)


def expected_stop_continue(name, *, c=0.3, q=0.5):
    """Expected gradient: continue (q) earns c at turn 1, stop ends; all groups of two; score a - q at turn 0."""
    total = 0.0
    for first in (0, 1):
        for second in (0, 1):
            rows = ["p a0 a1" if a else "p a0 ." for a in (first, second)]
            reward = [[0, c * a] for a in (first, second)]
            trajectory = written(*rows, reward=reward, turns=2)
            signals = Signals(judge=jnp.asarray(reward, jnp.float32))
            credit = np.asarray(ESTIMATORS[name].apply(trajectory, signals).advantage)[:, 1]
            chance = math.prod(q if a else 1 - q for a in (first, second))
            total += chance * np.mean(credit * (np.array([first, second]) - q))
    return total


def test_a_baseline_by_turn_index_removes_the_value_of_continuing():
    assert expected_stop_continue("reward_to_go") == pytest.approx(0.075, abs=1e-6)
    assert expected_stop_continue("reward_to_go_rloo") == pytest.approx(0.075, abs=1e-6)
    assert expected_stop_continue("biased_turn_index") == pytest.approx(0.0, abs=1e-6)
