"""What one batch costs, by currency, so that arms can be compared at equal anything."""

from __future__ import annotations

import math

import numpy as np

from agentjax.credit import ESTIMATORS
from agentjax.envs.base import EnvSpec
from agentjax.methods import Method
from agentjax.train import TrainConfig

CURRENCIES = ("episodes", "turns", "gradient_tokens", "label_bits", "teacher_tokens", "branch_tokens")
OUTCOME = ("grpo", "rloo", "dr_grpo", "prm_outcome", "prm_plus_rloo")  # estimators that read the reward at the end


def costs(
    method: Method, spec: EnvSpec, config: TrainConfig, turns: np.ndarray, tokens: np.ndarray
) -> dict[str, np.ndarray]:
    """Currency -> spent per batch, in the shape of `turns` and `tokens` (acted turns, action tokens per batch).

    Label bits: a vote, a pair and an outcome 1 each, a hint its slots times log2 V. A vote of judge J0 is read off the
    branches and counted there. Branch tokens: K continuations from every place to the end of the episode, on average.
    """
    episodes, zero = float(config.groups * config.size), np.zeros_like(turns)
    needs, bits = method.needs, zero
    if method.judge is not None:
        bits = bits + turns * method.judge.votes
    if "teacher_logp" in needs:
        bits = bits + turns * spec.hint_len * math.log2(len(spec.vocabulary))
    if method.loss == "dpo" or method.estimator in OUTCOME:
        bits = bits + episodes
    places = (spec.action_len + 1) if ESTIMATORS[method.estimator].resolution == "token" else 2
    rest = spec.turns * (spec.turns + 1) / 2 * spec.action_len
    branched = method.oracle_samples * places * rest * episodes
    found = (
        zero + episodes, turns, tokens, bits, tokens if "teacher_logp" in needs else zero, zero + branched
    )  # fmt: skip
    return dict(zip(CURRENCIES, found, strict=True))
