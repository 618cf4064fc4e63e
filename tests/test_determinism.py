"""Same seed, same machine: the same bits, from play to the updated parameters, in a fresh compilation too."""

import jax
import numpy as np

from agentjax import envs, train
from agentjax.envs.tabular import token_ids
from agentjax.methods import METHODS
from agentjax.policies.tabular import tabular_policy

CONFIG = train.TrainConfig(groups=2, size=4)


def bits(tree):
    """Every leaf as bytes."""
    plain = lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x  # noqa: E731
    return [np.asarray(plain(x)).tobytes() for x in jax.tree.leaves(tree)]


def program():
    """seed -> (state, metrics) after three steps with judge, hints and reference; traced and compiled anew."""
    env = envs.make("stop_continue")
    policy = tabular_policy(len(env.spec.vocabulary), **token_ids(env.exact)._asdict())
    reference = policy.init(jax.random.key(0))
    step = train.make_step(policy, env, METHODS["prm_opd"], CONFIG)
    run = jax.jit(lambda state: train.run_steps(step, state, reference, 3))
    return lambda seed: run(train.init_state(jax.random.key(seed), reference, 0.1, CONFIG))


def test_same_seed_same_bits():
    one, other = program(), program()
    first = one(1)
    assert float(abs(first[0].params["table"]).max()) > 0.05
    assert bits(one(1)) == bits(first), "the same program"
    assert bits(other(1)) == bits(first), "compiled again"
    assert bits(one(2)) != bits(first), "another seed"
