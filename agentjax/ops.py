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

from agentjax.types import ACTION, Array, Trajectory


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
    is not positive. The first pass is centred on a member of the segment, so equal values of any size leave no
    rounding.
    """
    lowest = jax.ops.segment_min(jnp.where(weight > 0, x, jnp.inf), ids, num)
    lowest = jnp.where(jnp.isfinite(lowest), lowest, 0.0)
    shifted = jnp.where(weight > 0, x - lowest[ids], 0.0)
    mean, total = segment_mean(shifted, ids, weight, num)
    square = jax.ops.segment_sum(weight * jnp.square(shifted - mean[ids]), ids, num)
    room = total - ddof
    std = jnp.sqrt(jnp.where(room > 0, square, 0.0) / jnp.where(room > 0, room, 1.0))
    return mean + lowest, std, total


def group_advantage(
    x: Array,
    ids: Array,
    vote: Array,
    own: Array,
    num: int,
    *,
    baseline: str,
    scale: str,
    ddof: int,
    eps: float,
    singleton: str = "zero",
) -> Array:
    """x minus the mean of its segment, optionally over a standard deviation; [B], 0 where `vote` is 0.

    With w_i the votes of a segment, W their sum and v_i = `own` the votes of the rollout that row i is part of:

        baseline "mean": c_i = x_i - sum_j w_j x_j / W          "loo": c_i * W / (W - v_i), the mean of the others
        scale "none": c_i         "group": c_i / (std + eps)    "batch": c_i / (std over all votes + eps)

    std has W - `ddof` in its denominator. Equal values give exactly 0. A rollout alone in its segment gives 0 with
    `singleton="zero"`, x_i itself with "raw" (verl). Example: x = [1, 0, 0, 0] in one segment, "mean", "none":
    [.75, -.25, -.25, -.25]; "loo": [1, -1/3, -1/3, -1/3].
    """
    for name, value, known in (
        ("baseline", baseline, ("mean", "loo")),
        ("scale", scale, ("none", "group", "batch")),
        ("singleton", singleton, ("zero", "raw")),
    ):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    mean, std, total = segment_moments(x, ids, vote, num, ddof=ddof)
    weight, others = total[ids], total[ids] - own
    alone = others <= 1e-6 * weight
    result = x - mean[ids]
    if baseline == "loo":
        result *= weight / jnp.where(alone, 1.0, others)
    if scale == "group":
        result /= std[ids] + eps
    elif scale == "batch":
        result /= segment_moments(x, jnp.zeros_like(ids), vote, 1, ddof=ddof)[1] + eps
    result = jnp.where(alone, x if singleton == "raw" else jnp.zeros_like(x), result)
    return jnp.where(vote > 0, result, 0.0)


def rollout_return(reward: Array, rollout: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Return of each row's rollout [B], the row's share of its rollout's single vote [B], and whether it is missing
    [B].

    `reward` is `row_reward`, `weight` is `live_weight(trajectory)`; all [B], over all shards (`globally`).
    Rows that are parts of one rollout share its return and together hold one vote. NaN in any part makes the whole
    rollout missing: return 0, vote 0. Rows of weight 0 have neither part nor vote.

    Two parts (rewards 1 and 2) of rollout 0 and one row of rollout 2: returns [3, 3, 5], votes [.5, .5, 1].
    """
    return _join_returns(jnp.nan_to_num(reward), jnp.isnan(reward), rollout, weight)


def _join_returns(reward: Array, absent: Array, rollout: Array, weight: Array) -> tuple[Array, Array, Array]:
    live = weight > 0
    missing = rollout_sum((live & absent).astype(jnp.float32), rollout) > 0
    usable = live & ~missing
    returns = rollout_sum(jnp.where(usable, reward, 0.0), rollout)
    rows = rollout_sum(live.astype(jnp.float32), rollout)
    vote = jnp.where(usable, weight / jnp.where(rows > 0, rows, 1.0), 0.0)
    return returns, vote, missing


