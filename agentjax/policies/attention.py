"""Attention in three shapes: a causal trunk, branches off a trunk, and decoding on a shared prefix.

Queries are [B, heads, n, head]; keys and values [B, kv_heads, s, head], heads a multiple of kv_heads. Masks are built
from small vectors inside each block of queries; no S x S array outlives its block.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentjax.types import Array

_FAR = -1e30  # a masked score; finite, so that a query that sees nothing (padding) stays finite


def rotate(x: Array, position: Array, base: float) -> Array:
    """Rotary positions on the two halves of the head: x [B, heads, n, head], position int32[B, n]."""
    half = x.shape[-1] // 2
    rate = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = position.astype(jnp.float32)[:, None, :, None] * rate[None, None, None, :]
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _scores(query: Array, key: Array) -> Array:
    """[B, kv_heads, rep * n, s] in float32, from query [B, heads, n, head]."""
    rows, heads, n, head = query.shape
    kv_heads = key.shape[1]
    folded = query.reshape(rows, kv_heads, heads // kv_heads * n, head) * head**-0.5
    return jnp.einsum("bhqd,bhsd->bhqs", folded, key, preferred_element_type=jnp.float32)


def _mix(parts: list[tuple[Array, Array, Array]], shape: tuple[int, ...]) -> Array:
    """One softmax over several (scores, mask, value) parts; mask broadcasts to [B, 1, n, s]. Returns [B, heads, n,
    head]."""
    rows, heads, n, head = shape
    kv_heads = parts[0][0].shape[1]
    rep = heads // kv_heads
    masked = []
    for score, mask, _ in parts:
        score = score.reshape(rows, kv_heads, rep, n, score.shape[-1])
        masked.append(jnp.where(mask[:, :, None], score, _FAR))
    top = masked[0].max(axis=-1, keepdims=True)
    for score in masked[1:]:
        top = jnp.maximum(top, score.max(axis=-1, keepdims=True))
    top = jax.lax.stop_gradient(top)
    weights = [jnp.exp(score - top) for score in masked]
    total = sum(weight.sum(axis=-1, keepdims=True) for weight in weights)
    out = sum(
        jnp.einsum("bhqs,bhsd->bhqd", weight.reshape(rows, kv_heads, rep * n, -1).astype(value.dtype), value)
        for weight, (_, _, value) in zip(weights, parts, strict=True)
    )
    return (out.reshape(rows, kv_heads, rep, n, head) / total.astype(out.dtype)).reshape(shape)


def causal(query: Array, key: Array, value: Array, valid: Array, *, block: int = 128) -> Array:
    """Each slot sees the valid slots up to itself. Blocks of queries read only the keys before their own end."""
    slots, out = query.shape[2], []
    for start in range(0, slots, block):
        stop = min(start + block, slots)
        k, v = key[:, :, :stop], value[:, :, :stop]
        see = jnp.arange(stop)[None, :] <= jnp.arange(start, stop)[:, None]
        mask = valid[:, None, None, :stop] & see[None, None]
        q = query[:, :, start:stop]
        out.append(_mix([(_scores(q, k), mask, v)], q.shape))
    return jnp.concatenate(out, axis=2) if len(out) > 1 else out[0]


def branched(
    query: Array,
    key: Array,
    value: Array,
    trunk_key: Array,
    trunk_value: Array,
    trunk_valid: Array,
    valid: Array,
    cut: Array,
) -> Array:
    """M branches of n slots a row: each sees the trunk's valid slots below its `cut` [B, M], and itself causally.

    query, key, value [B, heads, M * n, head]; valid bool[B, M * n].
    """
    rows, heads, _, head = query.shape
    branches = cut.shape[1]
    n = query.shape[2] // branches
    see_trunk = trunk_valid[:, None, :] & (jnp.arange(trunk_key.shape[2])[None, None, :] < cut[:, :, None])
    trunk_score = _scores(query, trunk_key)
    trunk_mask = jnp.repeat(see_trunk, n, axis=1)[:, None]

    def own(x: Array) -> Array:  # [B, h, M * n, d] -> [B * M, h, n, d]
        return jnp.moveaxis(x.reshape(rows, x.shape[1], branches, n, head), 2, 1).reshape(
            rows * branches, x.shape[1], n, head
        )

    def back(x: Array) -> Array:  # [B * M, kv, rep, n, z] -> [B, kv, rep, M * n, z]
        kv, rep, _, z = x.shape[1:]
        x = jnp.moveaxis(x.reshape(rows, branches, kv, rep, n, z), 1, 3)
        return x.reshape(rows, kv, rep, branches * n, z)

    kv_heads = key.shape[1]
    rep = heads // kv_heads
    own_score = _scores(own(query), own(key)).reshape(rows * branches, kv_heads, rep, n, n)
    tri = jnp.arange(n)[None, :] <= jnp.arange(n)[:, None]
    own_mask = (valid.reshape(rows * branches, 1, 1, 1, n)) & tri[None, None, None]
    own_score = jnp.where(own_mask, own_score, _FAR)
    trunk_score = jnp.where(trunk_mask[:, :, None], trunk_score.reshape(rows, kv_heads, rep, branches * n, -1), _FAR)
    own_top = back(own_score.max(axis=-1, keepdims=True))
    top = jax.lax.stop_gradient(jnp.maximum(trunk_score.max(axis=-1, keepdims=True), own_top))
    trunk_weight = jnp.exp(trunk_score - top)
    top_own = jnp.moveaxis(top.reshape(rows, kv_heads, rep, branches, n, 1), 3, 1).reshape(own_score.shape[:-1] + (1,))
    own_weight = jnp.exp(own_score - top_own)
    total = trunk_weight.sum(axis=-1, keepdims=True) + back(own_weight.sum(axis=-1, keepdims=True))
    out = jnp.einsum(
        "bhqs,bhsd->bhqd", trunk_weight.reshape(rows, kv_heads, rep * branches * n, -1).astype(value.dtype), trunk_value
    ).reshape(rows, kv_heads, rep, branches * n, head)
    mine = jnp.einsum(
        "bhqs,bhsd->bhqd", own_weight.reshape(rows * branches, kv_heads, rep * n, n).astype(value.dtype), own(value)
    ).reshape(rows * branches, kv_heads, rep, n, head)
    return ((out + back(mine)) / total.astype(out.dtype)).reshape(query.shape)


def on_prefix(
    query: Array, prefix_key: Array, prefix_value: Array, prefix_mask: Array, key: Array, value: Array, mask: Array
) -> Array:
    """Decoding: M private suffixes a row on one shared, read-only prefix.

    query [B * M, heads, n, head]; prefix_key [B, kv_heads, S, head]; prefix_mask bool[B, M, S];
    key [B * M, kv_heads, S2, head]; mask bool[B * M, n, S2].
    """
    rows, branches = prefix_mask.shape[:2]
    _, heads, n, head = query.shape
    kv_heads = key.shape[1]
    rep = heads // kv_heads
    shared = jnp.moveaxis(query.reshape(rows, branches, heads, n, head), 1, 2)  # [B, heads, M, n, head]
    prefix_score = _scores(shared.reshape(rows, heads, branches * n, head), prefix_key)
    prefix_score = prefix_score.reshape(rows, kv_heads, rep, branches, n, -1)
    prefix_score = jnp.where(prefix_mask[:, None, None, :, None], prefix_score, _FAR)
    own_score = _scores(query, key).reshape(rows, branches, kv_heads, rep, n, -1)
    own_score = jnp.where(mask.reshape(rows, branches, 1, 1, n, -1), own_score, _FAR)
    own_score = jnp.moveaxis(own_score, 1, 3)  # [B, kv, rep, M, n, S2]
    top = jnp.maximum(prefix_score.max(axis=-1, keepdims=True), own_score.max(axis=-1, keepdims=True))
    prefix_weight, own_weight = jnp.exp(prefix_score - top), jnp.exp(own_score - top)
    total = prefix_weight.sum(axis=-1, keepdims=True) + own_weight.sum(axis=-1, keepdims=True)
    out = jnp.einsum(
        "bhqs,bhsd->bhqd",
        prefix_weight.reshape(rows, kv_heads, rep * branches * n, -1).astype(value.dtype),
        prefix_value,
    ).reshape(rows, kv_heads, rep, branches, n, head)
    own_weight = jnp.moveaxis(own_weight, 3, 1).reshape(rows * branches, kv_heads, rep * n, -1)
    mine = jnp.einsum("bhqs,bhsd->bhqd", own_weight.astype(value.dtype), value)
    mine = jnp.moveaxis(mine.reshape(rows, branches, kv_heads, rep, n, head), 1, 3)
    out = (out + mine) / total.astype(out.dtype)  # [B, kv, rep, M, n, head]
    return jnp.moveaxis(out, 3, 1).reshape(rows * branches, heads, n, head)


def on_suffix(query: Array, key: Array, value: Array, mask: Array) -> Array:
    """Decoding without a prefix: query [B, heads, n, head], key [B, kv_heads, S, head], mask bool[B, n, S]."""
    return _mix([(_scores(query, key), mask[:, None], value)], query.shape)
