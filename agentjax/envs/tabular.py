"""Enumerable tasks: a table of states, actions and outcomes, and the environment that follows from it.

A new exact task is one `TabularModel` and its words; `tabular_env` derives sampling, stepping, hints and truth. Values
and truth belong to the hidden state; the policy sees only its observable index.

Tokens: `<pad> <start> <end>`, then one word per action, one hint word per action (`try:left`), one per observable.
A message is one token, the observable, and it is also the tail: a hint goes in just before it (tail_len = 1), so the
token that predicts the action is always the observable. Actions are one token and need no end token.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentjax import ops
from agentjax.envs.base import Env, EnvSpec, Observation, TurnTruth, no_reward
from agentjax.types import Array, record, static

PAD, START, END, FIRST_ACTION = 0, 1, 2, 3
TIE = 1e-6  # optimal values closer than this count as equal


@record
class TabularModel:
    """A finite task: N hidden states, A actions, O outcomes of each, at most `horizon` turns.

    In state s, action a leads with probability prob[s,a,o] to next[s,a,o] and pays reward[s,a,o]. An episode ends on
    reaching a terminal state or after `horizon` actions; both count as terminated (the horizon is part of the task).
    Outcomes of probability 0 fill up tables whose states have different numbers of outcomes.
    """

    obs: Array  # int32[N], what the policy sees, in [0, observations)
    start: Array  # float32[N]
    prob: Array  # float32[N,A,O]
    next: Array  # int32[N,A,O]
    reward: Array  # float32[N,A,O]
    terminal: Array  # bool[N]
    horizon: int = static()
    observations: int = static()


@record
class TabularState:
    """Where an episode stands."""

    index: Array  # int32[], hidden state
    turn: Array  # int32[], actions taken


class TokenIds(NamedTuple):
    """Token ids of a tabular task's words, in the order of the table's indices."""

    action: Array  # int32[A]
    hint: Array  # int32[A]
    observation: Array  # int32[observations]


def token_ids(model: TabularModel) -> TokenIds:
    """Which token means which action, hint and observable."""
    actions = model.prob.shape[1]
    hint, observation = FIRST_ACTION + actions, FIRST_ACTION + 2 * actions

    def ids(first: int, count: int) -> Array:
        return first + jnp.arange(count, dtype=jnp.int32)

    return TokenIds(ids(FIRST_ACTION, actions), ids(hint, actions), ids(observation, model.observations))


def backup(model: TabularModel, value: Array) -> Array:
    """Q[s,a] = sum_o prob[s,a,o] (reward[s,a,o] + value[next[s,a,o]]): [N] -> [N,A]; terminal states are worth 0."""
    later = jnp.where(model.terminal[model.next], 0.0, value[model.next])
    q = jnp.sum(model.prob * (model.reward + later), axis=-1)
    return jnp.where(model.terminal[:, None], 0.0, q)


@jax.jit
def optimal_q(model: TabularModel) -> Array:
    """Q*[t,s,a] of the hidden state at turn t, float32[horizon,N,A]: backward induction on max_a Q*[t+1,s,a]."""

    def step(value: Array, _: None) -> tuple[Array, Array]:
        q = backup(model, value)
        return jnp.max(q, axis=-1), q

    zero = jnp.zeros(model.obs.shape, jnp.float32)
    return jax.lax.scan(step, zero, None, length=model.horizon, reverse=True)[1]


def check_model(model: TabularModel) -> None:
    """Raises ValueError naming the table that is wrong: shapes, ranges, probabilities that do not sum to 1."""
    m = jax.tree.map(np.asarray, model)
    states, actions, _ = m.prob.shape
    for name in ("next", "reward"):
        if getattr(m, name).shape != m.prob.shape:
            raise ValueError(f"{name} has shape {getattr(m, name).shape}, expected that of prob, {m.prob.shape}")
    for name in ("obs", "start", "terminal"):
        if getattr(m, name).shape != (states,):
            raise ValueError(f"{name} has shape {getattr(m, name).shape}, expected ({states},)")
    for name, table, top in (("next", m.next, states), ("obs", m.obs, m.observations)):
        if table.min() < 0 or table.max() >= top:
            raise ValueError(f"{name} must lie in [0, {top}), got {table.min()}..{table.max()}")
    for name, table in (("prob", m.prob), ("start", m.start)):
        if (table < 0).any() or not np.allclose(table.sum(axis=-1), 1.0, atol=1e-5):
            raise ValueError(f"{name} must be non-negative and sum to 1 over its last axis")
    if m.horizon < 1 or actions < 1:
        raise ValueError(f"horizon {m.horizon} and the number of actions {actions} must be at least 1")
    if m.terminal[m.start > 0].any():
        raise ValueError("start puts weight on a terminal state; an episode must have a turn")


def draw(key: Array, prob: Array) -> Array:
    """int32[]: an index drawn from prob[O]; never one of probability 0."""
    total = jnp.cumsum(prob)
    height = total[-1] * (1.0 - jax.random.uniform(key))  # in (0, total]
    return jnp.sum(total < height, dtype=jnp.int32)


def tabular_env(
    name: str, model: TabularModel, *, action_words: tuple[str, ...], observation_words: tuple[str, ...]
) -> Env:
    """The environment of a table. One word per action and per observable.

    There is a single task; `reset` draws the start state, so the rollouts of a group start apart. The judge (J1) says
    +1 for an action that is optimal where it stands (Q*(s,a) = max Q*, ties included, so it also praises steps on which
    nothing hangs) and -1 otherwise. A key step is one where actions differ in Q*. The hint names an optimal action.
    """
    check_model(model)
    if len(action_words) != model.prob.shape[1] or len(observation_words) != model.observations:
        raise ValueError(
            f"{name}: {len(action_words)} action and {len(observation_words)} observation words for "
            f"{model.prob.shape[1]} actions and {model.observations} observables"
        )
    ids, q_star = token_ids(model), optimal_q(model)
    hint_words = tuple(f"try:{word}" for word in action_words)
    spec = EnvSpec(
        name=name,
        vocabulary=("<pad>", "<start>", "<end>", *action_words, *hint_words, *observation_words),
        prompt_len=1, observation_len=1, action_len=1, hint_len=1, turns=model.horizon,
    )

    def reset(key: Array, task: Array) -> tuple[TabularState, Observation]:
        index = draw(key, model.start)
        return TabularState(index=index, turn=jnp.int32(0)), Observation(
            tokens=ids.observation[model.obs[index]][None], **no_reward()
        )

    def step(key: Array, state: TabularState, action: Array) -> tuple[TabularState, Observation]:
        a = jnp.clip(action[0] - FIRST_ACTION, 0, len(action_words) - 1)
        outcome = draw(key, model.prob[state.index, a])
        index, reward = model.next[state.index, a, outcome], model.reward[state.index, a, outcome]
        turn = state.turn + 1
        ended = model.terminal[index] | (turn >= model.horizon)
        q = q_star[state.turn, state.index]
        observation = Observation(
            tokens=jnp.where(ended, END, ids.observation[model.obs[index]])[None],
            reward=reward, true_reward=reward, proxy_reward=reward,
            terminated=ended, truncated=jnp.bool_(False), hack=jnp.int32(0),
            judge=jnp.where(q[a] >= jnp.max(q) - TIE, 1.0, -1.0),
        )  # fmt: skip
        return TabularState(index=index, turn=turn), observation

    def best(state: TabularState) -> Array:
        return jnp.argmax(q_star[state.turn, state.index]).astype(jnp.int32)

    def truth_of(state: TabularState) -> TurnTruth:
        q = q_star[state.turn, state.index]
        return TurnTruth(
            key_step=jnp.max(q) - jnp.min(q) > TIE,
            hint=ids.hint[best(state)][None],
            observation_key=ops.hash_tokens(model.obs[state.index][None]),
            state_key=ops.hash_tokens(jnp.stack([state.index, state.turn])),
        )

    def wrong_hint(key: Array, state: TabularState) -> Array:
        count = len(action_words)
        other = (best(state) + jax.random.randint(key, (), 1, max(count, 2), jnp.int32)) % count
        return ids.hint[other][None]

    def action_tokens() -> Array:
        return jnp.zeros(len(spec.vocabulary), bool).at[ids.action].set(True)

    return Env(
        spec=spec,
        params=(),
        sample_task=lambda key, params: jnp.int32(0),
        prompt=lambda task: jnp.full(1, START, jnp.int32),
        reset=reset,
        step=step,
        truth_of=truth_of,
        expert=lambda state: ids.action[best(state)][None],
        action_tokens=action_tokens,
        exact=model,
        wrong_hint=wrong_hint,
    )
