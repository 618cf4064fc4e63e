"""Two turns: stop for nothing, or continue to a turn that pays a bonus whatever is done there.

With q the policy's probability of continuing, J = q c, and the gradient with respect to the logit of "go" is
q (1 - q) c: .075 at q = .5, c = .3 (and -.075 for "stop"). Every rollout that reaches turn 1 earns the same, so a
baseline per turn index subtracts exactly the value of continuing and its gradient is 0: the counterexample to centring
turn rewards by turn index. Return-to-go against a leave-one-out group baseline gives .075.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from agentjax.envs.base import Env
from agentjax.envs.tabular import TabularModel, tabular_env


def stop_continue(bonus: float = 0.3) -> Env:
    """The two-turn stop/continue task; states: fork, bonus, end."""
    nxt = np.array([[2, 1], [2, 2], [2, 2]])[..., None]
    reward = np.array([[0.0, 0.0], [bonus, bonus], [0.0, 0.0]])[..., None]
    model = TabularModel(
        obs=jnp.array([0, 1, 0], jnp.int32),
        start=jnp.array([1.0, 0.0, 0.0]),
        prob=jnp.ones((3, 2, 1)),
        next=jnp.asarray(nxt, jnp.int32),
        reward=jnp.asarray(reward, jnp.float32),
        terminal=jnp.array([False, False, True]),
        horizon=2,
        observations=2,
    )
    return tabular_env("stop_continue", model, action_words=("stop", "go"), observation_words=("fork", "bonus"))
