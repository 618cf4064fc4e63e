"""A softmax table over observation tokens, as a `Policy`: for tasks whose every number is known exactly."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentjax import ops
from agentjax.policies.base import Layout, Policy
from agentjax.types import Array, Cache, PyTree


def tabular_policy(vocab: int, *, action: Array, observation: Array, hint: Array, hint_gain: float = 2.0) -> Policy:
    """pi(action i | observable j) = softmax(table[j])[i]; tokens that are no actions have logit -1e9.

    vocab: V. action int32[A], observation int32[n], hint int32[A]: token ids (`**token_ids(model)._asdict()`).
    Parameters: {"table": float32[n,A]}, initially zeros: uniform. Hidden states are the A logits of the row of the
    token at that slot; tokens without a row share row 0 and predict nothing. If the valid token just before it, in the
    same sequence, branch or decode call, is hint i, the logit of action i is raised by `hint_gain`: how well the frozen
    part of the agent follows hints, so that a hinted teacher exists here too. There is nothing to cache.

    With a table of zeros and hint_gain = log 3, a hinted action of two has probability 3/4.
    """
    actions, rows = action.shape[0], observation.shape[0]
    row_of = jnp.zeros(vocab, jnp.int32).at[observation].set(jnp.arange(rows, dtype=jnp.int32))
    shift_of = jnp.zeros((vocab, actions), jnp.float32).at[hint, jnp.arange(actions)].set(hint_gain)

    def init(key: Array) -> PyTree:
        return {"table": jnp.zeros((rows, actions), jnp.float32)}

    def read(params: PyTree, tokens: Array, valid: Array) -> Array:
        previous = jnp.take_along_axis(tokens, ops.previous_valid(valid), axis=1)
        return params["table"][row_of[tokens]] + shift_of[previous]

    def apply(params: PyTree, tokens: Array, layout: Layout) -> tuple[Array, Cache]:
        trunk = tokens.shape[1] if layout.cut is None else layout.trunk
        hidden = read(params, tokens[:, :trunk], layout.valid[:, :trunk])
        if layout.cut is not None:
            branches = (tokens.shape[0] * layout.cut.shape[1], -1)
            rest = read(params, tokens[:, trunk:].reshape(branches), layout.valid[:, trunk:].reshape(branches))
            hidden = jnp.concatenate([hidden, rest.reshape(tokens.shape[0], -1, actions)], axis=1)
        return hidden, Cache(key=(), value=(), visible=layout.valid[:, :trunk])

    def logits(params: PyTree, hidden: Array) -> Array:
        return jnp.full((*hidden.shape[:-1], vocab), -1e9, jnp.float32).at[..., action].set(hidden)

    def empty_cache(rows: int, slots: int) -> Cache:
        return Cache(key=(), value=(), visible=jnp.zeros((rows, slots), bool))

    def decode(
        params: PyTree, prefix: Cache | None, cut: Array | None, suffix: Cache, start: Array, tokens: Array,
        valid: Array, position: Array,
    ) -> tuple[Array, Cache]:
        visible = jax.lax.dynamic_update_slice_in_dim(suffix.visible, valid, start, axis=1)
        return read(params, tokens, valid), Cache(key=(), value=(), visible=visible)

    return Policy(vocab=vocab, init=init, apply=apply, logits=logits, empty_cache=empty_cache, decode=decode)
