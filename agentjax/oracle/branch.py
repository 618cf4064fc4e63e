"""The truth of credit by counterfactual rollouts: branch before every action token, continue K times, take differences.

    V(prefix)   = E[return | the episode continues from prefix under the policy]
    A^pi(token) = V(prefix + token) - V(prefix),      A^pi(turn) = V(prefix + whole action) - V(prefix)

Both condition on the environment's full state, restored from the rollout. The branches of a row share random numbers,
so differences have a smaller error than values. Memory does not grow with K: samples are accumulated one by one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentjax import ops
from agentjax.envs.base import Env
from agentjax.policies.base import Policy
from agentjax.rollout import branch
from agentjax.types import Array, PyTree, Rollout, record


@record
class Moments:
    """Mean and standard error over K samples, and the means of the two halves (even and odd samples)."""

    mean: Array
    error: Array
    halves: Array  # [2, ...]


@record
class Oracle:
    """What branching says about one batch; 0 off action tokens and off acted turns."""

    value: Moments  # [B,T,places], V before each slot of the action, and after all of it
    token: Moments  # [B,S], A^pi of each action token
    turn: Moments  # [B,T], A^pi of each turn
    ladder: tuple[tuple[Array, Array], ...] = ()  # means of (token, turn) over the first samples, one pair per `at`


def _moments(mean: Array, square: Array, halves: Array, samples: int) -> Moments:
    spread = jnp.maximum(square, 0.0) / max(samples - 1, 1)
    counts = jnp.array([(samples + 1) // 2, max(samples // 2, 1)], jnp.float32)
    return Moments(
        mean=mean, error=jnp.sqrt(spread / samples), halves=halves / counts.reshape((2,) + (1,) * (halves.ndim - 1))
    )


def measure(
    key: Array,
    policy: Policy,
    params: PyTree,
    env: Env,
    played: Rollout,
    *,
    samples: int,
    expert_epsilon: float = 0.0,
    tokens: bool = True,
    at: tuple[int, ...] = (),
) -> Oracle:
    """V, and A^pi of every token and turn of a rollout, from `samples` continuations per place. `key` is consumed.

    With tokens=False only the two ends of each action are branched, A / 2 times cheaper: `token` then holds the turn's
    A^pi in equal parts on its tokens, `value` is [B,T,2].

    `at`: numbers of samples, each in [1, samples]; `ladder` holds the means over the first so many, so that one set of
    samples says how good fewer would have been.

    samples >= 2 for a standard error (with 1 it is 0). expert_epsilon > 0 switches to the defensive mixture
    (`rollout.branch`). Cost: samples x T x (A + 1) / 2 episodes per row.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    if not all(1 <= k <= samples for k in at):
        raise ValueError(f"at {at} must hold numbers from 1 to samples = {samples}")
    if played.cache is None:
        raise ValueError("the rollout carries no cache; branch from what `rollout` returned, before dropping its cache")
    spec = env.spec
    places = jnp.array([*range(spec.action_len + 1)] if tokens else [0, spec.action_len], jnp.int32)
    rungs = jnp.asarray(at, jnp.int32)
    rows = played.trajectory.tokens.shape[0]

    def one_turn(turn: Array) -> tuple[tuple[tuple[Array, Array, Array], ...], tuple[Array, ...]]:
        def add(carry: tuple, k: Array) -> tuple[tuple, None]:
            stats, kept = carry
            sample_key = jax.random.fold_in(jax.random.fold_in(key, k), turn)
            returns, weight = branch(
                sample_key, policy, params, env, played, turn, places, expert_epsilon=expert_epsilon
            )
            value = returns * weight
            parts = (value, jnp.diff(value, axis=1), value[:, -1] - value[:, 0])
            half = (jnp.arange(2) == k % 2).astype(jnp.float32)

            def welford(stats: tuple, x: Array) -> tuple[Array, Array, Array]:
                mean, square, halves = stats
                new = mean + (x - mean) / (k + 1).astype(jnp.float32)  # equal samples: a spread of exactly 0
                return new, square + (x - mean) * (x - new), halves + half.reshape((2,) + (1,) * x.ndim) * x[None]

            def keep(seen: Array, mean: Array) -> Array:  # [rungs, ...]: the mean of now where now is a rung
                return jnp.where((rungs == k + 1).reshape((-1,) + (1,) * mean.ndim), mean[None], seen)

            stats = tuple(welford(each, x) for each, x in zip(stats, parts, strict=True))
            return (stats, tuple(keep(seen, each[0]) for seen, each in zip(kept, stats[1:], strict=True))), None

        shapes = ((rows, places.size), (rows, places.size - 1), (rows,))
        zero = tuple((jnp.zeros(s), jnp.zeros(s), jnp.zeros((2, *s))) for s in shapes)
        none = tuple(jnp.zeros((len(at), *s)) for s in shapes[1:])
        return jax.lax.scan(add, (zero, none), jnp.arange(samples, dtype=jnp.int32))[0]

    (value, token, turn), kept = jax.lax.map(one_turn, jnp.arange(spec.turns, dtype=jnp.int32))
    token_at, turn_at = (jnp.moveaxis(each, (1, 2), (0, 1)) for each in kept)  # [rungs, B, T, ...]
    by_row = lambda stats: (jnp.moveaxis(stats[0], 0, 1), jnp.moveaxis(stats[1], 0, 1), jnp.moveaxis(stats[2], 0, 2))  # noqa: E731
    value, token, turn = (_moments(*by_row(stats), samples) for stats in (value, token, turn))
    if tokens:
        ladder = tuple((_place(a, env, played), b) for a, b in zip(token_at, turn_at, strict=True))
        return Oracle(value=value, token=_to_slots(token, env, played), turn=turn, ladder=ladder)
    share = 1.0 / jnp.maximum(ops.action_counts(played.trajectory), 1.0)
    spread = lambda x: ops.turns_to_tokens(x * share, played.trajectory)  # noqa: E731
    even = Moments(mean=spread(turn.mean), error=spread(turn.error), halves=jax.vmap(spread)(turn.halves))
    return Oracle(value=value, token=even, turn=turn, ladder=tuple((spread(b), b) for b in turn_at))


def _to_slots(token: Moments, env: Env, played: Rollout) -> Moments:
    """[..., B,T,A] to [..., B,S] in every field."""
    return jax.tree.map(lambda x: _place(x, env, played), token)


def _place(x: Array, env: Env, played: Rollout) -> Array:
    """[..., B,T,A] to [..., B,S] at the fixed slots of the rollout; 0 off action tokens."""
    spec, mask = env.spec, played.trajectory.action_mask
    body = jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((spec.observation_len, 0),)).reshape(*x.shape[:-2], -1)
    body = jnp.pad(body, ((0, 0),) * (body.ndim - 1) + ((spec.prompt_len, spec.observation_len),))
    return jnp.where(jnp.broadcast_to(mask, body.shape), body, 0.0)


def reliability(moments: Moments, mask: Array) -> Array:
    """Split-half reliability in [0, 1] by Spearman-Brown: 2r / (1 + r), r the correlation of the two halves over
    `mask`.

    0 where a half is constant or r is negative. Divide a measured correlation by its square root to disattenuate it.
    """
    first, second = moments.halves
    r = ops.correlation(first, second, mask)
    r = jnp.maximum(r, 0.0)
    return 2.0 * r / (1.0 + r)
