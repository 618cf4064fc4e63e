"""pivot: a long errand with a few turns that decide everything, and nothing that marks them.

The agent is at one place per turn. The prompt names the places where it must act (`goal`) and where it must not
(`avoid`); whatever it does elsewhere has no effect. To act takes the tool that fits the place (the same in every task)
and the argument that a note gave `gap` turns earlier (new in every task). A missed goal place comes back at a later
turn without effect with probability `recoverability`; otherwise the errand has failed. At a place to avoid a fitting
action also answers `ok`, and spoils the errand with probability `lure_harm`. The last turn pays 1 if every goal is done
and nothing is spoiled, else 0.

    goal lamp coin avoid book notes coin=red
    turn 0  start, at coin, note bell=green >  now unlock red <end>      key  judge +1
    turn 1  ok, at bell, note lamp=blue >      wait <end>                     judge  0
    turn 2  idle, at lamp, note door=red >     check just blue <end>     key  judge +1
    turn 3  ok, at door, note book=blue >      please press blue <end>        judge -1
    turn 4  error, at book, note door=red >    rest please <end>              judge  0
    turn 5  idle, at door, note door=red >     open red <end>                 judge +1  reward 1

Every turn looks alike: a result word, a place, a note. Notes for the first `gap` turns stand in the prompt, so that any
turn may be a key turn. Goals, places to avoid, arguments and the order of visits are uniformly random. What an
observation still tells: turns are drawn without replacement, so one that follows an `ok` is a little less often a key
turn (AUC of a logistic regression .55 on demonstrations, .60 on the expert's play, 6 turns), and places that come back
come late (AUC .58 at recoverability .5, but .64 at 1).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentjax import ops
from agentjax.envs import pivot_words as w
from agentjax.envs.base import Env, EnvSpec, Observation, TurnTruth, no_reward
from agentjax.envs.pivot_task import (
    PRESETS,
    PivotConfig,
    PivotParams,
    PivotTask,
    check,
    difficulty,
    fingerprint,
    prompt,
    sample_task,
    visited,
)
from agentjax.types import Array, lookup, record

HINT_LEN = 3
OBSERVATION_LEN = 4


@record
class PivotState:
    task: PivotTask
    turn: Array  # int32[]
    due: Array  # int32[max_goals], the turn of a goal's next (or last) visit
    done: Array  # bool[max_goals]
    spoiled: Array  # bool[]
    result: Array  # int32[], token of what the last action gave


class Visit(NamedTuple):
    """What stands at the place of the current turn."""

    place: Array  # int32[]
    goal: Array  # bool[max_goals], the goal that is due and not done
    lure: Array  # bool[]


def visit(state: PivotState) -> Visit:
    """Where the agent is and what hangs on it."""
    task = state.task
    turn = jnp.minimum(state.turn, task.route.shape[0] - 1)
    place = visited(task.route[turn][None], task.goals, state.due, state.turn[None])[0]
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
        state_key=fingerprint(dynamic),
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


def make(preset: str = "main", **changes: Any) -> Env:
    """A preset with some of its difficulty changed: `make("main", key_turns=1, gap=4)`."""
    config, defaults = lookup(PRESETS, preset, "pivot preset")
    unknown = set(changes) - {field.name for field in dataclasses.fields(PivotParams)}
    if unknown:
        raise ValueError(f"unknown pivot difficulty {', '.join(sorted(unknown))}; see PivotParams for what there is")
    return build(config, difficulty(**{**defaults, **changes}))
