"""Assessment on the chain, whose gradient is known: unbiased credit has slope 1, more branches cost no bias."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from agentjax.methods import METHODS
from agentjax.oracle import exact
from experiments.harness import tasks
from experiments.harness.assess import AssessConfig, make_assess

K = (1, 4, 16)


@pytest.fixture(scope="module")
def measured():
    task, _ = tasks.umbrella_task({"env": "umbrella", "p0": None}, 3, panel=8)
    oracle = METHODS["oracle_token"]
    entries = [dataclasses.replace(oracle, name=f"oracle@{k}", oracle_samples=k) for k in K]
    entries += [METHODS["rloo"], METHODS["opd_wrong"]]
    config = AssessConfig(groups=8, size=8, pieces=8, truth_pieces=2, truth_samples=16)
    gradient = lambda params: exact.policy_gradient(task.env.exact, params["table"]).ravel()  # noqa: E731
    assess = make_assess(task.policy, task.env, tuple(entries), config, gradient)
    params = {"table": 0.3 * jax.random.normal(jax.random.key(2), task.start["table"].shape)}
    rows = assess(jax.random.key(1), params, jax.tree.map(jnp.zeros_like, params))
    return {(row["method"], row["measure"], row["seed"]): row["value"] for row in rows}


def test_unbiased_credit_has_slope_one(measured):
    assert measured["oracle", "reference/episodes", 0] == 0 and measured["oracle", "reference/noise", 0] == 0
    for name in ("rloo", *(f"oracle@{k}" for k in K)):
        slope, error = measured[name, "gradient/slope", 0], measured[name, "gradient/slope_se", 0]
        assert abs(slope - 1) < 4.5 * error and error < 0.3, name
    slope, error = measured["opd_wrong", "gradient/slope", 0], measured["opd_wrong", "gradient/slope_se", 0]
    assert abs(slope - 1) > 4.5 * error


def test_more_branches_are_less_noise_on_the_same_samples(measured):
    noise = [measured[f"oracle@{k}", "gradient/snr_db_raw", 0] for k in K]
    fit = [measured[f"oracle@{k}", "fidelity/pearson_turn", 0] for k in K]
    assert noise[0] < noise[1] < noise[2] and fit[0] < fit[1] < fit[2]
    assert {seed for name, measure, seed in measured if measure == "fidelity/pearson_turn"} == {0, 1}  # by piece
