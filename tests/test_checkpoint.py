"""Resuming is exact; nothing is ever overwritten by a run with other settings."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax import checkpoint, envs, train
from agentjax.envs.tabular import token_ids
from agentjax.methods import METHODS
from agentjax.policies.tabular import tabular_policy

CONFIG = train.TrainConfig(groups=1, size=8)
SETTINGS = {"method": "rloo", "learning_rate": 0.1, "sizes": [1, 8]}


def fresh(step=0):
    state = train.init_state(jax.random.key(1), {"table": jnp.arange(4.0).reshape(2, 2)}, 0.1, CONFIG)
    return dataclasses.replace(state, step=jnp.int32(step))


def same(one, other):
    plain = lambda x: np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)  # noqa: E731
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        a.dtype == b.dtype and np.array_equal(plain(a), plain(b)) for a, b in pairs
    )


def test_two_and_two_steps_are_four(tmp_path):
    env = envs.make("stop_continue")
    policy = tabular_policy(len(env.spec.vocabulary), **token_ids(env.exact)._asdict())
    step = jax.jit(train.make_step(policy, env, METHODS["rloo"], CONFIG))
    reference = policy.init(jax.random.key(0))
    state = train.init_state(jax.random.key(3), reference, 0.1, CONFIG)
    states = [state]
    for _ in range(4):
        states.append(step(states[-1], reference)[0])
    checkpoint.save(tmp_path / "run", states[2], SETTINGS)
    resumed = checkpoint.restore(tmp_path / "run", fresh(), SETTINGS)
    assert same(resumed, states[2]) and not same(resumed, states[1])
    for _ in range(2):
        resumed = step(resumed, reference)[0]
    assert same(resumed, states[4])
    assert float(jnp.abs(resumed.params["table"]).max()) > 0.1


def test_the_newest_is_restored_and_two_are_kept(tmp_path):
    assert checkpoint.latest_step(tmp_path / "run") is None
    for step in (1, 2, 3):
        checkpoint.save(tmp_path / "run", fresh(step), SETTINGS)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["2", "3"]
    assert checkpoint.latest_step(tmp_path / "run") == 3
    assert same(checkpoint.restore(tmp_path / "run", fresh(), SETTINGS), fresh(3))


def test_a_batch_of_seeds(tmp_path):
    keys = jax.random.split(jax.random.key(0), 3)
    states = jax.vmap(lambda key: train.init_state(key, {"table": jnp.ones(2)}, 0.1, CONFIG))(keys)
    states = dataclasses.replace(states, step=jnp.array([4, 5, 5], jnp.int32))
    checkpoint.save(tmp_path, states, SETTINGS)
    assert checkpoint.latest_step(tmp_path) == 5
    assert same(checkpoint.restore(tmp_path, jax.tree.map(jnp.zeros_like, states), SETTINGS), states)


def test_other_settings_are_named_and_change_nothing(tmp_path):
    checkpoint.save(tmp_path, fresh(2), SETTINGS)
    other = {"method": "grpo", "sizes": [1, 8], "epochs": 2}
    message = "epochs was 'nothing', is 2; learning_rate was 0.1, is 'nothing'; method was 'rloo', is 'grpo'"
    with pytest.raises(ValueError, match=message):
        checkpoint.restore(tmp_path, fresh(), other)
    with pytest.raises(ValueError, match=message):
        checkpoint.save(tmp_path, fresh(3), other)
    assert checkpoint.latest_step(tmp_path) == 2
    assert same(checkpoint.restore(tmp_path, fresh(), SETTINGS), fresh(2))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # orbax's threads, on damaged files
def test_missing_damaged_and_unwritable_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no checkpoint in {tmp_path / 'none'}"):
        checkpoint.restore(tmp_path / "none", fresh(), SETTINGS)
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=f"cannot write checkpoints to {tmp_path / 'file' / 'run'}"):
        checkpoint.save(tmp_path / "file" / "run", fresh(), SETTINGS)
    run = tmp_path / "run"
    for step in (1, 2):
        checkpoint.save(run, fresh(step), SETTINGS)
    for path in (run / "2").rglob("*"):
        if path.is_file() and path.parent.name == "d":
            path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ValueError, match=f"{run / '2'} is damaged or of another shape"):
        checkpoint.restore(run, fresh(), SETTINGS)
    shutil.rmtree(run / "2")
    assert same(checkpoint.restore(run, fresh(), SETTINGS), fresh(1))
