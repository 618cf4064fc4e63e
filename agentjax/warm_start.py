"""The common start of all methods: supervised fine-tuning on noisy demonstrations, cached by content, gated.

The policy imitates a demonstrator that is right with a probability chosen so that it succeeds at rate p0, and learns in
the same pass what to do when told: on branches (history, gold hint, tail) it imitates the expert. Two gates: played
without hints it succeeds at p0 within a factor 1.5; played with gold hints it succeeds at least 90% of the time (every
turn of an episode has to be right for that, so accuracy per turn is higher still).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from orbax.checkpoint import v1 as ocp

from agentjax import episodes
from agentjax.envs.base import Env
from agentjax.envs.demos import demonstrate
from agentjax.policies.base import Policy
from agentjax.rollout import rollout
from agentjax.signals.hindsight import pack, score_packed
from agentjax.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class WarmStartConfig:
    """Static settings. Rounds of calibration change the demonstrator's quality until the base rate fits."""

    steps: int = 400
    rounds: int = 8  # further rounds of `calibration_steps`, as many as needed
    calibration_steps: int = 100
    batch: int = 64
    learning_rate: float = 3e-3
    calibration_rate: float = 1e-3
    panel: int = 1024  # episodes that measure success
    factor: float = 1.5  # gate on the base success
    hinted: float = 0.9  # gate on the success with gold hints
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Gates:
    """What a warm start measured of itself."""

    base_success: float
    hinted_success: float
    quality: float


def supervised_loss(policy: Policy, env: Env, params: PyTree, demos: Any) -> tuple[Array, tuple[Array, Array]]:
    """Negative log-likelihood per token: of the demonstrator's actions, plus of the expert's on the hinted branches."""
    spec, trajectory, truth = env.spec, demos.rollout.trajectory, demos.rollout.truth
    packed = pack(
        trajectory,
        truth.hint,
        truth.hint_mask,
        truth.hint_at,
        window=spec.tail_len + spec.action_len,
        action=demos.gold,
        action_mask=episodes.action_mask(demos.gold, spec.end),
    )
    plain, hinted = score_packed(policy, params, trajectory, packed)
    imitation = -plain.sum() / jnp.maximum(jnp.sum(trajectory.action_mask, dtype=jnp.float32), 1.0)
    told = -hinted.sum() / jnp.maximum(jnp.sum(packed.target, dtype=jnp.float32), 1.0)
    return imitation + told, (imitation, told)


def _fit(
    policy: Policy,
    env: Env,
    batch: int,
    steps: int,
    params: PyTree,
    opt_state: PyTree,
    key: Array,
    quality: Array,
    rate: Array,
) -> tuple[PyTree, PyTree, Array]:
    """`steps` updates at learning rates falling from `rate` to a tenth of it. Returns the last loss too."""

    def step(carry: tuple, xs: tuple[Array, Array]) -> tuple[tuple, Array]:
        params, opt_state = carry
        k, share = xs
        demos = demonstrate(k, env, quality, env.params, batch)
        grad_fn = jax.value_and_grad(lambda p: supervised_loss(policy, env, p, demos), has_aux=True)
        (loss, _), gradient = grad_fn(params)
        with jax.numpy_dtype_promotion("standard"):
            moves, opt_state = _optimizer().update(gradient, opt_state, params)
        return (jax.tree.map(lambda p, m: p - rate * share * m, params, moves), opt_state), loss

    warm = jnp.minimum(jnp.arange(1, steps + 1, dtype=jnp.float32) / 20, 1.0)
    shares = warm * (0.1 + 0.45 * (1 + jnp.cos(jnp.pi * jnp.arange(steps, dtype=jnp.float32) / steps)))
    (params, opt_state), losses = jax.lax.scan(step, (params, opt_state), (jax.random.split(key, steps), shares))
    return params, opt_state, losses[-1]


def _optimizer() -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.99), optax.add_decayed_weights(0.01))


