"""One transformer, three ways to run it, and the same sums in numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax.policies.base import Layout, score_hidden, score_tokens, trunk_layout
from agentjax.policies.transformer import TransformerConfig, transformer
from tests import worlds

B, S, M, N = 3, 14, 2, 5
VOCAB = worlds.TINY.vocab


def draw(seed, shape):
    return jax.random.randint(jax.random.key(seed), shape, 0, VOCAB, jnp.int32)


VALID = jnp.asarray(np.random.default_rng(3).random((B, S)) < 0.7).at[:, 0].set(jnp.array([True, False, True]))
TOKENS = draw(1, (B, S))


@functools.cache
def applied():
    policy, _ = worlds.tiny()

    def run(params, tokens, valid):
        hidden, cache = policy.apply(params, tokens, trunk_layout(valid))
        return policy.logits(params, hidden), cache

    return jax.jit(run)


def logits(tokens=TOKENS, valid=VALID):
    return np.asarray(applied()(worlds.tiny()[1], tokens, valid)[0])


def alone(b, tokens=TOKENS, valid=VALID):
    """The valid tokens of one row through numpy."""
    return worlds.numpy_logits(worlds.tiny()[1], np.asarray(tokens)[b][np.asarray(valid)[b]])


def test_padding_anywhere_is_no_token():
    """Every valid slot has the logits of the sequence without its padding; whatever stands in the padding."""
    full = logits()
    for b in range(B):
        np.testing.assert_allclose(full[b][np.asarray(VALID)[b]], alone(b), atol=2e-5)
    other = logits(jnp.where(VALID, TOKENS, (TOKENS + 1) % VOCAB))
    assert np.abs(other[np.asarray(VALID)] - full[np.asarray(VALID)]).max() < 1e-5
    assert np.ptp(full, axis=-1).min() > 0.5


def test_a_later_token_changes_nothing_earlier():
    at = 9
    changed = logits(TOKENS.at[:, at].set((TOKENS[:, at] + 1) % VOCAB), VALID.at[:, at].set(True))
    full = logits(valid=VALID.at[:, at].set(True))
    seen = np.asarray(VALID)[:, :at]
    # not bit for bit: XLA's thread pool may round two calls differently; a leak would show at the size of a logit
    assert np.abs(changed[:, :at][seen] - full[:, :at][seen]).max() < 1e-5
    assert np.abs(changed[:, at:] - full[:, at:]).max() > 0.1


def test_context_is_ordered():
    """Two exchanged tokens change the last logits: positions are seen."""
    row = np.array([4, 5, 6, 7, 2])
    one, other = (worlds.numpy_logits(worlds.tiny()[1], x)[-1] for x in (row, row[[1, 0, 2, 3, 4]]))
    swapped = TOKENS.at[:, :2].set(TOKENS[:, 1::-1] % VOCAB)
    everything = jnp.ones_like(VALID)
    assert np.abs(one - other).max() > 1e-2
    assert np.abs(logits(valid=everything)[:, -1] - logits(swapped, everything)[:, -1]).max() > 1e-3


def test_decoding_in_pieces_is_one_pass():
    """Three calls of 1, 6 and 7 slots fill the cache that one pass makes, and give its hidden states."""
    policy, params = worlds.tiny()

    @jax.jit
    def pieces(params, tokens, valid):
        cache, out, at = policy.empty_cache(B, S), [], 0
        position = trunk_layout(valid).position
        for n in (1, 6, 7):
            part = slice(at, at + n)
            hidden, cache = policy.decode(
                params, None, None, cache, jnp.int32(at), tokens[:, part], valid[:, part], position[:, part]
            )
            out.append(policy.logits(params, hidden))
            at += n
        return jnp.concatenate(out, axis=1), cache

    got, cache = pieces(params, TOKENS, VALID)
    _, full = applied()(params, TOKENS, VALID)
    seen = np.asarray(VALID)
    np.testing.assert_allclose(np.asarray(got)[seen], logits()[seen], atol=3e-5)
    assert (np.asarray(cache.visible) == seen).all()
    for ours, theirs in zip((*cache.key, *cache.value), (*full.key, *full.value), strict=True):
        np.testing.assert_allclose(np.moveaxis(ours, 1, 2)[seen], np.moveaxis(theirs, 1, 2)[seen], atol=3e-5)


CUT = jnp.array([[4, S], [0, 9], [6, 6]], jnp.int32)
BRANCH = draw(2, (B, M, N))
BRANCH_VALID = jnp.array([1, 0, 1, 1, 1], bool)[None, None, :] & jnp.ones((B, M, N), bool)


def branch_positions():
    below = jnp.sum(VALID[:, None, :] & (jnp.arange(S)[None, None, :] < CUT[:, :, None]), axis=2, dtype=jnp.int32)
    return jnp.maximum(below[:, :, None] + jnp.cumsum(BRANCH_VALID, axis=2, dtype=jnp.int32) - 1, 0)


def branches_alone():
    """[B,M,N,V], each branch in its own sequence: the trunk's valid tokens below its cut, then its own."""
    out = np.zeros((B, M, N, VOCAB))
    for b in range(B):
        for m in range(M):
            history = np.asarray(TOKENS)[b][np.asarray(VALID)[b] & (np.arange(S) < int(CUT[b, m]))]
            own = np.asarray(BRANCH)[b, m][np.asarray(BRANCH_VALID)[b, m]]
            got = worlds.numpy_logits(worlds.tiny()[1], np.concatenate([history, own]))
            out[b, m, np.asarray(BRANCH_VALID)[b, m]] = got[len(history) :]
    return out


