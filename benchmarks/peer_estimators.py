"""GRPO and GAE against verl 0.9.1's on the same numbers. Runs in the peers' environment: `make bench-peers`.

1,024 rows of 4,096 tokens in groups of 8; the mask is a prefix of random length. verl's vectorised GRPO and its masked
GAE, in torch on the same cores; the values must agree before anything is timed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from verl.trainer.ppo import core_algos

from agentjax import ops
from agentjax.credit import ESTIMATORS
from agentjax.types import ACTION, PAD, Signals, Trajectory
from benchmarks.timing import Row, interleaved, ratio_row, report


def batch(rows: int, slots: int, size: int) -> tuple[Trajectory, Signals, np.ndarray]:
    """One turn per row: an answer of random length, a reward at its end, a value per token. Also the token rewards."""
    random = np.random.default_rng(0)
    length = random.integers(slots // 2, slots + 1, rows)
    mask = np.arange(slots)[None] < length[:, None]
    reward = random.normal(size=(rows, 1)).astype(np.float32)
    value = np.where(mask, random.normal(size=(rows, slots)), 0.0).astype(np.float32)
    per_token = np.zeros((rows, slots), np.float32)
    per_token[np.arange(rows), length - 1] = reward[:, 0]
    index, zeros = jnp.arange(rows, dtype=jnp.int32), jnp.zeros((rows, slots), jnp.float32)
    on, ones, keys = jnp.asarray(mask), jnp.ones(rows, bool), jnp.zeros((rows, 1, 2), jnp.uint32)
    trajectory = Trajectory(
        tokens=zeros.astype(jnp.int32), role=jnp.where(on, ACTION, PAD).astype(jnp.int8),
        turn=jnp.where(on, 0, -1).astype(jnp.int32),
        position=jnp.maximum(jnp.cumsum(on, axis=1, dtype=jnp.int32) - 1, 0),
        logp=zeros, policy_version=zeros.astype(jnp.int32), reward=jnp.asarray(reward), turn_mask=ones[:, None],
        observation_key=keys, state_key=keys, terminated=ones, truncated=~ones, temperature=jnp.ones(rows),
        weight=jnp.ones(rows), rollout=index, group=index // size, parent=index * 0 - 1, branch_turn=index * 0 - 1,
    )  # fmt: skip
    return trajectory, Signals(value=jnp.zeros((rows, 2)), token_value=jnp.asarray(value)), per_token


def repeat(program: Callable[[], Any], calls: int) -> None:
    """Calls it, one result alive at a time."""
    for _ in range(calls):
        jax.block_until_ready(program())


def compare(rows: int = 1024, slots: int = 4096, size: int = 8, repeats: int = 7, calls: int = 20) -> list[Row]:
    """Both ratios; raises AssertionError if the peers' values differ from ours."""
    trajectory, signals, per_token = batch(rows, slots, size)
    reward, value = torch.from_numpy(per_token), torch.from_numpy(np.array(signals.token_value))
    mask = torch.from_numpy(np.array(trajectory.action_mask)).float()
    group = np.array([f"{i:032x}" for i in np.asarray(trajectory.group)], dtype=object)  # verl keys groups by uuid

    zero, paid, on = jnp.zeros(rows), jnp.asarray(per_token), trajectory.action_mask
    gae = jax.jit(functools.partial(ops.discounted_advantage, gamma=1.0, lam=0.95))
    apply = lambda of: jax.jit(lambda t, s: ESTIMATORS[of].apply(t, s).advantage)  # noqa: E731
    grpo, token_gae = apply("grpo"), apply("token_gae")
    their_gae = lambda: core_algos.compute_gae_advantage_return(reward, value, mask, 1.0, 0.95)[0]  # noqa: E731
    whiten = lambda x: core_algos.verl_F.masked_whiten(x, mask)  # noqa: E731
    pairs = (
        ("grpo, against verl's vectorised GRPO", 5.0, lambda: grpo(trajectory, signals), lambda x: x,
         lambda: core_algos.compute_grpo_vectorized_outcome_advantage(reward, mask, group)[0]),
        ("masked GAE, against verl's", 10.0, lambda: gae(paid, signals.token_value, zero, on), whiten, their_gae),
        ("the estimator token_gae, which also places turn rewards and joins split rollouts, against the same", 0.0,
         lambda: token_gae(trajectory, signals), whiten, their_gae),
    )  # fmt: skip
    table = []
    for what, target, mine, same, theirs in pairs:
        difference = (same(torch.from_numpy(np.array(mine()))) - theirs()) * mask
        if float(difference.abs().max()) > 1e-3:
            raise AssertionError(f"{what}: values differ")
        many = lambda program: lambda: repeat(program, calls)  # noqa: E731
        seconds = interleaved({"theirs": many(theirs), "ours": many(mine)}, repeats, pause=0.3)
        per_call = ([s / calls for s in seconds[name]] for name in ("theirs", "ours"))
        table.append(ratio_row(what, *per_call, target))
    return table


def main() -> None:
    """The table, at the size of a large batch."""
    report("peer_estimators", compare())


if __name__ == "__main__":
    main()
