"""pivot: a long errand with a few turns that decide everything, and nothing that marks them.

The agent visits one place per turn. The prompt names the places where it must act (`goal`) and where it must not
(`avoid`); at every other place whatever it does has no effect. To act at a place takes the tool that fits it (the same in
every task) and the argument that a note gave `gap` turns earlier (new in every task). A missed goal place comes back at a
later turn with probability `recoverability`, otherwise the errand has failed. A fitting action at a place to avoid also
answers `ok`, and spoils the errand with probability `lure_harm`. On the last turn the reward is 1 if every goal is done
and nothing is spoiled, else 0.

    goal door lamp avoid bell notes door=blue map=red
    turn 0  start, at door, note lamp=green >  please open blue <end>      key     judge +1
    turn 1  ok, at map, note bell=red >        wait <end>                          judge  0
    turn 2  idle, at lamp, note door=blue >    press then red <end>        key     judge -1
    turn 3  error, at bell, note map=red >     rest <end>                  lure    judge  0

Every turn looks alike: one result word, one place, one note. Notes of the first `gap` turns stand in the prompt, so any
turn can be a key turn. Goals, places to avoid, arguments and the order of visits are uniformly random.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentjax import ops
from agentjax.envs import pivot_words as w
from agentjax.envs.base import Env, EnvSpec, Observation, TurnTruth, no_reward
from agentjax.types import Array, lookup, record

HINT_LEN = 3
OBSERVATION_LEN = 4


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


PRESETS: dict[str, tuple[PivotConfig, dict]] = {
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


@record
class PivotState:
    task: PivotTask
    turn: Array  # int32[]
    due: Array  # int32[max_goals], the turn of a goal's next (or last) visit
    done: Array  # bool[max_goals]
    spoiled: Array  # bool[]
    result: Array  # int32[], token of what the last action gave


def check(config: PivotConfig, params: PivotParams) -> None:
    """Raises ValueError if the sizes or (concrete) parameters cannot be held, naming numbers and the way out."""
    c, p = config, jax.tree.map(np.asarray, params)
    if c.action_len < 3:
        raise ValueError(f"action_len={c.action_len} cannot hold `tool argument <end>`; give at least 3")
    if min(c.turns, c.max_goals, c.tools, c.args, c.fillers) < 1 or min(c.max_lures, c.max_gap) < 0:
        raise ValueError(f"sizes must be positive (max_lures and max_gap may be 0), got {c}")
    for name, most in (("places", w.PLACES), ("args", w.ARGS), ("fillers", w.FILLERS), ("tools", w.TOOLS[::2])):
        if getattr(c, name) > len(most):
            raise ValueError(f"{name}={getattr(c, name)}, but there are words for {len(most)}")
    limits = {
        "turns": (1, c.turns), "key_turns": (1, c.max_goals), "lures": (0, c.max_lures), "gap": (0, c.max_gap),
        "recoverability": (0, 1), "lure_harm": (0, 1), "key_turn": (-1, c.turns - 1),
    }  # fmt: skip
    for name, (low, high) in limits.items():
        value = getattr(p, name)
        if not np.all((low <= value) & (value <= high)):
            raise ValueError(f"{name}={value} lies outside [{low}, {high}], which the slots of this size can hold")
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
    visits = jnp.where(turns < params.turns, _goal_or(route, goals, due, turns), -1)
    visits = jnp.concatenate([visits, jnp.full(c.max_gap, -1)])
    visits = jnp.where(visits >= 0, visits, w.whole(dice[4], c.places))
    task = dict(
        goals=goals, due=due, avoid=avoid, route=route, args=args, params=params,
        prompt_notes=jnp.where(jnp.arange(c.max_gap) < params.gap, visits[: c.max_gap], -1),
        notes=visits[turns + params.gap],
    )  # fmt: skip
    return PivotTask(**task, fingerprint=_fingerprint(task))


def _goal_or(route: Array, goals: Array, due: Array, turn: Array) -> Array:
    """The place visited at each of `turn`: a goal if one is due, else the route's."""
    hit = due[None, :] == turn[:, None]
    return jnp.where(jnp.any(hit, axis=1), goals[jnp.argmax(hit, axis=1)], route)


def _fingerprint(tree: object) -> Array:
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


class Visit(NamedTuple):
    """What stands at the place of the current turn."""

    place: Array  # int32[]
    goal: Array  # bool[max_goals], the goal that is due and not done
    lure: Array  # bool[]


def visit(state: PivotState) -> Visit:
    """Where the agent is and what hangs on it."""
    task = state.task
    turn = jnp.minimum(state.turn, task.route.shape[0] - 1)
    place = _goal_or(task.route[turn][None], task.goals, state.due, state.turn[None])[0]
    goal = (state.due == state.turn) & (task.goals >= 0) & ~state.done
    return Visit(place, goal, ~jnp.any(goal) & jnp.any(task.avoid == place))


