"""Losses on pairs of rollouts."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentjax import ops
from agentjax.losses.aggregation import Aggregate
from agentjax.types import Array, Credit, Outputs, Signals, Trajectory


def dpo(
    outputs: Outputs,
    trajectory: Trajectory,
    signals: Signals,
    credit: Credit | None,
    *,
    aggregate: Aggregate | None = None,
    axis_name: str | None = None,
    beta: float,
) -> tuple[Array, dict[str, Array]]:
    """Mean over pairs of -log sigmoid(m), m = beta (sum_k log pi/pi_ref of the winner - the same of the loser).

    Sums run over action tokens of all turns and of all rows of a rollout: observations are masked. `pairs` int32[P,2]
    as in `credit.trajectory.pair_weight`; pairs with a -1 or a row of weight 0 are left out, and without any pair the
    loss is 0. `credit` and `aggregate` are not used: a pair is the unit. With `axis_name`, pairs are sharded along P
    with row numbers over all shards, and the result is this shard's share (see `aggregation`). Source: arXiv 2305.18290
    eq. 7.

    Sums 3 and 1, beta = .5: m = 1, loss .3133; its gradient on each token of the winner is -.5 sigmoid(-1) = -.1345.
    """
    mask = trajectory.action_mask
    ratio = jnp.where(mask, outputs.logp, 0.0) - jnp.where(mask, signals.reference_logp, 0.0)
    live = ops.live_weight(trajectory) > 0
    score = jnp.where(live, jnp.sum(ratio, axis=1), 0.0)
    rollout, pairs = trajectory.rollout, signals.pairs
    if axis_name is not None:
        score, live, rollout = (jax.lax.all_gather(x, axis_name, tiled=True) for x in (score, live, rollout))
    score = ops.rollout_sum(score, rollout)
    winner, loser = (jnp.maximum(pairs[:, side], 0) for side in (0, 1))
    valid = jnp.all(pairs >= 0, axis=1) & live[winner] & live[loser]
    margin = jnp.where(valid, beta * (score[winner] - score[loser]), 0.0)
    count = jnp.sum(valid, dtype=jnp.float32)
    total = jax.lax.psum(count, axis_name) if axis_name is not None else count
    loss = -jnp.sum(jnp.where(valid, jax.nn.log_sigmoid(margin), 0.0)) / jnp.maximum(total, 1.0)
    return loss, {
        "loss": loss,
        "pairs": count,
        "margin_sum": jnp.sum(margin),
        "won": jnp.sum(valid & (margin > 0), dtype=jnp.float32),
    }
