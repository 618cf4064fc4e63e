"""How good is every method's credit, and the gradient it makes, for one policy?

    assess = make_assess(policy, env, methods, AssessConfig())
    rows = assess(key, params, reference)

Gradients: g_i is the score-function gradient of one group under a method's credit, per episode; the reference g is the
same under oracle token credit (`samples` continuations per place: unbiased for any number) on a disjoint batch, whose
size and noise are reported; where the gradient is known (`exact`), it is that, without noise. Fidelity: each method's
credit on a smaller batch is compared with a truth from many continuations (`truth_samples`), since signs and leakage
need the truth of single turns. The oracle's own credit, as a method, comes from samples of its own: one set serves all
numbers K that the methods ask for (`Method.oracle_samples`), each K its first so many.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from agentjax import ops
from agentjax.envs.base import Env
from agentjax.measure import gradient
from agentjax.measure.fidelity import Target, fidelity
from agentjax.methods import Method
from agentjax.oracle import branch
from agentjax.policies.base import Policy, score_tokens
from agentjax.rollout import rollout
from agentjax.signals.collect import collect
from agentjax.train import TrainConfig, wishes_of
from agentjax.types import Array, PyTree, Rollout


@dataclasses.dataclass(frozen=True)
class AssessConfig:
    """Sizes. Batches are played in pieces of `groups` x `size` episodes, so memory does not grow with `pieces`."""

    groups: int = 8
    size: int = 8
    pieces: int = 16  # of the batch whose gradients are measured
    reference_pieces: int = 24  # of the disjoint batch behind the reference gradient
    samples: int = 4  # K behind the reference gradient
    truth_pieces: int = 4  # batches whose credit is compared with the truth, each by itself
    truth_samples: int = 64  # K of that truth


def _credits(
    key: Array,
    methods: tuple[Method, ...],
    config: AssessConfig,
    policy: Policy,
    params: PyTree,
    reference: PyTree,
    env: Env,
    played: Rollout,
) -> Array:
    """[M,B,S]: the credit of every method on one batch."""
    oracle_key, signal_key = jax.random.split(key)
    rungs = tuple(sorted({method.oracle_samples for method in methods} - {0}))
    if rungs:
        oracle = branch.measure(oracle_key, policy, params, env, played, samples=rungs[-1], at=rungs)
        replace = dataclasses.replace
        known = {
            k: replace(oracle, token=replace(oracle.token, mean=token), turn=replace(oracle.turn, mean=turn))
            for k, (token, turn) in zip(rungs, oracle.ladder, strict=True)
        }
    out = []
    for i, method in enumerate(methods):
        wishes, own = wishes_of(method, TrainConfig()), known[method.oracle_samples] if method.oracle_samples else None
        signals = collect(jax.random.fold_in(signal_key, i), wishes, policy, params, reference, env, played, own)
        out.append(method.build_estimator().apply(played.trajectory, signals).advantage)
    return jnp.stack(out)


def _group_gradients(policy: Policy, params: PyTree, config: AssessConfig, played: Rollout, credits: Array) -> Array:
    """[groups,M,P]: mean over a group's episodes of sum_k credit_k grad log pi_k, for each of M credits."""
    trajectory = played.trajectory

    def one(group: Array) -> Array:
        start = group * config.size
        cut = lambda x: jax.lax.dynamic_slice_in_dim(x, start, config.size, axis=0)  # noqa: E731
        tokens, valid, action, temperature = map(
            cut, (trajectory.tokens, trajectory.valid, trajectory.action_mask, trajectory.temperature)
        )
        scores = lambda p: score_tokens(policy, p, tokens, valid, action, temperature)[0]  # noqa: E731
        _, pull = jax.vjp(scores, params)
        weight = jax.vmap(cut)(credits) / config.size
        return jax.vmap(lambda w: ravel_pytree(pull(w)[0])[0])(weight)

    return jax.lax.map(one, jnp.arange(config.groups, dtype=jnp.int32))


def _play(key: Array, policy: Policy, params: PyTree, env: Env, config: AssessConfig) -> Rollout:
    return rollout(key, policy, params, env, env.params, groups=config.groups, size=config.size)


def _reference_piece(policy: Policy, env: Env, config: AssessConfig, key: Array, params: PyTree) -> Array:
    """[groups,P]: group gradients under oracle token credit."""
    play_key, oracle_key = jax.random.split(key)
    played = _play(play_key, policy, params, env, config)
    truth = branch.measure(oracle_key, policy, params, env, played, samples=config.samples)
    return _group_gradients(policy, params, config, played, truth.token.mean[None])[:, 0]


def _gradient_piece(
    policy: Policy,
    env: Env,
    methods: tuple[Method, ...],
    config: AssessConfig,
    key: Array,
    params: PyTree,
    reference: PyTree,
    g: Array,
    sums: gradient.GradientSums,
) -> gradient.GradientSums:
    """Adds one batch to the gradient sums of every method."""
    play_key, credit_key = jax.random.split(key)
    played = _play(play_key, policy, params, env, config)
    credits = _credits(credit_key, methods, config, policy, params, reference, env, played)
    grads = jnp.moveaxis(_group_gradients(policy, params, config, played, credits), 1, 0)
    return jax.vmap(gradient.add_gradients, (0, 0, None))(sums, grads, g)