def success(state: PivotState) -> Array:
    """bool[]: every goal done (AND), nothing spoiled."""
    return jnp.all(state.done | (state.task.goals < 0)) & ~state.spoiled


def observe(config: PivotConfig, state: PivotState) -> Array:
    """int32[O]: result, place, note and the marker `>`; after the last turn the result alone, padding first."""
    words, task = config.words, state.task
    note = task.notes[jnp.minimum(state.turn, config.turns - 1)]
    open_turn = jnp.stack(
        [state.result, words.place(visit(state).place), words.memo(note, task.args[note]), jnp.int32(w.MARKER)]
    )
    closing = jnp.zeros(OBSERVATION_LEN, jnp.int32).at[-1].set(state.result)
    return jnp.where(state.turn < task.params.turns, open_turn, closing)


def reset(config: PivotConfig, key: Array, task: PivotTask) -> tuple[PivotState, Observation]:
    """The start of the errand; nothing about it is random."""
    del key
    state = PivotState(
        task=task, turn=jnp.int32(0), due=task.due, done=jnp.zeros(config.max_goals, bool), spoiled=jnp.bool_(False),
        result=jnp.int32(w.START),
    )  # fmt: skip
    return state, Observation(tokens=observe(config, state), **no_reward())


def step(config: PivotConfig, key: Array, state: PivotState, action: Array) -> tuple[PivotState, Observation]:
    """Acts at the current place."""
    dice = jax.random.uniform(key, (config.turns + 2,))
    task, here = state.task, visit(state)
    tool, arg = config.words.parse(action)
    fits = (tool == config.words.right_tool(here.place)) & (arg == task.args[here.place])
    waits = tool == config.words.wait
    harmed, comes_back = dice[0] < task.params.lure_harm, dice[1] < task.params.recoverability
    later = _free_turn(dice[2:], state)
    missed = here.goal & ~fits & comes_back & (later >= 0)
    state = PivotState(
        task=task,
        turn=state.turn + 1,
        due=jnp.where(missed, later, state.due),
        done=state.done | (here.goal & fits),
        spoiled=state.spoiled | (here.lure & fits & harmed),
        result=jnp.where(fits, w.OK, jnp.where(waits, w.IDLE, w.ERROR)).astype(jnp.int32),
    )
    over = state.turn >= task.params.turns
    reward = (over & success(state)).astype(jnp.float32)
    judge = fits.astype(jnp.float32) - (~fits & ~waits).astype(jnp.float32)
    return state, Observation(
        tokens=observe(config, state), reward=reward, terminated=over, truncated=jnp.bool_(False), judge=judge,
        true_reward=reward, proxy_reward=reward, hack=jnp.int32(0),
    )  # fmt: skip


def _free_turn(score: Array, state: PivotState) -> Array:
    """The later turn without effect that has the highest score[T] >= 0, -1 if there is none."""
    task = state.task
    turns = jnp.arange(task.route.shape[0])
    taken = jnp.any(state.due[None, :] == turns[:, None], axis=1)
    lure = jnp.any(task.avoid[None, :] == task.route[:, None], axis=1)
    free = (turns > state.turn) & (turns < task.params.turns) & ~taken & ~lure
    return jnp.where(jnp.any(free), jnp.argmax(jnp.where(free, score, -1.0)), -1).astype(jnp.int32)


def _expert_act(config: PivotConfig, state: PivotState) -> tuple[Array, Array]:
    """(tool, arg): the fitting action at a goal that is due and not done, else wait."""
    here = visit(state)
    acts = jnp.any(here.goal)
    tool = jnp.where(acts, config.words.right_tool(here.place), config.words.wait)
    return tool, jnp.where(acts, state.task.args[here.place], -1)


def expert(config: PivotConfig, state: PivotState) -> Array:
    """int32[A], in plain words."""
    return config.words.say(*_expert_act(config, state), config.action_len)


def paraphrase(config: PivotConfig, key: Array, action: Array) -> Array:
    """The same (well-formed) action in random words."""
    dice = jax.random.uniform(key, (3 * config.action_len - 8,))
    return config.words.say_randomly(dice, *config.words.parse(action), config.action_len)


def _hint(config: PivotConfig, tool: Array, arg: Array) -> Array:
    """int32[3]: `hint tool arg`, or `hint wait` and padding."""
    words = config.words
    return jnp.stack(
        [jnp.int32(w.HINT), words.first_tool + 2 * tool, jnp.where(tool == words.wait, w.PAD, words.first_arg + arg)]
    )


def gold_hint(config: PivotConfig, state: PivotState) -> Array:
    """int32[H]: what the expert would do now."""
    return _hint(config, *_expert_act(config, state))


