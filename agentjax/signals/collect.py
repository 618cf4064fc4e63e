"""Fills `Signals` for a batch: one place that turns a method's wishes into judge votes, teacher scores and branches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax

from agentjax.envs.base import Env
from agentjax.oracle import branch
from agentjax.policies.base import Policy, score_tokens
from agentjax.signals.hindsight import teacher_logp
from agentjax.signals.hints import hints
from agentjax.signals.judges import Judge, judge
from agentjax.signals.pairs import best_against_worst
from agentjax.types import PyTree, Rollout, Signals


@dataclasses.dataclass(frozen=True)
class Wishes:
    """Which signals, and how they are made. Hashable."""

    needs: tuple[str, ...]  # fields of Signals
    judge: Judge | None = None
    hint: str | None = None
    oracle_samples: int = 0
    oracle_tokens: bool = True  # False: branch only at the ends of each action
    chunk: int = 0  # positions that pass through the output layer at a time; 0: all
    most: int = 0  # static bound on action tokens per row for the output layer; 0: every slot


FILLED = ("judge", "teacher_logp", "reference_logp", "pairs", "oracle_turn", "oracle_token", "permutation_key")


def check(wishes: Wishes, known: Sequence[str] = FILLED) -> None:
    """Raises before any compute if something is needed that nobody here fills, or that lacks its settings."""
    missing = [name for name in wishes.needs if name not in known]
    if missing:
        raise ValueError(
            f"nothing fills the signals {', '.join(missing)}; pass a SignalModel that does (known: {known})"
        )


def collect(
    key: jax.Array,
    wishes: Wishes,
    policy: Policy,
    params: PyTree,
    reference: PyTree,
    env: Env,
    played: Rollout,
    oracle: branch.Oracle | None = None,
) -> Signals:
    """Signals of one batch. `reference` are the parameters of the frozen start: teacher and KL reference. Jittable.

    The hinted teacher and the plain reference share one packed pass. An `oracle` measured before is used as it is.
    `key` is consumed.
    """
    check(wishes)
    trajectory, truth = played.trajectory, played.truth
    judge_key, hint_key, pair_key, oracle_key, permute_key = jax.random.split(key, 5)
    found: dict[str, jax.Array] = {}
    needs = set(wishes.needs)
    asks_oracle = wishes.judge is not None and wishes.judge.level == "J0"
    if needs & {"oracle_turn", "oracle_token"} or asks_oracle:
        if oracle is None:
            oracle = branch.measure(
                oracle_key, policy, params, env, played, samples=wishes.oracle_samples, tokens=wishes.oracle_tokens
            )
        found |= {"oracle_turn": oracle.turn.mean, "oracle_token": oracle.token.mean}
    if "judge" in needs and wishes.judge is not None:
        found["judge"] = judge(judge_key, wishes.judge, trajectory, truth, found.get("oracle_turn"))
    if "teacher_logp" in needs and wishes.hint is not None:
        hint, mask = hints(hint_key, wishes.hint, env, played)
        window = env.spec.tail_len + env.spec.action_len
        found["teacher_logp"], plain = teacher_logp(
            policy,
            reference,
            trajectory,
            truth,
            hint,
            mask,
            window=window,
            chunk=wishes.chunk,
            most=wishes.most,
        )
        found["reference_logp"] = jax.lax.stop_gradient(plain)
    elif "reference_logp" in needs:
        plain, _ = score_tokens(
            policy,
            reference,
            trajectory.tokens,
            trajectory.valid,
            trajectory.action_mask,
            trajectory.temperature,
            chunk=wishes.chunk,
            most=wishes.most,
        )
        found["reference_logp"] = jax.lax.stop_gradient(plain)
    if "pairs" in needs:
        found["pairs"] = best_against_worst(pair_key, trajectory)
    if "permutation_key" in needs:
        found["permutation_key"] = permute_key
    return Signals(**found)
