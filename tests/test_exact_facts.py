"""What is known exactly about credit, by enumerating every group of trajectories that can happen.

An expectation here is a sum over all groups of G trajectories with their probabilities, so a bias of any size shows.
The truth (`oracle.exact`) and the estimators (`credit`) share no code.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax import envs, ops
from agentjax.credit import ESTIMATORS
from agentjax.envs.tabular import TabularModel, tabular_env
from agentjax.losses import kl
from agentjax.measure import gradient, horizon
from agentjax.oracle import exact
from agentjax.types import Signals
from experiments import snr_horizon


def bandit(pay):
    """One turn; action i pays pay[i]."""
    actions = len(pay)
    model = TabularModel(
        obs=jnp.zeros(1, jnp.int32),
        start=jnp.ones(1),
        prob=jnp.ones((1, actions, 1)),
        next=jnp.zeros((1, actions, 1), jnp.int32),
        reward=jnp.array(pay, jnp.float32)[None, :, None],
        terminal=jnp.array([False]),
        horizon=1,
        observations=1,
    )
    return tabular_env("bandit", model, action_words=tuple(f"arm{i}" for i in range(actions)), observation_words=("s",))


score_gradients = jax.jit(gradient.tabular_score_gradients)


class Groups:
    """All groups of `size` trajectories of a task under `table`, as one batch of size x M^size rows."""

    def __init__(self, env, table, size):
        self.env, self.table, self.size = env, table, size
        paths = exact.enumerate_paths(env.exact)
        count = len(paths.chance)
        members = np.array(list(itertools.product(range(count), repeat=size)))  # [groups, size]

        @jax.jit
        def rows(paths, index):
            trajectory, _ = exact.path_trajectories(env, paths, table)
            _, advantage = exact.path_values(exact.evaluate(env.exact, table), paths)
            drawn = jax.tree.map(lambda x: x[index], (trajectory, paths, advantage))
            return drawn, exact.path_probability(paths, table)

        (trajectory, self.paths, self.advantage), chance = rows(paths, jnp.asarray(members.ravel()))
        ids = jnp.arange(members.size, dtype=jnp.int32)
        self.trajectory = dataclasses.replace(trajectory, group=ids // size, rollout=ids)
        self.chance = np.asarray(chance, np.float64)[members].prod(1)
        self.exact = exact.policy_gradient(env.exact, table).ravel()

    def credit(self, name, **options):
        """The estimator's credit per turn, [rows, T], from the reward as judge, any value at all and the true A^pi."""

        @jax.jit
        def per_turn(trajectory, state, advantage):
            wrong = jnp.sin(3.0 * state.astype(jnp.float32) + 1.0)  # unbiased estimators must not mind
            signals = Signals(
                judge=trajectory.reward,
                value=wrong,
                token_value=ops.turns_to_tokens(wrong[:, :-1], trajectory),
                oracle_turn=advantage,
                oracle_token=ops.turns_to_tokens(advantage, trajectory),
            )
            token = ESTIMATORS[name].apply(trajectory, signals, **options).advantage
            return ops.tokens_to_turns(token, trajectory)

        return per_turn(self.trajectory, self.paths.state, self.advantage)

    def mean(self, credit):
        """E of the group's mean score-function gradient, [P]."""
        grads = score_gradients(self.table, self.paths.obs, self.paths.action, credit)
        grads = np.asarray(grads, np.float64).reshape(-1, self.size, grads.shape[1]).mean(1)
        return self.chance @ grads

    def slope(self, credit):
        """Scale of the expected gradient along the exact one, and the share of it that points elsewhere."""
        g, mean = np.asarray(self.exact, np.float64), self.mean(credit)
        slope = mean @ g / (g @ g)
        return slope, np.linalg.norm(mean - slope * g) / np.linalg.norm(g)


@functools.cache
def task(name):
    env = {
        "stop_continue": lambda: envs.make("stop_continue"),
        "umbrella": lambda: envs.make("umbrella", length=2),
        "umbrella, three steps": lambda: envs.make("umbrella", length=3, distractors=0.0),
        "random_mdp": lambda: envs.make("random_mdp", states=2, actions=2, horizon=2, seed=4),
    }[name]()
    table = 0.7 * jax.random.normal(jax.random.key(11), (env.exact.observations, 2))
    return Groups(env, table, 2)


TASKS = ("stop_continue", "umbrella", "umbrella, three steps", "random_mdp")


@pytest.mark.parametrize("name", TASKS)
def test_estimators_declared_unbiased_are(name):
    """M4 < 1e-6 by enumeration for every "yes"; one direction and one scale, (G-1)/G, for every "up_to_scale"."""
    groups = task(name)
    declared = {key: entry for key, entry in ESTIMATORS.items() if entry.unbiased != "no"}
    assert {"rloo", "dr_grpo", "reward_to_go", "oracle_token"} <= set(declared)
    for key, entry in declared.items():
        slope, aside = groups.slope(groups.credit(key))
        scale = 1.0 if entry.unbiased == "yes" else (groups.size - 1) / groups.size
        assert slope == pytest.approx(scale, abs=1e-4) and aside < 1e-3, (key, slope, aside)


