"""Credit from judges, against hand arithmetic."""

import jax.numpy as jnp
import numpy as np
import pytest

from agentjax.credit import ESTIMATORS
from agentjax.types import Signals
from tests.factories import written

ROOT = np.sqrt(0.5)


def credit(name, trajectory, judge, **options):
    signals = Signals(judge=jnp.asarray(judge, jnp.float32))
    return np.asarray(ESTIMATORS[name].apply(trajectory, signals, **options).advantage)


@pytest.mark.allow_nan
def test_votes_as_they_are_and_to_go():
    trajectory = written("p o0 a0 a0 o1 a1 . o2 a2 o3")
    votes = [[1, np.nan, -1]]
    np.testing.assert_array_equal(credit("prm", trajectory, votes), [[0, 0, 1, 1, 0, 0, 0, 0, -1, 0]])
    # to go with gamma 1/2: -1; 0 - 1/2; 1 - 1/4
    want = [[0, 0, 0.75, 0.75, 0, -0.5, 0, 0, -1, 0]]
    np.testing.assert_allclose(credit("prm_return_to_go", trajectory, votes, gamma=0.5), want)


def test_to_go_reaches_over_the_parts_of_a_rollout():
    trajectory = written("a0 a1 .", "p p a2", rollout=[1, 1])
    got = credit("prm_return_to_go", trajectory, [[1, 1, 7], [7, 7, 3]])
    np.testing.assert_allclose(got, [[5, 4, 0], [0, 0, 3]])


@pytest.mark.allow_nan
def test_relative_to_the_same_turn_of_the_group():
    # turn 0: 1 and -1, mean 0, std sqrt(2); turn 1: one reacher has a vote, alone
    trajectory = written("a0 a1", "a0 a1", "a0 .", group=[0, 0, 1])
    votes = [[1, 1], [-1, np.nan], [5, 0]]
    want = [[ROOT, 0], [-ROOT, 0], [0, 0]]
    np.testing.assert_allclose(credit("biased_turn_index", trajectory, votes), want, atol=1e-5)
    raw = credit("biased_turn_index", trajectory, votes, singleton="raw")
    np.testing.assert_allclose(raw, [[ROOT, 1], [-ROOT, 0], [5, 0]], atol=1e-5)


@pytest.mark.allow_nan
def test_outcome_and_vote_standardised_at_the_same_turn():
    # R at turn 0: 1 + 1 and 0 - 1: mean 1/2, population std 3/2. At turn 1: 1 + 0 and 0 + 1: equal
    trajectory = written("a0 a1", "a0 a1", reward=[[0, 1], [0, 0]])
    votes = [[1, np.nan], [-1, 1]]
    np.testing.assert_allclose(credit("prm_outcome", trajectory, votes), [[1, 0], [-1, 0]], atol=1e-5)
    # the third rollout's outcome is missing: left out
    trajectory = written("a0 a1", "a0 a1", "a0 a1", reward=[[0, 1], [0, 0], [0, np.nan]])
    got = credit("prm_outcome", trajectory, [*votes, [9, 9]])
    np.testing.assert_allclose(got, [[1, 0], [-1, 0], [0, 0]], atol=1e-5)


@pytest.mark.allow_nan
def test_outcome_relative_to_the_others_plus_vote():
    trajectory = written("a0 a1", "a0 a1", reward=[[0, 1], [0, 0]])
    votes = [[1, 0], [-1, np.nan]]
    np.testing.assert_allclose(credit("prm_plus_rloo", trajectory, votes), [[2, 1], [-2, -1]], atol=1e-6)
    np.testing.assert_allclose(
        credit("prm_plus_rloo", trajectory, votes, weight=0.5), [[1.5, 1], [-1.5, -1]], atol=1e-6
    )
