"""DPO on rollouts of several turns, against hand arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np

from agentjax.losses import AGGREGATIONS, LOSSES
from agentjax.types import Outputs, Signals
from tests.factories import written


def dpo(trajectory, logp, reference, pairs, **options):
    signals = Signals(reference_logp=jnp.asarray(reference, jnp.float32), pairs=jnp.asarray(pairs, jnp.int32))

    def value(logp):
        outputs = Outputs(logp=logp, entropy=jnp.zeros_like(logp))
        return LOSSES["dpo"].apply(outputs, trajectory, signals, None, aggregate=AGGREGATIONS["token_mean"], **options)

    (loss, metrics), gradient = jax.value_and_grad(value, has_aux=True)(jnp.asarray(logp, jnp.float32))
    return float(loss), metrics, np.asarray(gradient)


def test_value_and_gradient():
    # winner: 1 + 2 over two turns, loser 1 + 0; beta 1/2: margin 1, loss log(1 + 1/e) = .313262
    trajectory = written("p a0 o1 a1", "p a0 o1 a1")
    loss, metrics, gradient = dpo(trajectory, [[9, 1, 9, 2], [9, 1, 9, 0]], np.zeros((2, 4)), [[0, 1]], beta=0.5)
    np.testing.assert_allclose(loss, 0.313262, rtol=1e-5)
    slope = 0.5 / (1 + np.e)  # .134471
    np.testing.assert_allclose(gradient, [[0, -slope, 0, -slope], [0, slope, 0, slope]], rtol=1e-5)
    assert metrics["pairs"] == 1 and metrics["won"] == 1
    np.testing.assert_allclose(metrics["margin_sum"], 1, rtol=1e-6)


def test_the_mean_is_over_pairs_that_count():
    # margins 0 and 0: log 2 whatever their number; the empty pair and the one with a rejected row do not count
    trajectory = written("a0", "a0", "a0", "a0", weight=[1, 1, 1, 0])
    zeros = np.zeros((4, 1))
    loss, metrics, gradient = dpo(trajectory, zeros, zeros, [[0, 1], [1, 2], [-1, -1], [3, 0]], beta=1.0)
    np.testing.assert_allclose(loss, np.log(2), rtol=1e-6)
    assert metrics["pairs"] == 2
    np.testing.assert_allclose(gradient[:, 0], [-0.25, 0.25 - 0.25, 0.25, 0], atol=1e-7)
    loss, metrics, gradient = dpo(trajectory, zeros, zeros, [[-1, -1]])
    assert loss == 0 and metrics["pairs"] == 0 and (gradient == 0).all()


def test_the_rows_of_a_rollout_are_summed():
    whole = written("p a0 a1", "p a0 a1")
    parts = written("p a0 .", "p p a1", "p a0 a1", rollout=[0, 0, 1])
    want = dpo(whole, [[9, 1, 2], [9, 0, 1]], np.zeros((2, 3)), [[0, 1]], beta=0.7)
    for named in (0, 1):
        got = dpo(parts, [[9, 1, 9], [9, 9, 2], [9, 0, 1]], np.zeros((3, 3)), [[named, 2]], beta=0.7)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
        np.testing.assert_allclose(got[2][1, 2], want[2][0, 2], rtol=1e-6)


def test_a_hopeless_margin_stays_finite():
    loss, _, gradient = dpo(written("a0", "a0"), [[-1e4], [1e4]], np.zeros((2, 1)), [[0, 1]], beta=1.0)
    np.testing.assert_allclose(loss, 2e4, rtol=1e-6)
    assert np.isfinite(gradient).all()
