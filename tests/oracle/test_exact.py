"""Dynamic programming against brute-force enumeration, numbers worked by hand, and simulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax import envs
from agentjax.oracle import exact
from agentjax.types import validate

TASKS = {
    "random_mdp": {},
    "stop_continue": {},
    "umbrella": {"length": 4},
    "noise-free umbrella": {"length": 5, "distractors": 0.0},
}


def case(name):
    model = envs.make(name.split()[-1], **TASKS[name]).exact
    table = jax.random.normal(jax.random.key(5), (model.observations, model.prob.shape[1]))
    return model, table, exact.enumerate_paths(model)


def returns_to_go(reward):
    return np.cumsum(np.asarray(reward)[:, ::-1], axis=1)[:, ::-1]


@pytest.mark.parametrize("name", TASKS)
def test_values_by_enumeration(name):
    """V, Q, A, variances and occupancy of every reachable (turn, state, action) as averages over all paths."""
    model, table, paths = case(name)
    weight = np.asarray(exact.path_probability(paths, table), np.float64)
    assert weight.sum() == pytest.approx(1.0, abs=1e-5)
    values, variance = exact.evaluate(model, table), exact.return_variance(model, table)
    reach, togo = np.asarray(exact.occupancy(model, table)), returns_to_go(paths.reward)
    values, variance, paths = jax.tree.map(np.asarray, (values, variance, paths))
    state, action, mask = paths.state, paths.action, paths.mask
    for t in range(model.horizon):
        for s in np.unique(state[mask[:, t], t]):
            here = mask[:, t] & (state[:, t] == s)
            mean = np.average(togo[here, t], weights=weight[here])
            assert float(values.value[t, s]) == pytest.approx(mean, abs=1e-5)
            assert float(reach[t, s]) == pytest.approx(weight[here].sum(), abs=1e-5)
            spread = np.average((togo[here, t] - mean) ** 2, weights=weight[here])
            assert float(variance.state[t, s]) == pytest.approx(spread, abs=1e-4)
            for a in range(table.shape[1]):
                taken = here & (action[:, t] == a)
                q = np.average(togo[taken, t], weights=weight[taken])
                assert float(values.q[t, s, a]) == pytest.approx(q, abs=1e-5)
                assert float(values.advantage[t, s, a]) == pytest.approx(q - mean, abs=1e-5)
                spread = np.average((togo[taken, t] - q) ** 2, weights=weight[taken])
                assert float(variance.action[t, s, a]) == pytest.approx(spread, abs=1e-4)


@pytest.mark.parametrize("name", TASKS)
def test_three_ways_to_the_gradient(name):
    """Policy gradient theorem = derivative of the recursion = derivative of the enumerated expectation."""
    model, table, paths = case(name)
    theorem = exact.policy_gradient(model, table)
    through = jax.grad(lambda x: exact.expected_return(model, x))(table)
    total = jnp.sum(paths.reward, axis=1)
    summed = jax.grad(lambda x: jnp.sum(exact.path_probability(paths, x) * total))(table)
    np.testing.assert_allclose(theorem, through, atol=1e-6)
    np.testing.assert_allclose(theorem, summed, atol=1e-5)
    assert float(jnp.max(jnp.abs(theorem))) > 0.01
    enumerated = float(jnp.sum(exact.path_probability(paths, table) * total))
    assert float(exact.expected_return(model, table)) == pytest.approx(enumerated, abs=1e-5)


@pytest.mark.parametrize("name", TASKS)
def test_success_is_a_positive_last_reward(name):
    model, table, paths = case(name)
    last = jnp.sum(paths.mask, axis=1) - 1
    won = jnp.take_along_axis(paths.reward, last[:, None], axis=1)[:, 0] > 0
    by_paths = float(jnp.sum(exact.path_probability(paths, table) * won.astype(jnp.float32)))
    assert float(exact.success(model, table)) == pytest.approx(by_paths, abs=1e-5)


def test_umbrella_by_hand():
    """Uniform policy: the first choice has A = +-1, later ones 0; V after it is +-1; the return has variance L."""
    length = 6
    model = envs.make("umbrella", length=length).exact
    table = jnp.zeros((2 * length, 2))
    values = exact.evaluate(model, table)
    np.testing.assert_allclose(values.advantage[0, [0, 2]], [[1, -1], [-1, 1]], atol=1e-6)
    assert float(jnp.max(jnp.abs(values.advantage[1:, 4:]))) < 1e-6
    for t in range(1, length):
        np.testing.assert_allclose(values.value[t, 4 * t : 4 * t + 4], [-1, 1, -1, 1], atol=1e-6)
    variance = exact.return_variance(model, table)
    np.testing.assert_allclose(variance.state[0, [0, 2]], length, atol=1e-5)
    np.testing.assert_allclose(variance.action[0, [0, 2]], length - 1, atol=1e-5)
    gradient = exact.policy_gradient(model, table)
    np.testing.assert_allclose(gradient[:2], [[0.25, -0.25], [-0.25, 0.25]], atol=1e-6)
    assert float(jnp.sum(gradient**2)) == pytest.approx(0.25, abs=1e-6)
    assert float(exact.success(model, table)) == pytest.approx(0.5)
    best = exact.optimal(model)
    assert float(jnp.sum(model.start * best.value[0])) == pytest.approx(1.0)


def test_stop_continue_by_hand():
    """q = .5, c = .3: J = .15, gradient on the logit of go q(1-q)c = .075; variance q(1-q)c^2 = .0225."""
    model = envs.make("stop_continue").exact
    table = jnp.zeros((2, 2))
    assert float(exact.expected_return(model, table)) == pytest.approx(0.15)
    np.testing.assert_allclose(exact.policy_gradient(model, table), [[-0.075, 0.075], [0, 0]], atol=1e-7)
    assert float(exact.return_variance(model, table).state[0, 0]) == pytest.approx(0.0225)
    assert float(exact.success(model, table)) == pytest.approx(0.5)
    assert [len(x) for x in (exact.enumerate_paths(model).chance,)] == [3]  # stop; go, then either action


def test_optimal_is_reached_by_greedy_and_bounds_every_policy():
    model = envs.make("random_mdp", states=4, actions=3, horizon=4, seed=3).exact
    best = exact.optimal(model)
    top = float(jnp.sum(model.start * best.value[0]))
    for seed in range(5):
        table = 3 * jax.random.normal(jax.random.key(seed), (4, 3))
        assert float(exact.expected_return(model, table)) < top
    assert float(jnp.max(best.advantage)) == 0.0
    # brute force over all deterministic, time-dependent policies of a two-turn task
    model = envs.make("random_mdp", states=2, actions=2, horizon=2, seed=1).exact
    prob, reward = np.asarray(model.prob), np.asarray(model.reward)
    pay, start = (prob * reward).sum(-1), np.asarray(model.start)
    totals = []
    for code in range(16):
        first, second = [(code >> i) & 1 for i in (0, 1)], [(code >> i) & 1 for i in (2, 3)]
        v1 = np.array([pay[s, second[s]] for s in (0, 1)])
        totals.append(sum(start[s] * (pay[s, first[s]] + prob[s, first[s]] @ v1) for s in (0, 1)))
    assert float(jnp.sum(model.start * exact.optimal(model).value[0])) == pytest.approx(max(totals), abs=1e-6)


def test_simulated_return_agrees():
    env = envs.make("random_mdp", seed=2)
    model, n = env.exact, 4000
    keys = jax.random.split(jax.random.key(0), n)

    def episode(key):
        reset_key, act_key, env_key = jax.random.split(key, 3)
        state, _ = env.reset(reset_key, jnp.int32(0))

        def step(state, t):
            action = jax.random.randint(jax.random.fold_in(act_key, t), (1,), 0, 2, jnp.int32) + 3
            state, obs = env.step(jax.random.fold_in(env_key, t), state, action)
            return state, obs.reward

        return jnp.sum(jax.lax.scan(step, state, jnp.arange(model.horizon))[1])

    total = jax.jit(jax.vmap(episode))(keys)
    table = jnp.zeros((3, 2))
    variance = exact.return_variance(model, table)
    first = exact.evaluate(model, table).value[0]
    mean = float(exact.expected_return(model, table))
    whole = float(jnp.sum(model.start * (variance.state[0] + (first - mean) ** 2)))  # start state is drawn too
    assert abs(float(jnp.mean(total)) - mean) < 4.5 * (whole / n) ** 0.5
    # the sample variance has relative error about sqrt((kurtosis - 1)/n) < sqrt(2/n)
    assert float(jnp.var(total)) == pytest.approx(whole, rel=5 * (2 / n) ** 0.5)


@pytest.mark.parametrize("name", ["stop_continue", "umbrella"])
def test_paths_as_trajectories(name):
    env = envs.make(name, **({"length": 3} if name == "umbrella" else {}))
    model = env.exact
    table = jax.random.normal(jax.random.key(0), (model.observations, 2))
    paths = exact.enumerate_paths(model)
    trajectory, truth = jax.jit(lambda paths: exact.path_trajectories(env, paths, table))(paths)
    validate(trajectory)
    assert jnp.array_equal(trajectory.reward, paths.reward) and jnp.array_equal(trajectory.turn_mask, paths.mask)
    logp = jnp.sum(exact.path_logp(paths, table), axis=1)
    np.testing.assert_allclose(jnp.sum(trajectory.logp, axis=1), logp, rtol=1e-6)
    assert bool(jnp.all(trajectory.terminated))
    value, advantage = exact.path_values(exact.evaluate(model, table), paths)
    # conservation along a path: A_t = r_t + V_{t+1} - V_t wherever the outcome is certain
    if name == "stop_continue":
        np.testing.assert_allclose(advantage, paths.reward + value[:, 1:] - value[:, :-1], atol=1e-6)
        assert truth.judge.tolist() == [[-1, 0], [1, 1], [1, 1]] and truth.key_step.tolist() == [[1, 0], [1, 0], [1, 0]]
    words = [env.spec.vocabulary[int(t)] for t in trajectory.tokens[0] if int(t) != 0]
    assert words[0] == "<start>" and words[-1] == "<end>"


def test_enumeration_refuses_what_is_too_large():
    with pytest.raises(ValueError, match="more than 200000 trajectories"):
        exact.enumerate_paths(envs.make("umbrella", length=30).exact)
