"""Controls: credit that must not help."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentjax.credit.base import present
from agentjax.types import Array, Signals, Trajectory


def permuted(trajectory: Trajectory, signals: Signals, *, axis_name: str | None) -> Array:
    """The oracle's token credit in the wrong turns: the row's turns are shuffled, the tokens inside a turn keep their
    order.

    The credits of the row's action tokens, read turn by turn in a random order, are dealt to its action tokens in their
    own order. So every row keeps exactly its multiset of credits; turns of equal length are exactly permuted. Some turn
    may stay in its place, as in any random order. The order of row b comes from `fold_in(permutation_key, b)`, b
    counted over all shards, hence depends on the order of rows and on how a rollout is split.

    Turns of tokens [1, 2] and [3, 4]: [1, 2, 3, 4] or [3, 4, 1, 2].
    """
    mask = trajectory.action_mask
    known = jnp.where(mask, present(signals.oracle_token), 0.0)
    rows, turns = trajectory.reward.shape
    first = 0 if axis_name is None else jax.lax.axis_index(axis_name) * rows

    def order_of(row: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(signals.permutation_key, row), (turns,))

    draw = jax.vmap(order_of)(first + jnp.arange(rows, dtype=jnp.int32))
    rank = jnp.take_along_axis(draw, jnp.clip(trajectory.turn, 0, turns - 1), axis=1)
    source = jnp.argsort(jnp.where(mask, rank, 2.0), axis=1, stable=True)
    target = jnp.argsort(~mask, axis=1, stable=True)
    dealt = jnp.take_along_axis(known, source, axis=1)
    return jnp.zeros_like(known).at[jnp.arange(rows)[:, None], target].set(dealt)
