"""A learned critic: the value before every action token, read off the policy's own hidden states.

    model = critic(width=64)
    state = model.init(key)
    signals = dataclasses.replace(signals, **model.apply(state, trajectory, hidden))      # value and token_value
    state, metrics = model.update(state, trajectory, hidden)

`hidden` float32[B,S,D] is what the policy computes on the trajectory (`read`); no gradient flows back into it. Fill the
signals before updating: a critic that has seen this batch's returns leaks them into their own baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from agentjax import ops
from agentjax.policies.base import Policy, trunk_layout
from agentjax.types import Array, PyTree, Trajectory, record


class SignalModel(NamedTuple):
    """A signal that is learned along the way; pure functions on a state of its own."""

    fills: tuple[str, ...]  # fields of Signals
    init: Callable[[Array], PyTree]  # (key) -> state
    update: Callable[[PyTree, Trajectory, Array], tuple[PyTree, dict[str, Array]]]  # (state, trajectory, hidden)
    apply: Callable[[PyTree, Trajectory, Array], dict[str, Array]]  # (state, trajectory, hidden) -> fields


@record
class CriticState:
    params: PyTree
    opt_state: PyTree


class Head(nn.Module):
    """Hidden state to a number; 0 at the start."""

    size: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = nn.silu(nn.Dense(self.size)(nn.LayerNorm()(x)))
        return nn.Dense(1, kernel_init=nn.initializers.zeros)(x)[..., 0]


def read(policy: Policy, params: PyTree, trajectory: Trajectory) -> Array:
    """float32[B,S,D]: the policy's hidden states on a trajectory, without gradient."""
    hidden, _ = policy.apply(params, trajectory.tokens, trunk_layout(trajectory.valid))
    return jax.lax.stop_gradient(hidden)


def critic(width: int, *, size: int = 64, learning_rate: float = 3e-3, steps: int = 8) -> SignalModel:
    """Regression of a small network on Monte-Carlo returns to go.

        loss = sum w (V(h_{before k}) - G_t)^2 / sum w,    G_t = sum_{u >= t} r_u (+ V after the last turn if truncated)

    over action tokens k of turns t, w the weight of the row; rollouts with a missing reward are left out. `width` is D,
    `size` the inner width; `update` takes `steps` steps of Adam on the batch. `apply` fills `token_value` [B,S], V
    before each action token, and `value` [B,T+1], V before each turn's first one; after the last turn n of a truncated
    row stands V of its last token at n + 1. 0 elsewhere.

    Two episodes of one turn from the same state, returns 0 and 1: V goes to 1/2.
    """
    head, optimizer = Head(size), optax.adam(learning_rate)

    def init(key: Array) -> CriticState:
        params = head.init(key, jnp.zeros((1, width)))
        return CriticState(params=params, opt_state=optimizer.init(params))

    def apply(state: CriticState, trajectory: Trajectory, hidden: Array) -> dict[str, Array]:
        token_value, after = _values(head, state.params, trajectory, hidden)
        return dict(token_value=token_value, value=_by_turn(trajectory, token_value, after))

    def update(state: CriticState, trajectory: Trajectory, hidden: Array) -> tuple[CriticState, dict[str, Array]]:
        hidden = jax.lax.stop_gradient(hidden)

        def loss(params: PyTree) -> Array:
            token_value, after = _values(head, params, trajectory, hidden)
            target, weight = _targets(trajectory, jax.lax.stop_gradient(after))
            return jnp.sum(weight * jnp.square(token_value - target)) / jnp.maximum(jnp.sum(weight), 1e-6)

        def step(state: CriticState, _: None) -> tuple[CriticState, Array]:
            value, gradient = jax.value_and_grad(loss)(state.params)
            with jax.numpy_dtype_promotion("standard"):  # optax raises a float rate to an int count
                moves, opt_state = optimizer.update(gradient, state.opt_state, state.params)
            return CriticState(params=optax.apply_updates(state.params, moves), opt_state=opt_state), value

        state, values = jax.lax.scan(step, state, None, length=steps)
        return state, {"critic_loss": values[0]}

    return SignalModel(fills=("value", "token_value"), init=init, update=update, apply=apply)


def _values(head: Head, params: PyTree, trajectory: Trajectory, hidden: Array) -> tuple[Array, Array]:
    """V before each action token [B,S], 0 elsewhere; V after the row's last token [B], 0 where it terminated."""
    every: Any = head.apply(params, hidden)
    before = jnp.take_along_axis(every, ops.previous_valid(trajectory.valid), axis=1)
    slots = jnp.arange(every.shape[1], dtype=jnp.int32)[None, :]
    last = jnp.max(jnp.where(trajectory.valid, slots, 0), axis=1)
    cut = trajectory.truncated & ~trajectory.terminated
    after = jnp.where(cut, jnp.take_along_axis(every, last[:, None], axis=1)[:, 0], 0.0)
    return jnp.where(trajectory.action_mask, before, 0.0), after


def _by_turn(trajectory: Trajectory, token_value: Array, after: Array) -> Array:
    """[B,T+1]: `token_value` of each turn's first token, and `after` behind the row's last turn."""
    mask, turns = trajectory.action_mask, trajectory.reward.shape[1]
    slots = jnp.arange(mask.shape[1], dtype=jnp.int32)[None, :]
    rows = jnp.arange(mask.shape[0])[:, None]
    index = jnp.where(mask, trajectory.turn, turns)
    first = jnp.full((mask.shape[0], turns + 1), mask.shape[1], jnp.int32).at[rows, index].min(slots)[:, :turns]
    opening = jnp.take_along_axis(token_value, jnp.minimum(first, mask.shape[1] - 1), axis=1)
    value = jnp.pad(jnp.where(first < mask.shape[1], opening, 0.0), ((0, 0), (0, 1)))
    end = jnp.max(jnp.where(mask, trajectory.turn + 1, 0), axis=1)
    return value.at[rows[:, 0], end].add(jnp.where(end > 0, after, 0.0))


def _targets(trajectory: Trajectory, after: Array) -> tuple[Array, Array]:
    """Return to go of each action token's turn, and its weight; [B,S]."""
    reward, absent = ops.turn_rewards(trajectory)
    last = jnp.max(jnp.where(trajectory.turn_mask, jnp.arange(reward.shape[1], dtype=jnp.int32)[None, :], 0), axis=1)
    reward = reward.at[jnp.arange(reward.shape[0]), last].add(after)
    reward = jnp.where(trajectory.turn_mask, reward, 0.0)

    def to_go(mask: Array, reward: Array, absent: Array) -> tuple[Array, Array]:
        return jnp.cumsum(reward[:, ::-1], axis=1)[:, ::-1], jnp.any(absent > 0, axis=1)

    target, missing = ops.over_rollouts(to_go, trajectory, reward, absent, axis_name=None)
    weight = jnp.where(missing, 0.0, ops.live_weight(trajectory))
    return ops.turns_to_tokens(target, trajectory), ops.rows_to_tokens(weight, trajectory)