def rollout_sum(x: Array, rollout: Array) -> Array:
    """Sum of x[B, ...] over the rows of the same rollout, given to each of them.

    x = [1, 2, 5] with rollout = [0, 0, 2] gives [3, 3, 5].
    """
    return jax.ops.segment_sum(x, rollout, rollout.shape[0])[rollout]


def outcome(trajectory: Trajectory, *, axis_name: str | None = None) -> tuple[Array, Array, Array]:
    """`rollout_return` of a trajectory over the rows of all shards. No NaN, even where a return is missing."""
    total, absent = _row_total(trajectory)
    return globally(_join_returns, total, absent, trajectory.rollout, live_weight(trajectory), axis_name=axis_name)


def whole_rollout(per_row: Array, trajectory: Trajectory, *, axis_name: str | None) -> Array:
    """Sum of per_row[B] over the rows of the same rollout, on every shard; rows of weight 0 count nothing."""
    parts = jnp.where(live_weight(trajectory) > 0, per_row, 0.0)
    return globally(rollout_sum, parts, trajectory.rollout, axis_name=axis_name)


def over_rollouts(fn: Callable[..., Any], trajectory: Trajectory, *tables: Array, axis_name: str | None) -> Any:
    """fn(turn_mask, *tables) on [B,T] tables in which the parts of a rollout are joined, so that every part sees all.

    Each table is summed over the rows of a rollout (rows of weight 0 left out), so it must be 0 on turns that are not
    the row's own. Booleans become counts in float32. `fn` works row by row; its result is cut to this shard's rows.
    """
    live = live_weight(trajectory) > 0

    def joined(rollout: Array, live: Array, *parts: Array) -> Any:
        mask, *rest = (rollout_sum(jnp.where(live[:, None], part.astype(jnp.float32), 0.0), rollout) for part in parts)
        return fn(mask > 0, *rest)

    return globally(joined, trajectory.rollout, live, trajectory.turn_mask, *tables, axis_name=axis_name)


