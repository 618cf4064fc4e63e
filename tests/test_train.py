"""The training step: updates go where the credit points, bad numbers stop the run, and GRPO learns."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax import envs, train
from agentjax.envs.tabular import token_ids
from agentjax.methods import METHODS, Method
from agentjax.oracle import exact
from agentjax.policies.base import score_tokens
from agentjax.policies.tabular import tabular_policy
from agentjax.rollout import rollout
from agentjax.signals.collect import collect
from agentjax.signals.critic import critic
from agentjax.types import Signals
from tests import worlds
from tests.factories import written

CONFIG = train.TrainConfig(groups=2, size=4)


@functools.cache
def task(name="stop_continue", **sizes):
    env = envs.make(name, **sizes)
    return env, tabular_policy(len(env.spec.vocabulary), **token_ids(env.exact)._asdict())


# learning


def learned(method, env, policy, steps, rate, **config):
    """(table, metrics) after `steps` steps from the uniform policy."""
    config = train.TrainConfig(**config)
    reference = policy.init(jax.random.key(0))
    state = train.init_state(jax.random.key(1), reference, rate, config)
    step = train.make_step(policy, env, METHODS[method], config)
    state, metrics = jax.jit(lambda s, r: train.run_steps(step, s, r, steps), donate_argnums=0)(state, reference)
    train.raise_if_broken(state)
    assert int(state.step) == steps
    return state.params["table"], jax.device_get(metrics)


def test_grpo_learns_to_continue():
    """The best that can be earned is c = .3, by going with probability 1; half of it at the start."""
    env, policy = task()
    table, metrics = learned("grpo", env, policy, 60, 0.1, groups=2, size=8)
    assert float(exact.expected_return(env.exact, table)) > 0.95 * 0.3
    assert metrics["success"].shape == (60,) and metrics["success"][:5].mean() < 0.24 < metrics["success"][-10:].mean()
    assert set(metrics) >= {"success", "turns", "gradient_tokens", "dead_groups", "gradient_norm"}
    # a stop costs one action token, a go two
    tokens, earned = metrics["gradient_tokens"], metrics["success"] * 16 / 0.3
    np.testing.assert_allclose(tokens, 16 + earned, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rloo", "dr_grpo", "oracle_token", "prm_j1", "opd_gold", "dpo"])
def test_other_methods_learn_to_continue(name):
    """The right judge, the right hint or the truth: all end near c. OPD ends at its teacher, which goes with .88."""
    env, policy = task()
    table, _ = learned(name, env, policy, 60, 0.1, groups=2, size=8)
    assert float(exact.expected_return(env.exact, table)) > (0.8 if name == "opd_gold" else 0.9) * 0.3


GAE = Method("gae", "gae", kl_coefficient=0.0)


def test_gae_learns_with_a_critic_that_learns_along():
    """On one-hot hidden states (the tabular policy's own are its logits, equal at first): V(bonus) goes to c."""
    env, tabular = task()
    vocab = len(env.spec.vocabulary)

    def apply(params, tokens, layout):
        hidden, cache = tabular.apply(params, tokens, layout)
        return jnp.concatenate([hidden, jax.nn.one_hot(tokens, vocab)], axis=-1), cache

    policy = tabular._replace(apply=apply, logits=lambda params, hidden: tabular.logits(params, hidden[..., :2]))
    config, model = train.TrainConfig(groups=2, size=8), critic(2 + vocab, size=16, learning_rate=1e-2)
    reference = policy.init(jax.random.key(0))
    state = train.init_state(jax.random.key(1), reference, 0.1, config, critic=model.init(jax.random.key(2)))
    step = train.make_step(policy, env, GAE, config, critic=model)
    state, metrics = jax.jit(lambda s, r: train.run_steps(step, s, r, 60))(state, reference)
    train.raise_if_broken(state)
    assert float(exact.expected_return(env.exact, state.params["table"])) > 0.9 * 0.3
    assert float(metrics["critic_loss"][-1]) < 0.1 * float(metrics["critic_loss"][0])


# one update of a fixed batch


SMALL = train.TrainConfig(groups=2, size=2)
DIAL = worlds.dial()


@functools.cache
def dial_batch():
    policy, params = worlds.tiny()
    play = jax.jit(lambda key: rollout(key, policy, params, DIAL, DIAL.params, groups=4, size=4))
    return play(jax.random.key(7))


@pytest.mark.slow
@pytest.mark.allow_nan
@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].update])
def test_one_update_follows_the_credit(name):
    """Every method: the loss falls, and sum credit x (new - old log-probability) over the action tokens is positive."""
    policy, params = worlds.tiny()
    method = dataclasses.replace(METHODS[name], oracle_samples=min(METHODS[name].oracle_samples, 4), kl_coefficient=0.0)
    played = dial_batch()
    assert float(jnp.ptp(played.trajectory.reward.sum(axis=1))) > 0

    @jax.jit
    def run(key, params, played):
        signals = collect(key, train.wishes_of(method, SMALL), policy, params, params, DIAL, played)
        state = train.init_state(jax.random.key(0), params, 1e-4, SMALL)
        after, credit, _ = train.update(policy, method, SMALL, state, played.trajectory, signals)
        losses = [
            train.loss_of(policy, method, SMALL, p, played.trajectory, signals, credit)[0]
            for p in (params, after.params)
        ]
        moved = train.outputs_of(policy, after.params, played.trajectory, SMALL).logp - played.trajectory.logp
        return losses, jnp.sum(credit.advantage * moved), credit.advantage, after.broken

    losses, along, advantage, broken = run(jax.random.key(3), params, played)
    assert int(broken) == 0 and float(jnp.abs(advantage).max()) > 0
    assert float(losses[1]) < float(losses[0])
    assert float(along) > 0


