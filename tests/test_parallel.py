"""One device and eight give the same update of a fixed batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax import envs, parallel, train
from agentjax.envs.tabular import token_ids
from agentjax.methods import METHODS
from agentjax.policies.tabular import tabular_policy
from agentjax.policies.transformer import TransformerConfig, transformer
from agentjax.types import Signals
from tests.factories import random_signals, random_trajectory

CONFIG = train.TrainConfig(groups=2, size=8)


def test_mesh_asks_for_devices_that_exist():
    assert parallel.make_mesh(8).shape == {"data": 8} and parallel.make_mesh().size == 1
    with pytest.raises(ValueError, match="data=9 asks for 9 devices, there are 8: .*0, .*7"):
        parallel.make_mesh(9)
    with pytest.raises(ValueError, match="data=0"):
        parallel.make_mesh(0)


def test_rows_are_spread_and_odd_arrays_are_left():
    mesh = parallel.make_mesh(8)
    tree = {
        "rows": jnp.zeros((16, 3)), "keys": jax.random.split(jax.random.key(0), 8), "odd": jnp.zeros(9),
        "scalar": jnp.float32(1),
    }  # fmt: skip
    out = jax.jit(parallel.shard_rows(mesh))(tree)
    assert out["rows"].sharding.shard_shape((16, 3)) == (2, 3)
    assert len(out["keys"].addressable_shards) == 8 and out["keys"].addressable_shards[0].data.shape == (1,)
    assert jax.tree.map(jnp.shape, out) == jax.tree.map(jnp.shape, tree)
    assert parallel.replicate(mesh, tree)["rows"].sharding.is_fully_replicated


def test_one_update_on_one_and_on_eight_devices():
    """A transformer, GRPO with its divergence to a reference, 16 rows of unequal lengths: equal to 1e-6."""
    policy = transformer(TransformerConfig(vocab=50, layers=1, width=16, heads=2, kv_heads=1, ffn=24))
    trajectory = random_trajectory(jax.random.key(2), 16)
    signals = random_signals(jax.random.key(3), trajectory)
    state = train.init_state(jax.random.key(0), policy.init(jax.random.key(4)), 1e-3, CONFIG)

    def updated(devices):
        mesh = parallel.make_mesh(devices)
        shard = parallel.shard_rows(mesh)

        def run(state, trajectory, signals):
            rows, given = shard((trajectory, signals))
            return train.update(policy, METHODS["grpo"], CONFIG, state, rows, given)

        given = Signals(reference_logp=signals.reference_logp)
        return jax.device_get(jax.jit(run)(*parallel.replicate(mesh, (state, trajectory, given))))

    (one, credit_one, metrics_one), (eight, credit_eight, metrics_eight) = updated(1), updated(8)
    np.testing.assert_allclose(credit_one.advantage, credit_eight.advantage, atol=1e-6)
    assert np.abs(credit_one.advantage).max() > 0.1
    moved = jax.tree.map(lambda new, old: np.abs(new - np.asarray(old)).max(), one.params, state.params)
    assert max(jax.tree.leaves(moved)) > 1e-4
    for ours, theirs in zip(jax.tree.leaves(one.params), jax.tree.leaves(eight.params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert metrics_one.keys() == metrics_eight.keys()
    for name, value in metrics_one.items():
        np.testing.assert_allclose(value, metrics_eight[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_whole_step_on_eight_devices():
    """Play, signals and update of a tabular task: the same tokens are drawn, and the same table comes out."""
    env = envs.make("stop_continue")
    policy = tabular_policy(len(env.spec.vocabulary), **token_ids(env.exact)._asdict())
    reference = policy.init(jax.random.key(0))
    state = train.init_state(jax.random.key(1), reference, 0.1, CONFIG)
    results = []
    for devices in (1, 8):
        mesh = parallel.make_mesh(devices)
        step = jax.jit(train.make_step(policy, env, METHODS["rloo"], CONFIG, shard=parallel.shard_rows(mesh)))
        after, metrics = step(*parallel.replicate(mesh, (state, reference)))
        results.append(jax.device_get((after.params, metrics)))
    (one, metrics_one), (eight, metrics_eight) = results
    np.testing.assert_allclose(one["table"], eight["table"], atol=1e-6)
    assert np.abs(one["table"]).max() == pytest.approx(0.1, rel=0.01)  # Adam's first step
    assert metrics_one.keys() == metrics_eight.keys()
    for name, value in metrics_one.items():
        np.testing.assert_allclose(value, metrics_eight[name], rtol=1e-6, atol=1e-6, err_msg=name)  # sums
