"""What is whispered to the teacher: gold, another task's gold, a wrong one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax.signals.hints import hints
from tests import worlds

ENV = worlds.dial()


def test_gold_names_the_wanted_letter():
    found = worlds.played()
    hint, mask = hints(jax.random.key(0), "gold", ENV, found)
    wanted = np.asarray(found.env_states.task.wanted)[:, 0, :3]
    acted = np.asarray(found.trajectory.turn_mask)
    spoken = np.where(np.asarray(mask), np.asarray(hint), 0)
    assert (spoken.max(axis=2) == wanted)[acted].all() and not np.asarray(mask)[~acted].any()


def test_placebo_is_the_gold_hint_of_another_task():
    found = worlds.played()
    hint, mask = (np.asarray(x) for x in jax.jit(lambda k, p: hints(k, "placebo", ENV, p))(jax.random.key(0), found))
    gold, group = np.asarray(found.truth.hint), np.asarray(found.trajectory.group)
    for b in range(8):
        donors = [r for r in range(8) if group[r] != group[b] and (gold[r] == hint[b]).all()]
        assert donors
    assert mask.any() and not mask[~np.asarray(found.trajectory.turn_mask)].any()
    assert (hint != gold).any()


def test_a_batch_of_one_group_or_of_dead_rows_has_no_placebo():
    found = worlds.played()
    together = dataclasses.replace(found.trajectory, group=jnp.zeros(8, jnp.int32))
    _, mask = hints(jax.random.key(0), "placebo", ENV, dataclasses.replace(found, trajectory=together))
    assert not mask.any()
    alone = dataclasses.replace(found.trajectory, weight=(jnp.arange(8) < 2).astype(jnp.float32))
    _, mask = hints(jax.random.key(0), "placebo", ENV, dataclasses.replace(found, trajectory=alone))
    assert not mask[:2].any() and bool(mask[2:].any())


def test_wrong_is_never_the_wanted_letter():
    found = worlds.played()
    hint, mask = hints(jax.random.key(0), "wrong", ENV, found)
    acted = np.asarray(found.trajectory.turn_mask)
    assert (np.asarray(hint)[..., 1] != np.asarray(found.env_states.task.wanted)[:, 0, :3])[acted].all()
    assert np.asarray(mask)[acted].all() and not np.asarray(mask)[~acted].any()
    letters = np.asarray(hint)[..., 1][acted]
    assert letters.min() >= worlds.FIRST and len(np.unique(letters)) > 1


def test_what_does_not_exist():
    with pytest.raises(ValueError, match="unknown hint 'silver'; there are: gold, placebo, wrong"):
        hints(jax.random.key(0), "silver", ENV, worlds.played())
    without = ENV._replace(wrong_hint=None)
    with pytest.raises(ValueError, match="dial has no wrong hints: its Env lacks `wrong_hint`"):
        hints(jax.random.key(0), "wrong", without, worlds.played())