def _truth_piece(
    policy: Policy,
    env: Env,
    methods: tuple[Method, ...],
    config: AssessConfig,
    key: Array,
    params: PyTree,
    reference: PyTree,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """fidelity(...) of every method [M] on one batch with a truth of its own, and that truth's reliability."""
    play_key, oracle_key, credit_key = jax.random.split(key, 3)
    played = _play(play_key, policy, params, env, config)
    truth = branch.measure(oracle_key, policy, params, env, played, samples=config.truth_samples)
    credits = _credits(credit_key, methods, config, policy, params, reference, env, played)
    trajectory = played.trajectory
    reliability = {
        "token": branch.reliability(truth.token, trajectory.action_mask),
        "turn": branch.reliability(truth.turn, trajectory.turn_mask),
    }
    target = Target(
        token=truth.token.mean, turn=truth.turn.mean, token_error=truth.token.error, turn_error=truth.turn.error,
        token_reliability=reliability["token"], turn_reliability=reliability["turn"],
    )  # fmt: skip
    value, _, _ = ops.outcome(trajectory)
    measured = jax.lax.map(
        lambda c: fidelity(c, target, trajectory, key_step=played.truth.key_step, outcome=value), credits
    )
    return measured, reliability


def make_assess(
    policy: Policy,
    env: Env,
    methods: tuple[Method, ...],
    config: AssessConfig,
    exact: Callable[[PyTree], Array] | None = None,
) -> Callable[..., list[dict[str, object]]]:
    """assess(key, params, reference, share=1) -> tidy rows (method, measure, value, seed): gradient/* with *_se, pooled
    over all pieces, reference/*; fidelity/* and reliability/*, whose seed is the piece of the batch that it comes from,
    so that their spread is seen. Compiles on the first call, once for all parameters. `share` divides the batch sizes.
    `exact` gives the gradient of the expected return at some parameters, flattened, where it is known.
    """
    bind = functools.partial
    programs = (
        jax.jit(bind(_reference_piece, policy, env, config)),
        jax.jit(bind(_gradient_piece, policy, env, methods, config)),
        jax.jit(bind(_truth_piece, policy, env, methods, config)),
    )
    return bind(_assess, programs, methods, config, exact)


def _assess(
    programs: tuple[Callable, Callable, Callable],
    methods: tuple[Method, ...],
    config: AssessConfig,
    exact: Callable[[PyTree], Array] | None,
    key: Array,
    params: PyTree,
    reference: PyTree,
    share: int = 1,
) -> list[dict[str, object]]:
    reference_piece, gradient_piece, truth_piece = programs
    reference_key, gradient_key, truth_key = jax.random.split(key, 3)
    part = lambda n: range(max(n // share, 1))  # noqa: E731
    if exact is not None:
        g, noise, episodes = exact(params), jnp.float32(0), 0
    else:
        pieces = [reference_piece(jax.random.fold_in(reference_key, i), params) for i in part(config.reference_pieces)]
        units = jnp.concatenate(pieces)
        g, episodes = units.mean(axis=0), units.shape[0] * config.size
        noise = jnp.sum(jnp.var(units, axis=0, ddof=1)) / units.shape[0]
    empty = gradient.empty_sums(g.shape[0])
    sums = jax.tree.map(lambda x: jnp.stack([x] * len(methods)), empty)
    for i in part(config.pieces):
        sums = gradient_piece(jax.random.fold_in(gradient_key, i), params, reference, g, sums)
    seen = [truth_piece(jax.random.fold_in(truth_key, i), params, reference) for i in part(config.truth_pieces)]
    summary = functools.partial(gradient.summarize, trajectories_per_unit=config.size, reference_noise=noise)
    quality = jax.device_get(jax.jit(jax.vmap(summary, (0, None)))(sums, g))
    row = lambda name, measure, value, seed=0: {  # noqa: E731
        "method": name, "measure": measure, "value": float(value), "seed": seed
    }  # fmt: skip
    rows = [
        row("oracle", "reference/episodes", episodes),
        row("oracle", "reference/noise", noise / jnp.sum(g * g)),
    ]
    for piece, (measured, reliability) in enumerate(jax.device_get(seen)):
        rows += [row("oracle", f"reliability/{name}", value, piece) for name, value in reliability.items()]
        for m, method in enumerate(methods):
            rows += [row(method.name, f"fidelity/{name}", v[m], piece) for name, v in measured.items()]
    for m, method in enumerate(methods):
        for field in dataclasses.fields(quality):
            rows.append(row(method.name, f"gradient/{field.name}", getattr(quality, field.name)[m]))
    return rows
