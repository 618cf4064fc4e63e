"""What holds for every estimator and every loss, whatever their idea. New entries of the tables are found from here.

Estimators that draw random numbers (they need `permutation_key`) draw by row number, so row order and row split are not
asked of them.
"""

import collections
import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from agentjax import ops
from agentjax.credit import ESTIMATORS
from agentjax.losses import AGGREGATIONS, LOSSES, with_kl
from agentjax.types import RESOLUTIONS, Credit, Outputs, Signals, validate
from tests import factories

ROWS, TURNS, EXTRA = 16, 4, 6
TOLERANCE = dict(rtol=1e-6, atol=1e-6)
every_estimator = pytest.mark.parametrize("name", list(ESTIMATORS))
every_case = pytest.mark.parametrize("case", ["plain", pytest.param("missing", marks=pytest.mark.allow_nan)])
CHANGES = ["padding", "observations", "dead_rows", "order", "split"]


@functools.cache
def raw(case: str) -> factories.Batch:
    """16 rollouts in groups of 4; `missing` has a NaN reward, vote and teacher, token rewards and rejected rows."""
    missing = case == "missing"
    trajectory = factories.random_trajectory(
        jax.random.key(3), ROWS, TURNS, missing=missing, token_reward=missing, padded_rows=2 * missing
    )
    validate(trajectory)
    return factories.batch(trajectory, factories.random_signals(jax.random.key(4), trajectory, missing=missing))


@functools.cache
def padded(case: str) -> factories.Batch:
    """The same in the shape of all changed batches: twice the rows, more slots, all of it padding."""
    given = factories.insert_padding(raw(case), jax.random.key(5), EXTRA)
    return factories.add_dead_rows(given, jax.random.key(6), 2 * ROWS)


@functools.cache
def changed(case: str, change: str) -> factories.Batch:
    given, key = raw(case), jax.random.key(7)
    if change == "padding":
        return padded(case)
    if change == "observations":
        given = factories.insert_observations(given, key, EXTRA)
    else:
        given = factories.insert_padding(given, key, EXTRA)
    if change == "split":
        return factories.split_rows(given, jax.random.key(8))
    given = factories.add_dead_rows(given, jax.random.key(9), 2 * ROWS)
    return factories.permute_rows(given, jax.random.key(10)) if change == "order" else given


TRACES = collections.Counter()


@functools.cache
def compiled(name: str):
    def counted(trajectory, signals):
        TRACES[name] += 1
        return ESTIMATORS[name].apply(trajectory, signals)

    return jax.jit(counted)


@functools.cache
def expected(name: str, case: str) -> Credit:
    """On the batch as it is, in the plain case without jit: what every other way must give."""
    trajectory, signals, _ = raw(case)
    return (ESTIMATORS[name].apply if case == "plain" else compiled(name))(trajectory, signals)


def moves_with_rows(name: str) -> bool:
    return "permutation_key" not in ESTIMATORS[name].needs


@every_estimator
@every_case
def test_credit_is_finite_float32_and_zero_off_the_actions_of_rows_that_count(name, case):
    trajectory, _, _ = raw(case)
    advantage = expected(name, case).advantage
    assert advantage.shape == trajectory.tokens.shape and advantage.dtype == jnp.float32
    counted = np.asarray(trajectory.action_mask) & (np.asarray(trajectory.weight) > 0)[:, None]
    assert np.isfinite(advantage).all()
    assert (np.asarray(advantage)[~counted] == 0).all()
    assert (np.asarray(advantage)[counted] != 0).any()


@every_estimator
@every_case
@pytest.mark.parametrize("change", CHANGES)
def test_form_changes_nothing(name, case, change):
    if change in ("order", "split") and not moves_with_rows(name):
        pytest.skip("draws by row number")
    other = changed(case, change)
    validate(dataclasses.replace(other[0], reward=jnp.nan_to_num(other[0].reward)))
    got = compiled(name)(other[0], other[1]).advantage
    want = factories.by_rollout(expected(name, case).advantage, raw(case))
    np.testing.assert_allclose(factories.by_rollout(got, other), want, **TOLERANCE)
    assert (np.asarray(got)[np.asarray(other[0].weight) == 0] == 0).all()


@every_estimator
def test_one_trace_for_any_grouping_and_length_of_a_shape(name):
    run = compiled(name)
    run(*changed("plain", "padding")[:2])
    seen = TRACES[name]
    for change in ("observations", "dead_rows", "order", "split"):
        run(*changed("plain", change)[:2])
    assert seen > 0 and TRACES[name] == seen


@every_estimator
@pytest.mark.allow_nan
def test_sharded_is_unsharded(name):
    trajectory, signals, _ = raw("missing")
    run = jax.shard_map(
        functools.partial(ESTIMATORS[name].apply, axis_name="data"),
        mesh=jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)),
        in_specs=(rows_of(trajectory), rows_of(signals)),
        out_specs=PartitionSpec("data"),
    )
    got = jax.jit(run)(trajectory, signals).advantage
    np.testing.assert_allclose(got, expected(name, "missing").advantage, **TOLERANCE)


def rows_of(tree):
    """Partition by rows; scalars (keys) on every device."""
    return jax.tree.map(lambda x: PartitionSpec("data") if x.ndim else PartitionSpec(), tree)


