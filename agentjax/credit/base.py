"""What every estimator shares: its record, the checks around it, and the table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agentjax import ops
from agentjax.types import RESOLUTIONS, Array, Credit, Estimator, PyTree, Signals, Trajectory, require

UNBIASED = ("yes", "up_to_scale", "no")


def estimator(
    name: str,
    weigh: Callable[..., Array | Credit],
    resolution: str,
    unbiased: str,
    reference: str,
    *,
    needs: tuple[str, ...] = (),
    **options: Any,
) -> Estimator:
    """An entry of the table: `weigh` with its options bound.

    `weigh(trajectory, signals, *, axis_name, **options)` returns float32[B,S], or a Credit where it weighs several
    tokens at a position. What it puts off the action tokens and on rows of weight 0 is ignored. Signals in `needs` are
    present. `apply` takes the same options as keywords, which override those bound here: `apply(trajectory, signals,
    lam=.5)`.
    """
    if resolution not in RESOLUTIONS:
        raise ValueError(f"{name}: resolution must be one of {', '.join(RESOLUTIONS)}, got {resolution!r}")
    if unbiased not in UNBIASED:
        raise ValueError(f"{name}: unbiased must be one of {', '.join(UNBIASED)}, got {unbiased!r}")
    apply = functools.partial(_apply, name, needs, weigh, **options)
    return Estimator(name, resolution, needs, unbiased, reference, apply)


def table(*estimators: Estimator) -> dict[str, Estimator]:
    """The estimators by name; a name used twice raises."""
    names = [entry.name for entry in estimators]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two estimators are called {', '.join(twice)}; names in the table are unique")
    return dict(zip(names, estimators, strict=True))


def student_logp(trajectory: Trajectory, signals: Signals) -> Array:
    """float32[B,S]: log-probabilities of the policy being taught: `current_logp` if given, else `trajectory.logp`."""
    return trajectory.logp if signals.current_logp is None else signals.current_logp


def present(x: Array) -> Array:
    """x with 0 where it is missing (NaN)."""
    return jnp.where(jnp.isnan(x), 0.0, x)


def _apply(
    name: str,
    needs: tuple[str, ...],
    weigh: Callable[..., Array | Credit],
    trajectory: Trajectory,
    signals: Signals,
    *,
    axis_name: str | None = None,
    **options: Any,
) -> Credit:
    require(signals, needs, f"estimator {name}")
    trajectory, signals = _float32(trajectory), _float32(signals)
    credit = weigh(trajectory, signals, axis_name=axis_name, **options)
    if not isinstance(credit, Credit):
        credit = Credit(advantage=credit)
    counted = trajectory.action_mask & (ops.live_weight(trajectory) > 0)[:, None]

    def keep(x: Array | None) -> Array | None:
        if x is None:
            return None
        return jnp.where(counted.reshape(counted.shape + (1,) * (x.ndim - 2)), jax.lax.stop_gradient(x), 0)

    return Credit(
        advantage=keep(credit.advantage), support_ids=credit.support_ids, support_weight=keep(credit.support_weight)
    )


def _float32(tree: PyTree) -> PyTree:
    """Half-precision leaves in float32, so that no statistic runs in fewer bits."""
    return jax.tree.map(lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)
