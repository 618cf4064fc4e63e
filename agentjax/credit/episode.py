"""Episode resolution: one number per rollout, relative to the other rollouts of its group."""

from __future__ import annotations

import jax.numpy as jnp

from agentjax import ops
from agentjax.types import Array, Signals, Trajectory


def group_relative(
    trajectory: Trajectory,
    signals: Signals,
    *,
    axis_name: str | None,
    baseline: str,
    scale: str,
    ddof: int = 1,
    eps: float = 1e-6,
    singleton: str = "zero",
) -> Array:
    """The return of the rollout, relative to its group, on each of its action tokens.

        A_i = (R_i - b_i) / s_i,   b_i: mean of the group, or of the others ("loo"),   s_i: 1, or std + eps

    `ops.group_advantage` has the options. Every rollout has one vote, however many rows it is split into; members of a
    group may lie anywhere; a rollout whose return is missing (NaN) has no vote and advantage 0; equal returns give
    exactly 0. The leave-one-out form is unbiased; centring alone shrinks the gradient by (G-1)/G (G = 8: .875);
    dividing by the standard deviation weighs tasks by their difficulty (rewards in {0, 1}, G = 8: about 1.7 at success
    rate .5, 2.3 at .05). verl keeps raw returns for a group of one, and TRL lets a missing return poison its group.
    Sources: GRPO arXiv 2402.03300 (mean, group), Dr.GRPO 2503.20783 (mean, none), RLOO 2402.14740 (loo, none).

    Returns [1, 0, 0, 0] in one group: grpo [1.5, -.5, -.5, -.5], dr_grpo [.75, -.25, -.25, -.25],
    rloo [1, -1/3, -1/3, -1/3].
    """
    returns, vote, _ = ops.outcome(trajectory, axis_name=axis_name)
    advantage = relative_to_group(
        returns, vote, trajectory, axis_name, baseline=baseline, scale=scale, ddof=ddof, eps=eps, singleton=singleton
    )
    return ops.rows_to_tokens(advantage, trajectory)


def relative_to_group(
    returns: Array,
    vote: Array,
    trajectory: Trajectory,
    axis_name: str | None,
    *,
    baseline: str,
    scale: str,
    ddof: int = 1,
    eps: float = 1e-6,
    singleton: str = "zero",
) -> Array:
    """`ops.group_advantage` of returns[B] over `trajectory.group`; returns and votes as `ops.outcome` gives them."""

    def over_rows(returns: Array, vote: Array, group: Array, rollout: Array) -> Array:
        own = ops.rollout_sum(vote, rollout)
        return ops.group_advantage(
            returns, group, vote, own, group.shape[0],
            baseline=baseline, scale=scale, ddof=ddof, eps=eps, singleton=singleton,
        )  # fmt: skip

    return ops.globally(over_rows, returns, vote, trajectory.group, trajectory.rollout, axis_name=axis_name)


def returns_to_go(
    trajectory: Trajectory, signals: Signals, *, axis_name: str | None, baseline: str, gamma: float = 1.0
) -> Array:
    """Rewards from the turn on, `baseline` "none", or minus what the group's other rollouts got from that turn on
    ("loo").

        A_t = sum_{u>=t} gamma^(u-t) r_u - mean_{j != i} sum_{u>=t} gamma^(u-t) r_u^j

    A rollout that ended before turn t stands in the mean with 0: leaving it out would condition on who reaches turn t,
    which the actions decide, and bias the gradient (stop/continue with q = .5 and bonus .3: 0 instead of .075). gamma
    counts acted turns. A rollout with a missing reward gets 0 and is left out of the mean; a group of one gets 0.

    Rewards [1, 2] and [0, 4] in one group: "none" gives [3, 2] and [4, 4]; "loo" gives [-1, -2] and [1, 2].
    """
    if baseline not in ("none", "loo"):
        raise ValueError(f"baseline must be one of none, loo, got {baseline!r}")
    reward, absent = ops.turn_rewards(trajectory)

    def to_go(mask: Array, reward: Array, absent: Array) -> tuple[Array, Array]:
        zeros = jnp.zeros_like(reward)
        ahead = ops.discounted_advantage(reward, zeros, zeros[:, 0], mask, gamma=gamma, lam=1.0)
        return jnp.where(jnp.any(absent > 0, axis=1, keepdims=True), 0.0, ahead), mask

    ahead, mask = ops.over_rollouts(to_go, trajectory, reward, absent, axis_name=axis_name)
    if baseline == "loo":
        _, vote, _ = ops.outcome(trajectory, axis_name=axis_name)
        ahead = jnp.where(mask, ahead, 0.0)

        def minus_others(ahead: Array, vote: Array, group: Array, rollout: Array) -> Array:
            turns = ahead.shape[1]
            cell = (group[:, None] * turns + jnp.arange(turns, dtype=group.dtype)[None, :]).reshape(-1)
            own = jnp.repeat(ops.rollout_sum(vote, rollout), turns)
            return ops.group_advantage(
                ahead.reshape(-1), cell, jnp.repeat(vote, turns), own, cell.shape[0],
                baseline="loo", scale="none", ddof=1, eps=0.0,
            ).reshape(ahead.shape)  # fmt: skip

        ahead = ops.globally(minus_others, ahead, vote, trajectory.group, trajectory.rollout, axis_name=axis_name)
    return ops.turns_to_tokens(ahead, trajectory)