@functools.cache
def bernoulli(p, size):
    return Groups(bandit([0.0, 1.0]), jnp.log(jnp.array([[1 - p, p]])), size)


@pytest.mark.parametrize("size, factor", [(2, 0.5), (4, 0.75), (8, 0.875)])
def test_group_centring_shrinks_by_g_minus_1_over_g(size, factor):
    groups = bernoulli(0.3, size)
    assert groups.slope(groups.credit("dr_grpo"))[0] == pytest.approx(factor, abs=1e-4)
    assert groups.slope(groups.credit("rloo"))[0] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    "size, p, factor",
    [(2, 0.1, 0.7071), (2, 0.5, 0.7071), (2, 0.9, 0.7071), (8, 0.5, 1.736), (8, 0.05, 2.313), (8, 0.95, 2.313)],
)
def test_grpo_weighs_tasks_by_their_difficulty(size, p, factor):
    groups = bernoulli(p, size)
    assert groups.slope(groups.credit("grpo"))[0] == pytest.approx(factor, abs=6e-4)


@pytest.mark.parametrize("size, p", [(2, 0.3), (8, 0.05), (8, 0.5)])
def test_groups_without_signal(size, p):
    """A group is silent with probability p^G + (1-p)^G, and its advantages are exactly 0."""
    groups = bernoulli(p, size)
    silent = ~np.asarray(groups.credit("grpo") != 0).reshape(-1, size).any(1)
    assert groups.chance[silent].sum() == pytest.approx(p**size + (1 - p) ** size, abs=1e-6)


def test_value_of_k_rollouts():
    """The mean of K rollouts has standard deviation sqrt(p (1-p) / K), by enumeration and from the oracle."""
    p, k = 0.2, 4
    groups = bernoulli(p, k)
    estimate = np.asarray(groups.trajectory.reward).reshape(-1, k).mean(1)
    spread = np.sqrt(groups.chance @ (estimate - p) ** 2)
    assert spread == pytest.approx((p * (1 - p) / k) ** 0.5, abs=1e-6)
    variance = exact.return_variance(bandit([0.0, 1.0]).exact, groups.table).state[0, 0]
    assert float(jnp.sqrt(variance / k)) == pytest.approx(spread, abs=1e-6)


@pytest.mark.parametrize("size", [2, 3])
def test_a_baseline_by_turn_index_takes_away_the_value_of_getting_there(size):
    """stop/continue, q = .5, c = .3: gradient on the logit of go is 0 instead of q(1-q)c = .075."""
    groups = Groups(envs.make("stop_continue"), jnp.zeros((2, 2)), size)
    np.testing.assert_allclose(groups.exact, [-0.075, 0.075, 0, 0], atol=1e-7)
    for scale in ("group", "none"):
        np.testing.assert_allclose(groups.mean(groups.credit("biased_turn_index", scale=scale)), 0, atol=1e-7)
    for name in ("reward_to_go", "reward_to_go_rloo", "rloo", "prm_return_to_go"):  # the judge here is the reward
        np.testing.assert_allclose(groups.mean(groups.credit(name)), [-0.075, 0.075, 0, 0], atol=1e-5, err_msg=name)


def test_a_penalty_that_ignores_the_action_has_no_gradient():
    groups = task("random_mdp")
    penalty = jnp.where(groups.paths.mask, jnp.cos(5.0 * groups.paths.state[:, :-1].astype(jnp.float32)), 0.0)
    np.testing.assert_allclose(groups.mean(penalty), 0, atol=1e-6)
    assert float(jnp.max(jnp.abs(penalty))) > 0.1


@pytest.mark.parametrize("name", ["stop_continue", "umbrella", "umbrella, three steps"])
def test_potential_shaping_leaves_advantages_alone(name):
    """r' = r + F(s') - F(s), F = 0 at the end: A^pi, Q* - V* and the gradient stay, V falls by F."""
    model = task(name).env.exact
    potential = jnp.where(model.terminal, 0.0, jnp.cos(7.0 * jnp.arange(model.obs.shape[0], dtype=jnp.float32)))
    shaped = dataclasses.replace(model, reward=model.reward + potential[model.next] - potential[:, None, None])
    table = jax.random.normal(jax.random.key(0), (model.observations, 2))
    reached = np.asarray(exact.occupancy(model, table)) > 0
    before, after = exact.evaluate(model, table), exact.evaluate(shaped, table)
    np.testing.assert_allclose(after.advantage[reached], before.advantage[reached], atol=1e-5)
    np.testing.assert_allclose(
        (before.value - after.value)[:-1][reached], np.broadcast_to(potential, reached.shape)[reached], atol=1e-5
    )
    np.testing.assert_allclose(
        exact.optimal(shaped).advantage[reached], exact.optimal(model).advantage[reached], atol=1e-5
    )
    np.testing.assert_allclose(exact.policy_gradient(shaped, table), exact.policy_gradient(model, table), atol=1e-5)


