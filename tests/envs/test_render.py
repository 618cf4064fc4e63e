"""A transcript, written out by hand."""

import jax.numpy as jnp
import pytest

from agentjax import episodes
from agentjax.envs.base import EnvSpec, Observation, TurnTruth
from agentjax.envs.render import render

WORDS = ("<pad>", ">", "<end>", "start", "ok", "error", "goal", "door", "lamp", "open", "read", "blue")
SPEC = EnvSpec("toy", WORDS, 3, 3, 3, 1, 2, end=2, labels=("", "at", ""))


def ids(sentence, size, front=False):
    tokens = [WORDS.index(word) for word in sentence.split()]
    padding = [0] * (size - len(tokens))
    return padding + tokens if front else tokens + padding


@pytest.fixture
def played():
    zeros = jnp.zeros((1, 3), jnp.float32)
    observations = Observation(
        tokens=jnp.array([[ids("start door >", 3), ids("error lamp >", 3), ids("ok", 3, front=True)]]),
        reward=zeros.at[0, 2].set(1.0),
        terminated=jnp.array([[False, False, True]]),
        truncated=jnp.zeros((1, 3), bool),
        judge=jnp.array([[0.0, -1.0, 1.0]]),
        true_reward=zeros.at[0, 2].set(1.0),
        proxy_reward=zeros,
        hack=jnp.zeros((1, 3), jnp.int32),
    )
    turn_truth = TurnTruth(
        key_step=jnp.array([[False, True]]),
        hint=jnp.zeros((1, 2, 1), jnp.int32),
        observation_key=jnp.zeros((1, 2, 2), jnp.uint32),
        state_key=jnp.zeros((1, 2, 2), jnp.uint32),
    )
    return episodes.assemble(
        SPEC,
        prompt=jnp.array([ids("goal lamp", 3, front=True)]),
        observations=observations,
        actions=jnp.array([[ids("open <end>", 3), ids("read blue <end>", 3)]]),
        turn_truth=turn_truth,
        turn_mask=jnp.ones((1, 2), bool),
    )


def test_what_was_seen_done_and_worth(played):
    trajectory, truth = played
    assert render(SPEC, trajectory, truth=truth).splitlines() == [
        "goal lamp",
        "turn 0  start, at door >  open <end>            judge -1",
        "turn 1  error, at lamp >  read blue <end>  key  judge +1  reward 1",
        "        ok                                 return 1",
    ]


def test_without_the_truth_nothing_is_marked_and_credit_stands_behind_each_token(played):
    trajectory, _ = played
    credit = jnp.where(trajectory.action_mask, 0.25, 0.0)
    assert render(SPEC, trajectory, credit=credit, notes=("a step",)).splitlines() == [
        "goal lamp",
        "turn 0  start, at door >  open(+0.25) <end>(+0.25)              a step",
        "turn 1  error, at lamp >  read(+0.25) blue(+0.25) <end>(+0.25)",
        "        ok                                                      return 1",
    ]
