"""A task is a prompt, an episode is one reply: how chat with a real language model becomes an Env.

    prompt | template tail | reply | (nothing)

The prompt is the conversation up to the end of the user's last words; the tail (what the chat template puts between
them and the reply) is the only observation, so that a hint's place is the end of the user's message. `step` ends the
episode with reward 0: what a text is worth is judged on text, outside jit, after `rollout`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentjax.envs.base import Env, EnvSpec, Observation, TurnTruth, no_reward
from agentjax.types import Array, record


@record
class Question:
    """One prompt and the hint that its user would give; leaves of a table have a leading axis."""

    index: Array  # int32[], equal: same prompt
    prompt: Array  # int32[P], padding first
    hint: Array  # int32[H], padding anywhere


def one_reply(table: Question, tail: tuple[int, ...], *, action_len: int, end: int, pad: int) -> Env:
    """The environment of a table of questions; `sample_task` draws one of them.

    tail: the template's tokens between the user's words and the reply; `end` ends a reply; `pad` must be an id that no
    prompt, hint or tail holds, or ValueError.
    """
    if not tail or pad in tail or pad == end:
        raise ValueError(f"the tail must hold a token and pad {pad} must differ from it and from end {end}, got {tail}")
    shown = jnp.asarray(tail, jnp.int32)
    spec = EnvSpec(
        name="one_reply", vocabulary=(), prompt_len=table.prompt.shape[1], observation_len=len(tail),
        tail_len=len(tail), action_len=action_len, hint_len=table.hint.shape[1], turns=1, end=end, pad=pad,
    )  # fmt: skip

    def sample_task(key: Array, table: Question) -> Question:
        at = jax.random.randint(key, (), 0, table.prompt.shape[0])
        return jax.tree.map(lambda x: x[at], table)

    def reset(key: Array, task: Question) -> tuple[Question, Observation]:
        return task, Observation(tokens=shown, **no_reward())

    def step(key: Array, state: Question, action: Array) -> tuple[Question, Observation]:
        over = no_reward() | {"terminated": jnp.bool_(True)}
        return state, Observation(tokens=jnp.full(shown.shape, pad, jnp.int32), **over)

    def truth_of(state: Question) -> TurnTruth:
        key = jnp.stack([jnp.uint32(0), state.index.astype(jnp.uint32)])
        return TurnTruth(key_step=jnp.bool_(True), hint=state.hint, observation_key=key, state_key=key)

    def expert(state: Question) -> Array:
        raise ValueError("one_reply has no expert: nobody wrote the right reply down")

    return Env(
        spec=spec, params=table, sample_task=sample_task, prompt=lambda task: task.prompt, reset=reset, step=step,
        truth_of=truth_of, expert=expert,
    )  # fmt: skip
