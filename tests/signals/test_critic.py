"""The learned critic against exact values."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax import envs
from agentjax.oracle import exact
from agentjax.signals.critic import critic, read
from tests import worlds
from tests.factories import written


def fitted(model, trajectory, hidden, updates):
    @jax.jit
    def run(key):
        state = model.init(key)
        before = model.apply(state, trajectory, hidden)
        state, metrics = jax.lax.scan(lambda s, _: model.update(s, trajectory, hidden), state, None, length=updates)
        return before, model.apply(state, trajectory, hidden), metrics["critic_loss"]

    return run(jax.random.key(0))


def test_exact_values_of_the_two_turn_task():
    """All paths, weighted by their probability: V = (q c, c) = (.2193, .3) at q = .7311, c = .3; 0 after the end."""
    env = envs.make("stop_continue")
    table = jnp.array([[0.0, 1.0], [0.3, -0.3]])
    paths = exact.enumerate_paths(env.exact)
    trajectory, _ = jax.jit(lambda paths: exact.path_trajectories(env, paths, table))(paths)
    trajectory = dataclasses.replace(trajectory, weight=exact.path_probability(paths, table))
    hidden = jax.nn.one_hot(trajectory.tokens, len(env.spec.vocabulary))  # what the policy read, as a hidden state
    model = critic(hidden.shape[-1], size=16, learning_rate=1e-2, steps=20)
    before, after, loss = fitted(model, trajectory, hidden, 20)
    assert (np.asarray(before["value"]) == 0).all()
    q, c = float(exact.policy(env.exact, table)[0, 1]), 0.3
    assert q * c == pytest.approx(0.2193, abs=1e-4)
    exact_value, _ = exact.path_values(exact.evaluate(env.exact, table), paths)
    np.testing.assert_allclose(after["value"], exact_value, atol=2e-3)
    assert float(after["value"][1, 0]) == pytest.approx(q * c, abs=2e-3)
    # what is left is the variance of the return: c^2 q (1 - q) on the first of 1 + q tokens
    assert float(loss[-1]) == pytest.approx(c**2 * q * (1 - q) / (1 + q), abs=1e-4)
    tokens = np.asarray(trajectory.action_mask)
    assert (np.asarray(after["token_value"])[~tokens] == 0).all()


def test_where_values_are_read():
    """V before a token is that of the slot before it, padding skipped; after the last turn only where truncated."""
    trajectory = written(
        "p o0 a0 a0 . o1 a1 o2", "p o0 . a0 a0 o1 . .", reward=[[0, 1], [1, 0]],
        terminated=[True, False], truncated=[False, True],
    )  # fmt: skip
    hidden = jax.random.normal(jax.random.key(1), (2, 8, 4))
    model = critic(4, size=8, steps=30)
    _, found, _ = fitted(model, trajectory, hidden, 1)
    token, value = np.asarray(found["token_value"]), np.asarray(found["value"])
    assert (token != 0).tolist() == [[0, 0, 1, 1, 0, 0, 1, 0], [0, 0, 0, 1, 1, 0, 0, 0]]
    assert value[0].tolist() == [token[0, 2], token[0, 6], 0.0]
    assert value[1, 0] == token[1, 3] and value[1, 1] != 0 and value[1, 2] == 0
    state = model.init(jax.random.key(0))
    state, _ = model.update(state, trajectory, hidden)
    reads = {(0, 2): 1, (0, 3): 2, (0, 6): 5, (1, 3): 1, (1, 4): 3}  # token slot -> slot of the state it is read from
    token_slope, value_slope = jax.jit(
        jax.jacrev(lambda h: tuple(model.apply(state, trajectory, h)[name] for name in ("token_value", "value")))
    )(hidden)
    for (b, s), source in reads.items():
        assert sources(token_slope[b, s]) == [(b, source)]
    assert sources(value_slope[1, 1]) == [(1, 5)] and sources(value_slope[0, 2]) == []


def sources(slope):
    """(row, slot) of the hidden states with a slope."""
    return [tuple(x) for x in np.argwhere(np.asarray(slope != 0).any(axis=-1)).tolist()]


@pytest.mark.allow_nan
def test_missing_and_dead_rows_teach_nothing():
    hidden = jnp.ones((3, 3, 4))
    trajectory = written(*["p o0 a0"] * 3, reward=[[1.0], [np.nan], [50.0]], weight=[1.0, 1.0, 0.0])
    _, found, loss = fitted(critic(4, size=8, learning_rate=3e-2, steps=20), trajectory, hidden, 10)
    np.testing.assert_allclose(found["value"][:, 0], 1.0, atol=0.02)
    assert bool(jnp.isfinite(loss).all())


def test_the_policy_is_not_touched():
    """`read` carries no gradient, and gives the hidden states from which the policy's own logits come."""
    policy, params = worlds.tiny()
    trajectory = dataclasses.replace(written("p o0 a0 a0 o1"), tokens=jnp.array([[4, 5, 6, 7, 2]], jnp.int32))

    def total(params):
        hidden = read(policy, params, trajectory)
        return jnp.sum(hidden), policy.logits(params, hidden)

    (_, logits), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
    assert all(bool(jnp.all(leaf == 0)) for leaf in jax.tree.leaves(gradient))
    np.testing.assert_allclose(logits[0], worlds.numpy_logits(params, [4, 5, 6, 7, 2]), atol=2e-5)
