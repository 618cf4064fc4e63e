"""Masked, segment and per-turn statistics: the only home of eps, ddof and "equal rewards give exactly 0".

Groups are integer ids and segment sums, never a reshape: any row order, any group size. Every function that mixes rows
takes `axis_name`: under `shard_map` or `pmap` it gathers the small tables ([B], [B,T]), computes globally and keeps its
own rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agentjax.types import Array, Trajectory


def globally(fn: Callable[..., Any], *tables: Array, axis_name: str | None) -> Any:
    """fn(*tables) over the rows of all shards, the result cut to this shard's rows. Tables and results are [B, ...]."""
    if axis_name is None:
        return fn(*tables)
    rows = tables[0].shape[0]
    start = jax.lax.axis_index(axis_name) * rows
    gathered = [jax.lax.all_gather(table, axis_name, axis=0, tiled=True) for table in tables]
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, rows), fn(*gathered))


def segment_mean(x: Array, ids: Array, weight: Array, num: int) -> tuple[Array, Array]:
    """Weighted mean of x[B] per segment, 0 where a segment is empty, and the segments' weights, both [num]."""
    total = jax.ops.segment_sum(weight, ids, num)
    mean = jax.ops.segment_sum(weight * x, ids, num) / jnp.where(total > 0, total, 1.0)
    return mean, total


def segment_moments(x: Array, ids: Array, weight: Array, num: int, *, ddof: int) -> tuple[Array, Array, Array]:
    """Weighted mean, two-pass standard deviation and weight of each segment, all [num].

    std = sqrt(sum_i w_i (x_i - mean)^2 / (sum_i w_i - ddof)); exactly 0 where all members are equal or the denominator
    is not positive. The first pass is centred on a member of the segment, so equal values of any size leave no rounding.
    """
    lowest = jax.ops.segment_min(jnp.where(weight > 0, x, jnp.inf), ids, num)
    lowest = jnp.where(jnp.isfinite(lowest), lowest, 0.0)
    shifted = jnp.where(weight > 0, x - lowest[ids], 0.0)
    mean, total = segment_mean(shifted, ids, weight, num)
    square = jax.ops.segment_sum(weight * jnp.square(shifted - mean[ids]), ids, num)
    room = total - ddof
    std = jnp.sqrt(jnp.where(room > 0, square, 0.0) / jnp.where(room > 0, room, 1.0))
    return mean + lowest, std, total


def rollout_return(reward: Array, rollout: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Return of each row's rollout [B], the row's share of its rollout's single vote [B], and whether it is missing [B].

    `reward` is `row_reward`, `weight` is `trajectory.weight * acted(trajectory)`; all [B], over all shards (`globally`).
    Rows that are parts of one rollout share its return and together hold one vote. NaN in any part makes the whole
    rollout missing: return 0, vote 0. Rows of weight 0 have neither part nor vote.

    Two parts (rewards 1 and 2) of rollout 0 and one row of rollout 2: returns [3, 3, 5], votes [.5, .5, 1].
    """
    num, live = rollout.shape[0], weight > 0
    missing = jax.ops.segment_max((live & jnp.isnan(reward)).astype(jnp.int32), rollout, num)[rollout] > 0
    usable = live & ~missing
    returns = jax.ops.segment_sum(jnp.where(usable, reward, 0.0), rollout, num)[rollout]
    rows = jax.ops.segment_sum(live.astype(jnp.float32), rollout, num)[rollout]
    vote = jnp.where(usable, weight / jnp.where(rows > 0, rows, 1.0), 0.0)
    return returns, vote, missing


def acted(trajectory: Trajectory) -> Array:
    """float32[B]: 1 for rows that hold an action token."""
    return jnp.any(trajectory.action_mask, axis=1).astype(jnp.float32)


def row_reward(trajectory: Trajectory) -> Array:
    """float32[B]: sum of turn and token rewards of the row's own turns; NaN if any is missing."""
    total = jnp.sum(jnp.where(trajectory.turn_mask, trajectory.reward, 0.0), axis=1)
    if trajectory.token_reward is not None:
        total += jnp.sum(jnp.where(trajectory.valid, trajectory.token_reward, 0.0), axis=1)
    return total


def previous_valid(valid: Array) -> Array:
    """int32[B,S]: slot of the last valid token before each slot, 0 where there is none.

    valid = [1, 1, 0, 1] gives [0, 0, 1, 1].
    """
    slots = jnp.arange(valid.shape[1], dtype=jnp.int32)[None, :]
    last = jax.lax.cummax(jnp.where(valid, slots, -1), axis=1)
    before = jnp.concatenate([jnp.full_like(last[:, :1], -1), last[:, :-1]], axis=1)
    return jnp.maximum(before, 0)


def positions(valid: Array) -> Array:
    """int32[B,S]: running count of valid tokens; the first has 0, padding repeats the count before it."""
    return jnp.maximum(jnp.cumsum(valid, axis=1, dtype=jnp.int32) - 1, 0)


def turns_to_tokens(per_turn: Array, trajectory: Trajectory) -> Array:
    """Spreads [B,T] over the action tokens [B,S]; 0 elsewhere."""
    index = jnp.clip(trajectory.turn, 0, per_turn.shape[1] - 1)
    return jnp.where(trajectory.action_mask, jnp.take_along_axis(per_turn, index, axis=1), 0)


def tokens_to_turns(per_token: Array, trajectory: Trajectory) -> Array:
    """Sums [B,S] over the action tokens of each turn: [B,T]."""
    turns = trajectory.reward.shape[1]
    index = jnp.where(trajectory.action_mask, trajectory.turn, turns)
    rows = jnp.arange(per_token.shape[0])[:, None]
    zeros = jnp.zeros((per_token.shape[0], turns + 1), per_token.dtype)
    return zeros.at[rows, index].add(jnp.where(trajectory.action_mask, per_token, 0))[:, :turns]


def action_counts(trajectory: Trajectory) -> Array:
    """float32[B,T]: action tokens of each turn."""
    return tokens_to_turns(trajectory.action_mask.astype(jnp.float32), trajectory)


def hash_tokens(tokens: Array) -> Array:
    """uint32[2] fingerprint of an integer vector (two independent FNV-style folds); equal vectors give equal keys."""
    words = tokens.reshape(-1).astype(jnp.uint32)

    def fold(carry: Array, word: Array) -> tuple[Array, None]:
        mixed = (carry ^ (word + jnp.uint32(0x9E3779B9))) * jnp.array([16777619, 2246822519], jnp.uint32)
        return mixed ^ (mixed >> 15), None

    return jax.lax.scan(fold, jnp.array([2166136261, 3266489917], jnp.uint32), words)[0]
