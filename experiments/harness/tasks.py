"""A task: an environment with a policy, the start of all arms, a fixed panel, and the programs compiled for it.

Tasks that differ in start or difficulty only (`twin`) share their compiled programs: both are traced arguments.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentjax import envs
from agentjax.envs.base import Env
from agentjax.envs.demos import expert_act, play
from agentjax.envs.tabular import token_ids
from agentjax.policies.base import Policy
from agentjax.policies.tabular import tabular_policy
from agentjax.policies.transformer import TransformerConfig, transformer
from agentjax.rollout import rollout
from agentjax.types import Array, PyTree, Trajectory
from agentjax.warm_start import WarmStartConfig, warm_start
from experiments.harness.ledger import Row

Success = Callable[[Trajectory], Array]
PANEL_KEY, EXPERT_KEY = 11, 3  # seeds that no run uses


@dataclasses.dataclass(frozen=True)
class Task:
    """What the arms of one setting share."""

    where: dict[str, Any]  # fields of its rows that tell the settings apart: {"env": "pivot", "p0": 0.1, "harm": 0.5}
    env: Env  # `env.params` is the difficulty of this setting
    policy: Policy
    start: PyTree
    success: Success
    panel_size: int
    programs: dict[str, Callable]  # compiled, by purpose; shared with twins

    @property
    def label(self) -> str:
        """"pivot/0.1/0.5": names its units of work."""
        return "/".join(f"{value:g}" if isinstance(value, float) else str(value) for value in self.where.values())

    def row(self, method: str, measure: str, value: float, seed: int = 0, step: int = 0, **more: Any) -> Row:
        """A tidy row of this setting."""
        found = {"method": method, "seed": seed, "step": step, "measure": measure, "value": float(value)}
        return {**self.where, **found, **more}

    def panel(self, params: PyTree) -> np.ndarray:
        """Success of each of a stack of parameters [runs, ...] on the fixed panel: the same tasks and keys always."""
        if "panel" not in self.programs:

            def score(one: PyTree, difficulty: PyTree) -> Array:
                env = self.env._replace(params=difficulty)
                key = jax.random.key(PANEL_KEY)
                played = rollout(key, self.policy, one, env, difficulty, groups=self.panel_size, size=1)
                return self.success(played.trajectory)

            self.programs["panel"] = jax.jit(jax.vmap(score, (0, None)))
        return np.asarray(self.programs["panel"](params, self.env.params))


def returns(trajectory: Trajectory) -> Array:
    """Mean return: the success rate of a task that pays 1 or 0 at its end."""
    return jnp.mean(jnp.sum(jnp.where(trajectory.turn_mask, trajectory.reward, 0.0), axis=1))


def last_reward_won(trajectory: Trajectory) -> Array:
    """Share of episodes whose last reward is positive: the umbrella chain's outcome without its distractors."""
    return jnp.mean((trajectory.reward[:, -1] > 0).astype(jnp.float32))


def pivot_task(
    where: dict[str, Any], preset: str, p0: float, cache: Path, *, width: int, panel: int, twin: Task | None = None,
    **difficulty: Any,
) -> tuple[Task, list[Row]]:  # fmt: skip
    """pivot with a small transformer whose warm start succeeds at p0, and the rows of its gates."""
    made = envs.make("pivot", preset=preset, **difficulty)
    env = twin.env._replace(params=made.params) if twin else made
    config = TransformerConfig(vocab=len(env.spec.vocabulary), width=width, ffn=3 * width)
    policy = twin.policy if twin else transformer(config)
    start, gates = warm_start(policy, config, env, p0, WarmStartConfig(), cache)
    task = Task(where, env, policy, start, returns, panel, twin.programs if twin else {})
    return task, [
        task.row("frozen", "base_success", gates.base_success),
        task.row("teacher", "hinted_success", gates.hinted_success),
        expert_row(task),
    ]


def expert_row(task: Task) -> Row:
    """What the expert scores on 256 tasks."""
    env = task.env
    score = jax.jit(lambda key: task.success(play(key, env, expert_act(env), env.params, 256).trajectory))
    return task.row("expert", "expert_success", float(score(jax.random.key(EXPERT_KEY))))


def umbrella_task(where: dict[str, Any], length: int, *, panel: int) -> tuple[Task, list[Row]]:
    """The umbrella chain with a uniform table, and what its expert scores."""
    env = envs.make("umbrella", length=length)
    ids = token_ids(env.exact)
    policy = tabular_policy(len(env.spec.vocabulary), action=ids.action, observation=ids.observation, hint=ids.hint)
    task = Task(where, env, policy, policy.init(jax.random.key(0)), last_reward_won, panel, {})
    return task, [expert_row(task)]


def mappings() -> int:
    """Memory mappings of this process; 0 where the system does not say."""
    maps = Path("/proc/self/maps")
    return maps.read_text().count("\n") if maps.exists() else 0


def forget() -> None:
    """Drops every compiled program; jitted functions compile again where they are called again.

    Each program keeps some hundred memory mappings, and a process may have 65,530 of them: XLA aborts it beyond that.
    """
    jax.clear_caches()
    gc.collect()
