"""Generalised advantage estimation whose steps are actions (turns, or action tokens): observations are no steps."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from agentjax import ops
from agentjax.credit.base import present
from agentjax.types import Array, Signals, Trajectory


def turn_gae(trajectory: Trajectory, signals: Signals, *, axis_name: str | None, gamma: Any, lam: Any) -> Array:
    """GAE with one step per acted turn, the same on all tokens of the turn.

        delta_t = r_t + gamma V_{t+1} - V_t,   A_t = sum_l (gamma lam)^l delta_{t+l}

    `value[b,t]` is V before turn t's action. After the last acted turn n it is value[b,n+1] if the row that acted it is
    truncated, 0 if it terminated (or is neither: not ended is not cut); terminated wins over truncated. A rollout with
    a missing reward gets 0. lam = 1 and gamma = 1 is unbiased for any V; lam = 0 is unbiased only where V is exact.
    Sources: arXiv 1506.02438 eq. 16; one step per turn: AReaL, StepPO arXiv 2604.18401, Turn-PPO 2512.17008.

    r = [0, 1], V = [.5, .8], terminated, gamma = 1, lam = 0: [.3, .2]; lam = 1: [.5, .2].
    """
    reward, absent = ops.turn_rewards(trajectory)
    own = trajectory.turn_mask
    value = jnp.where(own, present(signals.value[:, :-1]), 0.0)
    after = jnp.where(own & _cut(trajectory)[:, None], present(signals.value[:, 1:]), 0.0)

    def recursion(mask: Array, reward: Array, absent: Array, value: Array, after: Array) -> Array:
        last = _last(mask)
        bootstrap = jnp.take_along_axis(after, last[:, None], axis=1)[:, 0]
        advantage = ops.discounted_advantage(reward, value, bootstrap, mask, gamma=gamma, lam=lam)
        return jnp.where(jnp.any(absent > 0, axis=1, keepdims=True), 0.0, advantage)

    table = ops.over_rollouts(recursion, trajectory, reward, absent, value, after, axis_name=axis_name)
    return ops.turns_to_tokens(table, trajectory)


def _cut(trajectory: Trajectory) -> Array:
    """bool[B]: ended by a limit, so that the value after the last turn counts."""
    return trajectory.truncated & ~trajectory.terminated


def _last(mask: Array) -> Array:
    """int32[B]: index of the last True along axis 1, 0 where there is none."""
    return jnp.max(jnp.where(mask, jnp.arange(mask.shape[1], dtype=jnp.int32)[None, :], 0), axis=1)
