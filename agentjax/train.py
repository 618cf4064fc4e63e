"""Training: play, collect signals, assign credit, update. One jitted step; seeds and learning rates are vmap axes.

    state = init_state(key, params, learning_rate)
    step = make_step(policy, env, METHODS["grpo"], TrainConfig())
    state, metrics = jax.jit(step, donate_argnums=0)(state, reference)          # reference: the frozen start

`make_step` composes `play` (rollout), `collect` (signals), `credit_of` and `update`, each of which can be called alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from agentjax import ops
from agentjax.credit import ESTIMATORS
from agentjax.envs.base import Env
from agentjax.methods import Method
from agentjax.policies.base import Policy, score_tokens
from agentjax.rollout import rollout
from agentjax.signals.collect import Wishes, check, collect
from agentjax.signals.critic import SignalModel, read
from agentjax.types import Array, Credit, Outputs, PyTree, Signals, Trajectory, record


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Static settings of one RL run."""

    groups: int = 8  # tasks per batch
    size: int = 8  # G, episodes per task
    epochs: int = 1  # updates per batch; the clip can act only from the second on
    clip_norm: float = 1.0  # of the global gradient norm
    temperature: float = 1.0
    chunk: int = 0  # positions that pass through the output layer at a time; 0: all
    most: int = 0  # static bound on action tokens per row for the output layer; 0: every slot

    def __post_init__(self) -> None:
        if min(self.groups, self.size, self.epochs) < 1:
            sizes = f"{self.groups}, {self.size}, {self.epochs}"
            raise ValueError(f"groups, size and epochs must be at least 1, got {sizes}")
        if self.temperature <= 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}; take a small one for greedy play")


@record
class TrainState:
    """All that a run needs to go on, bit for bit."""

    params: PyTree
    opt_state: PyTree
    key: Array  # key[]
    step: Array  # int32[]
    learning_rate: Array  # float32[]
    broken: Array  # int32[], 0: fine, 1: loss, 2: gradient was not finite at `step`; later steps change nothing
    critic: PyTree = None  # state of a learned signal, if there is one


BROKEN = ("", "loss", "gradient")


def _optimizer(config: TrainConfig) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), optax.scale_by_adam(b1=0.9, b2=0.99))


def init_state(
    key: Array, params: PyTree, learning_rate: Array | float, config: TrainConfig, critic: PyTree = None
) -> TrainState:
    """A fresh run from `params`. vmap over `key` (and `learning_rate`) for seeds and sweeps. `key` is kept.

    `critic` is `SignalModel.init(key)` where `make_step` is given one.
    """
    return TrainState(
        params=params,
        opt_state=_optimizer(config).init(params),
        key=key,
        step=jnp.int32(0),
        learning_rate=jnp.asarray(learning_rate, jnp.float32),
        broken=jnp.int32(0),
        critic=critic,
    )


def wishes_of(method: Method, config: TrainConfig) -> Wishes:
    """What `collect` must fill for a method."""
    return Wishes(
        needs=method.needs,
        judge=method.judge,
        hint=method.hint,
        oracle_samples=method.oracle_samples,
        oracle_tokens=ESTIMATORS[method.estimator].resolution == "token",
        chunk=config.chunk,
        most=config.most,
    )


def outputs_of(policy: Policy, params: PyTree, trajectory: Trajectory, config: TrainConfig) -> Outputs:
    """The current policy's log-probabilities and entropy on a trajectory."""
    logp, entropy = score_tokens(
        policy,
        params,
        trajectory.tokens,
        trajectory.valid,
        trajectory.action_mask,
        trajectory.temperature,
        chunk=config.chunk,
        most=config.most,
    )
    return Outputs(logp=logp, entropy=entropy)


def loss_of(
    policy: Policy,
    method: Method,
    config: TrainConfig,
    params: PyTree,
    trajectory: Trajectory,
    signals: Signals,
    credit: Credit,
) -> tuple[Array, dict[str, Array]]:
    """The method's loss at `params`."""
    outputs = outputs_of(policy, params, trajectory, config)
    return method.build_loss().apply(outputs, trajectory, signals, credit, aggregate=method.build_aggregate())