def discounted_advantage(reward: Array, value: Array, bootstrap: Array, mask: Array, *, gamma: Any, lam: Any) -> Array:
    """Generalised advantages along axis 1, where a step is a True of mask[B,N]; 0 elsewhere.

        delta_k = r_k + gamma V_{k+1} - V_k,   A_k = delta_k + gamma lam A_{k+1}

    k + 1 is the next True entry, so what stands between two actions is no step; after the last, V is bootstrap[B].
    reward, value float32[B,N], read on mask only. With value 0 and lam 1 it is the discounted return to go. Source:
    Schulman et al. 2015, arXiv 1506.02438, eq. 16. Example: r = [0, 1], V = 0, gamma = 1, lam = .95: [.95, 1].
    """

    def back(carry: tuple[Array, Array], now: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        following, advantage = carry
        r, v, on = now
        here = r + gamma * following - v + gamma * lam * advantage
        return (jnp.where(on, v, following), jnp.where(on, here, advantage)), jnp.where(on, here, 0.0)

    start = (bootstrap, jnp.zeros_like(bootstrap))
    return jax.lax.scan(back, start, (reward.T, value.T, mask.T), reverse=True)[1].T


def live_weight(trajectory: Trajectory) -> Array:
    """float32[B]: `weight`, but 0 on rows that hold no action token."""
    return trajectory.weight * acted(trajectory)


def acted(trajectory: Trajectory) -> Array:
    """float32[B]: 1 for rows that hold an action token."""
    return (jnp.max(trajectory.role, axis=1) == ACTION).astype(jnp.float32)  # the largest role: one cheap reduction


def row_reward(trajectory: Trajectory) -> Array:
    """float32[B]: sum of turn and token rewards of the row's own turns; NaN if any is missing."""
    total, absent = _row_total(trajectory)
    return jnp.where(absent, jnp.nan, total)


def _row_total(trajectory: Trajectory) -> tuple[Array, Array]:
    """`row_reward` with missing rewards as 0, and whether any is missing; both [B]."""
    absent = trajectory.turn_mask & jnp.isnan(trajectory.reward)
    total = jnp.sum(jnp.where(trajectory.turn_mask & ~absent, trajectory.reward, 0.0), axis=1)
    absent = jnp.any(absent, axis=1)
    if trajectory.token_reward is not None:
        lost = trajectory.valid & jnp.isnan(trajectory.token_reward)
        total += jnp.sum(jnp.where(trajectory.valid & ~lost, trajectory.token_reward, 0.0), axis=1)
        absent |= jnp.any(lost, axis=1)
    return total, absent


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


def rows_to_tokens(per_row: Array, trajectory: Trajectory) -> Array:
    """Spreads [B] over the action tokens [B,S]; 0 elsewhere."""
    return jnp.where(trajectory.action_mask, per_row[:, None], 0)


def tokens_to_turns(per_token: Array, trajectory: Trajectory) -> Array:
    """Sums [B,S] over the action tokens of each turn: [B,T]."""
    turns = trajectory.reward.shape[1]
    index = jnp.where(trajectory.action_mask, trajectory.turn, turns)
    rows = jnp.arange(per_token.shape[0])[:, None]
    zeros = jnp.zeros((per_token.shape[0], turns + 1), per_token.dtype)
    return zeros.at[rows, index].add(jnp.where(trajectory.action_mask, per_token, 0))[:, :turns]


def turn_rewards(trajectory: Trajectory) -> tuple[Array, Array]:
    """Turn rewards [B,T] with every token reward added to the turn it pays for, and bool[B,T]: something is missing.

    A token reward pays the last action token at or before it: one on an observation goes to the turn before. Where the
    row's own actions start later (a part of a rollout), it goes to the turn before the row's first, which another part
    owns: join the tables with `over_rollouts`. Missing rewards count 0 here. Rewards before any action pay nothing.
    """
    absent = trajectory.turn_mask & jnp.isnan(trajectory.reward)
    table = jnp.where(trajectory.turn_mask & ~absent, trajectory.reward, 0.0)
    if trajectory.token_reward is None:
        return table, absent
    turns = table.shape[1]
    slot, first = paid_slot(trajectory), first_turn(trajectory)
    paid = jnp.take_along_axis(trajectory.turn, jnp.maximum(slot, 0), axis=1)
    index = jnp.where(slot >= 0, paid, first[:, None] - 1)
    index = jnp.where(trajectory.valid & (index >= 0), index, turns)
    rows = jnp.arange(table.shape[0])[:, None]
    lost = jnp.isnan(trajectory.token_reward)
    wide = jnp.pad(table, ((0, 0), (0, 1))).at[rows, index].add(jnp.where(lost, 0.0, trajectory.token_reward))
    flags = jnp.pad(absent, ((0, 0), (0, 1))).at[rows, index].max(lost)
    return wide[:, :turns], flags[:, :turns]


def paid_slot(trajectory: Trajectory) -> Array:
    """int32[B,S]: slot of the last action token at or before each slot, -1 where there is none.

    Roles observation, action, observation: [-1, 1, 1].
    """
    slots = jnp.arange(trajectory.role.shape[1], dtype=jnp.int32)[None, :]
    return jax.lax.cummax(jnp.where(trajectory.action_mask, slots, -1), axis=1)


def first_turn(trajectory: Trajectory) -> Array:
    """int32[B]: turn of the row's first action token, T where it has none."""
    turns = trajectory.reward.shape[1]
    return jnp.min(jnp.where(trajectory.action_mask, trajectory.turn, turns), axis=1)


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


def correlation(x: Array, y: Array, mask: Array) -> Array:
    """Pearson correlation over the True entries of mask, all of one shape; 0 if either is constant there."""
    count = jnp.maximum(jnp.sum(mask, dtype=jnp.float32), 1.0)

    def centred(z: Array) -> Array:
        shifted = jnp.where(mask, z - jnp.min(jnp.where(mask, z, jnp.inf)), 0.0)  # equal entries: exactly 0
        return jnp.where(mask, shifted - jnp.sum(shifted) / count, 0.0)

    a, b = centred(x), centred(y)
    norm = jnp.sqrt(jnp.sum(a * a) * jnp.sum(b * b))
    return jnp.where(norm > 0, jnp.sum(a * b) / jnp.where(norm > 0, norm, 1.0), 0.0)
