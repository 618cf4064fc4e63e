"""Turn resolution: one number per action, from judges (process reward models) with or without the outcome.

A missing vote (NaN) counts 0 where votes are used as they are, and is left out where they are normalised.
"""

from __future__ import annotations

import jax.numpy as jnp

from agentjax import ops
from agentjax.credit.base import present
from agentjax.credit.episode import relative_to_group
from agentjax.types import Array, Signals, Trajectory


def judged(trajectory: Trajectory, signals: Signals, *, axis_name: str | None) -> Array:
    """The judge's reward of the turn as it is, on each of its tokens: no baseline, no look ahead.

    Source: OpenClaw-RL, arXiv 2603.10165 (binary RL). Votes [1, NaN, -1]: the turns' tokens get 1, 0, -1.
    """
    return ops.turns_to_tokens(present(signals.judge), trajectory)


def judged_to_go(trajectory: Trajectory, signals: Signals, *, axis_name: str | None, gamma: float) -> Array:
    """The judge's rewards from the turn on: A_t = sum_{u>=t} gamma^(u-t) judge_u over acted turns.

    Votes [1, NaN, -1] with gamma = .5: [.75, -.5, -1].
    """

    def to_go(mask: Array, judge: Array) -> Array:
        zeros = jnp.zeros_like(judge)
        return ops.discounted_advantage(judge, zeros, zeros[:, 0], mask, gamma=gamma, lam=1.0)

    judge = jnp.where(trajectory.turn_mask, present(signals.judge), 0.0)
    return ops.turns_to_tokens(ops.over_rollouts(to_go, trajectory, judge, axis_name=axis_name), trajectory)


def judged_by_turn_index(
    trajectory: Trajectory,
    signals: Signals,
    *,
    axis_name: str | None,
    scale: str = "group",
    ddof: int = 1,
    eps: float = 1e-6,
    singleton: str = "zero",
) -> Array:
    """The judge's reward relative to that of the same turn index in the rollouts of the group.

        A_t^i = (judge_t^i - mean_j judge_t^j) / (std_j + eps),   j over the group's rollouts that acted turn t and have
        a vote

    Biased: who reaches turn t depends on the actions before it, so the mean takes away the value of getting there.
    Source: MT-GRPO, arXiv 2505.11821. Votes 1 and -1 at turn 0 of two rollouts, 1 and none at turn 1: +-.7071, then 0.
    """
    judge, here = present(signals.judge), trajectory.turn_mask & ~jnp.isnan(signals.judge)
    table = _by_turn_index(trajectory, judge, here, axis_name, scale=scale, ddof=ddof, eps=eps, singleton=singleton)
    return ops.turns_to_tokens(table, trajectory)


def outcome_and_judge_by_turn_index(
    trajectory: Trajectory,
    signals: Signals,
    *,
    axis_name: str | None,
    ddof: int = 0,
    eps: float = 1e-6,
    singleton: str = "zero",
) -> Array:
    """Outcome plus vote, standardised among the same turn index of the group: OpenClaw-RL's step-wise reward.

        R_t = o + judge_t (0 if no vote),   A_t = (R_t - mean) / (std + eps),   population std over the group's turn t

    Biased like every baseline by turn index. o is the rollout's return; a missing one is left out with advantage 0.
    The published code keeps raw R_t in a cell of one (`singleton="raw"`), and drops constant cells, which are 0 here.
    Source: arXiv 2603.10165. Outcomes 1 and 0, votes 1 and -1 at turn 0: R = 2 and -1, so A = 1 and -1.
    """
    returns, vote, _ = ops.outcome(trajectory, axis_name=axis_name)
    reward = returns[:, None] + present(signals.judge)
    here = trajectory.turn_mask & (vote > 0)[:, None]
    table = _by_turn_index(trajectory, reward, here, axis_name, scale="group", ddof=ddof, eps=eps, singleton=singleton)
    return ops.turns_to_tokens(table, trajectory)


def outcome_plus_judge(trajectory: Trajectory, signals: Signals, *, axis_name: str | None, weight: float) -> Array:
    """Outcome relative to the group's other rollouts, plus the vote as it is: A_t = o - mean_{j != i} o_j + weight
    judge_t.

    Nothing is normalised by turn index, so the outcome's part stays unbiased and the judge's part keeps its own scale.
    Outcomes 1 and 0 in a group, votes [1, 0] and [-1, NaN], weight 1: [2, 1] and [-2, -1].
    """
    returns, vote, _ = ops.outcome(trajectory, axis_name=axis_name)
    advantage = relative_to_group(returns, vote, trajectory, axis_name, baseline="loo", scale="none")
    return ops.turns_to_tokens(advantage[:, None] + weight * present(signals.judge), trajectory)


def _by_turn_index(
    trajectory: Trajectory, x: Array, here: Array, axis_name: str | None, *, scale: str, ddof: int, eps: float,
    singleton: str,
) -> Array:  # fmt: skip
    """x[B,T] relative to the mean over the rows of the group where the same turn is `here`; 0 elsewhere."""

    def over_cells(x: Array, vote: Array, group: Array) -> Array:
        turns = x.shape[1]
        cell = (group[:, None] * turns + jnp.arange(turns, dtype=group.dtype)[None, :]).reshape(-1)
        votes = vote.reshape(-1)
        return ops.group_advantage(
            x.reshape(-1), cell, votes, votes, cell.shape[0],
            baseline="mean", scale=scale, ddof=ddof, eps=eps, singleton=singleton,
        ).reshape(x.shape)  # fmt: skip

    vote = jnp.where(here, ops.live_weight(trajectory)[:, None], 0.0)
    return ops.globally(over_cells, x, vote, trajectory.group, axis_name=axis_name)
