"""Policy losses, against hand arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax.losses import AGGREGATIONS, LOSSES
from agentjax.types import Credit, Outputs, Signals
from tests.factories import written

TRAJECTORY = written("p a0 o1 a1")


def run(loss, ratio, advantage, **options):
    """Loss and gradient in log pi of a token with that ratio to the sampler; the row has a second, inert token."""
    credit = Credit(advantage=jnp.array([[7.0, advantage, 7.0, 0.0]]))

    def value(logp):
        outputs = Outputs(logp=logp, entropy=jnp.zeros((1, 4)))
        return LOSSES[loss].apply(
            outputs, TRAJECTORY, Signals(), credit, aggregate=AGGREGATIONS["sequence_sum"], **options
        )

    logp = jnp.array([[5.0, np.log(ratio), 5.0, 0.0]])
    (loss_value, metrics), gradient = jax.value_and_grad(value, has_aux=True)(logp)
    assert (np.asarray(gradient)[0, [0, 2]] == 0).all()
    return float(loss_value), float(gradient[0, 1]), metrics


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),  # REINFORCE at ratio 1
        (1.2, 1.0, -1.2, -1.2),
        (1.5, 1.0, -1.28, 0.0),  # above the upper bound, better already: no gradient
        (0.5, 1.0, -0.5, -0.5),  # a good token that lost: full gradient
        (0.9, -1.0, 0.9, 0.9),
        (0.5, -1.0, 0.8, 0.0),  # below the lower bound
        (1.5, -1.0, 1.5, 1.5),  # a bad token that gained: full gradient
    ],
)
def test_clipped_surrogate(ratio, advantage, value, gradient):
    got = run("ppo", ratio, advantage)
    np.testing.assert_allclose(got[:2], (value, gradient), rtol=1e-6)
    assert got[2]["tokens"] == 2
    assert got[2]["clipped_high"] == float(ratio == 1.5 and advantage > 0)
    assert got[2]["clipped_low"] == float(ratio == 0.5 and advantage < 0)
    np.testing.assert_allclose(got[2]["ratio_sum"], ratio + 1, rtol=1e-6)


def test_bounds_are_options():
    np.testing.assert_allclose(run("ppo", 1.5, 1.0, clip_high=0.1)[:2], (-1.1, 0.0), rtol=1e-6)
    np.testing.assert_allclose(run("ppo", 0.5, -1.0, clip_low=0.4)[:2], (0.6, 0.0), rtol=1e-6)


@pytest.mark.parametrize("difference", [1e4, -1e4])
def test_absurd_ratios_stay_finite(difference):
    credit = Credit(advantage=jnp.array([[0.0, -1.0, 0.0, 1.0]]))

    def value(logp):
        outputs = Outputs(logp=logp, entropy=jnp.zeros((1, 4)))
        return LOSSES["ppo"].apply(outputs, TRAJECTORY, Signals(), credit, aggregate=AGGREGATIONS["token_mean"])[0]

    value, gradient = jax.value_and_grad(value)(jnp.full((1, 4), difference))
    assert np.isfinite(value) and np.isfinite(gradient).all()


@pytest.mark.allow_nan
@pytest.mark.parametrize("loss", ["ppo", "reinforce", "sft"])
def test_nan_off_the_actions_reaches_neither_value_nor_gradient(loss):
    credit = Credit(advantage=jnp.ones((1, 4)))

    def value(logp):
        outputs = Outputs(logp=logp, entropy=logp)
        return LOSSES[loss].apply(outputs, TRAJECTORY, Signals(), credit, aggregate=AGGREGATIONS["token_mean"])[0]

    value, gradient = jax.value_and_grad(value)(jnp.array([[jnp.nan, -1.0, jnp.nan, -1.0]]))
    assert np.isfinite(value)
    np.testing.assert_array_equal(np.isfinite(gradient), True)
    assert (np.asarray(gradient)[0, [1, 3]] != 0).all()


def test_score_function():
    # A = 2, log pi = -.5: loss 1, gradient -2
    np.testing.assert_allclose(run("reinforce", np.exp(-0.5), 2.0)[:2], (1.0, -2.0), rtol=1e-6)


def test_credit_gets_no_gradient():
    outputs = Outputs(logp=jnp.zeros((1, 4)), entropy=jnp.zeros((1, 4)))
    for loss in ("ppo", "reinforce"):
        gradient = jax.grad(
            lambda a, loss=loss: LOSSES[loss].apply(
                outputs, TRAJECTORY, Signals(), Credit(advantage=a), aggregate=AGGREGATIONS["token_mean"]
            )[0]
        )(jnp.ones((1, 4)))
        assert (np.asarray(gradient) == 0).all()
