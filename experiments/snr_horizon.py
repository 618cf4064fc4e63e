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
import json
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import tyro
from rich.progress import track

from agentjax import envs
from agentjax.envs.base import Env
from agentjax.envs.tabular import token_ids
from agentjax.measure import gradient, horizon
from agentjax.oracle import exact
from agentjax.types import Array
from agentjax.viz import horizon as chart

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


def snr_at(key: Array, length: int, config: Config) -> list[dict[str, Any]]:
    """Result rows of every signal and measure at one length."""
    chunk = min(config.chunk, config.episodes)
    if chunk % GROUP or config.episodes % chunk:
        raise ValueError(f"episodes {config.episodes} must be a multiple of chunk {chunk}, and chunk of {GROUP}")
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


def snr_against_horizon(config: Config, out: Path | None = None) -> list[dict[str, Any]]:
    """Rows of all lengths. With `out`, appends them to out/results.jsonl as they are made and draws snr_horizon.png.

    Lengths that the file already holds are not run again; a file made with other episodes or seed is refused.
    """
    rows: list[dict[str, Any]] = []
    file = None
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        file = out / "results.jsonl"
        if file.exists():
            rows = [json.loads(line) for line in file.read_text().splitlines()]
        if any((row["episodes"], row["seed"]) != (config.episodes, config.seed) for row in rows):
            raise ValueError(f"{file} was made with other episodes or seed; choose another --out or delete it")
    done = {row["L"] for row in rows}
    todo = [length for length in config.lengths if length not in done]
    for length in track(todo, description="SNR against horizon", disable=out is None):
        new = snr_at(jax.random.fold_in(jax.random.key(config.seed), length), length, config)
        rows += new
        if file is not None:
            with file.open("a") as f:
                f.write("".join(json.dumps(row) + "\n" for row in new))
    if out is not None:
        chart.draw(rows, out / "snr_horizon.png")
    return rows


def main(
    preset: Literal["quick", "paper", "full"] = "quick",
    out: Path | None = None,
    lengths: tuple[int, ...] | None = None,
    episodes: int | None = None,
    seed: int | None = None,
) -> None:
    """Runs a preset, with lengths, episodes or seed changed if given."""
    given: dict[str, Any] = {"lengths": lengths, "episodes": episodes, "seed": seed}
    config = dataclasses.replace(PRESETS[preset], **{k: v for k, v in given.items() if v is not None})
    out = out or Path("runs") / f"snr_horizon-{preset}"
    rows = snr_against_horizon(config, out)
    print(f"{'signal':14}{'L':>6}{'measured dB':>14}{'+-':>7}{'closed form':>14}")
    for row in rows:
        if row["measure"] == "snr_db_raw":
            print(f"{row['estimator']:14}{row['L']:6d}{row['value']:14.2f}{row['se']:7.2f}{row['closed_form']:14.2f}")
    print(f"rows and figure in {out}")


if __name__ == "__main__":
    tyro.cli(main)
