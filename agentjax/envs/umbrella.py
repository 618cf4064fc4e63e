"""The umbrella chain: one choice that matters, L - 1 that do not, noise in between (after bsuite's umbrella_length).

A need bit (sun or rain, a fair coin) is seen at every step together with the step number. At step 0 the agent takes the
umbrella or leaves it; the later choices change nothing. Steps 0..L-2 pay a distractor of +-`distractors` (a fair coin);
the last step pays +1 if the step-0 choice met the need, else -1.

Under the uniform policy the signal-to-noise ratio of every classical estimator is known in closed form as a function of
L (`measure.horizon.closed_form_snr`).
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from agentjax.envs.base import Env
from agentjax.envs.tabular import TabularModel, tabular_env

NEEDS, ACTIONS = ("sun", "rain"), ("leave", "take")  # action i meets need i


def umbrella_model(length: int, distractors: float) -> TabularModel:
    """Hidden state = 4 step + 2 need + (first choice was right), then one terminal state; observable = 2 step + need.

    length in [1, ...); distractors is the size of the distractor rewards, 0 for the noise-free variant.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    step, need, right = (x.ravel() for x in np.meshgrid(np.arange(length), [0, 1], [0, 1], indexing="ij"))
    states, outcomes = 4 * length + 1, 2 if distractors else 1
    shape = (states, 2, outcomes)
    now_right = np.where(step[:, None] == 0, np.arange(2)[None, :] == need[:, None], right[:, None] == 1)  # [4L,2]
    last = step == length - 1
    following = np.where(last[:, None], 4 * length, 4 * (step + 1)[:, None] + 2 * need[:, None] + now_right)
    coin = distractors * np.array([1.0, -1.0])[:outcomes]
    reward, prob, nxt = np.zeros(shape), np.zeros(shape), np.full(shape, 4 * length)
    reward[:-1] = np.where(last[:, None, None], np.where(now_right, 1.0, -1.0)[..., None], coin)
    nxt[:-1] = following[..., None]
    prob[:] = 1.0 / outcomes
    prob[:-1][last] = np.eye(outcomes)[0]  # the outcome needs no coin
    prob[-1] = np.eye(outcomes)[0]
    start = np.zeros(states)
    start[[0, 2]] = 0.5
    return TabularModel(
        obs=jnp.asarray(np.append(2 * step + need, 0), jnp.int32),
        start=jnp.asarray(start, jnp.float32),
        prob=jnp.asarray(prob, jnp.float32),
        next=jnp.asarray(nxt, jnp.int32),
        reward=jnp.asarray(reward, jnp.float32),
        terminal=jnp.arange(states) == 4 * length,
        horizon=length,
        observations=2 * length,
    )


def umbrella(length: int = 10, distractors: float = 1.0) -> Env:
    """The umbrella chain of `length` steps; distractors = 0 leaves out the noise."""
    words = tuple(f"{need}@{step}" for step in range(length) for need in NEEDS)
    return tabular_env("umbrella", umbrella_model(length, distractors), action_words=ACTIONS, observation_words=words)
