"""The environment contract: pure functions on one episode, plus a static spec. Batch with vmap.

    task = env.sample_task(key, params)         one problem; difficulty as arrays: one compilation serves all of a size
    state, obs = env.reset(key, task)           obs is o_0
    state, obs = env.step(key, state, action)   action int32[A], spec.pad after its end token; obs is o_{t+1}
    action = env.expert(state)                  int32[A], what a perfect agent does in this state

`obs.tokens` is what the policy sees next; `obs.reward`, `terminated`, `truncated` and the rest of the record belong to
the action just taken, and are 0 / False after reset. `truth_of(state)` describes the turn that is about to be acted.
After an episode has ended `rollout` ignores what `step` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from agentjax.types import Array, PyTree, record


@record
class Observation:
    """o_t together with the consequences of a_{t-1}; every field describes one episode."""

    tokens: Array  # int32[O], padding first, so that the last slot is always the last token of the message
    reward: Array  # float32[], for the action just taken: the reward that training sees
    terminated: Array  # bool[]
    truncated: Array  # bool[]
    judge: Array  # float32[], J1 without noise of the action just taken, in {-1, 0, 1}
    true_reward: Array  # float32[]
    proxy_reward: Array  # float32[]
    hack: Array  # int32[], 0: none


@record
class TurnTruth:
    """What the environment knows about the turn that is about to be acted."""

    key_step: Array  # bool[], the outcome hangs on this turn
    hint: Array  # int32[H], the gold hint for this turn, padded with spec.pad
    observation_key: Array  # uint32[2]
    state_key: Array  # uint32[2]


class EnvSpec(NamedTuple):
    """Static sizes and words."""

    name: str
    vocabulary: tuple[str, ...]  # readable words; index = token id
    prompt_len: int  # P, slots of the prompt
    observation_len: int  # O
    action_len: int  # A
    hint_len: int  # H
    turns: int  # T, the most turns an episode can have
    tail_len: int = 1  # observation tokens after the hint's place (the template's tail, e.g. the marker "act now")
    end: int = -1  # token that ends an action; -1: actions always fill their slots
    pad: int = 0
    labels: tuple[str, ...] = ()  # what a transcript writes before each of the O observation words, () for nothing

    @property
    def slots(self) -> int:
        """S: prompt, T observations and actions, and the closing observation."""
        return self.prompt_len + self.turns * (self.observation_len + self.action_len) + self.observation_len

    def observation_at(self, turn: Any) -> Any:
        """First slot of the observation of `turn`."""
        return self.prompt_len + turn * (self.observation_len + self.action_len)

    def action_at(self, turn: Any) -> Any:
        """First slot of the action of `turn`."""
        return self.observation_at(turn) + self.observation_len

    def hint_at(self, turn: Any) -> Any:
        """Slot before which the hint of `turn` goes."""
        return self.action_at(turn) - self.tail_len


class Env(NamedTuple):
    """An environment: a static spec, default parameters and pure functions (see the module docstring)."""

    spec: EnvSpec
    params: PyTree  # default difficulty, traced
    sample_task: Callable[[Array, PyTree], PyTree]
    prompt: Callable[[PyTree], Array]  # task -> int32[P], padding first
    reset: Callable[[Array, PyTree], tuple[PyTree, Observation]]
    step: Callable[[Array, PyTree, Array], tuple[PyTree, Observation]]
    truth_of: Callable[[PyTree], TurnTruth]
    expert: Callable[[PyTree], Array]
    action_tokens: Callable[[], Any] | None = None  # bool[V] of ids an action may hold, None: any
    exact: PyTree | None = None  # oracle.exact.TabularModel when the task can be enumerated
    paraphrase: Callable[[Array, Array], Array] | None = None  # (key, action) -> the same act in random words
    noisy: Callable[[Array, PyTree, Array], Array] | None = None  # (key, state, quality in [0, 1]) -> action
    wrong_hint: Callable[[Array, PyTree], Array] | None = None  # (key, state) -> int32[H], never the gold hint
    quality_for: Callable[[Any, PyTree], Array] | None = None  # (success, params) -> quality at which `noisy` has it


def no_reward() -> dict[str, Array]:
    """The fields of Observation after reset."""
    import jax.numpy as jnp

    zero, false = jnp.float32(0), jnp.bool_(False)
    return dict(
        reward=zero,
        terminated=false,
        truncated=false,
        judge=zero,
        true_reward=zero,
        proxy_reward=zero,
        hack=jnp.int32(0),
    )
