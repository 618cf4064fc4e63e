"""pivot: fair (every turn alike), solvable, hard by chance, and exactly as hard as asked."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from agentjax.envs import demos, pivot
from agentjax.envs import pivot_words as w
from agentjax.types import ACTION, validate

BATCH, LONG_BATCH = 2000, 250
DIFFICULTIES = [  # of the main size
    dict(key_turns=3, lures=1, gap=2),
    dict(key_turns=1, lures=0, gap=0),
    dict(key_turns=2, lures=1, gap=4, recoverability=0.5),
    dict(key_turns=3, lures=1, gap=4, recoverability=1.0, lure_harm=0.5),
    dict(key_turns=2, lures=0, gap=2, turns=4),
    dict(key_turns=1, lures=1, gap=1, key_turn=5),
]


KINDS = ("expert", "noisy", "random", "wait then expert", "always wait", "take the bait")


def act_like(env, words, kind, quality):
    """The action function of a (traced) kind of player."""
    say_expert, say_randomly, length = demos.expert_act(env), demos.random_act(env), env.spec.action_len

    def act(key, state):
        keys, here = jax.random.split(key, 3), pivot.visit(state)
        expert = say_expert(keys[0], state)
        wait = words.say(jnp.int32(words.wait), jnp.int32(-1), length)
        fit = words.say(words.right_tool(here.place), state.task.args[here.place], length)
        late, bait = jnp.where(state.turn == 0, wait, expert), jnp.where(here.lure, fit, expert)
        choices = (expert, env.noisy(keys[1], state, quality), say_randomly(keys[2], state), late, wait, bait)
        return jnp.select([kind == i for i in range(len(KINDS))], choices)

    return act


@functools.cache
def player(preset):
    """(key, params, kind, quality) -> Rollout; one compilation for all difficulties (counted)."""
    env, words = pivot.make(preset), pivot.PRESETS[preset][0].words
    traces, batch = [], LONG_BATCH if preset == "long80" else BATCH

    def run(key, params, kind, quality):
        traces.append(kind)
        return demos.play(key, env, act_like(env, words, kind, quality), params, batch)

    return jax.jit(run), traces


def _numpy(x):
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)


def play(preset, kind, seed=0, quality=0.5, **changes):
    run, _ = player(preset)
    params = pivot.make(preset, **changes).params
    return jax.tree.map(_numpy, run(jax.random.key(seed), params, jnp.int32(KINDS.index(kind)), jnp.float32(quality)))


def solved(played):
    return played.trajectory.reward.sum(axis=1)


def within(rate, expected, count, sigmas=4.5):
    return abs(rate - expected) <= sigmas * np.sqrt(expected * (1 - expected) / count) + 1e-12


@pytest.mark.parametrize("preset", pivot.PRESETS)
def test_the_expert_always_succeeds(preset):
    config, _ = pivot.PRESETS[preset]
    for recoverability, gap in ((0.0, 0), (0.5, 1), (1.0, config.max_gap)):
        played = play(preset, "expert", key_turns=config.max_goals, gap=gap, recoverability=recoverability)
        assert solved(played).mean() == 1.0
    assert solved(play(preset, "expert", seed=1)).mean() == 1.0


@pytest.mark.parametrize("changes", DIFFICULTIES, ids=str)
def test_the_expert_succeeds_at_every_difficulty_of_a_size(changes):
    played = play("main", "expert", **changes)
    assert solved(played).mean() == 1.0
    turns = changes.get("turns", 6)
    assert (played.trajectory.turn_mask.sum(axis=1) == turns).all()
    assert played.trajectory.terminated.all() and not played.trajectory.truncated.any()
    assert (played.truth.key_step.sum(axis=1) == changes["key_turns"]).all()


@pytest.mark.parametrize("preset", ("small", "main", "chapter"))
def test_chance_fails(preset):
    assert solved(play(preset, "random", key_turns=1)).mean() < 0.05


@pytest.mark.parametrize("p0", (0.02, 0.1, 0.3, 0.5))
def test_demonstrations_succeed_exactly_as_often_as_asked(p0):
    for changes in (dict(), dict(key_turns=1, lures=0), dict(key_turns=2, lures=1, lure_harm=0.5)):
        env = pivot.make("main", **changes)
        quality = float(env.quality_for(p0, env.params))
        rate = solved(play("main", "noisy", quality=quality, **changes)).mean()
        assert within(rate, p0, BATCH), (changes, rate)


def test_base_success_by_hand():
    # q^2 (1 - (1 - q)): .5^3 = .125; harm .5: .25 * .75 = .1875
    assert pivot.base_success(0.5, pivot.difficulty(6, key_turns=2, lures=1)) == 0.125
    assert pivot.base_success(0.5, pivot.difficulty(6, key_turns=2, lures=1, lure_harm=0.5)) == 0.1875
    np.testing.assert_allclose(pivot.quality_for(0.125, pivot.difficulty(6, key_turns=2, lures=1)), 0.5, atol=1e-6)


def test_a_missed_goal_comes_back_as_often_as_asked_and_only_then():
    fixed = dict(key_turns=1, lures=1, key_turn=0)
    assert solved(play("main", "wait then expert", recoverability=0.0, **fixed)).mean() == 0.0
    assert solved(play("main", "wait then expert", recoverability=1.0, **fixed)).mean() == 1.0
    half = solved(play("main", "wait then expert", recoverability=0.5, **fixed)).mean()
    assert within(half, 0.5, BATCH)


def test_a_goal_that_is_never_done_comes_back_until_no_free_turn_is_left():
    played = play("main", "always wait", key_turns=1, lures=1, key_turn=0, recoverability=1.0)
    keys = played.truth.key_step
    assert (keys.sum(axis=1) >= 2).all()
    state = played.env_states
    lure = (state.task.route[:, 0] == state.task.avoid[:, 0]).nonzero()  # the one turn that cannot be taken
    assert not keys[lure].any()
    last = 5 - np.argmax(keys[:, ::-1], axis=1)
    free_after = np.array(
        [(~np.isin(np.arange(6), lure[1][row]) & (np.arange(6) > last[row])).any() for row in range(BATCH)]
    )
    assert not free_after.any()  # it stopped only because nothing was left


def test_a_lure_looks_like_progress_and_spoils():
    for harm in (0.0, 0.5, 1.0):
        played = play("main", "take the bait", key_turns=2, lures=1, lure_harm=harm)
        assert within(solved(played).mean(), 1 - harm, BATCH)
    route, avoid = played.env_states.task.route[:, 0], played.env_states.task.avoid[:, 0]
    due = played.env_states.task.due[:, 0]
    at_lure = (route == avoid) & ~(np.arange(6)[None, :, None] == due[:, None, :]).any(axis=2)
    assert (at_lure.sum(axis=1) == 1).all()
    assert (played.trajectory.turn_mask & (played.truth.judge == 1))[at_lure].all()
    assert not played.truth.key_step[at_lure].any()


def test_every_use_is_announced_gap_turns_earlier():
    env = pivot.make("main", gap=3)
    played = play("main", "expert", gap=3)
    words, tokens = pivot.PRESETS["main"][0].words, played.trajectory.tokens
    at = env.spec.observation_at(np.arange(6))
    place, note = tokens[:, at + 1] - words.first_place, tokens[:, at + 2] - words.first_memo
    prompt = tokens[:, : env.spec.prompt_len]
    assert (prompt[:, -3:] - words.first_memo >= 0).all()
    announced = np.concatenate([prompt[:, -3:] - words.first_memo, note], axis=1)[:, :6]  # shifted by the gap
    assert (announced // words.args == place).all()
    args = np.take_along_axis(played.env_states.task.args[:, 0], place, axis=1)
    assert (announced % words.args == args).all()


def test_key_turns_fall_anywhere_unless_fixed():
    keys = play("main", "expert", key_turns=1).truth.key_step
    counts = keys.sum(axis=0)
    chi2 = ((counts - BATCH / 6) ** 2 / (BATCH / 6)).sum()
    assert chi2 < 25.7  # the 1e-4 quantile of chi-squared with 5 degrees
    chapter = play("chapter", "expert").truth.key_step
    assert chapter[:, 14].all() and chapter.sum() == BATCH


def features(preset, played):
    """Token counts of each turn's observation, the turn index as a number and as indicators; and the key turns."""
    spec, mask = pivot.make(preset).spec, played.trajectory.turn_mask
    at = spec.observation_at(np.arange(spec.turns))[:, None] + np.arange(spec.observation_len)
    counts = (played.trajectory.tokens[:, at][..., None] == np.arange(len(spec.vocabulary))).sum(axis=2)
    index = np.broadcast_to(np.eye(spec.turns), (*mask.shape, spec.turns))
    number = np.broadcast_to(np.arange(spec.turns)[None, :, None] / spec.turns, (*mask.shape, 1))
    return np.concatenate([counts, index, number], axis=2)[mask], played.truth.key_step[mask]


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("small", dict()),
        ("main", dict()),
        ("main", dict(gap=0)),
        ("main", dict(gap=4, key_turns=1)),
        ("main", dict(recoverability=0.5)),
        ("chapter", dict(key_turn=-1)),
        ("chapter", dict(key_turn=-1, key_turns=6, gap=12)),
    ],
    ids=str,
)
def test_nothing_in_an_observation_marks_a_key_turn(preset, changes):
    train, labels = features(preset, play(preset, "noisy", seed=0, **changes))
    test, answers = features(preset, play(preset, "noisy", seed=1, **changes))
    classifier = LogisticRegression(max_iter=500).fit(train, labels)
    assert roc_auc_score(answers, classifier.decision_function(test)) <= 0.6


