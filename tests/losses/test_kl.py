"""Divergences by the gradient they give: values by hand, expected gradients by enumeration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax.losses import AGGREGATIONS, LOSSES, kl, with_kl
from agentjax.types import Credit, Outputs, Signals
from tests.factories import written

LOGITS = jnp.array([0.3, -1.0, 0.8])
REFERENCE = jax.nn.log_softmax(jnp.array([-0.2, 0.5, 0.1]))


def expected_gradient(estimator):
    """sum_a pi(a) grad k(log pi(a)), pi held fixed where samples come from it."""
    chance = jax.nn.softmax(LOGITS)
    return jax.grad(lambda x: jnp.sum(chance * estimator(jax.nn.log_softmax(x), REFERENCE)))(LOGITS)


def divergence(log_p, log_q):
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q))


def test_values_by_hand():
    # d = .5: .5; .125; exp(-.5) - 1 + .5 = .106531
    d = jnp.array([0.5])
    np.testing.assert_allclose(kl.k1(d, jnp.zeros(1)), [0.5], rtol=1e-6)
    np.testing.assert_allclose(kl.k2(d, jnp.zeros(1)), [0.125], rtol=1e-6)
    np.testing.assert_allclose(kl.k3(d, jnp.zeros(1)), [0.106531], rtol=1e-5)
    np.testing.assert_allclose(kl.kl_value(d, jnp.zeros(1)), [0.106531], rtol=1e-5)
    assert kl.k2 is kl.kl_reverse_grad and kl.k3 is kl.kl_forward_grad


def test_k1_and_k3_have_the_divergence_as_their_mean():
    logp = jax.nn.log_softmax(LOGITS)
    for estimator in (kl.k1, kl.k3, kl.kl_value):
        mean = jnp.sum(jnp.exp(logp) * estimator(logp, REFERENCE))
        np.testing.assert_allclose(mean, divergence(logp, REFERENCE), rtol=1e-5)


def test_expected_gradients():
    reverse = jax.grad(lambda x: divergence(jax.nn.log_softmax(x), REFERENCE))(LOGITS)
    forward = jax.grad(lambda x: divergence(REFERENCE, jax.nn.log_softmax(x)))(LOGITS)
    np.testing.assert_allclose(expected_gradient(kl.k1), 0, atol=1e-6)
    np.testing.assert_allclose(expected_gradient(kl.kl_reverse_grad), reverse, atol=1e-6)
    np.testing.assert_allclose(expected_gradient(kl.kl_forward_grad), forward, atol=1e-6)
    np.testing.assert_allclose(expected_gradient(kl.kl_value), 0, atol=0)


def test_large_differences_stay_finite():
    value, gradient = jax.value_and_grad(lambda x: kl.k3(x, jnp.float32(0)))(jnp.float32(-500))
    assert np.isfinite(value) and np.isfinite(gradient)


def test_with_kl_adds_the_coefficient_times_the_penalty():
    # d = 1 and 0 on the two action tokens: k2 = 1/2 and 0, token mean 1/4, gradient 1/2 and 0
    trajectory = written("p a0 o1 a1")
    signals = Signals(reference_logp=jnp.array([[5.0, -1, 5, 0]]))
    outputs = Outputs(logp=jnp.zeros((1, 4)), entropy=jnp.zeros((1, 4)))
    credit = Credit(advantage=jnp.zeros((1, 4)))
    loss = with_kl(LOSSES["ppo"], coefficient=0.1)
    assert loss.needs == ("reference_logp",)
    value, metrics = loss.apply(outputs, trajectory, signals, credit, aggregate=AGGREGATIONS["token_mean"])
    np.testing.assert_allclose(value, 0.1 * 0.25, rtol=1e-6)
    np.testing.assert_allclose(metrics["kl_sum"], np.exp(-1), rtol=1e-5)  # k3 of d = 1: exp(-1) - 1 + 1
    assert with_kl(LOSSES["ppo"], coefficient=0) is LOSSES["ppo"]
    with pytest.raises(ValueError, match="kl must be one of kl_reverse_grad, kl_forward_grad, got 'k1'"):
        with_kl(LOSSES["ppo"], kl="k1")
