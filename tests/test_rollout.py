"""Whole episodes inside one jit, and branches off them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax import rollout as module
from agentjax.policies.base import score_tokens, trunk_layout
from agentjax.signals.hindsight import teacher_logp
from agentjax.types import ACTION, OBSERVATION, PAD, validate
from tests import worlds

ENV = worlds.dial()
SPEC = ENV.spec
GROUPS, SIZE = 4, 4
TRACES = {"play": 0, "branch": 0}
PLACES = jnp.arange(SPEC.action_len + 1, dtype=jnp.int32)


def counted(name, fn):
    def wrapped(*args):
        TRACES[name] += 1
        return fn(*args)

    return jax.jit(wrapped)


@functools.cache
def player():
    policy, _ = worlds.tiny()
    return counted(
        "play",
        lambda key, params, difficulty, temperature: module.rollout(
            key, policy, params, ENV, difficulty, groups=GROUPS, size=SIZE, temperature=temperature
        ),
    )


@functools.cache
def brancher():
    policy, _ = worlds.tiny()
    return counted(
        "branch",
        lambda key, params, played, turn: module.branch(key, policy, params, ENV, played, turn, PLACES),
    )


def play(seed=1, difficulty=ENV.params, temperature=1.0):
    return player()(jax.random.key(seed), worlds.tiny()[1], difficulty, jnp.float32(temperature))


@pytest.fixture(scope="module")
def played():
    return play()


def test_records_are_valid_and_early_ends_are_masked(played):
    tr = played.trajectory
    validate(tr)
    turns = np.asarray(tr.turn_mask).sum(axis=1)
    assert set(turns) >= {1, 3}, "the seed must give early and late ends"
    assert (np.asarray(tr.truncated) == (turns < 3)).all() and (np.asarray(tr.terminated) == (turns == 3)).all()
    for b, n in enumerate(turns):
        role, at = np.asarray(tr.role[b]), np.asarray(tr.turn[b])
        closing = (role == OBSERVATION) & (at == n)
        assert closing.sum() >= 2 and at.max() == n
        assert (role[np.flatnonzero(closing)[-1] + 1 :] == PAD).all()
        assert ((np.asarray(tr.logp[b]) < 0) == (role == ACTION)).all() and float(tr.logp[b].max()) == 0
        assert (np.asarray(tr.reward[b])[n:] == 0).all()
        for t in range(n):
            said = np.asarray(tr.tokens[b])[(role == ACTION) & (at == t)]
            assert 1 <= len(said) <= 3 and worlds.END not in said[:-1]
            assert len(said) == 3 or said[-1] == worlds.END
            wanted = int(played.env_states.task.wanted[b, t, t])
            assert float(tr.reward[b, t]) == float(said[0] == wanted)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logp_of_sampling_is_that_of_rescoring(temperature):
    policy, params = worlds.tiny()
    tr = play(temperature=temperature).trajectory
    logp, entropy = rescored()(params, tr)
    np.testing.assert_allclose(logp, tr.logp, atol=1e-5)
    exact = worlds.exact_hinted_logp(params, tr, *no_hint(tr))
    np.testing.assert_allclose(logp, exact, atol=1e-5)
    assert (np.asarray(entropy)[np.asarray(tr.action_mask)] > 0).all() and float(entropy.max()) < np.log(8)
    assert np.ptp(np.asarray(logp)[np.asarray(tr.action_mask)]) > 1.0


@functools.cache
def rescored():
    policy, _ = worlds.tiny()
    return jax.jit(lambda params, tr: score_tokens(policy, params, tr.tokens, tr.valid, tr.action_mask, tr.temperature))


def no_hint(tr):
    rows, turns = tr.reward.shape
    at = np.broadcast_to(SPEC.hint_at(np.arange(turns)), (rows, turns))
    return np.zeros((rows, turns, 2), np.int32), np.zeros((rows, turns, 2), bool), at


def test_groups_share_the_task_and_nothing_else(played):
    wanted = np.asarray(played.env_states.task.wanted)[:, 0].reshape(GROUPS, SIZE, -1)
    assert (wanted == wanted[:, :1]).all() and len(np.unique(wanted[:, 0], axis=0)) > 1
    assert np.asarray(played.trajectory.group).tolist() == [b // SIZE for b in range(GROUPS * SIZE)]
    assert np.asarray(played.trajectory.rollout).tolist() == list(range(GROUPS * SIZE))
    tokens = np.asarray(played.trajectory.tokens)
    assert all(len(np.unique(tokens[g * SIZE : (g + 1) * SIZE], axis=0)) > 1 for g in range(GROUPS))


def test_same_key_same_bits_and_one_compilation(played):
    again, other = play(), play(seed=2)
    assert all(
        bool(jnp.array_equal(a, b))
        for a, b in zip(jax.tree.leaves(keyless(played)), jax.tree.leaves(keyless(again)), strict=True)
    )
    assert not jnp.array_equal(played.trajectory.tokens, other.trajectory.tokens)
    calm = play(difficulty=worlds.dial(stop=0.0).params)
    assert bool(calm.trajectory.turn_mask.all())
    changed = jax.tree.map(lambda x: x * 1.01, worlds.tiny()[1])
    player()(jax.random.key(1), changed, ENV.params, jnp.float32(1.0))
    assert TRACES["play"] == 1


def keyless(played):
    return played.trajectory, played.truth, played.env_states, jax.random.key_data(played.env_key), played.cache


def test_environment_follows_by_hand(played):
    """The state after turn t is step(fold_in(env_key, t), state, action), reward and ends too."""
    tr, taken = played.trajectory, 0
    step = jax.jit(jax.vmap(ENV.step))
    for t in range(SPEC.turns):
        before, after = (jax.tree.map(lambda x, i=i: x[:, i], played.env_states) for i in (t, t + 1))
        window = slice(SPEC.action_at(t), SPEC.action_at(t + 1) - SPEC.observation_len)
        keys = jax.vmap(jax.random.fold_in, (0, None))(played.env_key, t)
        state, obs = step(keys, before, tr.tokens[:, window])
        on = np.asarray(tr.turn_mask[:, t])
        taken += on.sum()
        for ours, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
            assert (np.asarray(ours) == np.asarray(theirs))[on].all()
        assert (np.asarray(obs.reward) == np.asarray(tr.reward[:, t]))[on].all()
        seen = tr.tokens[:, SPEC.observation_at(t + 1) : SPEC.observation_at(t + 1) + SPEC.observation_len]
        assert (np.asarray(obs.tokens) == np.asarray(seen))[on].all()
        ended = np.asarray(obs.terminated | obs.truncated)
        going = on if t == SPEC.turns - 1 else np.asarray(tr.turn_mask[:, t + 1])
        assert t == SPEC.turns - 1 or (going[on] == ~ended[on]).all()
    assert taken == int(tr.turn_mask.sum())


def test_cache_is_what_a_full_pass_computes(played):
    policy, params = worlds.tiny()
    tr = played.trajectory
    _, full = jax.jit(lambda params, tr: policy.apply(params, tr.tokens, trunk_layout(tr.valid)))(params, tr)
    seen = np.asarray(played.cache.visible)
    last = np.asarray(tr.turn_mask).sum(axis=1)[:, None]
    closing = (np.asarray(tr.role) == OBSERVATION) & (np.asarray(tr.turn) == last) & (last < SPEC.turns)
    assert (seen == (np.asarray(tr.valid) & ~closing)).all()
    for ours, theirs in zip((*played.cache.key, *played.cache.value), (*full.key, *full.value), strict=True):
        close = np.isclose(ours, theirs, atol=3e-5).all(axis=(1, 3))  # two orders of summation in float32
        assert close[seen].all()


def test_hinted_play_has_the_teachers_logp():
    policy, params = worlds.tiny()

    @jax.jit
    def both(key, params):
        played = module.rollout(key, policy, params, ENV, ENV.params, groups=GROUPS, size=SIZE, hinted=True)
        hint, mask = played.truth.hint, played.truth.hint_mask
        window = SPEC.tail_len + SPEC.action_len
        return played, teacher_logp(policy, params, played.trajectory, played.truth, hint, mask, window=window)

    played, (hinted, plain) = both(jax.random.key(1), params)
    validate(played.trajectory)
    np.testing.assert_allclose(hinted, played.trajectory.logp, atol=1e-5)
    assert float(jnp.abs(plain - played.trajectory.logp).max()) > 0.1


def test_low_temperature_takes_the_likeliest_token():
    one, other = (play(seed, temperature=1e-5).trajectory for seed in (1, 1))
    assert bool(jnp.array_equal(one.tokens, other.tokens))
    _, params = worlds.tiny()
    row = np.asarray(one.tokens[0])[np.asarray(one.valid[0])]
    logits = worlds.numpy_logits(params, row)
    said = np.flatnonzero(np.asarray(one.role[0])[np.asarray(one.valid[0])] == ACTION)
    assert (logits[said - 1].argmax(axis=1) == row[said]).all()


def test_bad_sizes_and_temperatures():
    policy, params = worlds.tiny()
    play = functools.partial(module.rollout, jax.random.key(0), policy, params, ENV, ENV.params)
    with pytest.raises(ValueError, match="groups and size must be at least 1, got 0 and 4"):
        play(groups=0, size=4)
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        play(groups=1, size=1, temperature=0.0)


# branches


def test_greedy_branches_replay_the_episode():
    """Nearly greedy policy, nothing random in the environment: from every place of every turn the same future.

    `detail` makes the reward depend on every token that follows.
    """
    params = worlds.tiny()[1]
    certain = worlds.dial(stop=0.0, extra=0.0, detail=0.5).params
    greedy = play(difficulty=certain, temperature=1e-5)
    togo = np.cumsum(np.asarray(greedy.trajectory.reward)[:, ::-1], axis=1)[:, ::-1]
    for turn in range(SPEC.turns):
        returns, weight = brancher()(jax.random.key(7), params, greedy, jnp.int32(turn))
        assert (np.asarray(weight) == 1).all() and np.ptp(togo[:, turn]) > 0.05
        np.testing.assert_allclose(returns, np.broadcast_to(togo[:, turn, None], returns.shape), atol=1e-6)


def test_branch_after_the_last_action_pays_it(played):
    """kept = A in the last turn: nothing is left to sample, the reward of dial is certain."""
    params = worlds.tiny()[1]
    for turn in range(SPEC.turns):
        returns, weight = brancher()(jax.random.key(2), params, played, jnp.int32(turn))
        acted = np.asarray(played.trajectory.turn_mask[:, turn])
        assert (np.asarray(returns)[~acted] == 0).all() and (np.asarray(weight)[~acted] == 0).all()
        assert (np.asarray(weight)[acted] == 1).all()
    assert 0 < acted.sum() < acted.size
    assert (np.asarray(returns)[:, -1] == np.asarray(played.trajectory.reward[:, -1]))[acted].all()
    assert TRACES["branch"] == 1, "one compilation for all turns and difficulties"


def test_branches_share_random_numbers(played):
    """Only the first token of the last action counts: keeping the second changes nothing, whatever is drawn.

    Keeping the first does: places 0 and 1 differ in about P(right) (1 - P(right)) of the cases.
    """
    params, draws = worlds.tiny()[1], []
    for k in range(24):
        draws.append(np.asarray(brancher()(jax.random.key(100 + k), params, played, jnp.int32(0))[0]))
    draws = np.stack(draws)  # [K,B,A+1]
    wide = np.asarray(played.trajectory.action_mask)[:, SPEC.action_at(0) + 1]
    kept = draws[:, wide]
    independent = kept[..., 1].var(axis=0) + kept[..., 2].var(axis=0)
    difference = (kept[..., 1] - kept[..., 2]).var(axis=0)
    assert difference.mean() < 0.6 * independent.mean()
    assert np.mean(kept[..., 1] == kept[..., 2]) > 0.6
    # unbiased: after the first token is kept, its reward is certain and the rest is that of later turns
    first = np.asarray(played.trajectory.reward[:, 0])
    assert (draws[..., 1:] >= first[None, :, None] - 1e-6).all()


def test_defensive_weights():
    """Weights lie in (0, 2], average 1, and the weighted return has the policy's mean (5 standard errors)."""
    policy, params = worlds.tiny()
    played = play()

    @jax.jit
    def many(key, params, played):
        def one(k):
            draw = functools.partial(module.branch, k, policy, params, ENV, played, jnp.int32(1), PLACES[:1])
            return draw(expert_epsilon=0.2)

        return jax.lax.map(one, jax.random.split(key, 64))

    returns, weight = (np.asarray(x)[..., 0] for x in many(jax.random.key(3), params, played))
    acted = np.asarray(played.trajectory.turn_mask[:, 1])
    returns, weight = returns[:, acted], weight[:, acted]
    assert weight.min() > 0 and weight.max() <= 2.0 and weight.std() > 0.1
    assert abs(weight.mean() - 1) < 5 * weight.std() / weight.size**0.5
    plain = np.stack(
        [np.asarray(brancher()(jax.random.key(200 + k), params, played, jnp.int32(1))[0])[acted, 0] for k in range(64)]
    )
    product = returns * weight
    error = (product.std() ** 2 + plain.std() ** 2) ** 0.5 / plain.size**0.5
    assert abs(product.mean() - plain.mean()) < 5 * error
    assert returns.mean() > plain.mean() + 5 * error, "half of the continuations are the expert's"