def test_the_leak_test_would_see_a_leak():
    train, labels = features("main", play("main", "noisy", seed=0))
    test, answers = features("main", play("main", "noisy", seed=1))
    marked = LogisticRegression(max_iter=500).fit(np.c_[train, labels], labels)
    assert roc_auc_score(answers, marked.decision_function(np.c_[test, answers])) > 0.99


def test_one_compilation_serves_all_difficulties():
    for changes in DIFFICULTIES:
        play("main", "expert", **changes)
    assert len(player("main")[1]) == 1


def test_same_key_same_bits_and_records_are_valid():
    first, again, other = (play("main", "noisy", seed=seed) for seed in (3, 3, 4))
    same = jax.tree.map(np.array_equal, (first.trajectory, first.truth), (again.trajectory, again.truth))
    assert all(jax.tree.leaves(same))
    assert not np.array_equal(first.trajectory.tokens, other.trajectory.tokens)
    validate(first.trajectory)
    spec, allowed = pivot.make("main").spec, np.asarray(pivot.make("main").action_tokens())
    assert first.trajectory.tokens.shape == (BATCH, spec.slots) and first.truth.hint.shape == (BATCH, 6, 3)
    assert allowed[first.trajectory.tokens[first.trajectory.role == ACTION]].all()


@jax.debug_key_reuse(False)  # it plays the same keys twice on purpose
def test_batched_play_is_the_loop():
    env = pivot.make("main", recoverability=0.5)
    noisy = lambda key, state: env.noisy(key, state, jnp.float32(0.5))  # noqa: E731
    played = jax.jit(lambda key: demos.play(key, env, noisy, env.params, 3))(jax.random.key(5))
    tasks, resets, env_keys, act_keys = jax.random.split(jax.random.key(5), (4, 3))
    begin = jax.jit(lambda row: env.reset(resets[row], env.sample_task(tasks[row], env.params)))

    @jax.jit
    def forward(row, t, state):
        action = noisy(jax.random.fold_in(act_keys[row], t), state)
        return action, *env.step(jax.random.fold_in(env_keys[row], t), state, action)

    for row in range(3):
        state, seen = begin(row)
        for t in range(6):
            at, to = env.spec.observation_at(t), env.spec.action_at(t)
            np.testing.assert_array_equal(played.trajectory.tokens[row, at:to], seen.tokens)
            action, state, seen = forward(row, t, state)
            np.testing.assert_array_equal(played.trajectory.tokens[row, to : to + env.spec.action_len], action)
            assert played.trajectory.reward[row, t] == seen.reward and played.truth.judge[row, t] == seen.judge


