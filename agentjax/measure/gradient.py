"""How good an estimator's gradient is: slope, direction, bias, variance and signal-to-noise against a reference.

A unit is what is averaged independently: one trajectory, or a whole group of n = `trajectories_per_unit`. Each unit has
a sample gradient g_i; g is the reference (exact, or measured on disjoint data). Only sums are kept, never N x P:

    sums = empty_sums(P);  sums = add_gradients(sums, gradients[N,P], g)  (as often as needed);  summarize(sums, g)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentjax.types import Array, record


@record
class GradientSums:
    """Sums over units of g_i, and of a = |g_i|^2, b = g_i.g, their products, and cos(g_i, g)."""

    count: Array  # float32[]
    total: Array  # float32[P]
    square: Array  # float32[], a
    along: Array  # float32[], b
    square_square: Array
    along_along: Array
    square_along: Array
    cosine: Array
    cosine_square: Array


@record
class GradientQuality:
    """M2 to M6 with standard errors (`_se`); per trajectory where it says so. All float32[]."""

    units: Array
    slope: Array  # M2, E[g_i].g / |g|^2: 1 is unbiased along g
    slope_se: Array
    cosine_of_mean: Array  # M3, cos(mean g_i, g); pulled to 0 by noise when N is small
    cosine_of_mean_unbiased: Array  # the same with the noise of the mean taken out of its length; 0 if none is left
    cosine: Array  # M3, mean of cos(g_i, g); 0 for a g_i of length 0
    cosine_se: Array
    bias: Array  # M4, |mean g_i - g|^2 / |g|^2
    bias_unbiased: Array  # M4 less tr Cov / N; may be negative
    variance: Array  # M5, tr Cov(g_i) / |g|^2, per trajectory
    variance_se: Array
    snr_db_raw: Array  # M6, |g|^2 / E|g_i - g|^2, per trajectory
    snr_db_raw_se: Array
    snr_db: Array  # M6 after g_i / slope: the headline, blind to scale; -inf if slope <= 0
    snr_db_se: Array


def empty_sums(size: int) -> GradientSums:
    """Sums over no units, for gradients of `size` parameters."""
    zero = jnp.float32(0)
    return GradientSums(
        count=zero, total=jnp.zeros(size, jnp.float32), square=zero, along=zero, square_square=zero, along_along=zero,
        square_along=zero, cosine=zero, cosine_square=zero,
    )  # fmt: skip


def add_gradients(sums: GradientSums, gradients: Array, reference: Array) -> GradientSums:
    """Adds the units of gradients[N,P], measured against reference[P]. Jit or scan it; P and N are free."""
    a = jnp.sum(jnp.square(gradients), axis=1)
    b = gradients @ reference
    length = jnp.sqrt(a) * jnp.linalg.norm(reference)
    cosine = jnp.where(length > 0, b / jnp.where(length > 0, length, 1.0), 0.0)
    new = GradientSums(
        count=jnp.float32(gradients.shape[0]), total=jnp.sum(gradients, axis=0), square=jnp.sum(a), along=jnp.sum(b),
        square_square=jnp.sum(a * a), along_along=jnp.sum(b * b), square_along=jnp.sum(a * b), cosine=jnp.sum(cosine),
        cosine_square=jnp.sum(cosine * cosine),
    )  # fmt: skip
    return jax.tree.map(jnp.add, sums, new)


def summarize(
    sums: GradientSums, reference: Array, *, trajectories_per_unit: int = 1, reference_noise: float | Array = 0.0
) -> GradientQuality:
    """Reads the measures off the sums.

    reference float32[P], not zero. reference_noise: trace of the covariance of the reference (0: exact; for a mean of M
    gradients, their tr Cov / M); it is subtracted from |reference|^2 wherever |g|^2 is meant. Units of n trajectories
    have their error and variance multiplied by n, to read per trajectory. Standard errors by the delta method.

    Two units g_1 = [3], g_2 = [1] with g = [2]: slope 1, variance 2 / 4, raw SNR 4 / 1 = 6.02 dB.
    """
    n, g2 = sums.count, jnp.sum(jnp.square(reference)) - reference_noise
    a, b = sums.square / n, sums.along / n
    var_a, var_b = sums.square_square / n - a * a, sums.along_along / n - b * b
    cov = sums.square_along / n - a * b

    def error(per_a: Array | float, per_b: Array | float) -> Array:  # of a function of (a, b) with these derivatives
        spread = per_a**2 * var_a + per_b**2 * var_b + 2 * per_a * per_b * cov
        return jnp.sqrt(jnp.maximum(spread, 0.0) / n)

    def decibel(noise: Array) -> Array:
        noise = jnp.maximum(noise, 0.0)
        return jnp.where(noise > 0, 10 * jnp.log10(g2 / jnp.where(noise > 0, noise, 1.0)), jnp.inf)

    per_db = 10 / jnp.log(10.0)

    def decibel_error(noise: Array, per_a: Array | float, per_b: Array | float) -> Array:
        return jnp.where(noise > 0, per_db * error(per_a, per_b) / jnp.where(noise > 0, noise, 1.0), 0.0)

    mean2 = jnp.sum(jnp.square(sums.total / n))
    trace = (a - mean2) * n / jnp.maximum(n - 1, 1)
    slope = b / g2
    # E|g_i - g|^2 = a - 2b + |g|^2; the reference's own noise drops out of b, so only the true |g|^2 enters
    raw = trajectories_per_unit * (a - 2 * b + g2)
    rising = slope > 0
    safe = jnp.where(rising, slope, 1.0)
    corrected = trajectories_per_unit * (a / safe**2 - g2)  # E|g_i / slope - g|^2
    bias2 = mean2 - 2 * b + g2
    clean = mean2 - trace / n
    noise_free = jnp.where(clean > 0, b / jnp.sqrt(jnp.where(clean > 0, clean, 1.0) * g2), 0.0)
    length = jnp.sqrt(mean2 * g2)
    cosine = sums.cosine / n
    return GradientQuality(
        units=n,
        slope=slope,
        slope_se=error(0.0, 1.0) / g2,
        cosine_of_mean=jnp.where(length > 0, b / jnp.where(length > 0, length, 1.0), 0.0),
        cosine_of_mean_unbiased=noise_free,
        cosine=cosine,
        cosine_se=jnp.sqrt(jnp.maximum(sums.cosine_square / n - cosine**2, 0.0) / n),
        bias=bias2 / g2,
        bias_unbiased=(bias2 - trace / n) / g2,
        variance=trajectories_per_unit * trace / g2,
        variance_se=trajectories_per_unit * error(1.0, 0.0) / g2,
        snr_db_raw=decibel(raw),
        snr_db_raw_se=decibel_error(raw, trajectories_per_unit, -2.0 * trajectories_per_unit),
        snr_db=jnp.where(rising, decibel(corrected), -jnp.inf),
        snr_db_se=jnp.where(
            rising,
            decibel_error(
                corrected, trajectories_per_unit / safe**2, -2.0 * trajectories_per_unit * a / (safe**3 * g2)
            ),
            0.0,
        ),
    )


def gradient_quality(
    gradients: Array, reference: Array, *, trajectories_per_unit: int = 1, reference_noise: float | Array = 0.0
) -> GradientQuality:
    """`summarize` of gradients[N,P] that fit in memory."""
    sums = add_gradients(empty_sums(reference.shape[0]), gradients, reference)
    return summarize(
        sums, reference, trajectories_per_unit=trajectories_per_unit, reference_noise=reference_noise
    )


def tabular_score_gradients(table: Array, obs_index: Array, action: Array, advantage: Array) -> Array:
    """Per-trajectory gradients of a softmax table in closed form, float32[B, n A].

    g_b = sum_t A_bt (onehot(action_bt) - pi(. | obs_bt)) in row obs_bt of the table, flattened row by row.

    table float32[n,A]; obs_index int32[B,T] in [0, n); action int32[B,T] in [0, A); advantage float32[B,T], 0 on turns
    that were not acted.
    """
    rows, size = obs_index.shape[0], table.shape
    pi = jax.nn.softmax(table, axis=-1)[obs_index]
    score = jax.nn.one_hot(action, size[1], dtype=pi.dtype) - pi
    zeros = jnp.zeros((rows, *size), jnp.float32)
    summed = zeros.at[jnp.arange(rows)[:, None], obs_index].add(advantage[..., None] * score)
    return summed.reshape(rows, -1)
