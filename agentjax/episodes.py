"""From per-turn arrays to records: the one place that knows how an episode is laid out in token slots.

    prompt | o_0 a_0 | o_1 a_1 | ... | o_{T-1} a_{T-1} | closing

Every turn has the same fixed slots (`EnvSpec.observation_at`, `action_at`). After n acted turns the closing observation
stands in the observation slots of turn n, and everything behind it is padding.
"""

from __future__ import annotations

import jax.numpy as jnp

from agentjax import ops
from agentjax.envs.base import EnvSpec, Observation, TurnTruth
from agentjax.types import ACTION, OBSERVATION, PAD, PROMPT, Array, Trajectory, Truth


def action_mask(actions: Array, end: int) -> Array:
    """bool[..., A]: the tokens of an action up to and including its first `end`; all of them if end is -1 or missing.

    With end = 9, [4, 9, 0, 9] gives [1, 1, 0, 0].
    """
    if end < 0:
        return jnp.ones(actions.shape, bool)
    ended = jnp.cumsum(actions == end, axis=-1, dtype=jnp.int32)
    return ended - (actions == end).astype(jnp.int32) == 0


def acted_turns(ended: Array) -> Array:
    """bool[B,T]: turns acted, given ended[B,T] (the step of that turn ended the episode): all up to the first end."""
    before = jnp.cumsum(ended, axis=1, dtype=jnp.int32) - ended.astype(jnp.int32)
    return before == 0


def lay_out(spec: EnvSpec, prompt: Array, observations: Array, actions: Array) -> Array:
    """[B,S] from prompt[B,P], observations[B,T+1,O] and actions[B,T,A] (tokens, roles, log-probabilities alike)."""
    rows, turns = actions.shape[:2]
    body = jnp.concatenate([observations[:, :-1], actions], axis=2)
    return jnp.concatenate([prompt, body.reshape(rows, turns * body.shape[2]), observations[:, -1]], axis=1)


def assemble(
    spec: EnvSpec,
    *,
    prompt: Array,
    observations: Observation,
    actions: Array,
    turn_truth: TurnTruth,
    turn_mask: Array,
    action_logp: Array | None = None,
    temperature: Array | None = None,
    policy_version: Array | None = None,
    group: Array | None = None,
    rollout: Array | None = None,
    parent: Array | None = None,
    branch_turn: Array | None = None,
) -> tuple[Trajectory, Truth]:
    """Records of B episodes from their per-turn arrays.

    prompt int32[B,P]; observations: leaves [B,T+1,...], entry t+1 holding the consequences of action t; actions
    int32[B,T,A]; turn_truth: leaves [B,T,...], taken before each action; turn_mask bool[B,T], a prefix of True (turns
    acted; see `acted_turns`). What the arrays hold off `turn_mask` is ignored: padding tokens, zeros elsewhere.
    Optional: action_logp float32[B,T,A] (0), temperature float32[B] (1), policy_version int32[B] (0), group (0) and
    rollout (own row) int32[B], parent and branch_turn int32[B] (-1).
    A row that has neither terminated nor been truncated by the environment after its turns is marked truncated.
    """
    rows, turns = actions.shape[:2]
    if turns != spec.turns:
        raise ValueError(f"actions hold {turns} turns, the slots of {spec.name} are laid out for {spec.turns}")
    seen = jnp.concatenate([jnp.ones((rows, 1), bool), turn_mask], axis=1)[..., None]  # [B,T+1,1]
    shown = seen & (observations.tokens != spec.pad)
    taken = turn_mask[..., None] & action_mask(actions, spec.end)

    def slots(of_prompt: Array, of_observations: Array, of_actions: Array) -> Array:
        return lay_out(spec, of_prompt, of_observations, of_actions)

    said = prompt != spec.pad
    role = slots(
        jnp.where(said, PROMPT, PAD), jnp.where(shown, OBSERVATION, PAD), jnp.where(taken, ACTION, PAD)
    ).astype(jnp.int8)
    tokens = slots(prompt, jnp.where(shown, observations.tokens, spec.pad), jnp.where(taken, actions, spec.pad)).astype(
        jnp.int32
    )
    index = jnp.arange(turns + 1, dtype=jnp.int32)[None, :, None]
    turn = slots(
        jnp.full(prompt.shape, -1, jnp.int32), jnp.where(shown, index, -1), jnp.where(taken, index[:, :-1], -1)
    )
    logp = jnp.zeros(actions.shape, jnp.float32) if action_logp is None else jnp.where(taken, action_logp, 0.0)
    version = jnp.zeros(rows, jnp.int32) if policy_version is None else policy_version
    ids = jnp.arange(rows, dtype=jnp.int32)
    terminated = jnp.any(turn_mask & observations.terminated[:, 1:], axis=1)
    trajectory = Trajectory(
        tokens=tokens,
        role=role,
        turn=turn,
        position=ops.positions(role != PAD),
        logp=slots(jnp.zeros(prompt.shape, jnp.float32), jnp.zeros(shown.shape, jnp.float32), logp.astype(jnp.float32)),
        policy_version=jnp.broadcast_to(version[:, None], tokens.shape),
        reward=_acted(observations.reward[:, 1:], turn_mask),
        turn_mask=turn_mask,
        observation_key=_acted(turn_truth.observation_key, turn_mask),
        state_key=_acted(turn_truth.state_key, turn_mask),
        terminated=terminated,
        truncated=~terminated,
        temperature=jnp.ones(rows, jnp.float32) if temperature is None else temperature,
        weight=jnp.ones(rows, jnp.float32),
        rollout=ids if rollout is None else rollout,
        group=jnp.zeros(rows, jnp.int32) if group is None else group,
        parent=jnp.full(rows, -1, jnp.int32) if parent is None else parent,
        branch_turn=jnp.full(rows, -1, jnp.int32) if branch_turn is None else branch_turn,
    )
    return trajectory, _truth(spec, observations, turn_truth, turn_mask)


def _truth(spec: EnvSpec, observations: Observation, turn_truth: TurnTruth, turn_mask: Array) -> Truth:
    rows, turns = turn_mask.shape
    hint = _acted(turn_truth.hint, turn_mask, spec.pad)
    at = spec.hint_at(jnp.arange(turns, dtype=jnp.int32))
    return Truth(
        judge=_acted(observations.judge[:, 1:], turn_mask),
        key_step=_acted(turn_truth.key_step, turn_mask),
        hint=hint,
        hint_mask=hint != spec.pad,
        hint_at=jnp.broadcast_to(at[None, :], (rows, turns)),
        true_reward=_acted(observations.true_reward[:, 1:], turn_mask),
        proxy_reward=_acted(observations.proxy_reward[:, 1:], turn_mask),
        hack=_acted(observations.hack[:, 1:], turn_mask),
    )


def _acted(x: Array, turn_mask: Array, fill: int = 0) -> Array:
    """x[B,T,...] on the turns acted, `fill` elsewhere, in the dtype of x."""
    mask = turn_mask.reshape(turn_mask.shape + (1,) * (x.ndim - 2))
    return jnp.where(mask, x, jnp.asarray(fill, x.dtype))
