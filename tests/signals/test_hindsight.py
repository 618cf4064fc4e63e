"""Packed hindsight against one exact, unpadded pass per turn, written in numpy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax.credit import ESTIMATORS
from agentjax.signals import hindsight
from agentjax.types import ACTION, Signals
from tests import worlds
from tests.factories import batch, insert_padding

ENV = worlds.dial()
SPEC = ENV.spec


@pytest.fixture(scope="module")
def played():
    """Eight episodes, some of which end early; prompts, observations, actions and hints are of unequal lengths."""
    found = worlds.played()
    turns = found.trajectory.turn_mask.sum(axis=1)
    assert 1 <= int(turns.min()) < int(turns.max())
    assert len(np.unique(np.asarray(found.truth.hint_mask).sum(axis=2)[np.asarray(found.trajectory.turn_mask)])) == 2
    return dataclasses.replace(found, cache=None)


@functools.cache
def teacher(window):
    policy, _ = worlds.tiny()
    return jax.jit(
        lambda params, trajectory, truth, hint, mask: hindsight.teacher_logp(
            policy, params, trajectory, truth, hint, mask, window=window
        )
    )


WINDOW = SPEC.tail_len + SPEC.action_len


def scored(played, mask):
    hinted, plain = teacher(WINDOW)(worlds.tiny()[1], played.trajectory, played.truth, played.truth.hint, mask)
    return np.asarray(hinted), np.asarray(plain)


def test_packed_is_one_exact_pass_per_turn(played):
    """To 1e-5; and a teacher that is off by one token would be noticed."""
    truth, params = played.truth, worlds.tiny()[1]
    hinted, plain = scored(played, truth.hint_mask)
    exact = worlds.exact_hinted_logp(params, played.trajectory, truth.hint, truth.hint_mask, truth.hint_at)
    np.testing.assert_allclose(hinted, exact, atol=1e-5)
    said = np.asarray(played.trajectory.role) == ACTION
    assert (hinted[~said] == 0).all() and (hinted[said] < 0).all()
    for shift in (-1, 1):
        assert np.abs(np.roll(hinted, shift, axis=1) - exact)[said].max() > 0.1
    np.testing.assert_allclose(plain, played.trajectory.logp, atol=1e-5)
    assert np.abs(hinted - plain).max() > 0.1


def test_turns_without_a_hint_keep_their_plain_scores(played):
    """A turn's mask decides for that turn alone, and opd's credit is 0 where teacher and student read the same."""
    mask = played.truth.hint_mask & (jnp.arange(SPEC.turns) == 1)[None, :, None]
    hinted, plain = scored(played, mask)
    second = np.asarray(played.trajectory.turn) == 1
    np.testing.assert_allclose(hinted[~second], plain[~second], atol=1e-5)
    full, _ = scored(played, played.truth.hint_mask)
    np.testing.assert_allclose(hinted[second], full[second], atol=1e-5)
    assert np.abs(hinted - plain)[second].max() > 0.1
    none, _ = scored(played, jnp.zeros_like(mask))
    np.testing.assert_allclose(none, plain, atol=1e-5)
    advantage = ESTIMATORS["opd"].apply(played.trajectory, Signals(teacher_logp=jnp.asarray(none))).advantage
    assert float(jnp.abs(advantage).max()) < 1e-4


@pytest.mark.slow
def test_padding_anywhere(played):
    """Five padding slots in random places of every row; the window grows by as many."""
    trajectory, truth = played.trajectory, played.truth
    wide, _, _ = insert_padding(batch(trajectory, Signals()), jax.random.key(2), 5)
    old, new = (np.asarray(x.valid) for x in (trajectory, wide))
    at = np.asarray(truth.hint_at).copy()
    for b, t in zip(*np.nonzero(np.asarray(trajectory.turn_mask)), strict=True):
        at[b, t] = np.flatnonzero(new[b])[old[b, : at[b, t]].sum()]
    truth = dataclasses.replace(truth, hint_at=jnp.asarray(at))
    params = worlds.tiny()[1]
    hinted, plain = teacher(WINDOW + 5)(params, wide, truth, truth.hint, truth.hint_mask)
    ours, theirs = scored(played, truth.hint_mask)
    said, moved = np.asarray(trajectory.action_mask), np.asarray(wide.action_mask)
    np.testing.assert_allclose(np.asarray(hinted)[moved], ours[said], atol=1e-5)
    np.testing.assert_allclose(np.asarray(plain)[moved], theirs[said], atol=1e-5)


def test_another_action_in_the_hinted_context(played):
    """The expert's action instead of the taken one: logits by branch slot equal those of the exact sequence."""
    policy, params = worlds.tiny()
    trajectory, truth = played.trajectory, played.truth
    states = jax.tree.map(lambda x: x[:, :-1], played.env_states)
    action = jax.vmap(jax.vmap(ENV.expert))(states)
    said = action != SPEC.pad

    @jax.jit
    def score(params, trajectory, truth, action, said):
        packed = hindsight.pack(
            trajectory, truth.hint, truth.hint_mask, truth.hint_at, window=WINDOW, action=action, action_mask=said
        )
        return hindsight.score_packed(policy, params, trajectory, packed)[1]

    hinted = np.asarray(score(params, trajectory, truth, action, said))
    assert hinted.shape == (8, SPEC.turns, SPEC.hint_len + WINDOW)
    changed = np.zeros_like(hinted)
    tr = jax.tree.map(np.asarray, trajectory)
    for b, t in zip(*np.nonzero(tr.turn_mask), strict=True):
        history = np.arange(tr.tokens.shape[1]) < SPEC.action_at(t)
        spoken = tr.tokens[b, history & (tr.role[b] > 0)]
        hint = np.asarray(truth.hint)[b, t][np.asarray(truth.hint_mask)[b, t]]
        new = np.asarray(action)[b, t][np.asarray(said)[b, t]]
        whole = np.concatenate([spoken[:-1], hint, spoken[-1:], new])  # the hint stands before the marker
        logp = worlds.numpy_logp(params, whole, float(tr.temperature[b]))[-len(new) :]
        changed[b, t, -SPEC.action_len :][np.asarray(said)[b, t]] = logp
    np.testing.assert_allclose(hinted, changed, atol=1e-5)
    assert (changed < -0.5).any()
