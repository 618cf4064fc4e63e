"""Divergence to a reference policy, named by the gradient it gives when used as a loss on the policy's own samples.

With d = log pi(a) - log pi_ref(a) of the sampled token, k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d (Schulman 2020):

    E k1 = E k3 = KL(pi || ref) as values;   E grad k1 = 0,   E grad k2 = grad KL(pi || ref),   E grad k3 = grad KL(ref
    || pi)

so k1 belongs in a reward, never in a loss. Every function takes logp and reference_logp of one shape and returns that
shape.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentjax.losses.aggregation import Aggregate, masked_sum
from agentjax.losses.surrogates import MAX_LOG_RATIO, log_ratio
from agentjax.types import Array, Credit, Loss, Outputs, Signals, Trajectory


def k1(logp: Array, reference_logp: Array) -> Array:
    """d: an unbiased value of KL(pi || ref) that may be negative; as a loss its expected gradient is 0. d = .5: .5."""
    return logp - reference_logp


def kl_reverse_grad(logp: Array, reference_logp: Array) -> Array:
    """k2 = d^2 / 2: as a loss on own samples its gradient is that of KL(pi || ref). d = .5: .125, gradient .5."""
    return jnp.square(logp - reference_logp) / 2


def kl_forward_grad(logp: Array, reference_logp: Array) -> Array:
    """k3 = exp(-d) - 1 + d: as a loss on own samples its gradient is that of KL(ref || pi). d = .5: .10653, gradient
    .39347.

    d is clipped to +-20 inside the exponential.
    """
    d = logp - reference_logp
    return jnp.exp(jnp.clip(-d, -MAX_LOG_RATIO, MAX_LOG_RATIO)) - 1 + d


def kl_value(logp: Array, reference_logp: Array) -> Array:
    """k3 without gradient: a value of KL(pi || ref) that is never negative, for reports. d = .5: .10653."""
    return jax.lax.stop_gradient(kl_forward_grad(logp, reference_logp))


k2, k3 = kl_reverse_grad, kl_forward_grad

DIVERGENCES = {"kl_reverse_grad": kl_reverse_grad, "kl_forward_grad": kl_forward_grad}


def with_kl(loss: Loss, *, kl: str = "kl_reverse_grad", coefficient: float = 0.01) -> Loss:
    """`loss` plus `coefficient` times a divergence to `signals.reference_logp`, aggregated the same way.

    Metrics gain `kl_sum` (k3 values over the action tokens). A coefficient of 0 returns the loss itself.
    """
    if kl not in DIVERGENCES:
        raise ValueError(
            f"kl must be one of {', '.join(DIVERGENCES)}, got {kl!r}: k1 has no expected gradient in a loss"
        )
    if coefficient == 0:
        return loss

    def apply(
        outputs: Outputs,
        trajectory: Trajectory,
        signals: Signals,
        credit: Credit | None,
        *,
        aggregate: Aggregate,
        axis_name: str | None = None,
    ) -> tuple[Array, dict[str, Array]]:
        value, metrics = loss.apply(outputs, trajectory, signals, credit, aggregate=aggregate, axis_name=axis_name)
        d = log_ratio(outputs.logp, signals.reference_logp, trajectory)
        penalty = aggregate(DIVERGENCES[kl](d, jnp.zeros_like(d)), trajectory, axis_name=axis_name)
        value += coefficient * penalty
        kl_sum = masked_sum(kl_value(d, jnp.zeros_like(d)), trajectory)
        return value, {**metrics, "loss": value, "kl_sum": kl_sum}

    needs = loss.needs if "reference_logp" in loss.needs else (*loss.needs, "reference_logp")
    return Loss(f"{loss.name}+{kl}", needs, apply)
