"""A random task: every state reaches every state, rewards of every transition drawn once from [-1, 1]."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from agentjax.envs.base import Env
from agentjax.envs.tabular import TabularModel, tabular_env


def random_mdp(states: int = 3, actions: int = 2, horizon: int = 3, seed: int = 0) -> Env:
    """Start and transition rows uniform on the simplex, fully observed, the same for the same seed."""
    if min(states, actions, horizon) < 1:
        raise ValueError(f"states, actions and horizon must be at least 1, got {states}, {actions}, {horizon}")
    rng = np.random.default_rng(seed)
    shape = (states, actions, states)
    model = TabularModel(
        obs=jnp.arange(states, dtype=jnp.int32),
        start=jnp.asarray(rng.dirichlet(np.ones(states)), jnp.float32),
        prob=jnp.asarray(rng.dirichlet(np.ones(states), size=shape[:2]), jnp.float32),
        next=jnp.asarray(np.broadcast_to(np.arange(states), shape), jnp.int32),
        reward=jnp.asarray(rng.uniform(-1, 1, shape), jnp.float32),
        terminal=jnp.zeros(states, bool),
        horizon=horizon,
        observations=states,
    )
    return tabular_env(
        "random_mdp",
        model,
        action_words=tuple(f"a{i}" for i in range(actions)),
        observation_words=tuple(f"s{i}" for i in range(states)),
    )
