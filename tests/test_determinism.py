"""Same seed, same machine: the same bits, from play to the updated parameters, in a fresh compilation too."""

import jax
import numpy as np
import pytest

from agentjax import envs, train
from agentjax.envs.tabular import token_ids
from agentjax.methods import METHODS
from agentjax.policies.tabular import tabular_policy

CONFIG = train.TrainConfig(groups=2, size=4)


def bits(tree):
    """Every leaf as bytes."""
    plain = lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x  # noqa: E731
    return [np.asarray(plain(x)).tobytes() for x in jax.tree.leaves(tree)]


def run(seed, method="prm_opd"):
    """Three steps with judge, hints and reference; every call is traced and compiled anew."""
    env = envs.make("random_mdp", horizon=2)
    policy = tabular_policy(len(env.spec.vocabulary), **token_ids(env.exact)._asdict())
    reference = policy.init(jax.random.key(0))
    state = train.init_state(jax.random.key(seed), reference, 0.1, CONFIG)
    step = train.make_step(policy, env, METHODS[method], CONFIG)
    return jax.jit(lambda s, r: train.run_steps(step, s, r, 3))(state, reference)


@pytest.fixture(scope="module")
def first():
    return run(1)


def test_same_seed_same_bits(first):
    assert bits(run(1)) == bits(first)
    assert float(abs(first[0].params["table"]).max()) > 0.05


def test_another_seed_gives_another_run():
    env = envs.make("random_mdp", horizon=2)
    policy = tabular_policy(len(env.spec.vocabulary), **token_ids(env.exact)._asdict())
    reference = policy.init(jax.random.key(0))
    step = train.make_step(policy, env, METHODS["prm_opd"], CONFIG)
    both = jax.jit(jax.vmap(lambda s: train.run_steps(step, s, reference, 3)))(
        jax.vmap(lambda key: train.init_state(key, reference, 0.1, CONFIG))(jax.random.split(jax.random.key(5), 2))
    )
    one, other = (bits(jax.tree.map(lambda x, i=i: x[i], both[0].params)) for i in (0, 1))
    assert one != other
