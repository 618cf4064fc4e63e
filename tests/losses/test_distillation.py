"""Distillation on own samples and imitation, against hand arithmetic and enumeration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax.losses import AGGREGATIONS, LOSSES
from agentjax.types import Outputs, Signals
from tests.factories import written


def run(loss, trajectory, logp, signals):
    def value(logp):
        outputs = Outputs(logp=logp, entropy=jnp.zeros_like(logp))
        return LOSSES[loss].apply(outputs, trajectory, signals, None, aggregate=AGGREGATIONS["token_mean"])

    (value, metrics), gradient = jax.value_and_grad(value, has_aux=True)(jnp.asarray(logp, jnp.float32))
    return float(value), metrics, np.asarray(gradient)


@pytest.mark.allow_nan
def test_sampled_reverse_kl():
    # teacher -1, student -2: A = 1, loss -1, gradient -1; the second token has no teacher; mean over two tokens
    trajectory = written("p a0 o1 a1", logp=[[0, -2, 0, -1]])
    signals = Signals(teacher_logp=jnp.array([[9.0, -1, 9, jnp.nan]]))
    value, metrics, gradient = run("opd_sampled", trajectory, [[9, -2, 9, -1]], signals)
    assert value == -0.5 and metrics["taught"] == 1 and metrics["reverse_kl_sum"] == -1
    np.testing.assert_allclose(gradient, [[0, -0.5, 0, 0]])
    # an off-policy student (log pi -3, ratio 1/e): A = 2, loss and gradient -2/e
    value, _, gradient = run("opd_sampled", trajectory, [[9, -3, 9, -1]], signals)
    np.testing.assert_allclose([value, gradient[0, 1]], [-1 / np.e, -1 / np.e], rtol=1e-6)


def test_teacher_equal_to_student_is_a_fixed_point():
    trajectory = written("a0 a0", logp=[[-1, -2]])
    value, _, gradient = run("opd_sampled", trajectory, [[-1, -2]], Signals(teacher_logp=jnp.array([[-1.0, -2.0]])))
    assert value == 0 and (gradient == 0).all()


def test_expected_gradient_is_that_of_the_reverse_kl():
    logits = jnp.array([0.2, -0.5, 1.0])
    teacher = jax.nn.log_softmax(jnp.array([1.0, 0.3, -0.4]))
    logp = jax.nn.log_softmax(logits)
    # one row per action, weighted by its chance
    trajectory = written("a0", "a0", "a0", logp=np.asarray(logp)[:, None], weight=np.exp(np.asarray(logp)))

    def loss(x):
        outputs = Outputs(logp=jax.nn.log_softmax(x)[:, None], entropy=jnp.zeros((3, 1)))
        signals = Signals(teacher_logp=teacher[:, None])
        return LOSSES["opd_sampled"].apply(outputs, trajectory, signals, None, aggregate=AGGREGATIONS["token_mean"])[0]

    want = jax.grad(lambda x: jnp.sum(jax.nn.softmax(x) * (jax.nn.log_softmax(x) - teacher)))(logits)
    np.testing.assert_allclose(jax.grad(loss)(logits), want, atol=1e-6)


def test_imitation():
    # log pi -1 and -3 on the two action tokens: mean 2, gradient -1/2 each
    value, metrics, gradient = run("sft", written("p a0 o1 a1"), [[9, -1, 9, -3]], Signals())
    assert value == 2 and metrics["nll_sum"] == 4 and metrics["tokens"] == 2
    np.testing.assert_allclose(gradient, [[0, -0.5, 0, -0.5]])
