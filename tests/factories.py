"""Random batches for tests, and the changes of form that must not change any advantage."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentjax.types import ACTION, OBSERVATION, PAD, PROMPT, Array, Signals, Trajectory


def generator(key: Array) -> np.random.Generator:
    """numpy's generator, seeded by a jax key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def random_trajectory(
    key: Array,
    B: int = 8,
    T: int = 4,
    *,
    group_size: int = 4,
    max_action: int = 3,
    max_observation: int = 2,
    prompt: int = 2,
    missing: bool = False,
    padded_rows: int = 0,
    token_reward: bool = False,
    slots: int = 0,
) -> Trajectory:
    """B rollouts of 1..T turns, actions of 1..max_action tokens, padding inside and behind, groups in shuffled order.

    `missing` makes one turn's reward NaN; the last `padded_rows` rows have weight 0 (and absurd rewards). Every row ends
    terminated or truncated. `slots` fixes S, otherwise it is what the longest layout may need.
    """
    rng = generator(key)
    need = prompt + T * (max_observation + max_action + 1) + max_observation
    S = slots or need
    if need > S:
        raise ValueError(f"{need} slots are needed, got slots={slots}")
    rows: dict[str, np.ndarray] = dict(
        role=np.full((B, S), PAD, np.int8), turn=np.full((B, S), -1, np.int32), tokens=np.zeros((B, S), np.int32)
    )
    turns = rng.integers(1, T + 1, B)
    turns[0] = T
    for b in range(B):
        at = _write(rows, b, 0, PROMPT, -1, prompt, rng)
        for t in range(turns[b]):
            at = _write(rows, b, at, OBSERVATION, t, rng.integers(0, max_observation + 1), rng)
            at += rng.integers(0, 2)  # a padding slot inside
            at = _write(rows, b, at, ACTION, t, rng.integers(1, max_action + 1), rng)
        _write(rows, b, at, OBSERVATION, turns[b], max_observation, rng)
    turn_mask = np.arange(T)[None, :] < turns[:, None]
    reward = np.where(turn_mask, np.round(rng.normal(size=(B, T)), 2), 0.0).astype(np.float32)
    weight = np.ones(B, np.float32)
    if padded_rows:
        weight[-padded_rows:] = 0.0
        reward[-padded_rows:] = 1e3
    if missing:
        reward[rng.integers(0, B - padded_rows), 0] = np.nan
    terminated = rng.random(B) < 0.5
    action = rows["role"] == ACTION
    keys = rng.integers(0, 3, (2, B, T, 2)).astype(np.uint32)
    valid = rows["role"] != PAD
    fields: dict[str, Any] = dict(
        **rows,
        position=np.maximum(np.cumsum(valid, 1) - 1, 0).astype(np.int32),
        logp=np.where(action, -rng.exponential(1.0, (B, S)), 0.0).astype(np.float32),
        policy_version=np.zeros((B, S), np.int32),
        reward=reward,
        turn_mask=turn_mask,
        observation_key=keys[0],
        state_key=keys[1],
        terminated=terminated,
        truncated=~terminated,
        temperature=np.ones(B, np.float32),
        weight=weight,
        rollout=rng.permutation(B).astype(np.int32),
        group=(rng.permutation(B) // group_size).astype(np.int32),
        parent=np.full(B, -1, np.int32),
        branch_turn=np.full(B, -1, np.int32),
        token_reward=np.where(valid, rng.normal(size=(B, S)), 0.0).astype(np.float32) if token_reward else None,
    )
    return Trajectory(**{k: None if v is None else jnp.asarray(v) for k, v in fields.items()})


def _write(rows: dict[str, np.ndarray], b: int, at: int, role: int, turn: int, n: int, rng: np.random.Generator) -> int:
    rows["role"][b, at : at + n] = role
    rows["turn"][b, at : at + n] = turn
    rows["tokens"][b, at : at + n] = rng.integers(1, 50, n)
    return at + int(n)


def random_signals(key: Array, trajectory: Trajectory, *, missing: bool = False, pairs: int = 0) -> Signals:
    """Every field of Signals filled, `pairs` (B // 2 if 0) pairs of live rows and an empty one at the end.

    `missing` makes a vote and a teacher's log-probability NaN. Off the action tokens stand large numbers, never read.
    """
    rng = generator(key)
    B, S = trajectory.tokens.shape
    T = trajectory.reward.shape[1]
    action = np.asarray(trajectory.action_mask)

    def per_token(sign: float = 0.0) -> np.ndarray:
        x = rng.normal(size=(B, S)) if sign == 0 else sign * rng.exponential(1.0, (B, S))
        return np.where(action, x, 77.0).astype(np.float32)

    judge = rng.choice([-1.0, 0.0, 1.0], (B, T)).astype(np.float32)
    teacher = per_token(-1.0)
    if missing:
        judge[0, 0] = np.nan
        teacher[0, np.argmax(action[0])] = np.nan
    live = np.flatnonzero(np.asarray(trajectory.weight) > 0)
    chosen = np.stack([rng.permutation(live)[:2] for _ in range((pairs or B // 2) - 1)] + [np.array([-1, -1])])
    fields: dict[str, Any] = dict(
        judge=judge,
        value=rng.normal(size=(B, T + 1)).astype(np.float32),
        token_value=per_token(),
        teacher_logp=teacher,
        reference_logp=per_token(-1.0),
        current_logp=per_token(-1.0),
        pairs=chosen.astype(np.int32),
        oracle_turn=rng.normal(size=(B, T)).astype(np.float32),
        oracle_token=per_token(),
    )
    unknown = {field.name for field in dataclasses.fields(Signals)} - set(fields) - {"permutation_key"}
    if unknown:
        raise NotImplementedError(f"tests/factories.py must also fill the signals {', '.join(sorted(unknown))}")
    return Signals(**{k: jnp.asarray(v) for k, v in fields.items()}, permutation_key=jax.random.key(7))