def update(
    policy: Policy, method: Method, config: TrainConfig, state: TrainState, trajectory: Trajectory, signals: Signals
) -> tuple[TrainState, Credit, dict[str, Array]]:
    """Credit, then `config.epochs` optimiser steps on one batch. A non-finite loss or gradient changes nothing."""
    credit = method.build_estimator().apply(trajectory, signals)

    def epoch(state: TrainState, _: None) -> tuple[TrainState, dict[str, Array]]:
        def objective(params: PyTree) -> tuple[Array, dict[str, Array]]:
            return loss_of(policy, method, config, params, trajectory, signals, credit)

        (loss, metrics), gradient = jax.value_and_grad(objective, has_aux=True)(state.params)
        norm = optax.tree.norm(gradient)
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float rate to an int count
            moves, opt_state = _optimizer(config).update(gradient, state.opt_state)
        params = jax.tree.map(lambda p, m: p - state.learning_rate * m, state.params, moves)
        broken = jnp.where(jnp.isfinite(loss), jnp.where(jnp.isfinite(norm), 0, 2), 1)
        broken = jnp.where(state.broken > 0, state.broken, broken).astype(jnp.int32)
        keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(broken > 0, o, n), new, old)  # noqa: E731
        state = dataclasses.replace(
            state, params=keep(params, state.params), opt_state=keep(opt_state, state.opt_state), broken=broken
        )
        return state, metrics | {"gradient_norm": norm}

    if not method.update:
        return state, credit, {}
    state, metrics = jax.lax.scan(epoch, state, None, length=config.epochs)
    return state, credit, jax.tree.map(lambda x: x[-1], metrics)


def make_step(
    policy: Policy,
    env: Env,
    method: Method,
    config: TrainConfig,
    shard: Callable[[Any], Any] = lambda tree: tree,
    critic: SignalModel | None = None,
) -> Callable[[TrainState, PyTree], tuple[TrainState, dict[str, Array]]]:
    """step(state, reference) -> (state, metrics): one batch from play to update. Pure; jit or vmap it.

    `shard` constrains arrays whose first axis is rows (`parallel.shard_rows(mesh)`). `critic` fills `value` and
    `token_value` from its state in `TrainState`, then learns from the batch. A method whose signals nobody fills raises
    here, before any compute.
    """
    wishes = wishes_of(method, config)
    learned = () if critic is None else critic.fills
    wishes = dataclasses.replace(wishes, needs=tuple(name for name in wishes.needs if name not in learned))
    check(wishes)

    def step(state: TrainState, reference: PyTree) -> tuple[TrainState, dict[str, Array]]:
        play_key, signal_key, next_key = jax.random.split(state.key, 3)
        played = rollout(
            play_key,
            policy,
            state.params,
            env,
            env.params,
            groups=config.groups,
            size=config.size,
            temperature=config.temperature,
            version=state.step,
        )
        played = shard(played)
        signals = collect(signal_key, wishes, policy, state.params, reference, env, played)
        if critic is not None:
            hidden = read(policy, state.params, played.trajectory)
            signals = dataclasses.replace(signals, **critic.apply(state.critic, played.trajectory, hidden))
        state, _, metrics = update(policy, method, config, state, played.trajectory, signals)
        metrics |= batch_metrics(played.trajectory)
        if critic is not None:
            taught, more = critic.update(state.critic, played.trajectory, hidden)
            keep = lambda new, old: jnp.where(state.broken > 0, old, new)  # noqa: E731
            state = dataclasses.replace(state, critic=jax.tree.map(keep, taught, state.critic))
            metrics |= more
        return dataclasses.replace(state, key=next_key, step=state.step + 1), metrics

    return step


def batch_metrics(trajectory: Trajectory) -> dict[str, Array]:
    """success (mean return), turns, gradient tokens, and the share of groups whose returns are all equal."""
    value, vote, _ = ops.rollout_return(
        ops.row_reward(trajectory), trajectory.rollout, trajectory.weight * ops.acted(trajectory)
    )
    num = trajectory.group.shape[0]
    _, std, count = ops.segment_moments(value, trajectory.group, vote, num, ddof=0)
    groups = jnp.sum(count > 0, dtype=jnp.float32)
    return {
        "success": jnp.sum(vote * value) / jnp.maximum(jnp.sum(vote), 1.0),
        "turns": jnp.sum(trajectory.turn_mask, dtype=jnp.float32),
        "gradient_tokens": jnp.sum(trajectory.action_mask, dtype=jnp.float32),
        "dead_groups": jnp.sum((count > 0) & (std == 0), dtype=jnp.float32) / jnp.maximum(groups, 1.0),
    }


def run_steps(step: Callable, state: TrainState, reference: PyTree, length: int) -> tuple[TrainState, dict[str, Array]]:
    """`length` steps in one scan; metrics get a leading axis. No host transfer in between."""
    return jax.lax.scan(lambda s, _: step(s, reference), state, None, length=length)


def raise_if_broken(state: TrainState) -> None:
    """Raises FloatingPointError naming the term and step if any run of `state` (any leading axes) has stopped."""
    broken = jax.device_get(state.broken)
    if (broken > 0).any():
        term = BROKEN[int(broken.max())]
        raise FloatingPointError(
            f"the {term} was not finite; parameters and optimiser are those of the last good step. "
            "Lower the learning rate or the clip norm and resume from the checkpoint"
        )
