"""The errands of `pivot`: sizes, difficulty, presets, and how a task is drawn and put into words."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentjax import ops
from agentjax.envs import pivot_words as w
from agentjax.types import Array, record


@dataclasses.dataclass(frozen=True)
class PivotConfig:
    """Sizes that fix array shapes; all tasks of one size share one compilation."""

    turns: int  # T, the most turns
    max_goals: int
    max_lures: int
    max_gap: int
    places: int = 8
    tools: int = 4
    args: int = 4
    fillers: int = 3
    action_len: int = 6

    @property
    def words(self) -> w.Words:
        return w.Words(self.places, self.tools, self.args, self.fillers)

    @property
    def prompt_len(self) -> int:
        return 1 + self.max_goals + (self.max_lures > 0) + self.max_lures + (self.max_gap > 0) + self.max_gap


@record
class PivotParams:
    """Difficulty; every field is a traced scalar."""

    turns: Array  # int32, length of the errand, in [1, T]
    key_turns: Array  # int32, goals, in [1, max_goals]
    lures: Array  # int32, in [0, max_lures]
    gap: Array  # int32, turns between a note and its use, in [0, max_gap]
    recoverability: Array  # float32, probability that a missed goal comes back
    lure_harm: Array  # float32, probability that a fitting action at a place to avoid spoils the errand
    key_turn: Array  # int32, where the first goal is due (counted from 0); -1: anywhere


def difficulty(
    turns: int,
    key_turns: int = 1,
    lures: int = 0,
    gap: int = 0,
    recoverability: float = 0.0,
    lure_harm: float = 1.0,
    key_turn: int = -1,
) -> PivotParams:
    """PivotParams from plain numbers."""
    return PivotParams(
        turns=jnp.int32(turns), key_turns=jnp.int32(key_turns), lures=jnp.int32(lures), gap=jnp.int32(gap),
        recoverability=jnp.float32(recoverability), lure_harm=jnp.float32(lure_harm), key_turn=jnp.int32(key_turn),
    )  # fmt: skip


PRESETS: dict[str, tuple[PivotConfig, dict[str, Any]]] = {
    "tiny": (
        PivotConfig(turns=4, max_goals=2, max_lures=1, max_gap=1, places=6, tools=3, args=3, fillers=1, action_len=4),
        dict(turns=4, key_turns=2, lures=1, gap=1),
    ),
    "short": (
        PivotConfig(turns=5, max_goals=2, max_lures=1, max_gap=2, places=6, tools=3, args=3, fillers=2, action_len=4),
        dict(turns=5, key_turns=2, lures=1, gap=1),
    ),
    "small": (
        PivotConfig(turns=6, max_goals=2, max_lures=1, max_gap=2, places=6, tools=3, args=3, fillers=2, action_len=5),
        dict(turns=6, key_turns=2, lures=1, gap=1),
    ),
    "main": (
        PivotConfig(turns=6, max_goals=3, max_lures=1, max_gap=4),
        dict(turns=6, key_turns=3, lures=1, gap=2),
    ),
    "chapter": (  # 20 steps, the 15th decides
        PivotConfig(turns=20, max_goals=6, max_lures=2, max_gap=12, places=12),
        dict(turns=20, key_turns=1, lures=2, gap=4, key_turn=14),
    ),
    "long80": (
        PivotConfig(turns=80, max_goals=6, max_lures=4, max_gap=12, places=16),
        dict(turns=80, key_turns=3, lures=2, gap=4),
    ),
}


@record
class PivotTask:
    """One errand. Unused goals and places to avoid are -1."""

    goals: Array  # int32[max_goals]
    due: Array  # int32[max_goals], turn at which each goal's place is visited
    avoid: Array  # int32[max_lures]
    route: Array  # int32[T], the place of each turn on which no goal is due
    args: Array  # int32[places], the argument that fits each place
    prompt_notes: Array  # int32[max_gap], places whose notes the prompt holds
    notes: Array  # int32[T], place that the note of each turn is about
    params: PivotParams
    fingerprint: Array  # uint32[2], hash of all the above


def check(config: PivotConfig, params: PivotParams) -> None:
    """Raises ValueError if the sizes or (concrete) parameters cannot be held, naming numbers and the way out."""
    c = config
    p: Any = jax.tree.map(np.asarray, params)
    if c.action_len < 3:
        raise ValueError(f"action_len={c.action_len} cannot hold `tool argument <end>`; give at least 3")
    if min(c.turns, c.max_goals, c.tools, c.args, c.fillers) < 1 or min(c.max_lures, c.max_gap) < 0:
        raise ValueError(f"sizes must be positive (max_lures and max_gap may be 0), got {c}")
    for name, most in (("places", w.PLACES), ("args", w.ARGS), ("fillers", w.FILLERS), ("tools", w.TOOLS[::2])):
        if getattr(c, name) > len(most):
            raise ValueError(f"{name}={getattr(c, name)}, but there are words for {len(most)}")
    limits: dict[str, tuple[int, int]] = {
        "turns": (1, c.turns), "key_turns": (1, c.max_goals), "lures": (0, c.max_lures), "gap": (0, c.max_gap),
        "recoverability": (0, 1), "lure_harm": (0, 1), "key_turn": (-1, c.turns - 1),
    }  # fmt: skip
    for name, (low, high) in limits.items():
        value = getattr(p, name)
        if not np.all((low <= value) & (value <= high)):
            raise ValueError(
                f"{name}={value} lies outside [{low}, {high}] of this size; take a larger preset or PivotConfig"
            )
    used = p.key_turns + p.lures
    if np.any(used > p.turns):
        raise ValueError(f"key_turns + lures = {used} > turns = {p.turns}; give more turns")
    if np.any(used >= c.places):
        raise ValueError(f"key_turns + lures = {used} leave none of {c.places} places without effect; give more places")
    if np.any(p.key_turn >= p.turns):
        raise ValueError(f"key_turn={p.key_turn} must be below turns={p.turns} (counted from 0)")


def sample_task(config: PivotConfig, key: Array, params: PivotParams) -> PivotTask:
    """A uniformly random errand of the given difficulty."""
    c = config
    sizes = np.cumsum([c.places, c.turns, c.turns, c.places, c.turns + c.max_gap])
    dice = jnp.split(jax.random.uniform(key, (int(sizes[-1]),)), sizes[:-1])  # one draw: it compiles fastest
    goal_slots, lure_slots, turns = jnp.arange(c.max_goals), jnp.arange(c.max_lures), jnp.arange(c.turns)
    places = jnp.argsort(dice[0])  # goals first, then places to avoid, then the rest
    goals = jnp.where(goal_slots < params.key_turns, places[goal_slots], -1)
    is_lure = lure_slots < params.lures
    avoid = jnp.where(is_lure, places[jnp.minimum(params.key_turns + lure_slots, c.places - 1)], -1)

    score = jnp.where(turns < params.turns, dice[1], 2.0)
    order = jnp.argsort(jnp.where(turns == params.key_turn, -1.0, score))  # turns of the goals, then of the lures
    due = jnp.where(goals >= 0, order[jnp.minimum(goal_slots, c.turns - 1)], -1)
    lure_turn = jnp.where(is_lure, order[jnp.minimum(params.key_turns + lure_slots, c.turns - 1)], c.turns)
    used = params.key_turns + params.lures
    route = places[used + w.whole(dice[2], c.places - used)].at[lure_turn].set(avoid, mode="drop")

    args = w.whole(dice[3], c.args)
    visits = jnp.where(turns < params.turns, visited(route, goals, due, turns), -1)
    visits = jnp.concatenate([visits, jnp.full(c.max_gap, -1)])
    visits = jnp.where(visits >= 0, visits, w.whole(dice[4], c.places))
    task = PivotTask(
        goals=goals, due=due, avoid=avoid, route=route, args=args, params=params,
        prompt_notes=jnp.where(jnp.arange(c.max_gap) < params.gap, visits[: c.max_gap], -1),
        notes=visits[turns + params.gap],
        fingerprint=jnp.zeros(2, jnp.uint32),
    )  # fmt: skip
    return dataclasses.replace(task, fingerprint=fingerprint(task))


def visited(route: Array, goals: Array, due: Array, turn: Array) -> Array:
    """The place visited at each of `turn`: a goal if one is due, else the route's."""
    hit = due[None, :] == turn[:, None]
    return jnp.where(jnp.any(hit, axis=1), goals[jnp.argmax(hit, axis=1)], route)