def test_state_keys_are_equal_exactly_for_equal_states():
    env = pivot.make("small", recoverability=0.5)
    sample = jax.jit(jax.vmap(lambda key: env.reset(key, env.sample_task(jax.random.fold_in(key, 0), env.params))[0]))
    states = jax.tree.map(lambda x: jnp.repeat(x, 150, axis=0), sample(jax.random.split(jax.random.key(0), 2)))
    forward = jax.jit(
        jax.vmap(
            lambda key, state: env.step(jax.random.fold_in(key, 1), state, env.noisy(key, state, jnp.float32(0.6)))[0]
        )
    )
    look = jax.jit(jax.vmap(lambda state: (env.truth_of(state), pivot.observe(pivot.PRESETS["small"][0], state))))
    rows, keys, seen, seen_keys = [], [], [], []
    for t in range(5):
        truth, observation = look(states)
        flat = np.concatenate([np.asarray(x, np.float64).reshape(300, -1) for x in jax.tree.leaves(states)], axis=1)
        rows += [row.tobytes() for row in flat]
        keys += [key.tobytes() for key in np.asarray(truth.state_key)]
        seen += [row.tobytes() for row in np.asarray(observation)]
        seen_keys += [key.tobytes() for key in np.asarray(truth.observation_key)]
        states = forward(jax.random.split(jax.random.key(10 + t), 300), states)
    assert 50 < len(set(rows)) < 1400
    assert len(set(zip(rows, keys, strict=True))) == len(set(rows)) == len(set(keys))
    assert len(set(zip(seen, seen_keys, strict=True))) == len(set(seen)) == len(set(seen_keys))


