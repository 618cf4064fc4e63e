"""The policy contract: a named tuple of pure functions, and scoring of tokens on top of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentjax import ops
from agentjax.types import Array, Cache, PyTree, record, static


@record
class Layout:
    """Where tokens stand and what they see; never a dense S x S mask.

    The first `trunk` slots are an ordinary causal sequence. What follows is M equal branches, one after the other:
    branch m sees the trunk's valid slots below `cut[b,m]`, and itself causally.
    """

    position: Array  # int32[B,N]
    valid: Array  # bool[B,N]
    cut: Array | None = None  # int32[B,M]
    trunk: int = static(default=0)  # 0: all of it


class Policy(NamedTuple):
    """Pure functions; `params` is a pytree of arrays. D is the policy's own business."""

    vocab: int
    init: Callable[[Array], PyTree]  # (key) -> params
    # (params, tokens int32[B,N], Layout) -> (hidden [B,N,D], Cache of the trunk's slots)
    apply: Callable[[PyTree, Array, Layout], tuple[Array, Cache]]
    # (params, hidden [...,D]) -> float32[...,V]
    logits: Callable[[PyTree, Array], Array]
    # (rows, slots) -> Cache with nothing visible
    empty_cache: Callable[[int, int], Cache]
    # (params, prefix Cache[B] or None, cut int32[B,M] or None, suffix Cache[B*M], start int32[], tokens int32[B*M,n],
    #  valid bool[B*M,n], position int32[B*M,n]) -> (hidden [B*M,n,D], suffix with slots start..start+n written).
    # Row b*M+m sees the visible slots of prefix row b below cut[b,m], its own visible suffix slots before `start`, and
    # the n tokens causally. The prefix is shared by the M branches of a row and only read.
    decode: Callable[..., tuple[Array, Cache]]


def trunk_layout(valid: Array) -> Layout:
    """The layout of plain sequences."""
    return Layout(position=ops.positions(valid), valid=valid)


def log_softmax(logits: Array, temperature: Array) -> Array:
    """log softmax(logits / temperature) in float32; temperature has the leading axes of logits."""
    scale = temperature.reshape(temperature.shape + (1,) * (logits.ndim - temperature.ndim))
    return jax.nn.log_softmax(logits.astype(jnp.float32) / scale, axis=-1)


def score_hidden(
    policy: Policy, params: PyTree, hidden: Array, ids: Array, temperature: Array, *, chunk: int = 0
) -> tuple[Array, Array]:
    """log-probability of ids[B,N] given hidden[B,N,D] (the state just before each), and the entropy there; both [B,N].

    With `chunk` > 0 logits exist for that many positions at a time, and are recomputed in the backward pass.
    """

    def piece(h: Array, i: Array) -> tuple[Array, Array]:
        logp = log_softmax(policy.logits(params, h), temperature)
        taken = jnp.take_along_axis(logp, i[..., None], axis=-1)[..., 0]
        return taken, -jnp.sum(jnp.exp(logp) * logp, axis=-1)

    n = ids.shape[1]
    if chunk <= 0 or chunk >= n:
        return piece(hidden, ids)
    pad = -n % chunk
    blocks = (n + pad) // chunk

    def split(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, pad)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(x.shape[0], blocks, chunk, *x.shape[2:]), 1, 0)

    def join(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 1).reshape(ids.shape[0], n + pad)[:, :n]

    taken, entropy = jax.lax.map(jax.checkpoint(lambda xs: piece(*xs)), (split(hidden), split(ids)))
    return join(taken), join(entropy)


def score_tokens(
    policy: Policy,
    params: PyTree,
    tokens: Array,
    valid: Array,
    target: Array,
    temperature: Array,
    *,
    chunk: int = 0,
    most: int = 0,
) -> tuple[Array, Array]:
    """log-probability and entropy of every token of `target` bool[B,S] given what stands before it; 0 elsewhere.

    Each token is predicted from the last valid slot before it, so padding may stand anywhere. With `most` > 0 only that
    many targets a row (their static upper bound) pass through the output layer.
    """
    hidden, _ = policy.apply(params, tokens, trunk_layout(valid))
    before = ops.previous_valid(valid)
    return score_at(policy, params, hidden, tokens, before, target, temperature, chunk=chunk, most=most)


def score_at(
    policy: Policy,
    params: PyTree,
    hidden: Array,
    tokens: Array,
    before: Array,
    target: Array,
    temperature: Array,
    *,
    chunk: int = 0,
    most: int = 0,
) -> tuple[Array, Array]:
    """`score_tokens` on ready hidden states; `before[b,s]` is the slot that predicts slot s."""
    slots = tokens.shape[1]
    rows = jnp.arange(tokens.shape[0])[:, None]
    if 0 < most < slots:
        order = jnp.argsort(~target, axis=1, stable=True)[:, :most].astype(jnp.int32)  # targets first, in order
    else:
        order = jnp.broadcast_to(jnp.arange(slots, dtype=jnp.int32)[None, :], tokens.shape)
    taken, entropy = score_hidden(
        policy, params, hidden[rows, before[rows, order]], tokens[rows, order], temperature, chunk=chunk
    )
    keep = target[rows, order]
    zeros = jnp.zeros(tokens.shape, jnp.float32)
    put: Any = lambda x: zeros.at[rows, order].set(jnp.where(keep, x, 0.0))  # noqa: E731
    return put(taken), put(entropy)