def _other_act(config: PivotConfig, dice: Array, tool: Array, arg: Array) -> tuple[Array, Array]:
    """A (tool, arg), waiting being one choice, that differs from the given one; uniform like dice in [0, 1)."""
    words = config.words
    choices = words.tools * words.args + 1
    given = jnp.where(tool == words.wait, choices - 1, tool * words.args + arg)
    other = (given + 1 + w.whole(dice, choices - 1)) % choices
    return other // words.args, jnp.where(other == choices - 1, -1, other % words.args)


def wrong_hint(config: PivotConfig, key: Array, state: PivotState) -> Array:
    """int32[H]: a random action that is not the expert's."""
    return _hint(config, *_other_act(config, jax.random.uniform(key), *_expert_act(config, state)))


def noisy(config: PivotConfig, key: Array, state: PivotState, quality: Array) -> Array:
    """int32[A] of a demonstrator that is right with probability `quality` wherever it matters.

    Goal due: the fitting action, else a random other one. Place to avoid: waits, else takes the bait. Elsewhere: waits
    (1/2), acts fittingly (1/4), or does something random that does not fit (1/4). Always in random words.
    """
    dice = jax.random.uniform(key, (3 + 3 * config.action_len - 8,))
    words, here = config.words, visit(state)
    right = dice[0] < quality
    fit_tool, fit_arg = words.right_tool(here.place), state.task.args[here.place]
    other_tool, other_arg = _other_act(config, dice[1], fit_tool, fit_arg)
    fits = jnp.where(jnp.any(here.goal), right, jnp.where(here.lure, ~right, dice[2] < 0.25))
    waits = jnp.where(jnp.any(here.goal), False, jnp.where(here.lure, right, dice[2] >= 0.5))
    tool = jnp.where(waits, words.wait, jnp.where(fits, fit_tool, other_tool))
    arg = jnp.where(waits, -1, jnp.where(fits, fit_arg, other_arg))
    return words.say_randomly(dice[3:], tool, arg, config.action_len)


def base_success(quality: Array, params: PivotParams) -> Array:
    """Success rate of `noisy` where nothing can be recovered: q^k (1 - (1 - q) harm)^lures.

    q = .5, k = 2, one lure with harm 1: .125.
    """
    q = jnp.asarray(quality, jnp.float32)
    clean = (1.0 - (1.0 - q) * params.lure_harm) ** params.lures.astype(jnp.float32)
    return q ** params.key_turns.astype(jnp.float32) * clean


def quality_for(success_rate: float | Array, params: PivotParams) -> Array:
    """The quality at which `base_success` is `success_rate` in (0, 1); exact at recoverability 0, by bisection."""
    target = jnp.asarray(success_rate, jnp.float32)

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) / 2
        below = base_success(middle, params) < target
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    return jax.lax.fori_loop(0, 40, halve, (jnp.zeros_like(target), jnp.ones_like(target)))[1]


def truth_of(config: PivotConfig, state: PivotState) -> TurnTruth:
    """A key step is a turn at whose place a goal is due and not done, whether or not the errand can still succeed."""
    dynamic = (state.turn, state.due, state.done, state.spoiled, state.result, state.task.fingerprint)
    return TurnTruth(
        key_step=jnp.any(visit(state).goal),
        hint=gold_hint(config, state),
        observation_key=ops.hash_tokens(observe(config, state)),
        state_key=_fingerprint(dynamic),
    )


def build(config: PivotConfig, params: PivotParams) -> Env:
    """The environment of one size, with default difficulty `params`."""
    check(config, params)
    bind = functools.partial
    spec = EnvSpec(
        name="pivot",
        vocabulary=config.words.vocabulary(),
        prompt_len=config.prompt_len,
        observation_len=OBSERVATION_LEN,
        action_len=config.action_len,
        hint_len=HINT_LEN,
        turns=config.turns,
        end=w.END,
        pad=w.PAD,
        labels=("", "at", "note", ""),
    )
    return Env(
        spec=spec,
        params=params,
        sample_task=bind(sample_task, config),
        prompt=bind(prompt, config),
        reset=bind(reset, config),
        step=bind(step, config),
        truth_of=bind(truth_of, config),
        expert=bind(expert, config),
        action_tokens=config.words.action_tokens,
        paraphrase=bind(paraphrase, config),
        noisy=bind(noisy, config),
        wrong_hint=bind(wrong_hint, config),
        quality_for=quality_for,
    )


def make(preset: str = "main", **changes: float) -> Env:
    """A preset with some of its difficulty changed: `make("main", key_turns=1, gap=4)`."""
    config, defaults = lookup(PRESETS, preset, "pivot preset")
    unknown = set(changes) - {field.name for field in dataclasses.fields(PivotParams)}
    if unknown:
        raise ValueError(f"unknown pivot difficulty {', '.join(sorted(unknown))}; see PivotParams for what there is")
    return build(config, difficulty(**{**defaults, **changes}))
