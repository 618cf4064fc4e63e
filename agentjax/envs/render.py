"""Transcripts that a person can follow, from token arrays alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agentjax.envs.base import EnvSpec
from agentjax.types import ACTION, OBSERVATION, PROMPT, Array, Trajectory, Truth


def render(
    spec: EnvSpec,
    trajectory: Trajectory,
    row: int = 0,
    *,
    truth: Truth | None = None,
    credit: Array | None = None,
    notes: Sequence[str] = (),
) -> str:
    """One line per turn of row `row`: what was seen, what was done, and on request what it was worth.

    With `truth` (the whole batch's): key turns marked `key`, the judge's verdict, rewards. With `credit` [B,S] (a
    `Credit.advantage`): the weight behind each action token. `notes` are written at the ends of the turns' lines.

        goal door avoid lamp
        turn 0  start, at door, note bell=red >   please open blue <end>   key  judge +1
    """
    tr: Any = _host(trajectory, row)
    facts: Any = None if truth is None else _host(truth, row)
    weight = None if credit is None else np.asarray(credit)[row]
    lines, columns = [" ".join(_words(spec, tr, tr.role == PROMPT))], []
    for t in range(int(tr.turn_mask.sum())):
        seen = _observation(spec, tr, t)
        done = " ".join(_words(spec, tr, (tr.role == ACTION) & (tr.turn == t), weight))
        marks = [] if facts is None else _marks(facts, t)
        if t < len(notes):
            marks.append(notes[t])
        columns.append((f"turn {t}", seen, done, "  ".join(marks)))
    closing = _observation(spec, tr, int(tr.turn_mask.sum()))
    columns.append(("", closing, "", f"return {tr.reward[tr.turn_mask].sum():g}"))
    widths = [max(len(line[i]) for line in columns) for i in range(3)]
    lines += ["  ".join(cell.ljust(n) for cell, n in zip(line, [*widths, 0], strict=True)).rstrip() for line in columns]
    return "\n".join(lines)


def _host(tree: Any, row: int) -> Any:
    """The fields of one row as numpy arrays."""
    fields = {name: np.asarray(x)[row] for name, x in vars(tree).items() if x is not None}
    return type(tree)(**fields)


def _words(spec: EnvSpec, tr: Any, mask: np.ndarray, weight: np.ndarray | None = None) -> list[str]:
    words = [spec.vocabulary[token] for token in tr.tokens[mask]]
    if weight is None:
        return words
    return [f"{word}({w:+.2f})" for word, w in zip(words, weight[mask], strict=True)]


def _observation(spec: EnvSpec, tr: Any, turn: int) -> str:
    mask = (tr.role == OBSERVATION) & (tr.turn == turn)
    words = _words(spec, tr, mask)
    if len(words) != len(spec.labels):
        return " ".join(words)
    said = [f"{label} {word}".strip() for label, word in zip(spec.labels, words, strict=True)]
    body, tail = said[: len(said) - spec.tail_len], said[len(said) - spec.tail_len :]
    return " ".join([", ".join(body), *tail])


def _marks(facts: Any, turn: int) -> list[str]:
    marks = ["key" if facts.key_step[turn] else "   ", f"judge {facts.judge[turn]:+.0f}".replace("+0", " 0")]
    if facts.true_reward[turn]:
        marks.append(f"reward {facts.true_reward[turn]:g}")
    return marks
