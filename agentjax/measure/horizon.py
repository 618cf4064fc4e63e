"""Signal-to-noise of the classical signals as the horizon grows, on the umbrella chain under the uniform policy.

The six signals, in plain formulas on rewards and exact values of the hidden state; the registered estimators are tested
against the same truth elsewhere. With R the return, G_t the return from turn t, V the exact value, n the group size:

    full_return    A_t = R                                   1 / (2 L^2 - 1)
    rloo           A_t = R - mean of the others in the group  1 / (2 L^2 n/(n-1) - 1 + 1/(n-1))
    reward_to_go   A_t = G_t                                 1 / (L (L+1) - 1)
    gae_1          A_t = G_t - V_t                           1 / (2 L + (L-1)(L-2) - 1)
    gae_0          A_t = r_t + V_{t+1} - V_t                 1 / (2 L - 1)
    exact          A_t = A^pi_t                              1

The right column is |g|^2 / (n E|g_hat - g|^2), g_hat the mean over n trajectories, g exact. They are independent
but for what rloo shares; its form is that of groups whose members draw their need bits apart.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from agentjax.types import Array, lookup

SIGNALS = ("full_return", "reward_to_go", "rloo", "gae_1", "gae_0", "exact")


def closed_form_snr(name: str, length: int, *, group: int = 8) -> float:
    """The SNR per trajectory of the table above, as a ratio (not dB), for length >= 2.

    closed_form_snr("full_return", 2) = 1/7; in dB -8.45.
    """
    if length < 2:
        raise ValueError(f"length must be at least 2, got {length}")
    n = group
    noise = {
        "full_return": 2 * length**2 - 1,
        "reward_to_go": length * (length + 1) - 1,
        "rloo": 2 * length**2 * n / (n - 1) - 1 + 1 / (n - 1),
        "gae_1": 2 * length + (length - 1) * (length - 2) - 1,
        "gae_0": 2 * length - 1,
        "exact": 1,
    }
    return 1.0 / lookup(noise, name, "signal")


def decibel(ratio: float) -> float:
    """10 log10(ratio)."""
    return float(10 * np.log10(ratio))


def signals(reward: Array, value: Array, exact: Array, *, group: int) -> dict[str, Array]:
    """Advantages float32[B,T] of every signal in `SIGNALS`; episodes that use all T turns.

    reward float32[B,T]; value float32[B,T+1], exact and 0 at the end; exact float32[B,T], A^pi of the actions taken.
    B is a multiple of `group`; consecutive rows form a group.
    """
    togo = jnp.flip(jnp.cumsum(jnp.flip(reward, axis=1), axis=1), axis=1)
    total = togo[:, :1].reshape(-1, group)
    others = (jnp.sum(total, axis=1, keepdims=True) - total) / (group - 1)
    spread = jnp.zeros_like(reward)
    return {
        "full_return": togo[:, :1] + spread,
        "reward_to_go": togo,
        "rloo": (total - others).reshape(-1, 1) + spread,
        "gae_1": togo - value[:, :-1],
        "gae_0": reward + value[:, 1:] - value[:, :-1],
        "exact": exact,
    }
