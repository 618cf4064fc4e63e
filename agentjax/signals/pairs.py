"""Preference pairs inside groups: the rollout that did better against the one that did worse."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentjax import ops
from agentjax.types import Array, Trajectory


def best_against_worst(key: Array, trajectory: Trajectory) -> Array:
    """int32[B,2] (winner row, loser row), -1 where empty; one row per rollout (no split rollouts). `key` is consumed.

    In every group the i-th best rollout is paired with the i-th worst, ties broken at random, as long as their returns
    differ. Returns [1, 0, 0, 1] in one group give two pairs; equal returns give none. Missing returns are left out.
    """
    rows = trajectory.group.shape[0]
    live = trajectory.weight * ops.acted(trajectory)
    value, vote, _ = ops.rollout_return(ops.row_reward(trajectory), trajectory.rollout, live)
    group = jnp.where(vote > 0, trajectory.group, rows)  # left-out rows go last, in a group of their own
    order = jnp.lexsort((jax.random.uniform(key, (rows,)), -value, group)).astype(jnp.int32)
    sorted_group = group[order]
    place = jnp.arange(rows, dtype=jnp.int32)
    first = jnp.searchsorted(sorted_group, sorted_group, side="left").astype(jnp.int32)
    last = jnp.searchsorted(sorted_group, sorted_group, side="right").astype(jnp.int32) - 1
    partner = last - (place - first)
    better = value[order] > value[order[partner]]
    pair = jnp.stack([order, order[partner]], axis=1)
    return jnp.where((better & (partner > place) & (sorted_group < rows))[:, None], pair, -1)
