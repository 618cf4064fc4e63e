"""Random batches for tests, and the changes of form that must not change any advantage."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentjax import ops
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

    `missing` makes one turn's reward NaN; the last `padded_rows` rows have weight 0 (and absurd rewards). Every row
    ends terminated or truncated. `slots` fixes S, otherwise it is what the longest layout may need.
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

    `missing` makes a vote and a teacher's log-probability NaN. Off the action tokens stand large numbers.
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


# Changes of form. Each takes and returns (trajectory, signals, label): label[b] names the rollout that row b is of,
# so that `by_rollout` can compare credit before and after.

Batch = tuple[Trajectory, Signals, np.ndarray]


def batch(trajectory: Trajectory, signals: Signals) -> Batch:
    """Labels every row with its own number."""
    return trajectory, signals, np.arange(trajectory.tokens.shape[0])


def by_rollout(x: Array, changed: Batch) -> np.ndarray:
    """x[B,S] on the action tokens of the rows that count, in order of (label, turn, slot)."""
    trajectory, _, label = changed
    keep = np.asarray(trajectory.action_mask) & (np.asarray(trajectory.weight) > 0)[:, None]
    rows, slots = np.nonzero(keep)
    turn = np.asarray(trajectory.turn)[rows, slots]
    return np.asarray(x)[rows, slots][np.lexsort((slots, turn, label[rows]))]


def _rows(tree: Any, index: np.ndarray) -> Any:
    """Leaves [B,...] indexed by row; keys and pairs as they are."""
    pairs = tree.pairs if isinstance(tree, Signals) else None
    new = jax.tree.map(lambda x: x if x.ndim == 0 else jnp.asarray(np.asarray(x)[index % x.shape[0]]), tree)
    return dataclasses.replace(new, pairs=pairs) if isinstance(tree, Signals) else new


def _slots(tree: Any, shape: tuple[int, int], at: np.ndarray, wide: int, fill: dict[str, float]) -> Any:
    """Leaves [B,S,...] with slot s of row b moved to at[b,s] of `wide` slots; new ones get `fill`, 88 if unnamed."""
    rows = np.arange(shape[0])[:, None]
    new = {}
    for field in dataclasses.fields(tree):
        x = getattr(tree, field.name)
        if x is not None and x.ndim >= 2 and x.shape[:2] == shape:
            moved = np.full((shape[0], wide, *x.shape[2:]), fill.get(field.name, 88), np.asarray(x).dtype)
            moved[rows, at] = np.asarray(x)
            new[field.name] = jnp.asarray(moved)
    return dataclasses.replace(tree, **new)


def _open_slots(given: Batch, rng: np.random.Generator, extra: int) -> tuple[Trajectory, Signals, np.ndarray]:
    trajectory, signals, _ = given
    shape = trajectory.tokens.shape
    wide = shape[1] + extra
    at = np.stack([np.sort(rng.permutation(wide)[: shape[1]]) for _ in range(shape[0])])
    fill = dict(tokens=0, role=PAD, turn=-1, position=0, policy_version=0, token_reward=0)
    trajectory, signals = (_slots(tree, shape, at, wide, fill) for tree in (trajectory, signals))
    return trajectory, signals, at


def _with_positions(trajectory: Trajectory) -> Trajectory:
    return dataclasses.replace(trajectory, position=ops.positions(trajectory.valid))


def insert_padding(given: Batch, key: Array, extra: int) -> Batch:
    """`extra` padding slots in random places of every row, with absurd numbers in them."""
    trajectory, signals, _ = _open_slots(given, generator(key), extra)
    return _with_positions(trajectory), signals, given[2]


def insert_observations(given: Batch, key: Array, extra: int) -> Batch:
    """`extra` observation tokens in random places of every row, of the turn that follows."""
    trajectory, signals, at = _open_slots(given, generator(key), extra)
    role, turn = np.asarray(trajectory.role).copy(), np.asarray(trajectory.turn).copy()
    new = np.ones(role.shape, bool)
    new[np.arange(role.shape[0])[:, None], at] = False
    acting = np.where(role == ACTION, turn, np.iinfo(np.int32).max)
    following = np.minimum.accumulate(acting[:, ::-1], axis=1)[:, ::-1]
    ended = np.asarray(trajectory.turn_mask).sum(1)[:, None]
    role[new], turn[new] = OBSERVATION, np.minimum(following, ended)[new]
    changed = dataclasses.replace(trajectory, role=jnp.asarray(role), turn=jnp.asarray(turn))
    return _with_positions(changed), signals, given[2]


def add_dead_rows(given: Batch, key: Array, total: int) -> Batch:
    """Rows of weight 0 behind the others, `total` rows in all: copies with their ids and absurd rewards."""
    trajectory, signals, label = given
    old = label.shape[0]
    index = np.concatenate([np.arange(old), generator(key).integers(0, old, total - old)])
    dead = jnp.asarray(np.arange(total) >= old)
    trajectory = _rows(trajectory, index)
    trajectory = dataclasses.replace(
        trajectory,
        weight=jnp.where(dead, 0.0, trajectory.weight),
        reward=jnp.asarray(np.where(np.asarray(dead)[:, None], 1e3, np.asarray(trajectory.reward))),
    )
    return trajectory, _rows(signals, index), label[index]


def permute_rows(given: Batch, key: Array) -> Batch:
    """Rows in random order, groups and rollouts under new numbers, pairs that follow, in random order too."""
    trajectory, signals, label = given
    rng = generator(key)
    rows = label.shape[0]
    order, group, rollout = rng.permutation(rows), rng.permutation(rows), rng.permutation(rows)
    trajectory, signals = _rows(trajectory, order), _rows(signals, order)
    trajectory = dataclasses.replace(
        trajectory,
        group=jnp.asarray(group[np.asarray(trajectory.group)].astype(np.int32)),
        rollout=jnp.asarray(rollout[np.asarray(trajectory.rollout)].astype(np.int32)),
    )
    pairs = rng.permutation(np.asarray(signals.pairs))
    pairs = np.where(pairs < 0, -1, np.argsort(order)[pairs]).astype(np.int32)
    return trajectory, dataclasses.replace(signals, pairs=jnp.asarray(pairs)), label[order]


def split_rows(given: Batch, key: Array) -> Batch:
    """Twice the rows: each live row of two or more turns is cut before a random turn, the rest get a row of weight 0.

    The second part keeps what stood before as prompt. Only the part that acted a turn knows its reward, vote and value;
    only the last knows how the rollout ended. Pairs name either part.
    """
    trajectory, signals, label = given
    rng = generator(key)
    rows, T = trajectory.reward.shape
    twice = np.concatenate([np.arange(rows), np.arange(rows)])
    tr = {k: None if v is None else np.asarray(v)[twice].copy() for k, v in _fields(trajectory).items()}
    turns = np.asarray(trajectory.turn_mask).sum(1)
    cut = np.where(turns >= 2, rng.integers(1, np.maximum(turns, 2)), T + 1)[twice][:, None]
    second = (np.arange(2 * rows) >= rows)[:, None]
    own = tr["turn_mask"] & ((np.arange(T)[None, :] >= cut) == second)
    earlier, later = second & (tr["turn"] < cut) & (tr["role"] != PAD), ~second & (tr["turn"] >= cut)
    tr["role"] = np.where(earlier, PROMPT, np.where(later, PAD, tr["role"])).astype(np.int8)
    tr["turn"] = np.where(earlier | later, -1, tr["turn"]).astype(np.int32)
    if tr["token_reward"] is not None:
        tr["token_reward"] = np.where(earlier | later, np.float32(0), tr["token_reward"])
    tr["turn_mask"], tr["reward"] = own, np.where(own, tr["reward"], np.float32(5))
    is_cut = cut[:, 0] <= T
    tr["weight"] = np.where(second[:, 0] & ~is_cut, np.float32(0), tr["weight"])
    for flag in ("terminated", "truncated"):
        tr[flag] &= second[:, 0] | ~is_cut
    new = _with_positions(Trajectory(**{k: None if v is None else jnp.asarray(v) for k, v in tr.items()}))
    other = _rows(signals, twice)
    known = np.concatenate([own, np.zeros((2 * rows, 1), bool)], axis=1)
    known[:, 1:] |= own & second & is_cut[:, None] | (own & ~is_cut[:, None])
    pairs = np.asarray(signals.pairs)
    split = np.isin(pairs, np.flatnonzero(is_cut[:rows])) & (rng.random(pairs.shape) < 0.5)
    other = dataclasses.replace(
        other,
        judge=jnp.asarray(np.where(own, np.asarray(other.judge), np.float32(9))),
        value=jnp.asarray(np.where(known, np.asarray(other.value), np.float32(9))),
        pairs=jnp.asarray(np.where(split, pairs + rows, pairs).astype(np.int32)),
    )
    return new, other, label[twice]


def _fields(trajectory: Trajectory) -> dict[str, Any]:
    return {field.name: getattr(trajectory, field.name) for field in dataclasses.fields(trajectory)}


def written(*rows: str, reward: Any = None, turns: int = 0, **fields: Any) -> Trajectory:
    """A trajectory spelled by hand: "p o0 a0 a0 . o1 a1 o2" is prompt, turn 0 with two action tokens, padding, turn 1.

    Rows must have equally many slots. By default every row is its own rollout, all are one group, all terminated, logp
    is 0; `reward` is [B,T] and any field may be given. Acted turns are those with action tokens.
    """
    words = [row.split() for row in rows]
    shape = (len(rows), len(words[0]))
    role = np.array([[".poa".index(w[0]) for w in row] for row in words], np.int8)
    turn = np.array([[int(w[1:]) if w[1:] else -1 for w in row] for row in words], np.int32)
    T = turns or int(turn[role == ACTION].max()) + 1
    acted = np.stack([[((role[b] == ACTION) & (turn[b] == t)).any() for t in range(T)] for b in range(shape[0])])
    given: dict[str, Any] = dict(
        tokens=np.where(role == PAD, 0, 1).astype(np.int32),
        role=role,
        turn=turn,
        position=np.maximum(np.cumsum(role != PAD, 1) - 1, 0).astype(np.int32),
        logp=np.zeros(shape, np.float32),
        policy_version=np.zeros(shape, np.int32),
        reward=np.zeros(acted.shape, np.float32) if reward is None else np.asarray(reward, np.float32),
        turn_mask=acted,
        observation_key=np.zeros((*acted.shape, 2), np.uint32),
        state_key=np.zeros((*acted.shape, 2), np.uint32),
        terminated=np.ones(shape[0], bool),
        truncated=np.zeros(shape[0], bool),
        temperature=np.ones(shape[0], np.float32),
        weight=np.ones(shape[0], np.float32),
        rollout=np.arange(shape[0], dtype=np.int32),
        group=np.zeros(shape[0], np.int32),
        parent=np.full(shape[0], -1, np.int32),
        branch_turn=np.full(shape[0], -1, np.int32),
    )
    for name, value in fields.items():
        like = given.get(name, np.zeros(shape, np.float32))
        given[name] = np.asarray(value, like.dtype)
    return Trajectory(**{k: jnp.asarray(v) for k, v in given.items()})
