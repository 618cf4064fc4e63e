"""The judge ladder: what a process reward model says of each turn, with its errors under control.

    J0  the sign of A^pi of the turn (oracle)
    J1  local validity: state, action and next observation only; it also praises lures      Truth.judge
    J3  J1 with false-positive and false-negative rates, independent from vote to vote

m votes are averaged or decided by majority; a vote may abstain. NaN: every vote abstained, or the turn was not acted.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from agentjax.types import Array, Trajectory, Truth


@dataclasses.dataclass(frozen=True)
class Judge:
    """One rung of the ladder. `false_positive`: a -1 or 0 is called +1; `false_negative`: a +1 is called -1."""

    level: str = "J1"  # "J0" | "J1" | "J3"
    false_positive: float = 0.0
    false_negative: float = 0.0
    votes: int = 1
    combine: str = "mean"  # "mean" | "majority"
    abstain: float = 0.0

    def __post_init__(self) -> None:
        if self.level not in ("J0", "J1", "J3"):
            raise ValueError(f"unknown judge {self.level!r}; there are: J0, J1, J3")
        if self.combine not in ("mean", "majority"):
            raise ValueError(f"votes combine by 'mean' or 'majority', not {self.combine!r}")
        rates = (self.false_positive, self.false_negative, self.abstain)
        if self.votes < 1 or not all(0.0 <= rate <= 1.0 for rate in rates):
            raise ValueError(f"votes must be at least 1 and rates lie in [0, 1], got {self.votes} and {rates}")


def judge(key: Array, rung: Judge, trajectory: Trajectory, truth: Truth, oracle_turn: Array | None = None) -> Array:
    """float32[B,T] in [-1, 1], NaN where there is no vote. `key` is consumed.

    A majority counts the votes cast; a tie is 0. Judge +1 with false_negative = 1 gives -1 from every vote.
    """
    if rung.level == "J0":
        if oracle_turn is None:
            raise ValueError("judge J0 needs oracle_turn; measure it with oracle.branch first")
        verdict = jnp.sign(oracle_turn)
    else:
        verdict = truth.judge
    flip_key, abstain_key = jax.random.split(key)
    shape = (rung.votes, *verdict.shape)
    dice = jax.random.uniform(flip_key, shape)
    praised = jnp.broadcast_to(verdict[None] > 0, shape)
    vote = jnp.where(
        praised,
        jnp.where(dice < rung.false_negative, -1.0, 1.0),
        jnp.where(dice < rung.false_positive, 1.0, verdict[None]),
    )
    cast = ~jax.random.bernoulli(abstain_key, rung.abstain, shape)
    count = cast.sum(axis=0).astype(jnp.float32)
    total = jnp.where(cast, vote, 0.0).sum(axis=0)
    score = jnp.sign(total) if rung.combine == "majority" else total / jnp.maximum(count, 1.0)
    return jnp.where((count > 0) & trajectory.turn_mask, score, jnp.nan)
