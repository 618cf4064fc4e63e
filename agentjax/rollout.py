"""Whole multi-turn episodes inside one jit: prefill, decode, parse, step, observe; and branches off finished ones.

    rollout(key, policy, params, env, env_params, groups=8, size=8)      a batch of Trajectory + Truth + states + cache
    branch(key, policy, params, env, played, turn, kept)                 returns of fresh continuations from any token

Random numbers: the environment's randomness of turn t is `fold_in(env_key, t)`, the policy's token noise of slot j in
turn t is `fold_in(fold_in(key, t), j)`, one draw per row. Branches off one row share both (common random numbers).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentjax import episodes
from agentjax.envs.base import Env, EnvSpec, Observation
from agentjax.policies.base import Policy, log_softmax
from agentjax.types import Array, Cache, PyTree, Rollout


def rollout(
    key: Array,
    policy: Policy,
    params: PyTree,
    env: Env,
    env_params: PyTree,
    *,
    groups: int,
    size: int,
    temperature: Array | float = 1.0,
    hinted: bool = False,
    version: Array | int = 0,
    tasks: PyTree | None = None,
) -> Rollout:
    """Plays `groups` tasks, `size` episodes each; row b belongs to group b // size. Jit it with env and policy fixed.

    `key` is consumed. `temperature` > 0 scales the logits (0 is refused; take a small one for nearly greedy play). With
    `hinted` the policy chooses each action with that turn's gold hint in front of it, while its history stays plain:
    the context of the hindsight teacher, used to measure what hints are worth. `tasks` (leaves [groups,...]) are played
    instead of drawn ones: a fixed panel.
    """
    if groups < 1 or size < 1:
        raise ValueError(f"groups and size must be at least 1, got {groups} and {size}")
    if isinstance(temperature, (int, float)) and temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}; take a small one for greedy play")
    task_key, reset_key, env_key, policy_key = jax.random.split(key, 4)
    if tasks is None:
        tasks = jax.vmap(env.sample_task, (0, None))(jax.random.split(task_key, groups), env_params)
    tasks = jax.tree.map(lambda x: jnp.repeat(x, size, axis=0), tasks)
    rows = groups * size
    prompt = jax.vmap(env.prompt)(tasks)
    states, first = jax.vmap(env.reset)(jax.random.split(reset_key, rows), tasks)
    env_keys = jax.random.split(env_key, rows)
    played = _play(policy_key, policy, params, env, prompt, states, first, env_keys, jnp.float32(temperature), hinted)
    ids = jnp.arange(rows, dtype=jnp.int32)
    trajectory, truth = episodes.assemble(
        env.spec,
        prompt=prompt,
        observations=played["observations"],
        actions=played["actions"],
        turn_truth=played["truth"],
        turn_mask=played["alive"],
        action_logp=played["logp"],
        temperature=jnp.full(rows, temperature, jnp.float32),
        policy_version=jnp.full(rows, version, jnp.int32),
        group=ids // size,
        rollout=ids,
    )
    return Rollout(
        trajectory=trajectory, truth=truth, env_states=played["states"], env_key=env_keys, cache=played["cache"]
    )


def _play(
    key: Array,
    policy: Policy,
    params: PyTree,
    env: Env,
    prompt: Array,
    states: PyTree,
    first: Observation,
    env_keys: Array,
    temperature: Array,
    hinted: bool,
) -> dict[str, Any]:
    spec, rows = env.spec, prompt.shape[0]
    cache = policy.empty_cache(rows, spec.slots)
    said = prompt != spec.pad
    count = jnp.cumsum(said, axis=1, dtype=jnp.int32)
    _, cache = policy.decode(params, None, None, cache, jnp.int32(0), prompt, said, jnp.maximum(count - 1, 0))

    def turn(carry: tuple, t: Array) -> tuple[tuple, dict[str, Any]]:
        cache, count, last, states, obs, alive = carry
        truth = jax.vmap(env.truth_of)(states)
        hidden, cache, count = _observe(
            policy, params, None, None, cache, spec.observation_at(t), last, obs.tokens, alive, count, spec
        )
        draw = _noise(jax.random.fold_in(key, t), rows, policy.vocab)
        start = spec.action_at(t)
        if hinted:
            action, logp = _act_hinted(
                draw, policy, params, cache, t, truth.hint, obs.tokens, alive, count, temperature, spec
            )
            taken = alive[:, None] & episodes.action_mask(action, spec.end)
            position = count[:, None] + jnp.cumsum(taken, axis=1, dtype=jnp.int32) - 1
            _, cache = policy.decode(params, None, None, cache, start, action, taken, jnp.maximum(position, 0))
        else:
            write = lambda c, slot, tok, ok, pos: policy.decode(params, None, None, c, start + slot, tok, ok, pos)  # noqa: E731
            action, logp, cache = _act(draw, policy, params, write, cache, hidden, alive, count, temperature, spec)
            taken = alive[:, None] & episodes.action_mask(action, spec.end)
        count += taken.sum(axis=1, dtype=jnp.int32)
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(env_keys, t)
        after, following = jax.vmap(env.step)(step_keys, states, action)
        out = dict(observations=following, actions=action, logp=logp, truth=truth, alive=alive, states=states)
        alive &= ~(following.terminated | following.truncated)
        return (cache, count, (action[:, -1], taken[:, -1]), after, following, alive), out

    last = (prompt[:, -1], said[:, -1])
    carry = (cache, count[:, -1], last, states, first, jnp.ones(rows, bool))
    (cache, count, last, final, obs, alive), out = jax.lax.scan(turn, carry, jnp.arange(spec.turns, dtype=jnp.int32))
    # an episode that ended early closes with its last observation; one that used every turn closes here
    _, cache, _ = _observe(
        policy,
        params,
        None,
        None,
        cache,
        spec.observation_at(spec.turns),
        last,
        obs.tokens,
        out["alive"][-1],
        count,
        spec,
    )
    batch_first = lambda tree: jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), tree)  # noqa: E731
    out = {name: batch_first(value) for name, value in out.items()}
    join = lambda a, b: jnp.concatenate([a[:, None], b], axis=1)  # noqa: E731
    out["observations"] = jax.tree.map(join, first, out["observations"])
    out["states"] = jax.tree.map(lambda s, f: jnp.concatenate([s, f[:, None]], axis=1), out["states"], final)
    return out | {"cache": cache}


def _noise(key: Array, rows: int, vocab: int) -> Callable[[Array], Array]:
    """Gumbel noise of a turn: slot -> [rows, vocab]."""
    return lambda slot: jax.random.gumbel(jax.random.fold_in(key, slot), (rows, vocab))


def _observe(
    policy: Policy,
    params: PyTree,
    prefix: Cache | None,
    cut: Array | None,
    cache: Cache,
    at: Array,
    last: tuple[Array, Array],
    tokens: Array,
    alive: Array,
    count: Array,
    spec: EnvSpec,
) -> tuple[Array, Cache, Array]:
    """Reads the slot before `at` (the previous action's last, not yet decoded) and an observation. Returns the last
    hidden.

    `count` is how many tokens stand before the observation, the slot before `at` included.
    """
    seen = alive[:, None] & (tokens != spec.pad)
    position = jnp.concatenate(
        [count[:, None] - 1, count[:, None] - 1 + jnp.cumsum(seen, axis=1, dtype=jnp.int32)], axis=1
    )
    hidden, cache = policy.decode(
        params,
        prefix,
        cut,
        cache,
        at - 1,
        jnp.concatenate([last[0][:, None], tokens], axis=1),
        jnp.concatenate([last[1][:, None], seen], axis=1),
        jnp.maximum(position, 0),
    )
    return hidden[:, -1], cache, count + seen.sum(axis=1, dtype=jnp.int32)


def _act(
    draw: Callable[[Array], Array],
    policy: Policy,
    params: PyTree,
    write: Any,
    cache: Cache,
    hidden: Array,
    alive: Array,
    count: Array,
    temperature: Array,
    spec: EnvSpec,
) -> tuple[Array, Array, Cache]:
    """Samples an action slot by slot; `write(cache, slot, token, valid, position)` decodes one. The last is left
    undecoded."""

    def sample(slot: Array, hidden: Array, done: Array) -> tuple[Array, Array, Array]:
        logp = log_softmax(policy.logits(params, hidden), jnp.full(hidden.shape[:1], temperature))
        token = jnp.argmax(logp + draw(slot), axis=-1).astype(jnp.int32)
        taken = jnp.take_along_axis(logp, token[:, None], axis=-1)[:, 0]
        ended = done | (token == spec.end)
        return jnp.where(done, spec.pad, token), jnp.where(done, 0.0, taken), ended

    def slot_step(carry: tuple, slot: Array) -> tuple[tuple, tuple[Array, Array]]:
        cache, hidden, done = carry
        token, logp, ended = sample(slot, hidden, done)
        new, cache = write(cache, slot, token[:, None], ~done[:, None], (count + slot)[:, None])
        return (cache, new[:, 0], ended), (token, logp)

    last = spec.action_len - 1
    carry = (cache, hidden, ~alive)
    (cache, hidden, done), (tokens, logps) = jax.lax.scan(slot_step, carry, jnp.arange(last, dtype=jnp.int32))
    token, logp, _ = sample(jnp.int32(last), hidden, done)
    action = jnp.concatenate([tokens, token[None]], axis=0).T
    return action, jnp.concatenate([logps, logp[None]], axis=0).T, cache


def _act_hinted(
    draw: Callable[[Array], Array],
    policy: Policy,
    params: PyTree,
    cache: Cache,
    t: Array,
    hint: Array,
    observation: Array,
    alive: Array,
    count: Array,
    temperature: Array,
    spec: EnvSpec,
) -> tuple[Array, Array]:
    """Samples the action of turn t in the context prefix + hint + tail, in a scratch suffix that is thrown away."""
    rows = hint.shape[0]
    lead = spec.hint_len + spec.tail_len
    cut = jnp.full((rows, 1), spec.hint_at(t))
    scratch = policy.empty_cache(rows, lead + spec.action_len)
    tail = observation[:, spec.observation_len - spec.tail_len :]
    tokens = jnp.concatenate([hint, tail], axis=1)
    said = alive[:, None] & (tokens != spec.pad)
    before = count - (alive[:, None] & (tail != spec.pad)).sum(axis=1, dtype=jnp.int32)
    position = before[:, None] + jnp.cumsum(said, axis=1, dtype=jnp.int32) - 1
    hidden, scratch = policy.decode(params, cache, cut, scratch, jnp.int32(0), tokens, said, jnp.maximum(position, 0))
    write = lambda c, slot, tok, ok, pos: policy.decode(params, cache, cut, c, lead + slot, tok, ok, pos)  # noqa: E731
    action, logp, _ = _act(
        draw,
        policy,
        params,
        write,
        scratch,
        hidden[:, -1],
        alive,
        before + said.sum(axis=1, dtype=jnp.int32),
        temperature,
        spec,
    )
    return action, logp


def branch(
    key: Array,
    policy: Policy,
    params: PyTree,
    env: Env,
    played: Rollout,
    turn: Array,
    kept: Array,
    *,
    expert_epsilon: float = 0.0,
) -> tuple[Array, Array]:
    """One fresh continuation of every row from M places inside one turn: (return [B,M], weight [B,M]).

    Continuation m keeps the first kept[m] slots of the action of `turn` (int32[M], 0..A: 0 is before the action, A
    after all of it) and everything earlier, then samples to the end of the episode; its return is the sum of rewards
    from `turn` on. Both are 0 for rows that did not act in `turn`. `turn` may be traced: one compilation serves all
    turns, and only the remaining turns are played. The rollout's cache is shared and only read; a branch owns its
    suffix.

    The M branches of a row share all random numbers (environment and tokens). `key` is consumed.

    expert_epsilon 0: continuations come from the policy, weight 1. expert_epsilon e > 0, the defensive mixture: each
    row draws, with probability one half, its whole continuation from a softened expert, which at every token takes the
    expert's token with probability 1 - e and the policy's otherwise (the policy's alone once off the expert's path in
    a turn); weight = pi / (pi / 2 + expert / 2) of the continuation, at most 2. mean(weight * return) is unbiased.
    """
    spec, trajectory = env.spec, played.trajectory
    shape = (trajectory.tokens.shape[0], kept.shape[0])
    b, place = _branches(key, policy, params, env, played, turn, kept, expert_epsilon)
    at_turn = lambda x: _repeat(jax.lax.dynamic_index_in_dim(x, turn, 1, keepdims=False), shape[1])  # noqa: E731
    states, alive = jax.tree.map(at_turn, played.env_states), at_turn(trajectory.turn_mask)
    taken = jax.lax.dynamic_slice_in_dim(trajectory.tokens, spec.action_at(turn), spec.action_len, axis=1)
    taken = _repeat(taken, shape[1])
    per_turn = spec.observation_len + spec.action_len
    cache = policy.empty_cache(shape[0] * shape[1], 1 + spec.action_len + (spec.turns - 1) * per_turn)

    # the token before the place is read again, for its hidden state
    row, slot = jnp.arange(shape[0] * shape[1]) // shape[1], spec.action_at(turn) - 1 + place
    token, there, position = (x[row, slot] for x in (trajectory.tokens, trajectory.valid, trajectory.position))
    hidden, cache = policy.decode(
        params, b.prefix, b.cut, cache, jnp.int32(0), token[:, None], there[:, None], position[:, None]
    )
    early = jnp.any((taken == spec.end) & (jnp.arange(spec.action_len)[None, :] < place[:, None]), axis=1)
    cache, count, action, ratio = _finish_action(
        b, cache, hidden[:, 0], ~alive | early, position + 1, turn, jnp.int32(1), states, taken, place
    )
    states, obs, still, total = _advance(b, states, action, turn, alive, jnp.zeros(place.shape))

    def later(offset: Array, carry: tuple) -> tuple:
        cache, count, states, obs, alive, total, ratio = carry
        base = 1 + spec.action_len + (offset - 1) * per_turn
        seen = alive[:, None] & (obs.tokens != spec.pad)
        position = count[:, None] + jnp.cumsum(seen, axis=1, dtype=jnp.int32) - 1
        hidden, cache = policy.decode(params, b.prefix, b.cut, cache, base, obs.tokens, seen, jnp.maximum(position, 0))
        count += seen.sum(axis=1, dtype=jnp.int32)
        cache, count, action, more = _finish_action(
            b,
            cache,
            hidden[:, -1],
            ~alive,
            count,
            turn + offset,
            base + spec.observation_len,
            states,
            taken,
            jnp.zeros_like(place),
        )
        states, obs, still, total = _advance(b, states, action, turn + offset, alive, total)
        return cache, count, states, obs, still, total, ratio + more

    carry = (cache, count, states, obs, still, total, ratio)
    *_, total, ratio = jax.lax.fori_loop(1, spec.turns - turn, later, carry)
    weight = 1.0 / (0.5 + 0.5 * jnp.exp(jnp.clip(ratio, -60.0, 60.0))) if expert_epsilon > 0 else jnp.ones(place.shape)
    return jnp.where(alive, total, 0.0).reshape(shape), jnp.where(alive, weight, 0.0).reshape(shape)


class _Branches(NamedTuple):
    """What every step of a batch of branches shares; N = B * M branches, those of a row side by side."""

    policy: Policy
    params: PyTree
    env: Env
    prefix: Cache
    cut: Array  # int32[B,M], prefix slots that a branch sees
    env_keys: Array  # key[N], equal within a row
    token_key: Array
    temperature: Array  # float32[N]
    from_expert: Array  # bool[N], the continuation is drawn from the softened expert
    expert_epsilon: float


def _repeat(x: Array, times: int) -> Array:
    return jnp.repeat(x, times, axis=0)


def _branches(
    key: Array, policy: Policy, params: PyTree, env: Env, played: Rollout, turn: Array, kept: Array, epsilon: float
) -> tuple[_Branches, Array]:
    """The shared part, and how many action slots each branch keeps, int32[N]."""
    rows, branches = played.trajectory.tokens.shape[0], kept.shape[0]
    env_key, token_key, coin_key = jax.random.split(key, 3)
    coin = jax.random.bernoulli(coin_key, 0.5, (rows,)) & (epsilon > 0)
    cut = jnp.broadcast_to((env.spec.action_at(turn) + kept - 1)[None, :], (rows, branches))
    shared = _Branches(
        policy=policy, params=params, env=env, prefix=played.cache, cut=cut,
        env_keys=_repeat(jax.random.split(env_key, rows), branches), token_key=token_key,
        temperature=_repeat(played.trajectory.temperature, branches), from_expert=_repeat(coin, branches),
        expert_epsilon=epsilon,
    )  # fmt: skip
    return shared, jnp.tile(kept, rows)


def _choose(b: _Branches, hidden: Array, draw: Array, wanted: Array, on_path: Array) -> tuple[Array, Array, Array]:
    """A token of each branch, log(expert / policy) of it, and whether the branch still follows the expert."""
    logp = log_softmax(b.policy.logits(b.params, hidden), b.temperature)
    if b.expert_epsilon == 0:
        return jnp.argmax(logp + draw, axis=-1).astype(jnp.int32), jnp.zeros(wanted.shape), on_path
    soft = jnp.log(b.expert_epsilon) + logp
    is_wanted = jnp.arange(b.policy.vocab)[None, :] == wanted[:, None]
    soft = jnp.where(is_wanted, jnp.logaddexp(jnp.log1p(-b.expert_epsilon), soft), soft)
    soft = jnp.where(on_path[:, None], soft, logp)
    token = jnp.argmax(jnp.where(b.from_expert[:, None], soft, logp) + draw, axis=-1).astype(jnp.int32)
    ratio = jnp.take_along_axis(soft - logp, token[:, None], axis=-1)[:, 0]
    return token, ratio, on_path & (token == wanted)


def _finish_action(
    b: _Branches,
    cache: Cache,
    hidden: Array,
    done: Array,
    count: Array,
    t: Array,
    base: Array,
    states: PyTree,
    taken: Array,
    place: Array,
) -> tuple[Cache, Array, Array, Array]:
    """Slots 0..A-1 of the action of turn t, from suffix slot `base`; slots below `place` are those of `taken`.

    Returns the cache, the token count, the action [N,A] and log(expert / policy) of what was sampled.
    """
    spec, rows = b.env.spec, b.cut.shape[0]
    wanted = jax.vmap(b.env.expert)(states)
    noise = _noise(jax.random.fold_in(b.token_key, t), rows, b.policy.vocab)

    def step(carry: tuple, slot: Array) -> tuple[tuple, Array]:
        cache, hidden, done, count, on_path, ratio = carry
        given, aim = slot < place, jnp.take(wanted, slot, axis=1)
        token, more, follows = _choose(b, hidden, _repeat(noise(slot), b.cut.shape[1]), aim, on_path)
        token = jnp.where(given, taken[:, slot], jnp.where(done, spec.pad, token))
        ratio += jnp.where(given | done, 0.0, more)
        on_path = jnp.where(given, on_path & (token == aim), jnp.where(done, on_path, follows))
        write = ~given & ~done
        new, cache = b.policy.decode(
            b.params, b.prefix, b.cut, cache, base + slot, token[:, None], write[:, None], count[:, None]
        )
        hidden = jnp.where(write[:, None], new[:, 0], hidden)
        return (cache, hidden, done | (token == spec.end), count + write.astype(jnp.int32), on_path, ratio), token

    carry = (cache, hidden, done, count, jnp.ones_like(done), jnp.zeros(done.shape))
    (cache, _, _, count, _, ratio), tokens = jax.lax.scan(step, carry, jnp.arange(spec.action_len, dtype=jnp.int32))
    return cache, count, tokens.T, ratio


def _advance(
    b: _Branches, states: PyTree, action: Array, t: Array, alive: Array, total: Array
) -> tuple[PyTree, Observation, Array, Array]:
    """Steps the environment; adds the rewards of living branches to `total`."""
    keys = jax.vmap(jax.random.fold_in, (0, None))(b.env_keys, t)
    states, obs = jax.vmap(b.env.step)(keys, states, action)
    return states, obs, alive & ~(obs.terminated | obs.truncated), total + jnp.where(alive, obs.reward, 0.0)
