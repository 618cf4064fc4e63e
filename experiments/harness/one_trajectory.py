"""Credit of every method on one trajectory, token by token, beside the truth: rows for the heat map."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from agentjax import train
from agentjax.methods import Method
from agentjax.oracle import branch
from agentjax.rollout import rollout
from agentjax.signals.collect import collect
from agentjax.types import ACTION, OBSERVATION, Array
from experiments.harness.ledger import Row
from experiments.harness.tasks import Task


def credit_rows(key: Array, task: Task, entries: Sequence[Method], *, truth: int = 8, samples: int = 4) -> list[Row]:
    """The first success of a batch. `truth` continuations a place for the truth, `samples` for the oracle's credit."""

    @jax.jit
    def batch(key: Array) -> tuple:
        play_key, truth_key, oracle_key, signal_key = jax.random.split(key, 4)
        played = rollout(play_key, task.policy, task.start, task.env, task.env.params, groups=4, size=8)
        measure = functools.partial(branch.measure, policy=task.policy, params=task.start, env=task.env, played=played)
        known, own = measure(truth_key, samples=truth), measure(oracle_key, samples=samples)
        credits = []
        for i, entry in enumerate(entries):
            wishes = train.wishes_of(entry, train.TrainConfig())
            signals = collect(
                jax.random.fold_in(signal_key, i), wishes, task.policy, task.start, task.start, task.env, played, own
            )
            credits.append(entry.build_estimator().apply(played.trajectory, signals).advantage)
        return dataclasses.replace(played, cache=None), known.token.mean, jnp.stack(credits)

    played, known, credits = jax.device_get(batch(key))
    trajectory, spec = played.trajectory, task.env.spec
    won = np.flatnonzero((trajectory.reward * trajectory.turn_mask).sum(axis=1) > 0)
    row = int(won[0]) if won.size else 0
    slots = np.flatnonzero(trajectory.role[row] == ACTION)
    out = [task.row("truth", "outcome", (trajectory.reward[row] * trajectory.turn_mask[row]).sum())]
    out += [task.row("truth", "key_step", float(k), turn=t) for t, k in enumerate(played.truth.key_step[row])]
    for t in range(int(trajectory.turn_mask[row].sum())):
        seen = (trajectory.turn[row] == t) & (trajectory.role[row] == OBSERVATION)
        text = " ".join(spec.vocabulary[int(token)] for token in trajectory.tokens[row, seen])
        out.append(task.row("truth", "observation", 1.0, turn=t, text=text))
    for name, credit in zip(("truth", *(entry.name for entry in entries)), (known, *credits), strict=True):
        for slot in slots:
            t = int(trajectory.turn[row, slot])
            place = {"turn": t, "slot": int(slot - spec.action_at(t))}
            word = spec.vocabulary[int(trajectory.tokens[row, slot])]
            out.append(task.row(name, "credit", float(credit[row, slot]), word=word, **place))
    return out
