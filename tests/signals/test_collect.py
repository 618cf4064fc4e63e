"""Signals of a task whose every number is known."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax import envs
from agentjax.envs.tabular import token_ids
from agentjax.oracle import exact
from agentjax.policies.tabular import tabular_policy
from agentjax.rollout import rollout
from agentjax.signals import collect as module
from agentjax.signals.collect import FILLED, Wishes
from agentjax.signals.judges import Judge
from agentjax.types import Signals

pytestmark = pytest.mark.allow_nan  # turns that were not acted have no vote
ENV = envs.make("stop_continue")
TABLE = jnp.array([[0.0, 1.0], [0.3, -0.3]])
POLICY = tabular_policy(len(ENV.spec.vocabulary), **token_ids(ENV.exact)._asdict(), hint_gain=float(np.log(3.0)))
WISHES = Wishes(needs=FILLED, judge=Judge("J1"), hint="gold", oracle_samples=32)


@functools.cache
def everything():
    reference = {"table": jnp.zeros((2, 2))}

    @jax.jit
    def run(key, params):
        play_key, key = jax.random.split(key)
        played = rollout(play_key, POLICY, params, ENV, ENV.params, groups=4, size=4)
        return played, module.collect(key, WISHES, POLICY, params, reference, ENV, played)

    return run(jax.random.key(5), {"table": TABLE})


def test_every_signal_of_a_known_task():
    """The teacher is the frozen start (a table of zeros) with a hint worth log 3: 3/4 where followed, else 1/4."""
    played, signals = everything()
    tr, said = played.trajectory, np.asarray(played.trajectory.action_mask)
    filled = {f.name for f in dataclasses.fields(Signals) if getattr(signals, f.name) is not None}
    assert filled == set(FILLED)
    np.testing.assert_allclose(np.asarray(signals.reference_logp)[said], np.log(0.5), atol=1e-6)
    actions = token_ids(ENV.exact).action
    followed = np.asarray(tr.tokens) == np.asarray(actions)[np.where(np.asarray(tr.turn) == 0, 1, 0)]
    expected = np.where(followed, np.log(0.75), np.log(0.25))
    np.testing.assert_allclose(np.asarray(signals.teacher_logp)[said], expected[said], atol=1e-6)
    assert (np.asarray(signals.teacher_logp)[~said] == 0).all() and len(np.unique(followed[said])) == 2
    acted = np.asarray(tr.turn_mask)
    assert (np.asarray(signals.judge)[acted] == np.asarray(played.truth.judge)[acted]).all()
    assert jax.dtypes.issubdtype(signals.permutation_key.dtype, jax.dtypes.prng_key)


def test_oracle_credit_and_pairs():
    """A(go) = c (1 - q), A(stop) = -c q, nothing hangs on turn 1; 32 samples of deviation c sqrt(q (1 - q)) each."""
    played, signals = everything()
    tr = played.trajectory
    went = np.asarray(tr.turn_mask[:, 1])
    q, c = float(exact.policy(ENV.exact, TABLE)[0, 1]), 0.3
    bound = 4.5 * c * (q * (1 - q) / 32) ** 0.5
    assert np.abs(np.asarray(signals.oracle_turn)[:, 0] - np.where(went, c * (1 - q), -c * q)).max() < bound
    assert np.abs(np.asarray(signals.oracle_turn)[:, 1]).max() < 1e-6
    first = ENV.spec.action_at(0)
    np.testing.assert_allclose(signals.oracle_token[:, first], signals.oracle_turn[:, 0], atol=1e-6)
    pairs = np.asarray(signals.pairs)
    pairs = pairs[pairs[:, 0] >= 0]
    assert len(pairs) and went[pairs[:, 0]].all() and not went[pairs[:, 1]].any()
    assert (pairs[:, 0] // 4 == pairs[:, 1] // 4).all()


def test_only_what_is_wished():
    played, _ = everything()
    signals = module.collect(jax.random.key(0), Wishes(needs=("pairs",)), POLICY, {}, {}, ENV, played)
    assert signals.pairs is not None
    assert all(getattr(signals, f.name) is None for f in dataclasses.fields(Signals) if f.name != "pairs")


def test_what_nobody_fills_is_named_before_any_compute():
    wishes = Wishes(needs=("value", "pairs", "token_value"))
    with pytest.raises(ValueError, match="nothing fills the signals value, token_value; pass a SignalModel"):
        module.check(wishes)
    with pytest.raises(ValueError, match="value, token_value"):
        module.collect(jax.random.key(0), wishes, None, None, None, ENV, None)