def test_packed_branches_are_sequences_of_their_own():
    policy, params = worlds.tiny()

    @jax.jit
    def packed(params):
        flat = lambda x: x.reshape(B, M * N)  # noqa: E731
        layout = Layout(
            position=jnp.concatenate([trunk_layout(VALID).position, flat(branch_positions())], axis=1),
            valid=jnp.concatenate([VALID, flat(BRANCH_VALID)], axis=1), cut=CUT, trunk=S,
        )  # fmt: skip
        hidden, _ = policy.apply(params, jnp.concatenate([TOKENS, flat(BRANCH)], axis=1), layout)
        return policy.logits(params, hidden)

    got, seen = np.asarray(packed(params)), np.asarray(BRANCH_VALID)
    np.testing.assert_allclose(got[:, S:].reshape(B, M, N, VOCAB)[seen], branches_alone()[seen], atol=2e-5)
    # the same sums in another order: float32 leaves a few 1e-6, at most 1.1e-5 was seen
    np.testing.assert_allclose(got[:, :S][np.asarray(VALID)], logits()[np.asarray(VALID)], atol=3e-5)


def test_decoding_on_a_shared_prefix():
    """M suffixes a row on one cache, in two pieces; the prefix stays as it is."""
    policy, params = worlds.tiny()

    @jax.jit
    def decoded(params):
        _, prefix = policy.apply(params, TOKENS, trunk_layout(VALID))
        flat = lambda x: x.reshape(B * M, N)  # noqa: E731
        suffix, out = policy.empty_cache(B * M, N), []
        for part in (slice(0, 2), slice(2, N)):
            hidden, suffix = policy.decode(
                params, prefix, CUT, suffix, jnp.int32(part.start), flat(BRANCH)[:, part], flat(BRANCH_VALID)[:, part],
                flat(branch_positions())[:, part],
            )  # fmt: skip
            out.append(policy.logits(params, hidden))
        return jnp.concatenate(out, axis=1)

    got, seen = np.asarray(decoded(params)).reshape(B, M, N, VOCAB), np.asarray(BRANCH_VALID)
    np.testing.assert_allclose(got[seen], branches_alone()[seen], atol=2e-5)


def test_more_than_four_layers_untied_and_recomputed():
    """The scanned form of deep models, an output layer of its own, recomputation: numpy's numbers, and gradients."""
    config = TransformerConfig(
        vocab=11, layers=5, width=8, heads=2, kv_heads=1, ffn=12, tie_embeddings=False, remat=True
    )
    policy = transformer(config)
    params = policy.init(jax.random.key(0))
    tokens = draw(5, (1, 6))

    def loss(params):
        hidden, _ = policy.apply(params, tokens, trunk_layout(jnp.ones((1, 6), bool)))
        out = policy.logits(params, hidden)
        return jnp.mean(jnp.square(out)), out

    (_, got), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    np.testing.assert_allclose(got[0], worlds.numpy_logits(params, np.asarray(tokens[0]), config), atol=2e-5)
    assert all(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(gradient["blocks"]))


def test_scoring_in_chunks_and_with_a_bound():
    """Chunks of 4 (14 slots do not divide) and `most` = 6 targets a row change nothing but memory."""
    policy, params = worlds.tiny()
    target = VALID & (jnp.cumsum(VALID, axis=1, dtype=jnp.int32) > 1) & (jnp.arange(S)[None, :] % 2 == 0)
    assert int(target.sum(axis=1).max()) <= 6
    temperature = jnp.array([1.0, 0.5, 2.0])

    @jax.jit
    def score(params):
        run = functools.partial(score_tokens, policy, params, TOKENS, VALID, target, temperature)
        return run(), run(chunk=4), run(most=6, chunk=4)

    (plain, entropy), *others = score(params)
    for logp, h in others:
        np.testing.assert_allclose(logp, plain, atol=1e-6)
        np.testing.assert_allclose(h, entropy, atol=1e-6)
    for b in range(B):
        seen = np.asarray(VALID)[b]
        exact = worlds.numpy_logp(params, np.asarray(TOKENS)[b][seen], float(temperature[b]))
        on = np.asarray(target)[b][seen]
        np.testing.assert_allclose(np.asarray(plain)[b][seen][on], exact[on], atol=3e-5)
    assert (np.asarray(plain)[~np.asarray(target)] == 0).all() and (np.asarray(entropy)[~np.asarray(target)] == 0).all()


def test_entropy_by_hand():
    """Logits log [1, 2, 5] of 8: log-probability log(5/8) and entropy .9003 nats."""
    policy = worlds.tiny()[0]._replace(logits=lambda params, hidden: hidden)
    hidden = jnp.log(jnp.array([[[1.0, 2.0, 5.0]]]))
    logp, entropy = score_hidden(policy, {}, hidden, jnp.array([[2]]), jnp.ones(1))
    assert float(logp[0, 0]) == pytest.approx(np.log(5 / 8), abs=1e-6)
    assert float(entropy[0, 0]) == pytest.approx(0.9003, abs=1e-4)


@pytest.mark.parametrize("sizes", [dict(width=30), dict(kv_heads=3), dict(width=12, heads=4)])
def test_sizes_that_do_not_fit(sizes):
    with pytest.raises(ValueError, match="must be heads .* x an even head size, and heads a multiple of kv_heads"):
        TransformerConfig(vocab=8, **sizes)
