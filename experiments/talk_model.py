"""A language model that talks: chat text laid out in token slots, compiled play and scores, replies back as text.

    policy, start, tok = load_model(path)
    talk = make_talk(policy, start, tok, questions, wishes, config)
    trajectory, truth = talk.play(key, params, tasks_of(talk, questions[:16]))
    texts_of(tok, trajectory)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentjax.envs.base import Env
from agentjax.envs.one_reply import Question, one_reply
from agentjax.policies.base import Policy, score_tokens
from agentjax.policies.pretrained import load_gguf
from agentjax.policies.tokenizer import Tokenizer
from agentjax.policies.transformer import transformer
from agentjax.rollout import rollout
from agentjax.train import TrainConfig
from agentjax.types import Array, PyTree, Trajectory, Truth
from experiments.talk_user import MARKER

SYSTEM = "Solve the problem by adding the numbers. Answer in a full sentence."


class Talk(NamedTuple):
    """A model ready to talk: compiled functions around one environment of fixed sizes."""

    start: PyTree  # the model as it came: teacher, KL reference and frozen arm
    tok: Tokenizer
    policy: Policy
    env: Env
    config: TrainConfig
    play: Callable[..., tuple[Trajectory, Truth]]  # (key, params, tasks, *, hinted)
    score: Callable[[PyTree, Trajectory], Array]  # log-probabilities of the replies, [B,S]


def find_model(path: str) -> None:
    """Raises ValueError with the way out if there is no such file."""
    if not Path(path).is_file():
        raise ValueError(f"no model file {path}; `make model` fetches models/smollm2.gguf")


def load_model(path: str) -> tuple[Policy, PyTree, Tokenizer]:
    """The model of a GGUF file; ValueError with one line if it is damaged."""
    try:
        sizes, params, tok = load_gguf(path)
    except ValueError as error:
        raise ValueError(f"{str(error).splitlines()[0]}; `make model` fetches a whole models/smollm2.gguf") from error
    return transformer(sizes), params, tok


def chat_pieces(tok: Tokenizer, text: str) -> tuple[list[int], tuple[int, ...]]:
    """Ids of a chat up to the end of the user's `text`, and the template's tail between there and the reply."""
    chat = lambda text: tok.chat([{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}])  # noqa: E731
    mine, other = chat(text), chat("!" if text.endswith("?") else "?")
    size = next(i for i, (a, b) in enumerate(zip(reversed(mine), reversed(other), strict=False)) if a != b)
    return mine[: len(mine) - size], tuple(mine[len(mine) - size :])


def hint_ids(tok: Tokenizer, wish: str) -> list[int]:
    """What is appended to the user's message for the teacher."""
    return tok.encode(MARKER + wish)


def padded(ids: Sequence[int], size: int, pad: int) -> list[int]:
    """ids with padding first."""
    return [pad] * (size - len(ids)) + list(ids)


def make_talk(
    policy: Policy, start: PyTree, tok: Tokenizer, questions: Sequence[str], wishes: Sequence[str], config: TrainConfig
) -> Talk:
    """Lays out slots that hold every question and wish, and prepares the jitted functions (compiled on first use).

    `config`: groups is the batch, most the tokens of a reply, temperature that of sampling.
    """
    prompts, hints = [chat_pieces(tok, text)[0] for text in questions], [hint_ids(tok, wish) for wish in wishes]
    tail = chat_pieces(tok, questions[0])[1]
    used = {i for ids in [*prompts, *hints, tail, [tok.end_of_turn]] for i in ids}
    pad = next(i for i in range(policy.vocab) if i not in used)
    blank = lambda many: jnp.full((1, max(map(len, many))), pad, jnp.int32)  # noqa: E731
    table = Question(index=jnp.zeros(1, jnp.int32), prompt=blank(prompts), hint=blank(hints))
    env = one_reply(table, tail, action_len=config.most, end=tok.end_of_turn, pad=pad)

    @functools.partial(jax.jit, static_argnames="hinted")
    def play(key: Array, params: PyTree, tasks: Question, *, hinted: bool = False) -> tuple[Trajectory, Truth]:
        played = rollout(
            key, policy, params, env, env.params, groups=config.groups, size=1, temperature=config.temperature,
            hinted=hinted, tasks=tasks,
        )  # fmt: skip
        return played.trajectory, played.truth

    @jax.jit
    def score(params: PyTree, t: Trajectory) -> Array:
        return score_tokens(
            policy, params, t.tokens, t.valid, t.action_mask, t.temperature, chunk=config.chunk, most=config.most
        )[0]

    return Talk(start, tok, policy, env, config, play, score)


def tasks_of(talk: Talk, questions: Sequence[str], wish: str = "") -> Question:
    """A batch of questions; with a wish, the hint that hinted play puts behind each."""
    spec = talk.env.spec
    prompts = [padded(chat_pieces(talk.tok, text)[0], spec.prompt_len, spec.pad) for text in questions]
    hint = padded(hint_ids(talk.tok, wish) if wish else [], spec.hint_len, spec.pad)
    return Question(
        index=jnp.arange(len(questions), dtype=jnp.int32),
        prompt=jnp.asarray(prompts, jnp.int32),
        hint=jnp.asarray([hint] * len(questions), jnp.int32),
    )


def texts_of(tok: Tokenizer, trajectory: Trajectory) -> list[str]:
    """The replies as text."""
    tokens, taken = jax.device_get((trajectory.tokens, trajectory.action_mask))
    return [tok.decode(row[mask], skip_control=True) for row, mask in zip(tokens, taken, strict=True)]
