"""Imitation of the actions in a trajectory."""

from __future__ import annotations

import jax.numpy as jnp

from agentjax.losses.aggregation import Aggregate, masked_sum
from agentjax.types import Array, Credit, Outputs, Signals, Trajectory


def sft(
    outputs: Outputs,
    trajectory: Trajectory,
    signals: Signals,
    credit: Credit | None,
    *,
    aggregate: Aggregate,
    axis_name: str | None = None,
) -> tuple[Array, dict[str, Array]]:
    """Negative log-likelihood of the action tokens, L_k = -log pi(a_k). `credit` and `signals` are not used.

    log pi = [-1, -3] on two action tokens, token mean: 2, gradient -1/2 on each.
    """
    nll = -jnp.where(trajectory.action_mask, outputs.logp, 0.0)
    loss = aggregate(nll, trajectory, axis_name=axis_name)
    return loss, {
        "loss": loss,
        "tokens": masked_sum(jnp.ones_like(nll), trajectory),
        "nll_sum": masked_sum(nll, trajectory),
        "entropy_sum": masked_sum(outputs.entropy, trajectory),
    }
