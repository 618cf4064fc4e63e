"""Learning from a teacher's log-probabilities of the student's own samples."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentjax.losses.aggregation import Aggregate, masked_sum
from agentjax.losses.surrogates import log_ratio
from agentjax.types import Array, Credit, Outputs, Signals, Trajectory


def opd_sampled(
    outputs: Outputs,
    trajectory: Trajectory,
    signals: Signals,
    credit: Credit | None,
    *,
    aggregate: Aggregate,
    axis_name: str | None = None,
) -> tuple[Array, dict[str, Array]]:
    """Reverse KL to the teacher from one sample: L_k = -sg(log pi_T(a_k) - log pi(a_k)) rho_k.

    rho_k = pi / pi_sampled (`trajectory.logp`), so on the sampler's own tokens the gradient is -A_k grad log pi with
    A_k = log pi_T - log pi of the policy being trained, not of the sampler. Without the stop gradient the teacher would
    drop out. Tokens where the teacher is silent (NaN) have no loss; `credit` is not used. OpenClaw-RL's own form is
    estimator `opd` with loss `ppo`; the two agree on the first update of a batch. Source: arXiv 2603.10165.

    log pi_T = -1, log pi = log pi_sampled = -2: loss -1, gradient -1 on log pi. Teacher = student: 0 and 0.
    """
    known = trajectory.action_mask & ~jnp.isnan(signals.teacher_logp)
    student = jnp.where(known, outputs.logp, 0.0)
    advantage = jax.lax.stop_gradient(jnp.where(known, signals.teacher_logp, 0.0) - student)
    ratio = jnp.exp(log_ratio(outputs.logp, trajectory.logp, trajectory))
    loss = aggregate(-advantage * ratio, trajectory, axis_name=axis_name)
    return loss, {
        "loss": loss,
        "tokens": masked_sum(jnp.ones_like(ratio), trajectory),
        "taught": masked_sum(known.astype(jnp.float32), trajectory),
        "reverse_kl_sum": masked_sum(-advantage, trajectory),
        "entropy_sum": masked_sum(outputs.entropy, trajectory),
    }
