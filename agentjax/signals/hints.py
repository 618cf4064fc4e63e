"""The hint ladder: what is whispered to the hindsight teacher before each action.

gold     the expert's action in this state                    Truth.hint
placebo  the gold hint of the same turn of another task
wrong    an action that is not the expert's
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentjax.envs.base import Env
from agentjax.types import Array, Rollout

HINTS = ("gold", "placebo", "wrong")


def hints(key: Array, kind: str, env: Env, played: Rollout) -> tuple[Array, Array]:
    """(hint int32[B,T,H], mask bool[B,T,H]) of one kind for every acted turn. `key` is consumed.

    Placebo hints come from a row of another group; a batch of one group has none, and its hints are masked out.
    """
    truth, trajectory = played.truth, played.trajectory
    if kind == "gold":
        return truth.hint, truth.hint_mask
    if kind == "placebo":
        other, found = _row_of_another_group(key, trajectory.group, trajectory.weight)
        mask = truth.hint_mask[other] & found[:, None, None] & trajectory.turn_mask[:, :, None]
        return truth.hint[other], mask
    if kind == "wrong":
        if env.wrong_hint is None:
            raise ValueError(f"{env.spec.name} has no wrong hints: its Env lacks `wrong_hint`")
        rows, turns = trajectory.reward.shape
        states = jax.tree.map(lambda x: x[:, :-1], played.env_states)
        hint = jax.vmap(jax.vmap(env.wrong_hint))(jax.random.split(key, (rows, turns)), states)
        return hint, (hint != env.spec.pad) & trajectory.turn_mask[:, :, None]
    raise ValueError(f"unknown hint {kind!r}; there are: {', '.join(HINTS)}")


def _row_of_another_group(key: Array, group: Array, weight: Array) -> tuple[Array, Array]:
    """For each row a random row of another group with weight > 0, and whether there is one."""
    rows = group.shape[0]
    fits = (group[:, None] != group[None, :]) & (weight > 0)[None, :]
    score = jnp.where(fits, jax.random.uniform(key, (rows, rows)), -1.0)
    return jnp.argmax(score, axis=1), jnp.any(fits, axis=1)