def test_a_gold_hint_followed_is_praised_and_a_wrong_one_is_never_the_gold():
    env = pivot.make("main")
    words = pivot.PRESETS["main"][0].words
    played = play("main", "noisy")
    states = jax.tree.map(lambda x: jnp.asarray(x[:300, 2]), played.env_states)

    @jax.jit
    @jax.vmap
    def follow(key, state):
        keys = jax.random.split(key, 3)
        gold, wrong = env.truth_of(state).hint, env.wrong_hint(keys[2], state)
        said = [words.say(*words.parse(jnp.append(hint[1:], w.END)), env.spec.action_len) for hint in (gold, wrong)]
        judges = [env.step(keys[i], state, said[i])[1].judge for i in range(2)]
        return gold, wrong, said[0], env.expert(state), *judges

    gold, wrong, action, expert, praised, blamed = follow(jax.random.split(jax.random.key(0), 300), states)
    key = played.truth.key_step[:300, 2]
    np.testing.assert_array_equal(action, expert)
    np.testing.assert_array_equal(praised, np.where(key, 1, 0))
    assert (np.asarray(gold) != np.asarray(wrong)).any(axis=1).all()
    assert (np.asarray(blamed)[key] <= 0).all()
    assert len(np.unique(np.asarray(wrong), axis=0)) == 17  # 4 tools x 4 arguments and wait


SENTENCES = [
    ("open blue <end>", ("open", "blue")),
    ("please unlock now blue <end>", ("open", "blue")),
    ("wait <end>", ("wait", None)),
    ("now rest just <end>", ("wait", None)),
    ("check red gold <end>", ("read", "red")),  # the first argument behind the tool counts
    ("blue open red <end>", ("open", "red")),
    ("open read red <end>", ("open", "red")),  # the first tool counts
    ("open blue", None),  # no end
    ("open <end> blue", None),  # the argument comes too late
    ("blue open <end>", None),
    ("blue <end>", None),
    ("<end>", None),
    ("please now just please now open", None),
]


