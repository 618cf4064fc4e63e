"""A small environment with every feature, tiny policies, and a transformer in plain numpy to compare with.

`dial`: three turns. Each observation names a wanted letter; an action is up to three tokens, cut at <end>; its first
token decides. Observations and hints have different lengths, prompts too, and episodes may end early.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from agentjax import ops
from agentjax.envs.base import Env, EnvSpec, Observation, TurnTruth, no_reward
from agentjax.policies.transformer import TransformerConfig, transformer
from agentjax.rollout import rollout
from agentjax.types import ACTION, Array, Rollout, record

PAD, END, MARK, HINT, FIRST = range(5)
LETTERS = ("a", "b", "c", "d")
SPEC = EnvSpec(
    name="dial", vocabulary=("<pad>", "<end>", ">", "hint", *LETTERS), prompt_len=2, observation_len=3, action_len=3,
    hint_len=2, turns=3, end=END,
)  # fmt: skip
TINY = TransformerConfig(vocab=len(SPEC.vocabulary), layers=2, width=16, heads=4, kv_heads=2, ffn=24)


@record
class DialParams:
    stop: Array  # float32, probability that a turn ends the episode
    extra: Array  # float32, probability that an observation holds a random letter
    detail: Array  # float32, size of a reward that depends on every token of the action


@record
class DialTask:
    wanted: Array  # int32[T+1], letters
    params: DialParams


@record
class DialState:
    task: DialTask
    turn: Array  # int32[]
    extra: Array  # int32[], a letter that the environment drew, or PAD


def dial(stop: float = 0.2, extra: float = 0.5, detail: float = 0.0) -> Env:
    """The environment: reward 1 where the first token is the wanted letter."""

    def sample_task(key: Array, params: DialParams) -> DialTask:
        return DialTask(wanted=jax.random.randint(key, (4,), FIRST, FIRST + 4, jnp.int32), params=params)

    def observe(state: DialState) -> Array:
        return jnp.stack([state.extra, state.task.wanted[state.turn], jnp.int32(MARK)])

    def reset(key: Array, task: DialTask) -> tuple[DialState, Observation]:
        del key
        state = DialState(task=task, turn=jnp.int32(0), extra=jnp.int32(PAD))
        return state, Observation(tokens=observe(state), **no_reward())

    def step(key: Array, state: DialState, action: Array) -> tuple[DialState, Observation]:
        dice = jax.random.uniform(key, (3,))
        right = (action[0] == state.task.wanted[state.turn]).astype(jnp.float32)
        words = jnp.sum(action.astype(jnp.float32) * jnp.array([1 / 8, 1 / 64, 1 / 512]))
        reward = right + state.task.params.detail * words
        letter = jnp.where(dice[0] < state.task.params.extra, FIRST + (dice[2] * 4).astype(jnp.int32), PAD)
        state = DialState(task=state.task, turn=state.turn + 1, extra=letter)
        over = state.turn >= SPEC.turns
        return state, Observation(
            tokens=observe(state), reward=reward, true_reward=reward, proxy_reward=reward, hack=jnp.int32(0),
            terminated=over, truncated=~over & (dice[1] < state.task.params.stop), judge=2 * right - 1,
        )  # fmt: skip

    def truth_of(state: DialState) -> TurnTruth:
        wanted = state.task.wanted[state.turn]
        short = jnp.stack([wanted, jnp.int32(PAD)])
        return TurnTruth(
            key_step=jnp.bool_(True),
            hint=jnp.where(wanted % 2 == 0, short, jnp.stack([jnp.int32(HINT), wanted])),
            observation_key=ops.hash_tokens(observe(state)),
            state_key=ops.hash_tokens(jnp.append(observe(state), state.turn)),
        )

    def wrong_hint(key: Array, state: DialState) -> Array:
        shift = jax.random.randint(key, (), 1, 4, jnp.int32)
        return jnp.stack([jnp.int32(HINT), FIRST + (state.task.wanted[state.turn] - FIRST + shift) % 4])

    return Env(
        spec=SPEC,
        params=DialParams(stop=jnp.float32(stop), extra=jnp.float32(extra), detail=jnp.float32(detail)),
        sample_task=sample_task,
        prompt=lambda task: jnp.stack([jnp.where(task.wanted[3] % 2 == 0, PAD, task.wanted[3]), jnp.int32(MARK)]),
        reset=reset,
        step=step,
        truth_of=truth_of,
        expert=lambda state: jnp.stack([state.task.wanted[state.turn], jnp.int32(END), jnp.int32(PAD)]),
        wrong_hint=wrong_hint,
    )


@functools.cache
def tiny():
    """(policy, params) of a random transformer of width 16, its weights enlarged so that context matters."""
    policy = transformer(TINY)
    return policy, jax.tree.map(lambda x: 1.4 * x, policy.init(jax.random.key(11)))


@functools.cache
def played() -> Rollout:
    """Eight episodes of `dial` by `tiny`, four tasks, some that end early, at temperature .8."""
    policy, params = tiny()
    env = dial()
    play = jax.jit(lambda key: rollout(key, policy, params, env, env.params, groups=4, size=2, temperature=0.8))
    return play(jax.random.key(1))


def numpy_logits(params, tokens, config: TransformerConfig = TINY) -> np.ndarray:
    """float64[n,V]: logits after every token of one sequence without padding, written from the architecture's text."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    n, d = len(tokens), config.head
    angle = np.arange(n)[:, None] * config.rope_base ** (-np.arange(d // 2) / (d // 2))

    def norm(x, scale):
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + config.norm_eps) * scale

    def turned(x):  # [n, heads, d], every pair (i, i + d/2) rotated by its angle
        z = (x[..., : d // 2] + 1j * x[..., d // 2 :]) * np.exp(1j * angle)[:, None]
        return np.concatenate([z.real, z.imag], axis=-1)

    x = p["embed"][np.asarray(tokens)]
    for block in p["blocks"].values():
        h = norm(x, block["attn_norm"]["scale"])
        q = turned((h @ block["q"]["kernel"]).reshape(n, config.heads, d))
        k = turned((h @ block["k"]["kernel"]).reshape(n, config.kv_heads, d))
        v = (h @ block["v"]["kernel"]).reshape(n, config.kv_heads, d)
        heads = []
        for i in range(config.heads):
            j = i // (config.heads // config.kv_heads)
            score = np.where(np.tri(n, dtype=bool), q[:, i] @ k[:, j].T / np.sqrt(d), -np.inf)
            weight = np.exp(score - score.max(axis=1, keepdims=True))
            heads.append(weight / weight.sum(axis=1, keepdims=True) @ v[:, j])
        x = x + np.concatenate(heads, axis=1) @ block["o"]["kernel"]
        h = norm(x, block["ffn_norm"]["scale"])
        gate = h @ block["gate"]["kernel"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ block["up"]["kernel"])) @ block["down"]["kernel"]
    head = p["embed"].T if config.tie_embeddings else p["head"]
    return norm(x, p["norm"]["scale"]) @ head


def numpy_logp(params, tokens, temperature: float = 1.0) -> np.ndarray:
    """float64[n]: log-probability of every token given those before it; 0 for the first."""
    logits = numpy_logits(params, tokens)[:-1] / temperature
    logp = logits - logits.max(axis=1, keepdims=True)
    logp -= np.log(np.exp(logp).sum(axis=1, keepdims=True))
    return np.append(0.0, logp[np.arange(len(tokens) - 1), np.asarray(tokens)[1:]])


def exact_hinted_logp(params, trajectory, hint, hint_mask, hint_at) -> np.ndarray:
    """float64[B,S]: every action token scored in its own unpadded sequence: history | hint | tail | action."""
    tr = jax.tree.map(np.asarray, trajectory)
    hint, hint_mask, hint_at = (np.asarray(x) for x in (hint, hint_mask, hint_at))
    out = np.zeros(tr.tokens.shape)
    for b, t in zip(*np.nonzero(tr.turn_mask), strict=True):
        slots = np.flatnonzero(tr.role[b] > 0)
        history = slots[slots < hint_at[b, t]]
        tail = slots[(slots >= hint_at[b, t]) & (tr.turn[b, slots] == t)]
        whole = np.concatenate([tr.tokens[b, history], hint[b, t][hint_mask[b, t]], tr.tokens[b, tail]])
        logp = numpy_logp(params, whole, float(tr.temperature[b]))[-len(tail) :]
        said = tr.role[b, tail] == ACTION
        out[b, tail[said]] = logp[said]
    return out