@every_estimator
def test_needs_are_what_it_reads_and_each_missing_one_is_named(name):
    entry = ESTIMATORS[name]
    trajectory, signals, _ = raw("plain")
    needed = Signals(**{field: getattr(signals, field) for field in entry.needs})
    entry.apply(trajectory, needed)
    for field in entry.needs:
        with pytest.raises(ValueError, match=rf"estimator {name} needs the signals {field}"):
            entry.apply(trajectory, dataclasses.replace(needed, **{field: None}))


@every_estimator
def test_credit_is_constant_where_its_resolution_says_so(name):
    resolution = ESTIMATORS[name].resolution
    assert resolution in RESOLUTIONS
    if resolution == "token":
        pytest.skip("free to differ from token to token")
    trajectory, _, _ = raw("plain")
    advantage = expected(name, "plain").advantage
    counts = ops.action_counts(trajectory)
    mean = ops.tokens_to_turns(advantage, trajectory) / jnp.maximum(counts, 1.0)
    if resolution in ("episode", "trajectory"):
        mean = jnp.sum(mean * counts, axis=1, keepdims=True) / jnp.sum(counts, axis=1, keepdims=True)
        mean = jnp.broadcast_to(mean, counts.shape)
    np.testing.assert_allclose(advantage, ops.turns_to_tokens(mean, trajectory), **TOLERANCE)


@every_estimator
def test_credit_carries_no_gradient(name):
    trajectory, signals, _ = raw("plain")
    floats = {k: v for k, v in vars(signals).items() if v is not None and jnp.issubdtype(v.dtype, jnp.floating)}

    def total(values):
        return jnp.sum(ESTIMATORS[name].apply(trajectory, dataclasses.replace(signals, **values)).advantage)

    assert all((np.asarray(g) == 0).all() for g in jax.jit(jax.grad(total))(floats).values())


# Losses: value and gradient in the log-probabilities of the current policy


def all_losses():
    """Every loss, the surrogate under every aggregation and with a divergence."""
    for loss in LOSSES:
        yield pytest.param(loss, "token_mean", 0.0, id=loss)
    for aggregate in AGGREGATIONS:
        yield pytest.param("ppo", aggregate, 0.01, id=f"ppo-{aggregate}-kl")


every_loss = pytest.mark.parametrize(("loss", "aggregate", "kl"), list(all_losses()))


@functools.cache
def value_and_gradient(loss: str, aggregate: str, kl: float, axis_name: str | None = None):
    entry = with_kl(LOSSES[loss], coefficient=kl)
    options = {"divisor": 8.0} if aggregate == "constant" else {}
    reduce = functools.partial(AGGREGATIONS[aggregate], **options)

    def scalar(logp, trajectory, signals):
        outputs = Outputs(logp=logp, entropy=jnp.ones_like(logp))
        credit = ESTIMATORS["oracle_token"].apply(trajectory, signals)
        return entry.apply(outputs, trajectory, signals, credit, aggregate=reduce, axis_name=axis_name)

    def run(logp, trajectory, signals):
        (value, metrics), gradient = jax.value_and_grad(scalar, has_aux=True)(logp, trajectory, signals)
        if axis_name is not None:
            value, metrics = jax.lax.psum((value, metrics), axis_name)
        return value, metrics, gradient

    return run if axis_name is not None else jax.jit(run)


@every_loss
@every_case
@pytest.mark.parametrize("change", CHANGES)
def test_form_changes_no_loss(loss, aggregate, kl, case, change):
    run, given, other = value_and_gradient(loss, aggregate, kl), padded(case), changed(case, change)
    value, metrics, gradient = run(given[1].current_logp, *given[:2])
    value_, metrics_, gradient_ = run(other[1].current_logp, *other[:2])
    assert float(value) != 0
    np.testing.assert_allclose(value_, value, **TOLERANCE)
    np.testing.assert_allclose(
        factories.by_rollout(gradient_, other), factories.by_rollout(gradient, given), **TOLERANCE
    )
    chex.assert_trees_all_close(metrics_, metrics, rtol=1e-5, atol=1e-5)
    ignored = ~np.asarray(other[0].action_mask) | (np.asarray(other[0].weight) == 0)[:, None]
    assert (np.asarray(gradient_)[ignored] == 0).all()


@every_loss
def test_sharded_loss_is_unsharded(loss, aggregate, kl):
    trajectory, signals, _ = raw("plain")
    value, metrics, gradient = value_and_gradient(loss, aggregate, kl)(signals.current_logp, trajectory, signals)
    run = jax.shard_map(
        value_and_gradient(loss, aggregate, kl, "data"),
        mesh=jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)),
        in_specs=(PartitionSpec("data"), rows_of(trajectory), rows_of(signals)),
        out_specs=(PartitionSpec(), PartitionSpec(), PartitionSpec("data")),
    )
    value_, metrics_, gradient_ = jax.jit(run)(signals.current_logp, trajectory, signals)
    np.testing.assert_allclose(value_, value, **TOLERANCE)
    np.testing.assert_allclose(gradient_, gradient, **TOLERANCE)
    chex.assert_trees_all_close(metrics_, metrics, rtol=1e-5, atol=1e-5)
