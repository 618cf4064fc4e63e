"""Packed hindsight: every turn of a trajectory scored in its hinted context, in one forward pass.

The teacher's context for turn t is  history below hint_at[t] | hint | tail (the rest of the observation) | action.  The
trajectory runs once as a trunk; turn t is one short branch (hint, tail, action) that sees the trunk below hint_at[t]
and itself, at the positions it would have had. Exact up to float rounding, and T times cheaper than T padded rows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentjax import ops
from agentjax.policies.base import Layout, Policy, score_at, score_hidden
from agentjax.types import ACTION, Array, PyTree, Trajectory, Truth, record, static


@record
class Packed:
    """A trajectory and its T branches side by side: N = S + T * L slots, L = H + window."""

    tokens: Array  # int32[B,N]
    layout: Layout
    before: Array  # int32[B,T,L], branch slot that predicts each branch slot
    target: Array  # bool[B,T,L], action tokens of the turn
    slot: Array  # int32[B,T,L], the trajectory slot that each branch slot repeats; S on hint slots
    lead: int = static()  # leading slots of a branch that are never targets


def pack(
    trajectory: Trajectory,
    hint: Array,
    hint_mask: Array,
    hint_at: Array,
    *,
    window: int,
    action: Array | None = None,
    action_mask: Array | None = None,
) -> Packed:
    """Lays out trunk and branches.

    hint int32[B,T,H] with mask; hint_at int32[B,T] is the first slot after the hint's place; `window` is the static
    number of slots from there to the end of the action (tail + action). `action` int32[B,T,A] replaces the taken action
    in the last A slots of every branch (to train on another one); the tail then must be window - A slots long.
    """
    rows, slots = trajectory.tokens.shape
    turns, size = hint.shape[1:]
    index = hint_at[:, :, None] + jnp.arange(window, dtype=jnp.int32)[None, None, :]
    inside = index < slots
    index = jnp.minimum(index, slots - 1)
    row = jnp.arange(rows)[:, None, None]
    own = inside & (trajectory.turn[row, index] == jnp.arange(turns, dtype=jnp.int32)[None, :, None])
    own &= trajectory.turn_mask[:, :, None]
    tokens, said = trajectory.tokens[row, index], own
    target = own & (trajectory.role[row, index] == ACTION)
    if action is not None and action_mask is not None:
        tail = window - action.shape[2]
        spoken = action_mask & trajectory.turn_mask[:, :, None]
        tokens = jnp.concatenate([tokens[:, :, :tail], action], axis=2)
        said = jnp.concatenate([own[:, :, :tail], spoken], axis=2)
        target = jnp.concatenate([jnp.zeros_like(own[:, :, :tail]), spoken], axis=2)
    branch_tokens = jnp.concatenate([hint, tokens], axis=2)
    branch_valid = jnp.concatenate([hint_mask & trajectory.turn_mask[:, :, None], said], axis=2)
    length = size + window
    start = _count_below(trajectory.valid, hint_at)
    position = start[:, :, None] + jnp.cumsum(branch_valid, axis=2, dtype=jnp.int32) - 1
    flat = lambda x: x.reshape(rows, turns * length)  # noqa: E731
    layout = Layout(
        position=jnp.concatenate([trajectory.position, jnp.maximum(flat(position), 0)], axis=1),
        valid=jnp.concatenate([trajectory.valid, flat(branch_valid)], axis=1),
        cut=hint_at,
        trunk=slots,
    )
    none = jnp.zeros(hint.shape, bool)
    before = ops.previous_valid(branch_valid.reshape(rows * turns, length)).reshape(rows, turns, length)
    return Packed(
        tokens=jnp.concatenate([trajectory.tokens, flat(branch_tokens)], axis=1),
        layout=layout,
        before=before,
        target=jnp.concatenate([none, target], axis=2),
        slot=jnp.concatenate([jnp.full(hint.shape, slots, jnp.int32), jnp.where(own, index, slots)], axis=2),
        lead=size if action is None else length - action.shape[2],
    )


def _count_below(valid: Array, at: Array) -> Array:
    """int32[B,T]: valid slots below each `at`."""
    total = jnp.concatenate(
        [jnp.zeros_like(valid[:, :1], jnp.int32), jnp.cumsum(valid, axis=1, dtype=jnp.int32)], axis=1
    )
    return jnp.take_along_axis(total, at, axis=1)


def score_packed(
    policy: Policy, params: PyTree, trajectory: Trajectory, packed: Packed, *, chunk: int = 0, most: int = 0
) -> tuple[Array, Array]:
    """One pass: (plain log-probabilities [B,S], hinted log-probabilities by branch slot [B,T,L]); 0 off action
    tokens."""
    rows, turns, length = packed.target.shape
    slots = trajectory.tokens.shape[1]
    hidden, _ = policy.apply(params, packed.tokens, packed.layout)
    plain, _ = score_at(
        policy,
        params,
        hidden[:, :slots],
        trajectory.tokens,
        ops.previous_valid(trajectory.valid),
        trajectory.action_mask,
        trajectory.temperature,
        chunk=chunk,
        most=most,
    )
    branch = hidden[:, slots:].reshape(rows * turns, length, -1)
    tail = lambda x: x.reshape(rows * turns, length)[:, packed.lead :]  # noqa: E731
    before = tail(packed.before)
    taken, _ = score_hidden(
        policy,
        params,
        jnp.take_along_axis(branch, before[:, :, None], axis=1),
        tail(packed.tokens[:, slots:]),
        jnp.repeat(trajectory.temperature, turns),
        chunk=chunk,
    )
    hinted = jnp.where(tail(packed.target), taken, 0.0).reshape(rows, turns, -1)
    return plain, jnp.pad(hinted, ((0, 0), (0, 0), (packed.lead, 0)))


def teacher_logp(
    policy: Policy,
    params: PyTree,
    trajectory: Trajectory,
    truth: Truth,
    hint: Array,
    hint_mask: Array,
    *,
    window: int,
    chunk: int = 0,
    most: int = 0,
) -> tuple[Array, Array]:
    """(hinted [B,S], plain [B,S]) log-probabilities of the taken action tokens under `params`; 0 elsewhere.

    Turns without a hint (mask all False) are scored in their plain context, so their hint credit is exactly 0 in theory
    and rounding in practice.
    """
    packed = pack(trajectory, hint, hint_mask, truth.hint_at, window=window)
    plain, hinted = score_packed(policy, params, trajectory, packed, chunk=chunk, most=most)
    slots = trajectory.tokens.shape[1]
    rows = jnp.arange(hint.shape[0])[:, None]
    flat = lambda x: x.reshape(x.shape[0], -1)  # noqa: E731
    where = jnp.where(flat(packed.target), flat(packed.slot), slots)
    out = jnp.zeros((hint.shape[0], slots + 1)).at[rows, where].set(flat(jnp.where(packed.target, hinted, 0.0)))
    return jax.lax.stop_gradient(jnp.where(trajectory.action_mask, out[:, :slots], 0.0)), plain
