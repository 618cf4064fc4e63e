"""How much of each signal is left as the horizon grows: signal-to-noise of six credits on the umbrella chain.

    python -m experiments.snr_horizon --preset quick|paper|full [--out DIR]

Claim: per trajectory, outcome returns lose 20 dB of signal-to-noise per decade of horizon, one-step advantages with a
right value function lose 10, the exact advantage loses nothing. The closed forms in `agentjax.measure.horizon` say so;
this measures them through `env.step`, with the exact gradient as the reference.

Expected (dB, raw): full return -8.5, -23.0, -43.0 at L = 2, 10, 100; exact advantage 0 everywhere.
`snr_db_raw` is |g|^2 / E|g_hat - g|^2, `snr_db` the same after dividing g_hat by its slope E[g_hat].g / |g|^2. All six
are unbiased (slope 1), so both estimate the same number; the second carries the noise of the measured slope as well.

Rows (results.jsonl): {"measure", "estimator", "L", "value", "se", "closed_form", "episodes", "seed"}, appended length
by length; a rerun with the same --out resumes. Time on 2 CPU cores: quick about 20 s (mostly compilation), paper about
2 minutes.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from agentjax import envs
from agentjax.envs.base import Env
from agentjax.envs.tabular import token_ids
from agentjax.measure import gradient, horizon
from agentjax.oracle import exact
from agentjax.types import Array
from agentjax.viz import horizon as chart
from agentjax.viz.rows import read
from experiments.harness import command
from experiments.harness.command import Experiment, Unit
from experiments.harness.ledger import Row
from experiments.report import markdown_table

GROUP = 8
MEASURES = ("snr_db_raw", "snr_db", "slope")


@dataclasses.dataclass(frozen=True)
class Config:
    """Lengths (at least 2), and episodes per length: a multiple of `chunk`, itself a multiple of 8."""

    lengths: tuple[int, ...] = (2, 10, 30, 100)
    episodes: int = 65_536
    chunk: int = 1024
    seed: int = 0


PRESETS = {
    "quick": Config(),
    "paper": Config(lengths=(2, 3, 5, 10, 20, 30, 50, 100, 200), episodes=262_144),
    "full": Config(lengths=(2, 3, 5, 10, 20, 30, 50, 100, 200, 400, 1000), episodes=2_097_152),
}


def simulate(key: Array, env: Env, episodes: int) -> tuple[Array, Array, Array, Array]:
    """Hidden states int32[B,L+1], observables, actions int32[B,L] and rewards float32[B,L] under the uniform policy."""
    words, length = token_ids(env.exact).action, env.spec.turns
    start_key, action_key, env_key = jax.random.split(key, 3)
    start, _ = jax.vmap(env.reset)(jax.random.split(start_key, episodes), jnp.zeros(episodes, jnp.int32))
    action = jnp.argmax(jax.random.uniform(action_key, (length, episodes, words.shape[0])), axis=-1)

    def step(state: Any, xs: tuple[Array, Array]) -> tuple[Any, tuple[Array, Array]]:
        keys, a = xs
        after, obs = jax.vmap(env.step)(keys, state, words[a][:, None])
        return after, (state.index, obs.reward)

    last, (states, reward) = jax.lax.scan(step, start, (jax.random.split(env_key, (length, episodes)), action))
    states = jnp.concatenate([states, last.index[None]]).T
    return states, env.exact.obs[states[:, :-1]], action.T, reward.T


def _measure(env: Env, chunks: int, chunk: int, key: Array) -> gradient.GradientQuality:
    """Leaves [signals], in the order of `horizon.SIGNALS`; every unit is a group of `GROUP` trajectories."""
    table = jnp.zeros((env.exact.observations, 2))
    values, reference = exact.evaluate(env.exact, table), exact.policy_gradient(env.exact, table).ravel()
    add = jax.vmap(gradient.add_gradients, (0, 0, None))

    def step(sums: gradient.GradientSums, index: Array) -> tuple[gradient.GradientSums, None]:
        states, obs, action, reward = simulate(jax.random.fold_in(key, index), env, chunk)
        value, advantage = exact.along(values, states, action, jnp.ones(action.shape, bool))
        signals = horizon.signals(reward, value, advantage, group=GROUP)
        credits = jnp.stack([signals[name] for name in horizon.SIGNALS])
        grads = jax.vmap(gradient.tabular_score_gradients, (None, None, None, 0))(table, obs, action, credits)
        units = jnp.mean(grads.reshape(len(credits), chunk // GROUP, GROUP, -1), axis=2)
        return add(sums, units, reference), None

    empty = jax.tree.map(lambda x: jnp.stack([x] * len(horizon.SIGNALS)), gradient.empty_sums(reference.shape[0]))
    sums, _ = jax.lax.scan(step, empty, jnp.arange(chunks))
    return jax.vmap(lambda total: gradient.summarize(total, reference, trajectories_per_unit=GROUP))(sums)


def snr_at(key: Array, length: int, config: Config) -> list[Row]:
    """Result rows of every signal and measure at one length."""
    chunk = min(config.chunk, config.episodes)
    env = envs.make("umbrella", length=length)
    quality = jax.device_get(jax.jit(functools.partial(_measure, env, config.episodes // chunk, chunk))(key))
    rows = []
    for index, name in enumerate(horizon.SIGNALS):
        form = horizon.decibel(horizon.closed_form_snr(name, length, group=GROUP))
        for measure in MEASURES:
            rows.append({
                "measure": measure, "estimator": name, "L": length,
                "value": float(getattr(quality, measure)[index]), "se": float(getattr(quality, f"{measure}_se")[index]),
                "closed_form": 1.0 if measure == "slope" else form, "episodes": config.episodes, "seed": config.seed,
            })  # fmt: skip
    return rows


def rows_of(config: Config, length: int) -> list[Row]:
    """Rows of one length with the key that this length has in every run."""
    return snr_at(jax.random.fold_in(jax.random.key(config.seed), length), length, config)


def check(config: Config) -> None:
    """Raises ValueError on what cannot be run."""
    chunk = min(config.chunk, config.episodes)
    command.positive(config, "episodes", "chunk")
    command.multiple("chunk", chunk, "the group of", GROUP)
    command.multiple("episodes", config.episodes, "chunk", chunk)
    if not config.lengths or min(config.lengths) < 2 or len(set(config.lengths)) < len(config.lengths):
        raise ValueError(f"lengths are different and at least 2, got {config.lengths}")


def units(config: Config, cache: Path) -> list[Unit]:
    """A unit per length."""
    return [Unit(f"L={n}", f"L={n}", lambda _, n=n: rows_of(config, n), float(n)) for n in config.lengths]


def write(out: Path, preset: str) -> None:
    """The chart, and the table of measured and closed-form numbers."""
    rows = read(out / "results.jsonl").select("snr_db_raw")
    chart.draw(rows, out / "snr_horizon.png")
    lines = [
        (r["estimator"], str(r["L"]), f"{r['value']:.2f} +- {2 * r['se']:.2f}", f"{r['closed_form']:.2f}") for r in rows
    ]  # fmt: skip
    table = markdown_table(("signal", "L", "measured, dB (two standard errors)", "closed form, dB"), lines)
    title = f"# Signal-to-noise against horizon ({preset} preset)\n\n"
    (out / "report.md").write_text(title + table + "\n![SNR against horizon](snr_horizon.png)\n", encoding="utf-8")


EXPERIMENT = Experiment("snr_horizon", PRESETS, check, units, write, __doc__)
main = functools.partial(command.run, EXPERIMENT)

if __name__ == "__main__":
    main()