def success_rate(policy: Policy, env: Env, panel: int, hinted: bool, key: Array, params: PyTree) -> Array:
    """Mean return of `panel` fresh episodes of different tasks."""
    played = rollout(key, policy, params, env, env.params, groups=panel, size=1, hinted=hinted)
    return jnp.mean(jnp.sum(jnp.where(played.trajectory.turn_mask, played.trajectory.reward, 0.0), axis=1))


def fit(policy: Policy, env: Env, p0: float, config: WarmStartConfig) -> tuple[PyTree, Gates]:
    """Trains, calibrates and gates a start with base success p0; raises RuntimeError naming the gate that fails."""
    if env.quality_for is None:
        raise ValueError(f"{env.spec.name} has no `quality_for`: it cannot be started at a chosen success rate")
    fit_key, panel_key, init_key = jax.random.split(jax.random.key(config.seed), 3)
    params = policy.init(init_key)
    opt_state = _optimizer().init(params)
    train = jax.jit(functools.partial(_fit, policy, env, config.batch), static_argnums=0, donate_argnums=(1, 2))
    base = jax.jit(functools.partial(success_rate, policy, env, config.panel, False))
    told = jax.jit(functools.partial(success_rate, policy, env, config.panel // 4, True))
    aim, quality = p0, float(env.quality_for(p0, env.params))
    for round_ in range(config.rounds + 1):
        steps = config.steps if round_ == 0 else config.calibration_steps
        rate = config.learning_rate if round_ == 0 else config.calibration_rate
        key = jax.random.fold_in(fit_key, round_)
        params, opt_state, _ = train(steps, params, opt_state, key, jnp.float32(quality), jnp.float32(rate))
        measured = float(base(jax.random.fold_in(panel_key, 0), params))
        hinted = float(told(jax.random.fold_in(panel_key, 1), params))
        tight = config.factor**0.5  # calibrate to half the gate's width, so that another panel passes too
        if p0 / tight <= measured <= p0 * tight and hinted >= config.hinted:
            break
        aim = min(max(aim * p0 / max(measured, 1e-3), p0 / 4), 0.95)
        quality = float(env.quality_for(aim, env.params))
    if not p0 / config.factor <= measured <= p0 * config.factor:
        raise RuntimeError(
            f"warm start gate: base success {measured:.3f} is not within a factor {config.factor} of {p0}"
        )
    if hinted < config.hinted:
        raise RuntimeError(
            f"warm start gate: success with gold hints {hinted:.3f} is below {config.hinted}; train longer"
        )
    return params, Gates(base_success=measured, hinted_success=hinted, quality=quality)


def content_key(policy_config: Any, env: Env, p0: float, config: WarmStartConfig) -> str:
    """Fingerprint of everything the result depends on: policy, environment, difficulty, rate and settings."""
    difficulty = [jnp.asarray(x).tolist() for x in jax.tree.leaves(env.params)]
    parts = (repr(policy_config), repr(env.spec), difficulty, p0, dataclasses.asdict(config))
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


def warm_start(
    policy: Policy, policy_config: Any, env: Env, p0: float, config: WarmStartConfig, cache: Path
) -> tuple[PyTree, Gates]:
    """`fit`, or what an earlier run with the same content left in `cache`."""
    folder = (cache / content_key(policy_config, env, p0, config)).absolute()
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here)  # noqa: E731
    template = jax.tree.map(placed, jax.eval_shape(policy.init, jax.random.key(0)))
    if (folder / "gates.json").exists():
        gates = Gates(**json.loads((folder / "gates.json").read_text()))
        return ocp.load(folder / "params", template), gates
    params, gates = fit(policy, env, p0, config)
    folder.mkdir(parents=True, exist_ok=True)
    ocp.save(folder / "params", params, overwrite=True)
    (folder / "gates.json").write_text(json.dumps(dataclasses.asdict(gates)))
    return params, gates