def test_the_best_scalar_baseline():
    """b* = E[|s|^2 R] / E[|s|^2], s the score, has the least variance of all constants; the mean return has more."""
    groups = Groups(bandit([1.0, 0.0, -2.0]), jnp.array([[1.0, -0.5, 0.2]]), 1)
    score = score_gradients(groups.table, groups.paths.obs, groups.paths.action, jnp.ones_like(groups.paths.reward))
    length, reward = np.asarray(jnp.sum(score**2, axis=1), np.float64), np.asarray(groups.paths.reward[:, 0])
    best = (groups.chance @ (length * reward)) / (groups.chance @ length)

    def variance(baseline):
        credit = groups.paths.reward - np.float32(baseline)
        np.testing.assert_allclose(groups.mean(credit), groups.exact, atol=1e-6)  # unbiased whatever it is
        return groups.chance @ ((reward - baseline) ** 2 * length) - float(jnp.sum(groups.exact**2))

    others = [variance(best + offset) for offset in (-1, -0.1, -0.01, 0.01, 0.1, 1)]
    assert variance(best) < min(others)
    assert variance(groups.chance @ reward) > variance(best) + 1e-3


# divergences as losses, by enumeration over a vocabulary of four


def divergences():
    policy = jax.random.normal(jax.random.key(0), (4,))
    reference = jax.nn.log_softmax(jax.random.normal(jax.random.key(1), (4,)))
    return policy, reference


def expected_gradient(fn, policy, reference):
    """E over own samples of the gradient of fn(log pi(a), log ref(a)): the sampling itself is not differentiated."""
    pi = jax.nn.softmax(policy)
    return jax.grad(lambda x: jnp.sum(pi * fn(jax.nn.log_softmax(x), reference)))(policy)


def test_k1_has_no_gradient_k2_the_reverse_k3_the_forward():
    policy, reference = divergences()

    def reverse(x):
        logp = jax.nn.log_softmax(x)
        return jnp.sum(jnp.exp(logp) * (logp - reference))

    def forward(x):
        return jnp.sum(jnp.exp(reference) * (reference - jax.nn.log_softmax(x)))

    np.testing.assert_allclose(expected_gradient(kl.k1, policy, reference), 0, atol=1e-6)
    to_reference, from_reference = jax.grad(reverse)(policy), jax.grad(forward)(policy)
    np.testing.assert_allclose(expected_gradient(kl.kl_reverse_grad, policy, reference), to_reference, atol=1e-6)
    np.testing.assert_allclose(expected_gradient(kl.kl_forward_grad, policy, reference), from_reference, atol=1e-6)
    assert float(jnp.linalg.norm(to_reference - from_reference)) > 0.05
    # as values, k1 and k3 both have the mean KL(pi || ref)
    logp = jax.nn.log_softmax(policy)
    for fn in (kl.k1, kl.kl_value):
        assert float(jnp.sum(jnp.exp(logp) * fn(logp, reference))) == pytest.approx(float(reverse(policy)), abs=1e-6)
    # k1 in the reward: -grad of E[-k1 as a weight on the score] is the reverse KL's gradient
    score = jnp.eye(4) - jnp.exp(logp)[None, :]
    weighted = jnp.sum((jnp.exp(logp) * kl.k1(logp, reference))[:, None] * score, axis=0)
    np.testing.assert_allclose(weighted, to_reference, atol=1e-6)


# localisation: which step does one rollout point at?


def hits(distractors, n=2000):
    env = envs.make("umbrella", length=30, distractors=distractors)

    @jax.jit
    def rates(key):
        states, _, action, reward = snr_horizon.simulate(key, env, n)
        values = exact.evaluate(env.exact, jnp.zeros((60, 2)))
        value, advantage = exact.along(values, states, action, jnp.ones(action.shape, bool))
        size = {k: jnp.abs(v) for k, v in horizon.signals(reward, value, advantage, group=8).items()}
        return {k: jnp.mean(jnp.all(v[:, 1:] < v[:, :1], axis=1)) for k, v in size.items()}

    return {k: float(v) for k, v in rates(jax.random.key(4)).items()}


def test_one_rollout_of_umbrella_30_points_at_the_choice():
    """Strictly largest |A| at step 0: always for Q - V, half the time for GAE 0 with exact V, never for one number
    per rollout; without distractors always for all three value forms."""
    noisy, clean = hits(1.0), hits(0.0)
    assert noisy["exact"] == 1.0 and noisy["full_return"] == noisy["rloo"] == 0.0
    assert abs(noisy["gae_0"] - 0.5) < 4.5 * 0.5 / 2000**0.5
    assert 0.1 < noisy["gae_1"] < 0.26  # .18, argmax with ties at random
    assert clean["exact"] == clean["gae_0"] == clean["gae_1"] == 1.0
