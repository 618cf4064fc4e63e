"""Policy losses that push the log-probability of a token by its credit."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentjax.losses.aggregation import Aggregate, masked_sum
from agentjax.types import Array, Credit, Outputs, Signals, Trajectory

MAX_LOG_RATIO = 20.0


def log_ratio(logp: Array, old_logp: Array, trajectory: Trajectory) -> Array:
    """log(pi / pi_old) clipped to +-20 before any exp, [B,S]; 0 off the action tokens, even where NaN stands."""
    mask = trajectory.action_mask
    difference = jnp.where(mask, logp, 0.0) - jnp.where(mask, old_logp, 0.0)
    return jnp.clip(difference, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def clipped_surrogate(
    outputs: Outputs,
    trajectory: Trajectory,
    signals: Signals,
    credit: Credit,
    *,
    aggregate: Aggregate,
    axis_name: str | None = None,
    clip_low: float,
    clip_high: float,
) -> tuple[Array, dict[str, Array]]:
    """PPO's surrogate with an asymmetric clip, minus sign included.

        L_k = -min(rho_k A_k, clip(rho_k, 1 - clip_low, 1 + clip_high) A_k),   rho_k = pi(a_k) / pi_sampled(a_k)

    pi is `outputs.logp`, the sampler `trajectory.logp`; A gets no gradient. At rho = 1 it is REINFORCE. Metrics are
    sums over the shard's action tokens, except `loss`, its share (see `aggregation`). Sources: PPO arXiv 1707.06347 eq.
    7; unequal bounds (.2, .28) DAPO arXiv 2503.14476.

    A = 1: rho 1.5 gives -1.28 and no gradient, .5 gives -.5. A = -1: rho .5 gives .8 and no gradient, 1.5 gives 1.5.
    """
    advantage = jax.lax.stop_gradient(credit.advantage)
    ratio = jnp.exp(log_ratio(outputs.logp, trajectory.logp, trajectory))
    bounded = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    gain = jnp.minimum(ratio * advantage, bounded * advantage)
    loss = aggregate(-gain, trajectory, axis_name=axis_name)
    acts = gain < ratio * advantage
    return loss, {
        "loss": loss,
        "tokens": masked_sum(jnp.ones_like(ratio), trajectory),
        "ratio_sum": masked_sum(ratio, trajectory),
        "clipped_high": masked_sum((acts & (ratio > 1.0)).astype(jnp.float32), trajectory),
        "clipped_low": masked_sum((acts & (ratio < 1.0)).astype(jnp.float32), trajectory),
        "advantage_abs_sum": masked_sum(jnp.abs(advantage), trajectory),
        "entropy_sum": masked_sum(outputs.entropy, trajectory),
    }


def score_function(
    outputs: Outputs,
    trajectory: Trajectory,
    signals: Signals,
    credit: Credit,
    *,
    aggregate: Aggregate,
    axis_name: str | None = None,
) -> tuple[Array, dict[str, Array]]:
    """L_k = -A_k log pi(a_k): right for one update per batch, no ratio, no clip. Source: Williams 1992.

    A = 2, log pi = -.5: loss 1, gradient -2 on log pi.
    """
    advantage = jax.lax.stop_gradient(credit.advantage)
    logp = jnp.where(trajectory.action_mask, outputs.logp, 0.0)
    loss = aggregate(-advantage * logp, trajectory, axis_name=axis_name)
    return loss, {
        "loss": loss,
        "tokens": masked_sum(jnp.ones_like(logp), trajectory),
        "advantage_abs_sum": masked_sum(jnp.abs(advantage), trajectory),
        "entropy_sum": masked_sum(outputs.entropy, trajectory),
    }
