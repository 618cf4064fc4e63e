"""One decoder-only transformer, from two layers of width 64 to Llama-shaped checkpoints.

RMSNorm, rotary positions, grouped-query attention, SwiGLU. Parameters are a plain dict:

    {"embed": [V, D], "blocks": {"00": {"attn_norm", "q", "k", "v", "o", "ffn_norm", "gate", "up", "down"}, ...},
     "norm": {"scale": [D]}, "head": [D, V] unless embeddings are tied}
"""

from __future__ import annotations

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from agentjax.policies import attention
from agentjax.policies.base import Layout, Policy
from agentjax.types import Array, Cache, PyTree


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Static sizes. `remat` recomputes each block in the backward pass."""

    vocab: int
    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 192
    rope_base: float = 1e4
    norm_eps: float = 1e-5
    tie_embeddings: bool = True
    remat: bool = False

    def __post_init__(self) -> None:
        if self.width % self.heads or self.heads % self.kv_heads or (self.width // self.heads) % 2:
            raise ValueError(
                f"width {self.width} must be heads {self.heads} x an even head size, and heads a multiple of kv_heads "
                f"{self.kv_heads}"
            )

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.width // self.heads


class Block(nn.Module):
    """x + attention(norm(x)), then x + swiglu(norm(x)); `attend(q, k, v)` gets [B, heads, n, head] after rotation."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x, position, attend):
        c = self.config
        dense = functools.partial(nn.Dense, use_bias=False, kernel_init=nn.initializers.normal(c.width**-0.5))
        norm = functools.partial(nn.RMSNorm, epsilon=c.norm_eps)

        def heads(y: Array, count: int) -> Array:
            return jnp.moveaxis(y.reshape(*y.shape[:2], count, c.head), 1, 2)

        h = norm(name="attn_norm")(x)
        q = attention.rotate(heads(dense(c.width, name="q")(h), c.heads), position, c.rope_base)
        k = attention.rotate(heads(dense(c.kv_heads * c.head, name="k")(h), c.kv_heads), position, c.rope_base)
        v = heads(dense(c.kv_heads * c.head, name="v")(h), c.kv_heads)
        mixed, kept = attend(q, k, v)
        small = nn.initializers.normal(c.width**-0.5 / (2 * c.layers) ** 0.5)
        out = nn.Dense(c.width, use_bias=False, kernel_init=small, name="o")
        x = x + out(jnp.moveaxis(mixed, 1, 2).reshape(x.shape))
        h = norm(name="ffn_norm")(x)
        gated = nn.silu(dense(c.ffn, name="gate")(h)) * dense(c.ffn, name="up")(h)
        down = nn.Dense(
            c.width, use_bias=False, kernel_init=nn.initializers.normal((2 * c.layers * c.ffn) ** -0.5), name="down"
        )
        return x + down(gated), kept


def _names(config: TransformerConfig) -> list[str]:
    return [f"{layer:02d}" for layer in range(config.layers)]


def _init(config: TransformerConfig, key: Array) -> PyTree:
    block = Block(config)
    embed_key, head_key, *keys = jax.random.split(key, 2 + config.layers)
    x, position = jnp.zeros((1, 1, config.width)), jnp.zeros((1, 1), jnp.int32)
    plain = lambda q, k, v: (q, None)  # noqa: E731
    params = {
        "embed": jax.random.normal(embed_key, (config.vocab, config.width)) * config.width**-0.5,
        "blocks": {
            name: block.init(k, x, position, plain)["params"] for name, k in zip(_names(config), keys, strict=True)
        },
        "norm": {"scale": jnp.ones(config.width)},
    }
    if not config.tie_embeddings:
        params["head"] = jax.random.normal(head_key, (config.width, config.vocab)) * config.width**-0.5
    return params


def _finish(config: TransformerConfig, params: PyTree, x: Array) -> Array:
    return nn.RMSNorm(epsilon=config.norm_eps).apply({"params": params["norm"]}, x)


