"""The exact environments say what their docstrings say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax import envs
from agentjax.envs import tabular
from agentjax.envs.tabular import TabularState, token_ids
from agentjax.policies.base import Layout, log_softmax, trunk_layout
from agentjax.policies.tabular import tabular_policy

EXACT = ("random_mdp", "stop_continue", "umbrella")


def play(env, actions, seed=0):
    """Rewards and final flags of one episode that takes the action indices in turn."""
    ids = token_ids(env.exact)
    reset_key, *keys = jax.random.split(jax.random.key(seed), 1 + len(actions))
    step = jax.jit(env.step)
    state, obs = jax.jit(env.reset)(reset_key, env.sample_task(jax.random.key(1), env.params))
    seen = [obs]
    for key, action in zip(keys, actions, strict=True):
        state, obs = step(key, state, ids.action[action][None])
        seen.append(obs)
    return state, seen


def word(env, obs):
    return env.spec.vocabulary[int(obs.tokens[0])]


def test_umbrella_outcome_is_set_by_the_first_choice_alone():
    env = envs.make("umbrella", length=3)
    env = env._replace(reset=jax.jit(env.reset), step=jax.jit(env.step))
    for seed in range(6):
        for first in (0, 1):
            for later in (0, 1):
                _, seen = play(env, (first, later, later), seed)
                need = {"sun@0": 0, "rain@0": 1}[word(env, seen[0])]
                assert [word(env, o)[-2:] for o in seen[:3]] == ["@0", "@1", "@2"]
                assert float(seen[3].reward) == (1.0 if first == need else -1.0)
                assert abs(float(seen[1].reward)) == abs(float(seen[2].reward)) == 1.0
                assert [bool(o.terminated) for o in seen] == [False, False, False, True]
                assert word(env, seen[3]) == "<end>"


def test_umbrella_coins_are_fair_and_start_is_uniform():
    env = envs.make("umbrella", length=2)
    n = 4000
    keys = jax.random.split(jax.random.key(3), (2, n))
    states, _ = jax.jit(jax.vmap(env.reset))(keys[0], jnp.zeros(n, jnp.int32))
    action = jnp.full((n, 1), tabular.FIRST_ACTION, jnp.int32)
    _, obs = jax.jit(jax.vmap(env.step))(keys[1], states, action)
    bound = 5 * 0.5 / n**0.5  # 5 sigma of a fair coin's mean
    assert abs(float(jnp.mean(states.index == 0)) - 0.5) < bound
    assert abs(float(jnp.mean(obs.reward == 1.0)) - 0.5) < bound


def test_noise_free_umbrella_pays_only_at_the_end():
    _, seen = play(envs.make("umbrella", length=3, distractors=0.0), (0, 1, 0))
    assert [abs(float(o.reward)) for o in seen] == [0, 0, 0, 1]


def test_stop_continue():
    env = envs.make("stop_continue")
    _, seen = play(env, (0,))
    assert bool(seen[1].terminated) and float(seen[1].reward) == 0.0
    for last in (0, 1):
        _, seen = play(env, (1, last))
        assert [round(float(o.reward), 6) for o in seen] == [0.0, 0.0, 0.3]
        assert [bool(o.terminated) for o in seen] == [False, False, True]
        assert [word(env, o) for o in seen] == ["fork", "bonus", "<end>"]


def test_random_mdp_is_its_seed():
    a, b, c = (envs.make("random_mdp", seed=seed).exact for seed in (0, 0, 1))
    assert jnp.array_equal(a.reward, b.reward) and not jnp.array_equal(a.reward, c.reward)


def test_truth_of_umbrella():
    env = envs.make("umbrella", length=4)
    env = env._replace(truth_of=jax.jit(env.truth_of), step=jax.jit(env.step))
    right_later = [TabularState(index=jnp.int32(4 * t + 2 + 1), turn=jnp.int32(t)) for t in range(1, 4)]
    for need in (0, 1):
        state = TabularState(index=jnp.int32(2 * need), turn=jnp.int32(0))
        truth = env.truth_of(state)
        assert bool(truth.key_step)
        assert env.spec.vocabulary[int(truth.hint[0])] == ("try:leave", "try:take")[need]
        assert env.spec.vocabulary[int(env.expert(state)[0])] == ("leave", "take")[need]
        judged = [env.step(jax.random.key(0), state, token_ids(env.exact).action[a][None])[1].judge for a in (0, 1)]
        assert [float(j) for j in judged] == ([1.0, -1.0] if need == 0 else [-1.0, 1.0])
    assert not any(bool(env.truth_of(s).key_step) for s in right_later)
    truths = [env.truth_of(s) for s in right_later]
    assert len({tuple(t.observation_key.tolist()) for t in truths}) == 3
    # same observation, other hidden state: right and wrong first choices look alike
    wrong = env.truth_of(TabularState(index=jnp.int32(4 + 2), turn=jnp.int32(1)))
    assert jnp.array_equal(wrong.observation_key, truths[0].observation_key)
    assert not jnp.array_equal(wrong.state_key, truths[0].state_key)


@pytest.mark.parametrize("name", EXACT)
def test_step_follows_the_table(name):
    """Frequencies of (next state, reward) after one step, against prob, within 5 sigma."""
    env, n = envs.make(name), 3000
    model, ids = env.exact, token_ids(env.exact)
    keys = jax.random.split(jax.random.key(7), (2, n))
    states, _ = jax.jit(jax.vmap(env.reset))(keys[0], jnp.zeros(n, jnp.int32))
    after, obs = jax.jit(jax.vmap(env.step))(keys[1], states, jnp.broadcast_to(ids.action[1], (n, 1)))
    expected = np.zeros(model.obs.shape[0])
    np.add.at(expected, model.next[:, 1].ravel(), (model.start[:, None] * model.prob[:, 1]).ravel())
    counts = np.bincount(np.asarray(after.index), minlength=len(expected)) / n
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected * (1 - expected) / n) + 1e-6).all()
    mean = float(jnp.sum(model.start[:, None] * model.prob[:, 1] * model.reward[:, 1]))
    assert abs(float(jnp.mean(obs.reward)) - mean) < 5 * float(jnp.std(obs.reward)) / n**0.5 + 1e-6


def test_draw_never_takes_what_has_no_chance():
    keys = jax.random.split(jax.random.key(0), 2000)
    drawn = jax.vmap(tabular.draw, (0, None))(keys, jnp.array([0.0, 0.25, 0.0, 0.75, 0.0]))
    counts = np.bincount(np.asarray(drawn), minlength=5)
    assert counts[[0, 2, 4]].sum() == 0 and abs(counts[1] / 2000 - 0.25) < 5 * (0.25 * 0.75 / 2000) ** 0.5


def test_make_names_what_exists():
    with pytest.raises(ValueError, match="unknown environment 'umbrela'; there are: .*umbrella"):
        envs.make("umbrela")
    with pytest.raises(ValueError, match="umbrella has no parameter size; there are: length, distractors"):
        envs.make("umbrella", size=3)
    with pytest.raises(ValueError, match="length must be at least 1"):
        envs.make("umbrella", length=0)


def test_check_model_names_the_table():
    model = envs.make("stop_continue").exact
    words = {"action_words": ("a", "b"), "observation_words": ("x", "y")}
    broken = {"prob": model.prob * 0.5, "next": model.next + 3, "start": jnp.array([0.0, 0.0, 1.0])}
    for name, value in broken.items():
        bad = type(model)(**{**model.__dict__, name: value})
        with pytest.raises(ValueError, match=name):
            tabular.tabular_env("bad", bad, **words)
    with pytest.raises(ValueError, match="1 action"):
        tabular.tabular_env("bad", model, action_words=("a",), observation_words=("x", "y"))


# the tabular policy


def table_policy(env, gain=0.0):
    return tabular_policy(len(env.spec.vocabulary), **token_ids(env.exact)._asdict(), hint_gain=gain)


def test_policy_is_the_softmax_of_the_row_of_the_last_token():
    env = envs.make("stop_continue")
    policy, ids = table_policy(env), token_ids(env.exact)
    params = {"table": jnp.log(jnp.array([[1.0, 3.0], [4.0, 1.0]]))}
    tokens = jnp.stack([ids.observation[0], jnp.int32(tabular.FIRST_ACTION), ids.observation[1]])[None]
    hidden, _ = policy.apply(params, tokens, trunk_layout(jnp.ones((1, 3), bool)))
    probs = jnp.exp(log_softmax(policy.logits(params, hidden), jnp.ones(1)))
    np.testing.assert_allclose(probs[0, 0, ids.action], [0.25, 0.75], rtol=1e-6)
    np.testing.assert_allclose(probs[0, 2, ids.action], [0.8, 0.2], rtol=1e-6)
    assert float(jnp.sum(probs[0, 0])) == pytest.approx(1.0)
    uniform = policy.init(jax.random.key(0))["table"]
    assert uniform.shape == (2, 2) and not uniform.any()


def test_policy_decodes_what_it_applies_and_follows_hints_in_branches():
    env = envs.make("umbrella", length=2)
    policy, ids = table_policy(env, gain=float(np.log(3.0))), token_ids(env.exact)
    params = {"table": jax.random.normal(jax.random.key(0), (4, 2))}
    trunk = jnp.array([[tabular.START, ids.observation[0], ids.action[1], ids.observation[3]]])
    valid = jnp.array([[True, True, True, True]])
    hidden, cache = policy.apply(params, trunk, trunk_layout(valid))
    got, suffix = policy.decode(
        params, None, None, policy.empty_cache(1, 6), jnp.int32(1), trunk, valid, jnp.zeros((1, 4), jnp.int32)
    )
    assert jnp.array_equal(got, hidden)
    assert suffix.visible.tolist() == [[False, True, True, True, True, False]]
    assert cache.visible.tolist() == valid.tolist()
    # two branches: no hint (padding), and "try action 1" (with padding between hint and observable)
    branches = jnp.array([[0, 0, ids.observation[0], ids.hint[1], 0, ids.observation[0]]])
    layout = Layout(
        position=jnp.zeros((1, 10), jnp.int32),
        valid=jnp.concatenate([valid, branches > 0], axis=1),
        cut=jnp.array([[1, 1]], jnp.int32),
        trunk=4,
    )
    hinted, _ = policy.apply(params, jnp.concatenate([trunk, branches], axis=1), layout)
    plain = params["table"][0]
    assert jnp.array_equal(hinted[:, :4], hidden)
    np.testing.assert_allclose(hinted[0, 6], plain, rtol=1e-6)
    np.testing.assert_allclose(hinted[0, 9], plain + np.array([0.0, np.log(3.0)], np.float32), rtol=1e-6)
