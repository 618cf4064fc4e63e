"""Generalised advantage estimation whose steps are actions (turns, or action tokens): observations are no steps."""

from __future__ import annotations

from typing import Any

import jax
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


def token_gae(trajectory: Trajectory, signals: Signals, *, axis_name: str | None, gamma: Any, lam: Any) -> Array:
    """GAE with one step, one gamma and one lambda per action token, across turns.

        delta_k = r_k + gamma V_{k+1} - V_k,   A_k = delta_k + gamma lam A_{k+1},   k + 1 the next action token

    `token_value[b,s]` is V before the action token in slot s; what stands elsewhere is never read. A turn's reward
    lands on the last token of its action, a token reward on an observation on the last action token before it. After
    the last token V is `value[b,n+1]` for the last acted turn n, as in `turn_gae`. verl 0.9.1 and Tunix 0.1.7 lose a
    reward that lands on an observation; others count observations as steps. A rollout with a missing reward gets 0.
    Source: arXiv 1506.02438 eq. 16.

    Tokens action, observation, action; reward 1 for the second action, V = 0, gamma = 1, lam = .95: [.95, 0, 1].
    """
    mask = trajectory.action_mask & (ops.live_weight(trajectory) > 0)[:, None]
    value = jnp.where(mask, present(signals.token_value), 0.0)
    own, turns = trajectory.turn_mask, trajectory.reward.shape[1]
    first = ops.first_turn(trajectory)
    starts = (first[:, None] == jnp.arange(turns, dtype=jnp.int32)[None, :]) & own
    opening = jnp.take_along_axis(value, jnp.argmax(mask, axis=1)[:, None], axis=1)
    after = jnp.where(own & _cut(trajectory)[:, None], present(signals.value[:, 1:]), 0.0)
    per_token, per_turn, absent = _rewards_by_token(trajectory, first)

    # what a row needs from the other parts of its rollout: rewards paid back to it, V where the next part starts
    tables = (per_turn, absent, starts, jnp.where(starts, opening, 0.0), after)
    whole, per_turn, absent, parts, opening, after = ops.over_rollouts(
        lambda *joined: joined, trajectory, *tables, axis_name=axis_name
    )
    following = _next_part(parts > 0, _last(own))  # turn at which the next part starts, T: none
    end = jnp.take_along_axis(after, _last(whole)[:, None], axis=1)
    bootstrap = jnp.take_along_axis(jnp.concatenate([opening, end], axis=1), following[:, None], axis=1)[:, 0]
    reward = per_token + _on_last_token(per_turn, trajectory, mask)
    advantage = ops.discounted_advantage(reward, value, bootstrap, mask, gamma=gamma, lam=lam)

    # what the next part's advantage adds: (gamma lam)^(tokens to the end of this row) A_{first token of the next part}
    at_start = jnp.take_along_axis(advantage, jnp.argmax(mask, axis=1)[:, None], axis=1)
    length = jnp.sum(mask, axis=1, dtype=jnp.float32)[:, None]
    decay = jnp.where(starts, (gamma * lam) ** length, 0.0)
    chain = ops.over_rollouts(_chain, trajectory, starts, jnp.where(starts, at_start, 0.0), decay, axis_name=axis_name)
    carried = jnp.take_along_axis(jnp.pad(chain, ((0, 0), (0, 1))), following[:, None], axis=1)

    def continued() -> Array:
        left = jnp.cumsum(mask[:, ::-1], axis=1, dtype=jnp.float32)[:, ::-1]
        return advantage + carried * (gamma * lam) ** left

    advantage = jax.lax.cond(jnp.any(carried != 0), continued, lambda: advantage)
    return jnp.where(jnp.any(absent > 0, axis=1, keepdims=True), 0.0, advantage)


def _rewards_by_token(trajectory: Trajectory, first: Array) -> tuple[Array, Array, Array]:
    """Token rewards on the action tokens they pay for [B,S]; what is paid per turn [B,T], the part before this row
    included; and what is missing [B,T].
    """
    per_turn, absent = ops.turn_rewards(trajectory)
    per_token = jnp.zeros_like(trajectory.logp)
    if trajectory.token_reward is None:
        return per_token, per_turn, absent
    slot = ops.paid_slot(trajectory)
    here = trajectory.valid & (slot >= 0)
    paid = jnp.where(here, present(trajectory.token_reward), 0.0)
    rows = jnp.arange(slot.shape[0])[:, None]
    per_token = per_token.at[rows, jnp.maximum(slot, 0)].add(paid)
    return per_token, per_turn - ops.tokens_to_turns(per_token, trajectory), absent


def _on_last_token(per_turn: Array, trajectory: Trajectory, mask: Array) -> Array:
    """[B,S]: per_turn[B,T] on the last action token of each turn that the row holds (turns never fall along a row)."""
    turns = per_turn.shape[1]
    turn = jnp.where(mask, trajectory.turn, turns)
    following = jnp.pad(jax.lax.cummin(turn, axis=1, reverse=True)[:, 1:], ((0, 0), (0, 1)), constant_values=turns)
    paid = jnp.take_along_axis(per_turn, jnp.minimum(turn, turns - 1), axis=1)
    return jnp.where(turn < following, paid, 0.0)


def _next_part(parts: Array, last: Array) -> Array:
    """int32[B]: first True of parts[B,T] behind index last[B], T if there is none."""
    turns = jnp.arange(parts.shape[1], dtype=jnp.int32)[None, :]
    return jnp.min(jnp.where(parts & (turns > last[:, None]), turns, parts.shape[1]), axis=1)


def _chain(mask: Array, starts: Array, advantage: Array, decay: Array) -> Array:
    """A at the start of each part, the later parts of the rollout included; tables [B,T], 0 where no part starts."""

    def back(later: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        on, a, d = now
        here = a + d * later
        return jnp.where(on > 0, here, later), jnp.where(on > 0, here, 0.0)

    tables = (starts.T, advantage.T, decay.T)
    return jax.lax.scan(back, jnp.zeros_like(starts[:, 0]), tables, reverse=True)[1].T


def _cut(trajectory: Trajectory) -> Array:
    """bool[B]: ended by a limit, so that the value after the last turn counts."""
    return trajectory.truncated & ~trajectory.terminated


def _last(mask: Array) -> Array:
    """int32[B]: index of the last True along axis 1, 0 where there is none."""
    return jnp.max(jnp.where(mask, jnp.arange(mask.shape[1], dtype=jnp.int32)[None, :], 0), axis=1)