def _apply(config: TransformerConfig, params: PyTree, tokens: Array, layout: Layout) -> tuple[Array, Cache]:
    trunk = tokens.shape[1] if layout.cut is None else layout.trunk
    valid = layout.valid

    def attend(q: Array, k: Array, v: Array) -> tuple[Array, tuple[Array, Array]]:
        tk, tv = k[:, :, :trunk], v[:, :, :trunk]
        out = attention.causal(q[:, :, :trunk], tk, tv, valid[:, :trunk])
        if layout.cut is not None:
            rest = attention.branched(
                q[:, :, trunk:],
                k[:, :, trunk:],
                v[:, :, trunk:],
                tk,
                tv,
                valid[:, :trunk],
                valid[:, trunk:],
                layout.cut,
            )
            out = jnp.concatenate([out, rest], axis=2)
        return out, (tk, tv)

    def step(x: Array, block: PyTree) -> tuple[Array, tuple[Array, Array]]:
        return Block(config).apply({"params": block}, x, layout.position, attend)

    if config.remat:
        step = jax.checkpoint(step)
    x = params["embed"][tokens]
    blocks = [params["blocks"][name] for name in _names(config)]
    if config.layers > 4:  # one compiled block; the stacked copy of the weights lives only inside this call
        x, (keys, values) = jax.lax.scan(step, x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks))
        kept = [(keys[i], values[i]) for i in range(config.layers)]
    else:
        kept = []
        for block in blocks:
            x, pair = step(x, block)
            kept.append(pair)
    cache = Cache(key=tuple(k for k, _ in kept), value=tuple(v for _, v in kept), visible=valid[:, :trunk])
    return _finish(config, params, x), cache


def _decode(
    config: TransformerConfig,
    params: PyTree,
    prefix: Cache | None,
    cut: Array | None,
    suffix: Cache,
    start: Array,
    tokens: Array,
    valid: Array,
    position: Array,
) -> tuple[Array, Cache]:
    slots = suffix.visible.shape[1]
    n = tokens.shape[1]
    visible = jax.lax.dynamic_update_slice_in_dim(suffix.visible, valid, start, axis=1)
    upto = start + jnp.arange(n, dtype=jnp.int32)
    mask = visible[:, None, :] & (jnp.arange(slots, dtype=jnp.int32)[None, None, :] <= upto[None, :, None])
    if prefix is not None and cut is not None:
        below = jnp.arange(prefix.visible.shape[1], dtype=jnp.int32)[None, None, :] < cut[:, :, None]
        prefix_mask = prefix.visible[:, None, :] & below
    x, keys, values = params["embed"][tokens], [], []
    for layer, name in enumerate(_names(config)):

        def attend(q: Array, k: Array, v: Array, layer: int = layer) -> tuple[Array, tuple[Array, Array]]:
            k = jax.lax.dynamic_update_slice_in_dim(suffix.key[layer], k, start, axis=2)
            v = jax.lax.dynamic_update_slice_in_dim(suffix.value[layer], v, start, axis=2)
            if prefix is None:
                return attention.on_suffix(q, k, v, mask), (k, v)
            out = attention.on_prefix(q, prefix.key[layer], prefix.value[layer], prefix_mask, k, v, mask)
            return out, (k, v)

        x, (k, v) = Block(config).apply({"params": params["blocks"][name]}, x, position, attend)
        keys.append(k)
        values.append(v)
    return _finish(config, params, x), Cache(key=tuple(keys), value=tuple(values), visible=visible)


def _empty_cache(config: TransformerConfig, rows: int, slots: int) -> Cache:
    shape = (rows, config.kv_heads, slots, config.head)
    zeros = tuple(jnp.zeros(shape) for _ in range(config.layers))
    return Cache(key=zeros, value=zeros, visible=jnp.zeros((rows, slots), bool))


def _logits(config: TransformerConfig, params: PyTree, hidden: Array) -> Array:
    if config.tie_embeddings:
        return jnp.einsum("...d,vd->...v", hidden, params["embed"], preferred_element_type=jnp.float32)
    return jnp.einsum("...d,dv->...v", hidden, params["head"], preferred_element_type=jnp.float32)


def transformer(config: TransformerConfig) -> Policy:
    """The policy of a config."""
    return Policy(
        vocab=config.vocab,
        init=functools.partial(_init, config),
        apply=functools.partial(_apply, config),
        logits=functools.partial(_logits, config),
        empty_cache=functools.partial(_empty_cache, config),
        decode=functools.partial(_decode, config),
    )
