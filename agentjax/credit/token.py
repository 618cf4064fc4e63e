"""Token resolution: what a hinted teacher would rather have written, token by token."""

from __future__ import annotations

import jax.numpy as jnp

from agentjax import ops
from agentjax.credit.base import present, student_logp
from agentjax.types import Array, Signals, Trajectory


def teacher_log_ratio(trajectory: Trajectory, signals: Signals, *, axis_name: str | None) -> Array:
    """How much likelier the hinted teacher finds the taken token: A_k = log pi_T(a_k | hint) - log pi(a_k).

    pi is `signals.current_logp` if given, else `trajectory.logp` (the policy that sampled; the same thing on the first
    update of a batch). Its mean over samples is -KL(pi || pi_T) <= 0, and the expected gradient of the score-function
    estimator is -grad KL(pi || pi_T) at fixed prefixes: a reverse KL from one sample. 0 where the teacher is silent
    (NaN). Source: OpenClaw-RL arXiv 2603.10165 (OPD, first version); on-policy distillation, Thinking Machines 2025.

    teacher [-1, -2], student [-2, -2]: [1, 0].
    """
    known = trajectory.action_mask & ~jnp.isnan(signals.teacher_logp)
    return jnp.where(known, present(signals.teacher_logp) - student_logp(trajectory, signals), 0.0)


def judged_teacher_log_ratio(
    trajectory: Trajectory, signals: Signals, *, axis_name: str | None, w_binary: float, w_opd: float
) -> Array:
    """Vote of the turn plus teacher's log-ratio of the token: A_k = w_binary judge_t + w_opd (log pi_T - log pi).

    A turn without vote keeps its log-ratio, a turn without hint (teacher NaN) its vote. Source: OpenClaw-RL arXiv
    2603.10165, first version, both weights 1. Vote -1, teacher [-1, -2], student [-2, -2]: [0, -1].
    """
    vote = ops.turns_to_tokens(present(signals.judge), trajectory)
    return w_binary * vote + w_opd * teacher_log_ratio(trajectory, signals, axis_name=axis_name)