def tabular_batch():
    """Two turns, two rollouts: go then stop (return .3), and stop (return 0)."""
    trajectory = written("p o0 a0 o1 a1 o2", "p o0 a0 o1 . .", reward=[[0, 0.3], [0, 0]])
    ids = token_ids(task()[0].exact)
    tokens = jnp.array([[1, 0, 0, 0, 0, 2], [1, 0, 0, 2, 0, 0]], jnp.int32)
    tokens = tokens.at[:, 1].set(ids.observation[0]).at[0, 3].set(ids.observation[1])
    tokens = tokens.at[0, 2].set(ids.action[1]).at[0, 4].set(ids.action[0]).at[1, 2].set(ids.action[0])
    logp = jnp.where(trajectory.action_mask, jnp.log(0.5), 0.0)
    return dataclasses.replace(trajectory, tokens=tokens, logp=logp)


def tabular_update(method, trajectory, table=None, signals=None, policy=None, **config):
    policy = policy or task()[1]
    config = train.TrainConfig(groups=1, size=2, **config)
    table = jnp.zeros((2, 2)) if table is None else table
    state = train.init_state(jax.random.key(0), {"table": table}, 0.01, config)
    signals = signals or Signals(reference_logp=trajectory.logp)
    return state, *jax.jit(functools.partial(train.update, policy, method, config))(state, trajectory, signals)


