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
) -> Oracle:
    """V, and A^pi of every token and turn of a rollout, from `samples` continuations per place. `key` is consumed.

    With tokens=False only the two ends of each action are branched, A / 2 times cheaper: `token` then holds the turn's
    A^pi in equal parts on its tokens, `value` is [B,T,2].

    samples >= 2 for a standard error (with 1 it is 0). expert_epsilon > 0 switches to the defensive mixture
    (`rollout.branch`). Cost: samples x T x (A + 1) / 2 episodes per row.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    if played.cache is None:
        raise ValueError("the rollout carries no cache; branch from what `rollout` returned, before dropping its cache")
    spec = env.spec
    places = jnp.array([*range(spec.action_len + 1)] if tokens else [0, spec.action_len], jnp.int32)
    rows = played.trajectory.tokens.shape[0]

    def one_turn(turn: Array) -> tuple[tuple[Array, Array, Array], ...]:
        def add(carry: tuple, k: Array) -> tuple[tuple, None]:
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

            return tuple(welford(stats, x) for stats, x in zip(carry, parts, strict=True)), None

        shapes = ((rows, places.size), (rows, places.size - 1), (rows,))
        zero = tuple((jnp.zeros(s), jnp.zeros(s), jnp.zeros((2, *s))) for s in shapes)
        return jax.lax.scan(add, zero, jnp.arange(samples, dtype=jnp.int32))[0]

    value, token, turn = jax.lax.map(one_turn, jnp.arange(spec.turns, dtype=jnp.int32))
    by_row = lambda stats: (jnp.moveaxis(stats[0], 0, 1), jnp.moveaxis(stats[1], 0, 1), jnp.moveaxis(stats[2], 0, 2))  # noqa: E731
    value, token, turn = (_moments(*by_row(stats), samples) for stats in (value, token, turn))
    if tokens:
        return Oracle(value=value, token=_to_slots(token, env, played), turn=turn)
    share = 1.0 / jnp.maximum(ops.action_counts(played.trajectory), 1.0)
    spread = lambda x: ops.turns_to_tokens(x * share, played.trajectory)  # noqa: E731
    even = Moments(mean=spread(turn.mean), error=spread(turn.error), halves=jax.vmap(spread)(turn.halves))
    return Oracle(value=value, token=even, turn=turn)


def _to_slots(token: Moments, env: Env, played: Rollout) -> Moments:
    """[..., B,T,A] to [..., B,S] at the fixed slots of the rollout; 0 off action tokens."""
    spec, mask = env.spec, played.trajectory.action_mask

    def place(x: Array) -> Array:
        lead = x.shape[:-2]
        body = jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((spec.observation_len, 0),)).reshape(*lead, -1)
        body = jnp.pad(body, ((0, 0),) * (body.ndim - 1) + ((spec.prompt_len, spec.observation_len),))
        return jnp.where(jnp.broadcast_to(mask, body.shape), body, 0.0)

    return Moments(mean=place(token.mean), error=place(token.error), halves=place(token.halves))


def reliability(moments: Moments, mask: Array) -> Array:
    """Split-half reliability in [0, 1] by Spearman-Brown: 2r / (1 + r), r the correlation of the two halves over
    `mask`.

    0 where a half is constant or r is negative. Divide a measured correlation by its square root to disattenuate it.
    """
    first, second = moments.halves
    r = ops.correlation(first, second, mask)
    r = jnp.maximum(r, 0.0)
    return 2.0 * r / (1.0 + r)
