"""Teacher log-ratios, against hand arithmetic and enumeration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax.credit import ESTIMATORS
from agentjax.types import Signals
from tests.factories import written


def array(x):
    return jnp.asarray(x, jnp.float32)


@pytest.mark.allow_nan
def test_log_ratio_to_the_sampler_or_to_the_current_policy():
    trajectory = written("p a0 o1 a1 a1", logp=[[0, -2, 0, -2, -1]])
    teacher = array([[np.nan, -1, 50, -2, np.nan]])
    got = ESTIMATORS["opd"].apply(trajectory, Signals(teacher_logp=teacher)).advantage
    np.testing.assert_allclose(got, [[0, 1, 0, 0, 0]])
    signals = Signals(teacher_logp=teacher, current_logp=array([[9, -4, 9, -3, -1]]))
    np.testing.assert_allclose(ESTIMATORS["opd"].apply(trajectory, signals).advantage, [[0, 3, 0, 1, 0]])


@pytest.mark.allow_nan
def test_vote_and_log_ratio_add_up_and_either_may_be_missing():
    trajectory = written("a0 a0 a1 a2", logp=[[-2, -2, -2, -2]])
    signals = Signals(teacher_logp=array([[-1, -2, -1, np.nan]]), judge=array([[-1, np.nan, 1]]))
    np.testing.assert_allclose(ESTIMATORS["prm_opd"].apply(trajectory, signals).advantage, [[0, -1, 1, 1]])
    got = ESTIMATORS["prm_opd"].apply(trajectory, signals, w_binary=2.0, w_opd=0.5).advantage
    np.testing.assert_allclose(got, [[-1.5, -2, 0.5, 2]])


def test_expected_gradient_is_that_of_the_reverse_kl():
    # one token of three: sum_a pi(a) A(a) grad log pi(a) = -grad KL(pi || teacher)
    logits, teacher = array([0.2, -0.5, 1.0]), jax.nn.log_softmax(array([1.0, 0.3, -0.4]))
    logp = jax.nn.log_softmax(logits)
    trajectory = written("a0", "a0", "a0", logp=np.asarray(logp)[:, None])
    credit = ESTIMATORS["opd"].apply(trajectory, Signals(teacher_logp=teacher[:, None])).advantage[:, 0]
    scores = jax.jacobian(jax.nn.log_softmax)(logits)  # scores[a] = grad log pi(a)
    got = (jnp.exp(logp) * credit) @ scores
    kl = jax.grad(lambda x: jnp.sum(jax.nn.softmax(x) * (jax.nn.log_softmax(x) - teacher)))(logits)
    np.testing.assert_allclose(got, -kl, atol=1e-6)
    np.testing.assert_allclose(jnp.exp(logp) @ credit, -jnp.sum(jnp.exp(logp) * (logp - teacher)), atol=1e-6)
