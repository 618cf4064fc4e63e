"""The branch oracle against enumeration on every tabular environment, judged with exact variances."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from agentjax import envs
from agentjax.envs import ENVS
from agentjax.envs.tabular import TabularModel, TabularState, tabular_env, token_ids
from agentjax.oracle import branch, exact
from agentjax.policies.tabular import tabular_policy
from agentjax.rollout import rollout

TASKS = {"random_mdp": {}, "stop_continue": {}, "umbrella": {"length": 4}}
DOUBT = 1e-4  # chance that a right oracle fails one of these tests


def play(env, table):
    """(policy, params, 32 rollouts of a table)."""
    policy = tabular_policy(len(env.spec.vocabulary), **token_ids(env.exact)._asdict())
    program = jax.jit(lambda key, params: rollout(key, policy, params, env, env.params, groups=4, size=8))
    return policy, {"table": table}, program(jax.random.key(3), {"table": table})


@functools.cache
def world(name):
    """(env, table, policy, params, played) of a random table."""
    env = envs.make(name, **TASKS[name])
    table = jax.random.normal(jax.random.key(5), (env.exact.observations, env.exact.prob.shape[1]))
    return env, table, *play(env, table)


@functools.cache
def measured(name, samples, epsilon=0.0):
    """(compiled, oracle, truth): V and Q of every turn [B,T,2], exact variances of one sample, what was acted."""
    env, table, policy, params, played = world(name)
    measure = functools.partial(branch.measure, samples=samples, expert_epsilon=epsilon)
    program = jax.jit(lambda key, params, played: measure(key, policy, params, env, played))
    compiled = program.lower(jax.random.key(9), params, played).compile()
    return compiled, compiled(jax.random.key(9), params, played), truth(env, table, played)


def truth(env, table, played):
    model, trajectory = env.exact, played.trajectory
    values, variance = exact.evaluate(model, table), exact.return_variance(model, table)
    state = played.env_states.index[:, :-1]
    turn = jnp.arange(state.shape[1])[None, :]
    action = jnp.clip(trajectory.tokens[:, env.spec.action_at(turn[0])] - token_ids(model).action[0], 0)
    at = lambda x, y: np.stack([x[turn, state], y[turn, state, action]], axis=2)  # noqa: E731
    return at(values.value, values.q), at(variance.state, variance.action), np.asarray(trajectory.turn_mask)


def assert_agrees(error, variance):
    """Independent errors against their exact variances: none too large (Bonferroni), the sum of squares as expected.

    Where the variance is 0 there is nothing random: the numbers are equal up to rounding.
    """
    sure = variance < 1e-10
    assert np.abs(error[sure]).max(initial=0.0) < 1e-5
    z = error[~sure] / np.sqrt(variance[~sure])
    if not z.size:
        return
    assert np.abs(z).max() < stats.norm.isf(DOUBT / 2 / z.size)
    low, high = stats.chi2.ppf([DOUBT / 2, 1 - DOUBT / 2], z.size)
    assert low < np.sum(z**2) < high
    assert abs(z.mean()) < stats.norm.isf(DOUBT / 2) / z.size**0.5


def test_every_tabular_environment_is_covered():
    assert {name for name in ENVS if envs.make(name).exact is not None} == set(TASKS)


@pytest.mark.parametrize("name", TASKS)
def test_values_and_advantages_by_enumeration(name):
    samples = 256
    _, oracle, (value, variance, acted) = measured(name, samples)
    error = np.asarray(oracle.value.mean) - value
    for place in (0, 1):  # rows and turns are independent, the two places of a turn share random numbers
        assert_agrees(error[..., place][acted], variance[..., place][acted] / samples)
    advantage = np.asarray(oracle.turn.mean) - (value[..., 1] - value[..., 0])
    widest = (np.sqrt(variance[..., 0]) + np.sqrt(variance[..., 1])) / samples**0.5  # whatever their correlation
    assert (np.abs(advantage) <= stats.norm.isf(DOUBT / 2 / acted.sum()) * widest + 1e-5)[acted].all()
    assert np.abs(advantage[acted]).mean() < 0.1 < np.abs(oracle.turn.mean)[acted].max()
    for moments in (oracle.value, oracle.turn):
        assert (np.asarray(moments.mean)[~acted] == 0).all() and (np.asarray(moments.error)[~acted] == 0).all()


@pytest.mark.parametrize("name", TASKS)
def test_standard_error_is_the_exact_one(name):
    """The mean of 256 samples has variance var / 256; its estimate has relative error sqrt((kurtosis - 1) / 256)."""
    _, oracle, (_, variance, acted) = measured(name, 256)
    expected = np.sqrt(variance[acted] / 256)
    np.testing.assert_allclose(np.asarray(oracle.value.error)[acted], expected, rtol=0.5, atol=1e-5)
    assert np.asarray(oracle.value.error)[acted].mean() == pytest.approx(expected.mean(), rel=0.05)


def test_error_shrinks_as_one_over_root_k():
    """log2 of the root mean square error against log2 K: slope -1/2; every point within its chi-square band."""
    sizes, errors = (4, 32, 256), []
    for samples in sizes:
        _, oracle, (value, variance, acted) = measured("random_mdp", samples)
        error = (np.asarray(oracle.value.mean) - value)[..., 0][acted]
        expected = np.sqrt(variance[..., 0][acted].mean() / samples)
        errors.append(np.sqrt(np.mean(error**2)))
        # n = 96 errors: relative deviation sqrt((kurtosis - 1) / n) / 2 of a root mean square, about .07
        assert errors[-1] == pytest.approx(expected, rel=0.3)
    slope = np.polyfit(np.log2(sizes), np.log2(errors), 1)[0]
    # the three log2 errors have deviation .07 / ln 2 = .1, the slope .1 / sqrt(sum (log2 K - 5)^2 = 18) = .024
    assert slope == pytest.approx(-0.5, abs=0.1)


def test_memory_does_not_grow_with_samples():
    small, large = (measured("random_mdp", k)[0].memory_analysis().temp_size_in_bytes for k in (4, 256))
    assert small > 0 and large == pytest.approx(small, rel=0.01)


def combination(turns, actions=3):
    """A lock: one right action per turn, any other ends the episode with nothing; the last right one pays 1."""
    end = turns
    following = np.full((turns + 1, actions, 1), end)
    following[range(turns), np.arange(turns) % actions, 0] = np.arange(1, turns + 1)
    reward = np.zeros(following.shape)
    reward[turns - 1, (turns - 1) % actions] = 1.0
    model = TabularModel(
        obs=jnp.append(jnp.arange(turns, dtype=jnp.int32), 0),
        start=jnp.eye(turns + 1)[0],
        prob=jnp.ones(following.shape),
        next=jnp.asarray(following, jnp.int32),
        reward=jnp.asarray(reward, jnp.float32),
        terminal=jnp.arange(turns + 1) == end,
        horizon=turns,
        observations=turns,
    )
    words = tuple(f"{i}" for i in range(actions)), tuple(f"dial{i}" for i in range(turns))
    return tabular_env("lock", model, action_words=words[0], observation_words=words[1])


def test_defensive_mixture_where_success_is_rare():
    """Success .1^4 = 1e-4 from the start: one plain sample has deviation sqrt(1e-4) = 1e-2, one of the mixture

    pi sqrt(1/m - 1) = 1.38e-4,  m = pi / 2 + e / 2,  pi = 1e-4,  e = (.9 + .1 * .1)^4 = .6857
    """
    env, samples = combination(4), 64
    table = jnp.log(jnp.where(jnp.arange(3)[None, :] == (jnp.arange(4) % 3)[:, None], 0.1, 0.45))
    policy, params, played = play(env, table)
    program = jax.jit(
        lambda key, params, played: branch.measure(
            key, policy, params, env, played, samples=samples, expert_epsilon=0.1
        ).value.mean[:, 0, 0]
    )
    found = np.asarray(program(jax.random.key(9), params, played))
    assert float(exact.expected_return(env.exact, table)) == pytest.approx(1e-4)
    assert np.allclose(exact.return_variance(env.exact, table).state[0, 0], 1e-4 * (1 - 1e-4))
    pi, e = 1e-4, 0.91**4
    variance = pi**2 * (2 / (pi + e) - 1)
    assert variance**0.5 == pytest.approx(1.38e-4, rel=0.01)
    assert_agrees(found - pi, np.full(found.shape, variance / samples))


def test_defensive_mixture_by_enumeration():
    """E[w R] = V, and the variance of w R is E_pi[w R^2] - V^2, w = 1 / (1/2 + e / (2 pi)), over all paths."""
    samples, epsilon = 256, 0.3
    env, table, _, _, played = world("random_mdp")
    _, oracle, (value, _, acted) = measured("random_mdp", samples, epsilon)
    variance = mixture_variance(env, table, epsilon)[
        np.arange(env.exact.horizon)[None, :], np.asarray(played.env_states.index)[:, :-1]
    ]
    error = (np.asarray(oracle.value.mean) - value)[..., 0]
    assert_agrees(error[acted], variance[acted] / samples)


def mixture_variance(env, table, epsilon):
    """[T,N]: variance of one weighted return, NaN where a state cannot be met."""
    model = env.exact
    paths = exact.enumerate_paths(model)
    turns = jnp.broadcast_to(jnp.arange(model.horizon, dtype=jnp.int32)[None, :], paths.action.shape)
    expert = jax.vmap(jax.vmap(env.expert))(TabularState(index=paths.state[:, :-1], turn=turns))[..., 0]
    pi = np.exp(np.asarray(exact.path_logp(paths, table), np.float64))
    soft = (1 - epsilon) * np.asarray(expert - token_ids(model).action[0] == paths.action) + epsilon * pi
    chance, state, mask = (np.asarray(x) for x in (exact.path_probability(paths, table), paths.state, paths.mask))
    back = lambda fold, x: fold(np.asarray(x)[:, ::-1], axis=1)[:, ::-1]  # noqa: E731
    weight = 1 / (0.5 + 0.5 * back(np.cumprod, np.where(mask, soft / pi, 1.0)))
    togo, value = back(np.cumsum, paths.reward), np.asarray(exact.evaluate(model, table).value)
    variance = np.full((model.horizon, model.obs.size), np.nan)
    for t in range(model.horizon):
        for s in np.unique(state[mask[:, t], t]):
            here = mask[:, t] & (state[:, t] == s)
            variance[t, s] = np.average((weight * togo**2)[here, t], weights=chance[here]) - value[t, s] ** 2
    return variance


@pytest.mark.parametrize("tokens", [True, False])
def test_the_ladder_holds_what_fewer_samples_would_have_given(tokens):
    env, table, policy, params, played = world("umbrella")
    measure = functools.partial(branch.measure, tokens=tokens)
    run = jax.jit(lambda k, n, at: measure(k, policy, params, env, played, samples=n, at=at), static_argnums=(1, 2))
    whole = run(jax.random.key(4), 5, (1, 3, 5))
    for (token, turn), samples in zip(whole.ladder, (1, 3, 5), strict=True):
        alone = run(jax.random.key(4), samples, ())
        np.testing.assert_allclose(token, alone.token.mean, atol=1e-6)
        np.testing.assert_allclose(turn, alone.turn.mean, atol=1e-6)
        assert alone.ladder == ()
    with pytest.raises(ValueError, match="at .* must hold numbers from 1 to samples = 2"):
        run(jax.random.key(4), 2, (3,))
