"""One arm: a method learns on a task, over paired seeds on a vmap axis, at the rate that one grid gave it.

    rate, rows = tuned_rate(task, entry, plan, grid)     # on seeds that are not reported
    rows, kept = arm(task, "grpo", entry, plan, rate, iterations)

`Plan.seeds` runs are trained at a time: tuning goes through the same compiled program in pieces of that many, and so do
all tasks that are twins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from agentjax import train
from agentjax.methods import Method, method
from agentjax.types import Array, PyTree
from experiments.harness.costs import costs
from experiments.harness.ledger import Row
from experiments.harness.tasks import Task

REPORTED, TUNED = 1000, 2000  # seeds of the keys: reported runs and tuning share none


@dataclasses.dataclass(frozen=True)
class Plan:
    """How arms are trained, the same for all of them."""

    train: train.TrainConfig
    seeds: int  # paired: seed s of every arm begins with the same key
    every: int  # iterations between evaluations on the panel
    tune_iterations: int  # 0: no tuning, the middle rate of the grid
    tune_seeds: int


def with_samples(name: str, samples: int) -> Method:
    """A method, its oracle asked `samples` times per place."""
    found = method(name)
    return dataclasses.replace(found, oracle_samples=samples) if found.oracle_samples else found


def keys_of(block: int, seeds: Sequence[int] | np.ndarray) -> Array:
    """key[len(seeds)] of a block of seeds."""
    return jax.vmap(lambda s: jax.random.fold_in(jax.random.key(block), s))(jnp.asarray(seeds, jnp.int32))


def _program(task: Task, entry: Method, plan: Plan) -> Callable:
    """advance(states [seeds], start, difficulty) -> (states, metrics): `every` iterations, compiled once."""
    name = f"{entry.name}@{entry.oracle_samples}"
    if name not in task.programs:

        def advance(state: train.TrainState, start: PyTree, difficulty: PyTree) -> tuple:
            step = train.make_step(task.policy, task.env._replace(params=difficulty), entry, plan.train)
            return train.run_steps(jax.vmap(step, (0, None)), state, start, plan.every)

        task.programs[name] = jax.jit(advance, donate_argnums=0)
    return task.programs[name]


def learn(
    task: Task,
    entry: Method,
    plan: Plan,
    rates: np.ndarray,
    keys: Array,
    iterations: int,
    keep: Collection[int] = (),
) -> tuple[np.ndarray, dict[str, np.ndarray], dict[int, PyTree]]:
    """Trains `plan.seeds` runs, one per (rate, key) pair. Returns success on the panel [runs, evaluations], metrics per
    iteration [runs, iterations], and the first run's parameters after the iterations of `keep`.

    Between two evaluations `state` is all there is to a run: this loop is where it can be saved or spread over devices.
    """
    advance = _program(task, entry, plan)
    rates = jnp.asarray(rates, jnp.float32)
    state = jax.vmap(lambda k, r: train.init_state(k, task.start, r, plan.train))(keys, rates)
    curve, metrics, kept = [task.panel(state.params)], [], {}
    for done in range(plan.every, iterations + 1, plan.every):
        state, measured = advance(state, task.start, task.env.params)
        train.raise_if_broken(state)
        metrics.append(jax.device_get(measured))
        curve.append(task.panel(state.params))
        if done in keep:
            kept[done] = jax.tree.map(lambda x: jnp.copy(x[0]), state.params)
    stacked = {name: np.concatenate([m[name] for m in metrics]).T for name in metrics[0]}
    return np.stack(curve, axis=1), stacked, kept


def tuned_rate(task: Task, entry: Method, plan: Plan, grid: Sequence[float]) -> tuple[float, list[Row]]:
    """The rate of the grid with the best mean success over tuning's second half, and a row for every rate."""
    if plan.tune_iterations == 0:
        return float(grid[len(grid) // 2]), []
    pairs = [(rate, seed) for rate in grid for seed in range(plan.tune_seeds)]
    scores: list[float] = []
    for first in range(0, len(pairs), plan.seeds):
        part = [pairs[min(i, len(pairs) - 1)] for i in range(first, first + plan.seeds)]
        rates, seeds = (np.array(column) for column in zip(*part, strict=True))
        curve, _, _ = learn(task, entry, plan, rates, keys_of(TUNED, seeds), plan.tune_iterations)
        scores += curve[:, curve.shape[1] // 2 :].mean(axis=1).tolist()
    means = np.reshape(scores[: len(pairs)], (len(grid), plan.tune_seeds)).mean(axis=1)
    rows = [
        task.row(entry.name, "tuning_score", s, learning_rate=float(r)) for r, s in zip(grid, means, strict=True)
    ]  # fmt: skip
    return float(grid[int(np.argmax(means))]), rows


def arm(
    task: Task, name: str, entry: Method, plan: Plan, rate: float, iterations: int, keep: Collection[int] = ()
) -> tuple[list[Row], dict[int, PyTree]]:
    """Learning rows of one arm over all seeds under `name`, and seed 0's parameters after the iterations of `keep`."""
    rates, keys = np.full(plan.seeds, rate), keys_of(REPORTED, range(plan.seeds))
    curve, metrics, kept = learn(task, entry, plan, rates, keys, iterations, keep)
    spent = costs(entry, task.env.spec, plan.train, metrics["turns"], metrics["gradient_tokens"])
    series = {currency: np.cumsum(each, axis=1) for currency, each in spent.items()}
    tokens = np.maximum(metrics["gradient_tokens"], 1.0)
    for measure, total in (("entropy", "entropy_sum"), ("kl", "kl_sum")):
        if total in metrics:
            series[measure] = metrics[total] / tokens
    rows = []
    for seed in range(plan.seeds):
        for i, value in enumerate(curve[seed]):
            step = i * plan.every
            rows.append(task.row(name, "success", value, seed, step, learning_rate=rate))
            if step > 0:
                rows += [task.row(name, k, v[seed, step - 1], seed, step) for k, v in series.items()]
    return rows, kept
