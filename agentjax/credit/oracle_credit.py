"""The true advantage A^pi of every token, and the same information at coarser resolutions."""

from __future__ import annotations

import jax.numpy as jnp

from agentjax import ops
from agentjax.credit.base import present
from agentjax.credit.trajectory import over_pairs
from agentjax.types import Array, Signals, Trajectory


def by_token(trajectory: Trajectory, signals: Signals, *, axis_name: str | None) -> Array:
    """A^pi of each token as the oracle gives it: the unbiased weight of lowest variance."""
    return _known(trajectory, signals)


def by_turn(trajectory: Trajectory, signals: Signals, *, axis_name: str | None) -> Array:
    """Mean of A^pi over the tokens of the turn, so that the turn's sum is kept.

    Tokens [1, 3] and [-2] in two turns: [2, 2] and [-2].
    """
    known = _known(trajectory, signals)
    counts = ops.action_counts(trajectory)
    mean = ops.tokens_to_turns(known, trajectory) / jnp.maximum(counts, 1.0)
    return ops.turns_to_tokens(mean, trajectory)


def by_episode(trajectory: Trajectory, signals: Signals, *, axis_name: str | None) -> Array:
    """Mean of A^pi over the action tokens of the rollout. Tokens [1, 3] and [-2] in two turns: 2/3 everywhere."""
    return ops.rows_to_tokens(_episode_mean(trajectory, signals, axis_name), trajectory)


def by_pair(trajectory: Trajectory, signals: Signals, *, axis_name: str | None) -> Array:
    """What a comparison can carry: +m on the winner's tokens, -m on the loser's, m half the difference of their means.

    Means 2 and -1: the winner's tokens get 1.5, the loser's -1.5. `pairs` as in `trajectory.pair_weight`.
    """
    mean = _episode_mean(trajectory, signals, axis_name)
    half = over_pairs(lambda winner, loser: (winner - loser) / 2, mean, trajectory, signals, axis_name)
    return ops.rows_to_tokens(half, trajectory)


def _episode_mean(trajectory: Trajectory, signals: Signals, axis_name: str | None) -> Array:
    """Mean of A^pi over the action tokens of each row's rollout, [B]."""
    total = ops.whole_rollout(jnp.sum(_known(trajectory, signals), axis=1), trajectory, axis_name=axis_name)
    tokens = jnp.sum(trajectory.action_mask, axis=1, dtype=jnp.float32)
    return total / jnp.maximum(ops.whole_rollout(tokens, trajectory, axis_name=axis_name), 1.0)


def _known(trajectory: Trajectory, signals: Signals) -> Array:
    return jnp.where(trajectory.action_mask, present(signals.oracle_token), 0.0)