@pytest.mark.parametrize(("sentence", "meaning"), SENTENCES)
def test_sentences_mean_what_they_say(sentence, meaning):
    words = pivot.PRESETS["main"][0].words
    vocabulary = words.vocabulary()
    ids = [vocabulary.index(word) for word in sentence.split()]
    tool, arg = words.parse(jnp.array(ids + [0] * (6 - len(ids))))
    if meaning is None:
        assert (tool, arg) == (-1, -1)
    else:
        assert tool == (vocabulary.index(meaning[0]) - words.first_tool) // 2
        assert arg == (-1 if meaning[1] is None else vocabulary.index(meaning[1]) - words.first_arg)


def test_paraphrases_mean_the_same_in_many_words():
    env, words = pivot.make("main"), pivot.PRESETS["main"][0].words
    paraphrase, parse = jax.jit(jax.vmap(env.paraphrase, (0, None))), jax.jit(jax.vmap(words.parse))
    for tool, arg in ((1, 2), (words.wait, -1)):
        plain = words.say(jnp.int32(tool), jnp.int32(arg), 6)
        keys = jax.random.split(jax.random.key(0), 1000)
        said = paraphrase(keys, plain)
        tools, args = parse(said)
        assert (tools == tool).all() and (args == arg).all()
        said = np.asarray(said)
        spoken = (said != w.PAD).sum(axis=1)
        assert len(np.unique(said, axis=0)) > 50 and spoken.max() == (6 if tool == 1 else 5)
        is_tool = (said >= words.first_tool) & (said < words.first_place)
        assert set(np.argmax(is_tool, axis=1)) >= {0, 1, 2}  # no fixed slot
        assert len(np.unique(said[is_tool])) == 2  # two names
        ended = np.argmax(said == w.END, axis=1)
        assert (ended == spoken - 1).all()  # no padding inside


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(turns=30), r"turns=30 lies outside \[1, 6\]"),
        (dict(key_turns=4), r"key_turns=4 lies outside \[1, 3\]"),
        (dict(key_turns=0), "key_turns=0"),
        (dict(lures=2), r"lures=2 lies outside \[0, 1\]"),
        (dict(gap=5), r"gap=5 lies outside \[0, 4\]"),
        (dict(recoverability=1.5), "recoverability=1.5"),
        (dict(lure_harm=-0.1), "lure_harm=-0.1"),
        (dict(key_turn=6), "key_turn=6"),
        (dict(turns=3, key_turns=3, lures=1), r"key_turns \+ lures = 4 > turns = 3"),
        (dict(turns=4, key_turn=5), "key_turn=5 must be below turns=4"),
        (dict(speed=3), "unknown pivot difficulty speed"),
    ],
    ids=str,
)
def test_impossible_difficulty_is_refused_with_its_numbers(changes, message):
    with pytest.raises(ValueError, match=message):
        pivot.make("main", **changes)


def test_impossible_sizes_are_refused():
    with pytest.raises(
        ValueError, match="unknown pivot preset 'huge'; there are: chapter, long80, main, short, small, tiny"
    ):
        pivot.make("huge")
    sizes = dict(turns=6, max_goals=3, max_lures=1, max_gap=2)
    for changes, message in (
        (dict(action_len=2), "action_len=2 cannot hold"),
        (dict(places=4), "leave none of 4 places"),
        (dict(places=99), "places=99, but there are words for 24"),
        (dict(max_goals=0), "sizes must be positive"),
    ):
        with pytest.raises(ValueError, match=message):
            pivot.build(pivot.PivotConfig(**(sizes | changes)), pivot.difficulty(6, key_turns=3, lures=1))


def test_sizes_without_lures_gaps_or_fillers_in_the_slots_work():
    env = pivot.build(
        pivot.PivotConfig(turns=2, max_goals=1, max_lures=0, max_gap=0, action_len=3), pivot.difficulty(2)
    )
    played = jax.jit(lambda key: demos.play(key, env, demos.expert_act(env), env.params, 64))(jax.random.key(0))
    assert (played.trajectory.reward.sum(axis=1) == 1).all()
