"""Trajectory resolution: pairs of rollouts, and the two ways of reading DPO as credit."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from agentjax import ops
from agentjax.credit.base import student_logp
from agentjax.types import Array, Signals, Trajectory


def pair_weight(trajectory: Trajectory, signals: Signals, *, axis_name: str | None, beta: float) -> Array:
    """The weight that the DPO loss puts on the score of each token, up to the mean over pairs.

        m_p = beta sum_tokens log(pi / pi_ref) |winner - |loser,   A = +-beta sigmoid(-m_p), + on the winner's tokens

    `pairs` int32[P,2] holds (winner row, loser row), -1: empty; row numbers count over all shards, and pairs are
    sharded along P. Every part of a rollout gets the credit of the row that is named; a rollout in several pairs gets
    the sum. pi is `current_logp` if given, else `trajectory.logp`. Source: DPO, arXiv 2305.18290, gradient below eq. 7.

    pi = pi_ref and beta = .1: +.05 on the winner's tokens, -.05 on the loser's.
    """
    ratio = reference_log_ratio(trajectory, signals, axis_name=axis_name, beta=beta)
    score = ops.whole_rollout(jnp.sum(ratio, axis=1), trajectory, axis_name=axis_name)

    def slope(winner: Array, loser: Array) -> Array:
        return beta * jax.nn.sigmoid(loser - winner)

    return ops.rows_to_tokens(over_pairs(slope, score, trajectory, signals, axis_name), trajectory)


def reference_log_ratio(trajectory: Trajectory, signals: Signals, *, axis_name: str | None, beta: float) -> Array:
    """The reward that DPO implies for each token: beta log(pi / pi_ref), whatever pairs its rollout is in.

    pi is `current_logp` if given, else `trajectory.logp`. 0 as long as the policy is its reference. Source: arXiv
    2305.18290 eq. 5, per token as in 2404.12358. log pi = -1, log pi_ref = -2, beta = .1: .1.
    """
    ratio = jnp.where(trajectory.action_mask, student_logp(trajectory, signals) - signals.reference_logp, 0.0)
    return beta * ratio


def over_pairs(
    weigh: Callable[[Array, Array], Array],
    score: Array,
    trajectory: Trajectory,
    signals: Signals,
    axis_name: str | None,
) -> Array:
    """Per row [B]: the sum of +-weigh(winner's score, loser's score) over the pairs that its rollout is in.

    `score` [B] belongs to whole rollouts, the same on all parts. Pairs with an empty place or a row of weight 0 count
    nothing.
    """
    live = ops.live_weight(trajectory) > 0

    def over_rows(score: Array, live: Array, rollout: Array, pairs: Array) -> Array:
        winner, loser = (jnp.maximum(pairs[:, side], 0) for side in (0, 1))
        valid = jnp.all(pairs >= 0, axis=1) & live[winner] & live[loser]
        weight = jnp.where(valid, weigh(score[winner], score[loser]), 0.0)
        per_rollout = jnp.zeros_like(score).at[rollout[winner]].add(weight).at[rollout[loser]].add(-weight)
        return per_rollout[rollout]

    return ops.globally(over_rows, score, live, trajectory.rollout, signals.pairs, axis_name=axis_name)
