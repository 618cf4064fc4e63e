"""What a token and a rollout are worth, against hand arithmetic."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax.losses import AGGREGATIONS, aggregation
from tests.factories import written

# one token of loss 2, four tokens of loss 1; numbers off the actions are never read
TOY = written("p a0 o1 . . .", "p a0 a0 o1 a1 a1")
LOSS = jnp.array([[9.0, 2, 9, 9, 9, 9], [9, 1, 1, 9, 1, 1]])
WANT = {"token_mean": 6 / 5, "sequence_mean": 3 / 2, "sequence_sum": 3.0, "constant": 3 / 4}


def aggregate(name):
    return functools.partial(AGGREGATIONS[name], divisor=4.0) if name == "constant" else AGGREGATIONS[name]


@pytest.mark.parametrize("name", list(AGGREGATIONS))
def test_toy_values_and_gradients(name):
    np.testing.assert_allclose(aggregate(name)(LOSS, TOY), WANT[name], rtol=1e-6)
    # weight of a token of the first and of the second rollout
    weights = {
        "token_mean": (1 / 5, 1 / 5), "sequence_mean": (1 / 2, 1 / 8), "sequence_sum": (1 / 2, 1 / 2),
        "constant": (1 / 8, 1 / 8),
    }  # fmt: skip
    gradient = jax.grad(lambda x: aggregate(name)(x, TOY))(LOSS)
    first, second = weights[name]
    want = [[0, first, 0, 0, 0, 0], [0, second, second, 0, second, second]]
    np.testing.assert_allclose(gradient, want, rtol=1e-6)


@pytest.mark.parametrize("name", list(AGGREGATIONS))
def test_a_rollout_in_two_rows_has_one_vote(name):
    split = written("p a0 o1 . . .", "p a0 a0 . . .", "p p p o1 a1 a1", rollout=[0, 1, 1])
    loss = jnp.concatenate([LOSS, LOSS[1:]])
    np.testing.assert_allclose(aggregate(name)(loss, split), WANT[name], rtol=1e-6)


@pytest.mark.parametrize("name", list(AGGREGATIONS))
def test_weights(name):
    # the second rollout rejected: only the token of loss 2 is left
    rejected = written("p a0 o1 . . .", "p a0 a0 o1 a1 a1", weight=[1, 0])
    want = {"token_mean": 2.0, "sequence_mean": 2.0, "sequence_sum": 2.0, "constant": 0.5}
    np.testing.assert_allclose(aggregate(name)(LOSS, rejected), want[name], rtol=1e-6)
    # weights 3 and 1: (3*2 + 4) / (3 + 4), (3*2 + 1) / 4, (3*2 + 4) / 4
    heavy = written("p a0 o1 . . .", "p a0 a0 o1 a1 a1", weight=[3, 1])
    want = {"token_mean": 10 / 7, "sequence_mean": 7 / 4, "sequence_sum": 10 / 4, "constant": 10 / 16}
    np.testing.assert_allclose(aggregate(name)(LOSS, heavy), want[name], rtol=1e-6)
    # nothing counts
    nothing = written("p a0 o1 . . .", "p a0 a0 o1 a1 a1", weight=[0, 0])
    assert aggregate(name)(LOSS, nothing) == 0


@pytest.mark.parametrize("name", list(AGGREGATIONS))
def test_micro_batches_add_up_under_the_denominator_of_the_whole(name):
    count = aggregation.tokens if name == "token_mean" else aggregation.votes
    run = functools.partial(aggregate(name), denominator=count(TOY))
    rows = (written("p a0 o1 . . ."), written("p a0 a0 o1 a1 a1"))
    parts = [run(LOSS[i : i + 1], row) for i, row in enumerate(rows)]
    np.testing.assert_allclose(sum(parts), WANT[name], rtol=1e-6)


def test_the_divisor_must_be_positive():
    with pytest.raises(ValueError, match="divisor must be positive, got 0"):
        AGGREGATIONS["constant"](LOSS, TOY, divisor=0)
