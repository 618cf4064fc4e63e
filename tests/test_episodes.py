"""The slot layout, by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from agentjax import episodes
from agentjax.envs.base import EnvSpec, Observation, TurnTruth
from agentjax.types import validate

# P=2, O=2, A=3, H=1, T=2, tail 1, end = 3: 2 + 2 * (2 + 3) + 2 = 14 slots
SPEC = EnvSpec("toy", ("<pad>", "a", "b", "<end>"), 2, 2, 3, 1, 2, tail_len=1, end=3)


def records(terminated, turn_mask):
    zeros = jnp.zeros((2, 3), jnp.float32)
    observations = Observation(
        tokens=jnp.array([[[0, 1], [1, 2], [2, 1]]] * 2),
        reward=jnp.array([[9.0, 1.0, 2.0]] * 2),
        terminated=jnp.array(terminated),
        truncated=jnp.zeros((2, 3), bool),
        judge=jnp.array([[9.0, -1.0, 1.0]] * 2),
        true_reward=zeros,
        proxy_reward=zeros,
        hack=jnp.zeros((2, 3), jnp.int32),
    )
    turn_truth = TurnTruth(
        key_step=jnp.array([[False, True]] * 2),
        hint=jnp.array([[[1], [2]]] * 2),
        observation_key=jnp.ones((2, 2, 2), jnp.uint32),
        state_key=jnp.ones((2, 2, 2), jnp.uint32),
    )
    return episodes.assemble(
        SPEC,
        prompt=jnp.array([[0, 2]] * 2),
        observations=observations,
        actions=jnp.array([[[1, 3, 2], [1, 1, 1]]] * 2),
        action_logp=jnp.full((2, 2, 3), -0.5),
        turn_truth=turn_truth,
        turn_mask=turn_mask,
    )


def test_layout_of_a_full_and_an_early_finished_episode():
    trajectory, truth = records([[False, True, True], [False, False, True]], jnp.array([[True, False], [True, True]]))
    validate(trajectory)
    #                      prompt o_0   a_0      o_1   a_1      closing
    tokens = [[0, 2] + [0, 1] + [1, 3, 0] + [1, 2] + [0, 0, 0] + [0, 0], [0, 2, 0, 1, 1, 3, 0, 1, 2, 1, 1, 1, 2, 1]]
    role = [[0, 1, 0, 2, 3, 3, 0, 2, 2, 0, 0, 0, 0, 0], [0, 1, 0, 2, 3, 3, 0, 2, 2, 3, 3, 3, 2, 2]]
    turn = [[-1, -1, -1, 0, 0, 0, -1, 1, 1, -1, -1, -1, -1, -1], [-1, -1, -1, 0, 0, 0, -1, 1, 1, 1, 1, 1, 2, 2]]
    np.testing.assert_array_equal(trajectory.tokens, tokens)
    np.testing.assert_array_equal(trajectory.role, role)
    np.testing.assert_array_equal(trajectory.turn, turn)
    np.testing.assert_array_equal(trajectory.logp, np.where(np.array(role) == 3, -0.5, 0))
    np.testing.assert_array_equal(trajectory.position[1], [0, 0, 0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10])
    np.testing.assert_array_equal(trajectory.reward, [[1, 0], [1, 2]])  # the reset's 9 pays nobody
    np.testing.assert_array_equal(truth.judge, [[-1, 0], [-1, 1]])
    np.testing.assert_array_equal(truth.key_step, [[False, False], [False, True]])
    np.testing.assert_array_equal(truth.hint_at, [[3, 8], [3, 8]])  # before the last observation token
    np.testing.assert_array_equal(truth.hint_mask[..., 0], [[True, False], [True, True]])
    np.testing.assert_array_equal(trajectory.terminated, [True, True])
    np.testing.assert_array_equal(trajectory.truncated, [False, False])


def test_an_episode_cut_by_the_slots_is_truncated():
    trajectory, _ = records([[False, False, False], [False, False, True]], jnp.ones((2, 2), bool))
    np.testing.assert_array_equal(trajectory.terminated, [False, True])
    np.testing.assert_array_equal(trajectory.truncated, [True, False])


def test_a_turn_count_that_the_slots_do_not_hold_is_refused():
    with pytest.raises(ValueError, match="actions hold 3 turns, the slots of toy are laid out for 2"):
        episodes.assemble(
            SPEC,
            prompt=None,
            observations=None,
            actions=jnp.zeros((2, 3, 3), jnp.int32),
            turn_truth=None,
            turn_mask=None,
        )


def test_action_mask_and_acted_turns():
    np.testing.assert_array_equal(episodes.action_mask(jnp.array([4, 9, 0, 9]), 9), [True, True, False, False])
    np.testing.assert_array_equal(episodes.action_mask(jnp.array([4, 5]), 9), [True, True])
    np.testing.assert_array_equal(episodes.action_mask(jnp.array([4, 9, 0]), -1), [True, True, True])
    np.testing.assert_array_equal(episodes.acted_turns(jnp.array([[False, True, True]])), [[True, True, False]])
