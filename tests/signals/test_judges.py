"""The judge ladder: error rates, abstention, votes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax.signals.judges import Judge, judge
from tests.factories import written

B, T = 300, 100
ROW = " ".join(f"a{t}" for t in range(T))


@functools.cache
def scene():
    """A third of the verdicts each are -1, 0 and +1; the last turn of every row was not acted."""
    trajectory = written(ROW.replace(f"a{T - 1}", "."), turns=T)
    verdict = (jnp.arange(B * T).reshape(B, T) % 3 - 1).astype(jnp.float32)
    return jax.tree.map(lambda x: jnp.repeat(x, B, axis=0), trajectory), verdict


class Holder:
    """All that a judge may read of Truth."""

    def __init__(self, verdict):
        self.judge = verdict


def asked(rung, seed=0, oracle=None):
    trajectory, verdict = scene()
    return np.asarray(judge(jax.random.key(seed), rung, trajectory, Holder(verdict), oracle))


def acted(x):
    return x[:, :-1]


pytestmark = pytest.mark.allow_nan


def test_without_noise_the_verdict_itself():
    score = asked(Judge("J1"))
    assert (acted(score) == acted(np.asarray(scene()[1]))).all()
    assert np.isnan(score[:, -1]).all(), "a turn that was not acted has no vote"


def test_error_rates():
    """A +1 becomes -1 with false_negative, -1 and 0 become +1 with false_positive: 9900 votes each, 5 sigma."""
    score, verdict = acted(asked(Judge("J3", false_positive=0.3, false_negative=0.1))), acted(np.asarray(scene()[1]))
    for value, rate, becomes in ((1, 0.1, -1), (0, 0.3, 1), (-1, 0.3, 1)):
        votes = score[verdict == value]
        assert set(votes) == {value, becomes}
        assert abs(np.mean(votes == becomes) - rate) < 5 * (rate * (1 - rate) / votes.size) ** 0.5
    flipped = acted(asked(Judge("J3", false_negative=1.0, votes=5)))
    assert (flipped[verdict == 1] == -1).all() and (flipped[verdict != 1] == verdict[verdict != 1]).all()


def test_j0_is_the_sign_of_the_oracle():
    oracle = jnp.where(jnp.arange(T) % 2 == 0, 0.25, -3.0)[None, :] * jnp.ones((B, 1))
    score = acted(asked(Judge("J0"), oracle=oracle.at[:, 1].set(0.0)))
    assert (score[:, 0] == 1).all() and (score[:, 1] == 0).all() and (score[:, 3] == -1).all()
    with pytest.raises(ValueError, match="judge J0 needs oracle_turn"):
        asked(Judge("J0"))


def test_mean_of_votes_has_the_variance_of_independent_ones():
    """m votes on a +1 with false_negative p: mean 1 - 2p, variance 4 p (1 - p) / m."""
    p = 0.3
    for votes in (1, 4):
        good = acted(asked(Judge("J3", false_negative=p, votes=votes)))[acted(np.asarray(scene()[1])) == 1]
        variance = 4 * p * (1 - p) / votes
        assert abs(good.mean() - (1 - 2 * p)) < 5 * (variance / good.size) ** 0.5
        assert good.var() == pytest.approx(variance, rel=0.06)  # 4 standard errors at kurtosis below 3


def test_majority_and_ties():
    """Two votes on a +1, p = .3: +1 with .49, a tie (0) with .42, -1 with .09; three: -1 with p^2 (3 - 2p) = .216."""
    verdict = acted(np.asarray(scene()[1]))
    two = acted(asked(Judge("J3", false_negative=0.3, votes=2, combine="majority")))[verdict == 1]
    for value, chance in ((1, 0.49), (0, 0.42), (-1, 0.09)):
        assert abs(np.mean(two == value) - chance) < 5 * (chance * (1 - chance) / two.size) ** 0.5
    three = acted(asked(Judge("J3", false_negative=0.3, votes=3, combine="majority")))[verdict == 1]
    assert set(three) == {-1.0, 1.0} and abs(np.mean(three == -1) - 0.216) < 5 * (0.216 * 0.784 / three.size) ** 0.5


def test_abstention():
    """NaN where all m votes abstain, probability a^m; a majority counts the votes cast."""
    for votes, combine in ((1, "mean"), (3, "majority")):
        score = acted(asked(Judge("J1", abstain=0.4, votes=votes, combine=combine)))
        rate = 0.4**votes
        assert abs(np.isnan(score).mean() - rate) < 5 * (rate * (1 - rate) / score.size) ** 0.5
        there = ~np.isnan(score)
        assert (score[there] == acted(np.asarray(scene()[1]))[there]).all()
    assert np.isnan(asked(Judge("J1", abstain=1.0))).all()


def test_same_key_same_votes():
    rung = Judge("J3", false_positive=0.4, false_negative=0.4)
    assert np.array_equal(asked(rung, 1), asked(rung, 1), equal_nan=True)
    assert not np.array_equal(asked(rung, 1), asked(rung, 2), equal_nan=True)


def test_bad_rungs():
    with pytest.raises(ValueError, match="unknown judge 'J9'; there are: J0, J1, J3"):
        Judge("J9")
    with pytest.raises(ValueError, match="votes combine by 'mean' or 'majority', not 'median'"):
        Judge(combine="median")
    with pytest.raises(ValueError, match=r"rates lie in \[0, 1\], got 1 and \(1.5, 0.0, 0.0\)"):
        Judge(false_positive=1.5)
    with pytest.raises(ValueError, match="votes must be at least 1"):
        Judge(votes=0)