def test_one_update_by_hand():
    """RLOO: credit +.3 on go and on the action after it, -.3 on the other row's stop; Adam's first step is the rate.

    "go" rises on both counts. At the second turn only "stop" was tried, and it is praised.
    """
    method = dataclasses.replace(METHODS["rloo"], kl_coefficient=0.0)
    _, after, credit, metrics = tabular_update(method, tabular_batch())
    np.testing.assert_allclose(credit.advantage, [[0, 0, 0.3, 0, 0.3, 0], [0, 0, -0.3, 0, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(after.params["table"], [[-0.01, 0.01], [0.01, -0.01]], rtol=1e-4)
    # token mean over 3: slopes .3/3 (1/2) on each logit, twice at the fork: norm sqrt(2 (.1^2 + .05^2))
    assert float(metrics["gradient_norm"]) == pytest.approx(np.sqrt(2 * (0.1**2 + 0.05**2)), rel=1e-4)
    assert int(after.broken) == 0 and int(after.step) == 0


def test_frozen_learns_nothing():
    before, after, credit, metrics = tabular_update(METHODS["frozen"], tabular_batch())
    assert bool(jnp.array_equal(before.params["table"], after.params["table"])) and metrics == {}
    assert float(jnp.abs(credit.advantage).max()) > 0.5, "its credit is still measured"
    env, policy = task()
    table, metrics = learned("frozen", env, policy, 3, 0.2, groups=1, size=4)
    assert bool((table == 0).all()) and set(metrics) == {"success", "turns", "gradient_tokens", "dead_groups"}


def test_clipping_bounds_the_update_from_the_second_epoch_on():
    """Ratio clip: with 200 epochs at .01 the ratio of a praised token stops near 1.28, Adam's momentum aside."""
    method = dataclasses.replace(METHODS["rloo"], kl_coefficient=0.0)
    _, after, _, _ = tabular_update(method, tabular_batch(), epochs=200)
    _, policy = task()
    tr = tabular_batch()
    logp, _ = score_tokens(policy, after.params, tr.tokens, tr.valid, tr.action_mask, tr.temperature)
    ratio = np.exp(np.asarray(logp - tr.logp))[np.asarray(tr.action_mask)]
    assert 1.28 < ratio[0] < 1.6 and ratio[2] < 0.8


@pytest.mark.allow_nan
def test_a_loss_that_is_not_finite_stops_the_run():
    method = dataclasses.replace(METHODS["rloo"], kl_coefficient=0.0)
    trajectory = tabular_batch()
    bad = dataclasses.replace(trajectory, logp=trajectory.logp.at[0, 2].set(jnp.nan))
    before, after, _, _ = tabular_update(method, bad, table=jnp.ones((2, 2)))
    assert int(after.broken) == 1
    assert all(
        bool(jnp.array_equal(a, b))
        for a, b in zip(jax.tree.leaves((before.params, before.opt_state)),
                        jax.tree.leaves((after.params, after.opt_state)), strict=True)
    )  # fmt: skip
    with pytest.raises(FloatingPointError, match="the loss was not finite; parameters and optimiser are those of"):
        train.raise_if_broken(after)
    # it stays stopped, whatever comes next, also among healthy seeds
    config = train.TrainConfig(groups=1, size=2)
    update = jax.jit(functools.partial(train.update, task()[1], method, config))
    again, _, _ = update(after, trajectory, Signals())
    assert int(again.broken) == 1 and bool(jnp.array_equal(again.params["table"], before.params["table"]))
    with pytest.raises(FloatingPointError, match="loss"):
        train.raise_if_broken(jax.tree.map(lambda a, b: jnp.stack([a, b]), before, after))
    train.raise_if_broken(before)


@pytest.mark.allow_nan
def test_a_gradient_that_is_not_finite_stops_the_run():
    """0 x sqrt(sum of squares) is 0 at a table of zeros, and has no slope there."""
    _, policy = task()
    broken = policy._replace(logits=lambda p, h: policy.logits(p, h) + 0.0 * jnp.sqrt(jnp.sum(jnp.square(p["table"]))))
    method = dataclasses.replace(METHODS["rloo"], kl_coefficient=0.0)
    before, after, _, _ = tabular_update(method, tabular_batch(), policy=broken)
    assert int(after.broken) == 2 and bool(jnp.array_equal(after.params["table"], before.params["table"]))
    with pytest.raises(FloatingPointError, match="the gradient was not finite"):
        train.raise_if_broken(after)


# the rest


def test_batch_metrics_by_hand():
    """Returns .3 and 0 in one group, twice 1 in another: success 2.3 / 4, one dead group of two."""
    trajectory = written(*["p o0 a0"] * 4, reward=[[0.3], [0], [1], [1]], group=[1, 1, 3, 3])
    metrics = jax.jit(train.batch_metrics)(trajectory)
    assert {k: round(float(v), 4) for k, v in metrics.items()} == {
        "success": 0.575, "turns": 4.0, "gradient_tokens": 4.0, "dead_groups": 0.5,
    }  # fmt: skip


def test_bad_settings_and_missing_signals_raise_before_any_compute():
    with pytest.raises(ValueError, match="groups, size and epochs must be at least 1, got 0, 8, 1"):
        train.TrainConfig(groups=0)
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        train.TrainConfig(temperature=0.0)
    env, policy = task()
    with pytest.raises(ValueError, match="nothing fills the signals value"):
        train.make_step(policy, env, GAE, CONFIG)
