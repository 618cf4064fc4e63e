"""From a loss per token to one number: what a token, and what a rollout, is worth.

Every function takes x float32[B,S] (read on action tokens only) and weighs rows by `trajectory.weight`. A rollout has
one vote in the sequence forms, however many rows it is split into. With `axis_name` (rows sharded by `shard_map` or
`pmap`) the result is this shard's share: the numerator of its own rows over the denominator of all. So `psum` of the
shares is the loss of the whole batch and `psum` of their gradients its gradient. Micro-batches of
whole rollouts add up in the same way when each is given `denominator`, `tokens` (token mean) or `votes` (the others) of
the whole batch.

Two rollouts, one token of loss 2 and four tokens of loss 1: token mean 6/5, sequence mean (2 + 1) / 2, sequence sum
(2 + 4) / 2, constant with divisor 4: 3/4.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from agentjax import ops
from agentjax.types import Array, Trajectory

Aggregate = Callable[..., Array]  # (x[B,S], trajectory, *, axis_name=None) -> scalar


def token_mean(
    x: Array, trajectory: Trajectory, *, axis_name: str | None = None, denominator: Array | None = None
) -> Array:
    """sum_i w_i sum_k x_ik / sum_i w_i n_i: every token has one vote, long rollouts weigh more. Source: DAPO, verl."""
    total = tokens(trajectory, axis_name=axis_name) if denominator is None else denominator
    return _ratio(jnp.sum(_weighted(x, trajectory)), total)


def sequence_mean(
    x: Array, trajectory: Trajectory, *, axis_name: str | None = None, denominator: Array | None = None
) -> Array:
    """Mean over rollouts of the mean over their tokens: terse rollouts weigh more per token. Source: GRPO."""
    length = jnp.sum(trajectory.action_mask, axis=1, dtype=jnp.float32)
    length = jnp.maximum(ops.whole_rollout(length, trajectory, axis_name=axis_name), 1.0)
    total = votes(trajectory, axis_name=axis_name) if denominator is None else denominator
    return _ratio(jnp.sum(_weighted(x, trajectory) / length), total)


def sequence_sum(
    x: Array, trajectory: Trajectory, *, axis_name: str | None = None, denominator: Array | None = None
) -> Array:
    """Mean over rollouts of the sum over their tokens: the plain policy gradient of the expected return."""
    total = votes(trajectory, axis_name=axis_name) if denominator is None else denominator
    return _ratio(jnp.sum(_weighted(x, trajectory)), total)


def constant(
    x: Array,
    trajectory: Trajectory,
    *,
    divisor: float,
    axis_name: str | None = None,
    denominator: Array | None = None,
) -> Array:
    """`sequence_sum` over a fixed `divisor` (the most tokens a rollout may have) for every batch. Source: Dr.GRPO."""
    if divisor <= 0:
        raise ValueError(f"divisor must be positive, got {divisor}")
    return sequence_sum(x, trajectory, axis_name=axis_name, denominator=denominator) / divisor


AGGREGATIONS: dict[str, Aggregate] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "sequence_sum": sequence_sum,
    "constant": constant,
}


def tokens(trajectory: Trajectory, *, axis_name: str | None = None) -> Array:
    """Weighted number of action tokens, of all shards."""
    count = jnp.sum(trajectory.weight * jnp.sum(trajectory.action_mask, axis=1, dtype=jnp.float32))
    return count if axis_name is None else jax.lax.psum(count, axis_name)


def votes(trajectory: Trajectory, *, axis_name: str | None = None) -> Array:
    """Weighted number of rollouts, of all shards; rows of one rollout share a vote, rows without actions have none."""
    weight = ops.live_weight(trajectory)
    rows = ops.whole_rollout((weight > 0).astype(jnp.float32), trajectory, axis_name=axis_name)
    count = jnp.sum(weight / jnp.maximum(rows, 1.0))
    return count if axis_name is None else jax.lax.psum(count, axis_name)


def masked_sum(x: Array, trajectory: Trajectory) -> Array:
    """Sum over the action tokens of rows whose weight is not 0: for metrics, which add over shards and batches."""
    counted = trajectory.action_mask & (trajectory.weight > 0)[:, None]
    return jnp.sum(jnp.where(counted, x, 0.0), dtype=jnp.float32)


def _weighted(x: Array, trajectory: Trajectory) -> Array:
    """w_i sum_k x_ik, [B]."""
    total = jnp.sum(jnp.where(trajectory.action_mask, x, 0.0), axis=1)
    return jnp.where(trajectory.weight > 0, trajectory.weight * total, 0.0)


def _ratio(numerator: Array, denominator: Array) -> Array:
    return numerator / jnp.where(denominator > 0, denominator, 1.0)