def fingerprint(tree: object) -> Array:
    """uint32[2], a hash of all the arrays of a tree."""

    def words(x: Array) -> Array:
        return jax.lax.bitcast_convert_type(x, jnp.uint32) if x.dtype == jnp.float32 else x.astype(jnp.uint32)

    return ops.hash_tokens(jnp.concatenate([words(x).reshape(-1) for x in jax.tree.leaves(tree)]))


def prompt(config: PivotConfig, task: PivotTask) -> Array:
    """int32[P]: `goal` places `avoid` places `notes` notes, padding first."""
    words = config.words

    def part(head: int, ids: Array, tokens: Array) -> Array:
        head_token = jnp.where(jnp.any(ids >= 0), head, w.PAD)
        return jnp.concatenate([head_token[None], jnp.where(ids >= 0, tokens, w.PAD)])

    parts = [part(w.GOAL, task.goals, words.place(task.goals))]
    if config.max_lures:
        parts.append(part(w.AVOID, task.avoid, words.place(task.avoid)))
    if config.max_gap:
        notes = task.prompt_notes
        parts.append(part(w.NOTE, notes, words.memo(notes, task.args[notes])))
    tokens = jnp.concatenate(parts)
    return tokens[jnp.argsort(tokens != w.PAD, stable=True)]
