"""Demonstrations: episodes played by a function of the state, in the same records and slots as `rollout`.

    rollout = play(key, env, act, params, batch)         act(key, state) -> int32[A]
    demos = demonstrate(key, env, quality, params, batch)

Everything is pure; jit with `env`, `act` and `batch` fixed, and one compilation serves all difficulties of a size. A
warm start trains on `rollout.trajectory` (plain: every action of the demonstrator) and on the branches
(prefix, `truth.hint` at `truth.hint_at`, tail, `gold`): what to do once told, also in the middle of a failing episode.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from agentjax import episodes
from agentjax.envs.base import Env
from agentjax.types import Array, PyTree, Rollout, record


@record
class Demonstrations:
    rollout: Rollout
    gold: Array  # int32[B,T,A], what the expert would have done in each state, in random words


def play(key: Array, env: Env, act: Callable[[Array, PyTree], Array], params: PyTree, batch: int) -> Rollout:
    """`batch` episodes of fresh tasks (each its own group) in which turn t's action is act(fold_in(key_b, t), state).

    The environment's randomness of turn t is fold_in(env_key, t), as in `rollout`. logp is 0, there is no cache.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    task_keys, reset_keys, env_keys, act_keys = jax.random.split(key, (4, batch))
    turns = jnp.arange(env.spec.turns, dtype=jnp.int32)

    def episode(task_key: Array, reset_key: Array, env_key: Array, act_key: Array) -> tuple:
        task = env.sample_task(task_key, params)
        state, first = env.reset(reset_key, task)

        def turn(state: PyTree, t: Array) -> tuple[PyTree, tuple]:
            action = act(jax.random.fold_in(act_key, t), state)
            after, observation = env.step(jax.random.fold_in(env_key, t), state, action)
            return after, (state, env.truth_of(state), action, observation)

        final, (states, truth, actions, observations) = jax.lax.scan(turn, state, turns)
        states = jax.tree.map(lambda xs, x: jnp.concatenate([xs, x[None]]), states, final)
        observations = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), first, observations)
        return env.prompt(task), states, truth, actions, observations

    prompt, states, turn_truth, actions, observations = jax.vmap(episode)(task_keys, reset_keys, env_keys, act_keys)
    ended = observations.terminated | observations.truncated
    trajectory, truth = episodes.assemble(
        env.spec,
        prompt=prompt,
        observations=observations,
        actions=actions,
        turn_truth=turn_truth,
        turn_mask=episodes.acted_turns(ended[:, 1:]),
        group=jnp.arange(batch, dtype=jnp.int32),
    )
    return Rollout(trajectory=trajectory, truth=truth, env_states=states, env_key=env_keys)


def demonstrate(key: Array, env: Env, quality: Array | float, params: PyTree, batch: int) -> Demonstrations:
    """Episodes of the noisy demonstrator, with the expert's action beside each turn's.

    quality in [0, 1]: probability of the right action where it matters (`env.quality_for` gives the one for a success
    rate). Raises ValueError for environments without `noisy` and `paraphrase`.
    """
    noisy, paraphrase = env.noisy, env.paraphrase
    if noisy is None or paraphrase is None:
        raise ValueError(
            f"{env.spec.name} has no demonstrator: it lacks `noisy` or `paraphrase`; use play with env.expert"
        )
    play_key, say_key = jax.random.split(key)
    quality = jnp.asarray(quality, jnp.float32)
    rollout = play(play_key, env, lambda k, state: noisy(k, state, quality), params, batch)
    states = jax.tree.map(lambda x: x[:, :-1], rollout.env_states)
    keys = jax.random.split(say_key, (batch, env.spec.turns))
    gold = jax.vmap(jax.vmap(lambda k, state: paraphrase(k, env.expert(state))))(keys, states)
    return Demonstrations(rollout=rollout, gold=gold)


def expert_act(env: Env) -> Callable[[Array, PyTree], Array]:
    """The expert for `play`, in random words where the environment has them."""
    if env.paraphrase is None:
        return lambda key, state: env.expert(state)
    paraphrase = env.paraphrase
    return lambda key, state: paraphrase(key, env.expert(state))


def random_act(env: Env) -> Callable[[Array, PyTree], Array]:
    """Uniform tokens among those that an action may hold, for `play`; padded behind the first end token."""
    size, end = len(env.spec.vocabulary), env.spec.end
    allowed = jnp.ones(size, bool) if env.action_tokens is None else jnp.asarray(env.action_tokens())

    def act(key: Array, state: PyTree) -> Array:
        del state
        tokens = jax.random.categorical(key, jnp.where(allowed, 0.0, -jnp.inf), shape=(env.spec.action_len,))
        return jnp.where(episodes.action_mask(tokens, end), tokens, env.spec.pad).astype(jnp.int32)

    return act
