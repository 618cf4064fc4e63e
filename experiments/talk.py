"""A real language model learns one wish of one user, from votes or from hints. One seed: a demonstration, not a study.

    make model && python -m experiments.talk --preset quick [--out DIR] [--model models/smollm2.gguf] [--publish]

A user asks SmolLM2-135M-Instruct one-step word problems. The user has one rule of style that a checker decides exactly
on text; a reply that breaks it is followed by a complaint, and the hint is read out of that message. Three arms, the
same questions in the same order:

    frozen   the model as it is
    binary   a vote +-1 per reply on all its tokens, asymmetric clip, no baseline            METHODS["prm_j1"]
    opd      the hint, appended to the user's message, is shown to the frozen start; credit of a token is how much
             likelier that teacher finds it (packed hindsight); replies without a hint are dropped
                                                                                             METHODS["opd_gold"]

One update per batch of replies, so the clip never acts. Both arms carry the methods' KL penalty of .01 to the start.
The rule is the first of a bank, in a fixed order, that the model breaks on its own (kept at most .25 of the time) and
keeps when told (hint lift at least .3); if none passes, the run says so and stops. Judging needs text: one host call
per batch, between play and update; all else is jitted.

Claim: token credit from a hint teaches a wish from few replies, where a vote on the whole reply does not.
Predictions, written before the run: (1) a rule passes both gates; (2) opd raises the rate at which the rule is kept on
held-out questions by at least .15, intervals of frozen and opd apart; (3) binary moves it by less than .10, since with
a low base rate nearly all votes are -1 and push down whatever was said; (4) answer accuracy under opd falls by no more
than .05 (128 questions cannot resolve less than about .10: the interval is in the report).

Numbers to expect: see experiments/results/talk/report.md. Time of quick on 2 otherwise idle CPU cores: about 15
minutes; peak memory under 10 GB.

Rows (results.jsonl): {"method", "seed", "step", "measure", "value"} and, where it is a share, "low", "high", "n";
`method` of screening rows is the rule's name. Every panel reply is in replies.jsonl. A rerun
with the same --out skips finished arms and repeats an unfinished one.
"""

from __future__ import annotations

import dataclasses
import functools
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track

from agentjax.envs.word_problems import Problem, is_right, word_problems
from agentjax.methods import METHODS, Method
from agentjax.policies.base import Policy
from agentjax.policies.tokenizer import Tokenizer
from agentjax.signals.collect import collect
from agentjax.train import TrainConfig, TrainState, init_state, raise_if_broken, update, wishes_of
from agentjax.types import Array, PyTree, Rollout, Trajectory, Truth
from experiments import talk_report
from experiments.harness import command
from experiments.harness.command import Experiment, Unit
from experiments.harness.ledger import Ledger
from experiments.talk_model import Talk, find_model, hint_ids, load_model, make_talk, padded, tasks_of, texts_of
from experiments.talk_report import REPLIES, Row, share
from experiments.talk_user import LEAST_LIFT, MOST_BASE, RULES, Rule, hint_in, next_message, pick

ARMS = {"frozen": "frozen", "binary": "prm_j1", "opd": "opd_gold"}  # arm -> entry of METHODS


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that the rows depend on; `panel` and `screen` are multiples of `batch`."""

    model: str = "models/smollm2.gguf"  # GGUF file; `make model` fetches it
    updates: int = 12  # optimiser steps of each arm
    batch: int = 16  # replies per update
    panel: int = 128  # held-out questions
    screen: int = 32  # questions that choose the rule
    tokens: int = 48  # of a reply at most
    learning_rate: float = 3e-5  # Adam's, for all parameters
    temperature: float = 0.6  # of the replies
    chunk: int = 16  # positions of each row that pass through the output layer at a time
    seed: int = 0  # of questions and sampling

    @property
    def train(self) -> TrainConfig:
        """The settings of one update."""
        return TrainConfig(groups=self.batch, size=1, temperature=self.temperature, chunk=self.chunk, most=self.tokens)


PRESETS = {
    "quick": Config(),
    "paper": Config(updates=48, panel=512, screen=64, tokens=64),
    "full": Config(updates=200, batch=32, panel=1024, screen=128, tokens=96),
}


class Sets(NamedTuple):
    """Disjoint questions; the panel does not depend on the other sizes."""

    panel: list[Problem]
    screen: list[Problem]
    train: list[Problem]


def question_sets(config: Config) -> Sets:
    """Problems of one run, from its seed."""
    sizes = (config.panel, config.screen, config.updates * config.batch)
    problems = word_problems(config.seed, sum(sizes))
    first, second = sizes[0], sizes[0] + sizes[1]
    return Sets(problems[:first], problems[first:second], problems[second:])


def questions_of(problems: Sequence[Problem]) -> list[str]:
    """Their texts."""
    return [problem.question for problem in problems]


def batches(problems: Sequence[Problem], size: int) -> list[Sequence[Problem]]:
    """Equal slices."""
    return [problems[i : i + size] for i in range(0, len(problems), size)]


def screen(talk: Talk, config: Config, problems: Sequence[Problem], key: Array) -> list[Row]:
    """How often each rule of the bank is kept without and with its hint in the prompt.

    A rule that already fails the first gate is not played with its hint.
    """
    parts = batches(problems, config.batch)

    def replies(wish: str, label: str) -> list[str]:
        found = []
        for i, part in enumerate(track(parts, description=f"screening: {label}")):
            tasks = tasks_of(talk, questions_of(part), wish)
            played, _ = talk.play(jax.random.fold_in(key, i), talk.start, tasks, hinted=bool(wish))
            found += texts_of(talk.tok, played)
        return found

    plain, rows = replies("", "no hint"), []
    for rule in RULES.values():
        mark = {"method": rule.name, "seed": config.seed, "step": 0}
        base = [rule.kept(text) for text in plain]
        rows.append(mark | {"measure": "screen_base"} | share(base))
        if np.mean(base) <= MOST_BASE:
            told = replies(rule.wish, rule.name)
            right = [is_right(text, problem) for text, problem in zip(told, problems, strict=True)]
            rows.append(mark | {"measure": "screen_hinted"} | share([rule.kept(text) for text in told]))
            rows.append(mark | {"measure": "screen_hinted_accuracy"} | share(right))
    return rows


def judged(talk: Talk, rule: Rule, truth: Truth, texts: Sequence[str]) -> tuple[Truth, list[bool]]:
    """The user's next messages turned into votes and hints; and which replies kept the rule."""
    spec = talk.env.spec
    messages = [next_message(rule, text, i) for i, text in enumerate(texts)]
    wishes = [hint_in(message) for message in messages]
    hints = [padded(hint_ids(talk.tok, w) if w else [], spec.hint_len, spec.pad) for w in wishes]
    hint = jnp.asarray(hints, jnp.int32)[:, None, :]
    vote = jnp.asarray([[-1.0 if wish else 1.0] for wish in wishes], jnp.float32)
    told = dataclasses.replace(truth, judge=vote, hint=hint, hint_mask=hint != spec.pad)
    return told, [rule.kept(text) for text in texts]


def make_learn(talk: Talk, method: Method) -> Callable[..., tuple[TrainState, dict[str, Array]]]:
    """learn(state, start, trajectory, truth) -> (state, metrics): signals, credit and one update, jitted."""
    config = talk.config

    def learn(state: TrainState, start: PyTree, trajectory: Trajectory, truth: Truth):
        key, signal_key = jax.random.split(state.key)
        played = Rollout(trajectory=trajectory, truth=truth, env_states=None, env_key=None)
        signals = collect(signal_key, wishes_of(method, config), talk.policy, state.params, start, talk.env, played)
        if method.hint is not None:
            told = jnp.any(truth.hint_mask, axis=(1, 2)).astype(jnp.float32)
            trajectory = dataclasses.replace(trajectory, weight=trajectory.weight * told)
        state, credit, metrics = update(talk.policy, method, config, state, trajectory, signals)
        tokens = jnp.maximum(jnp.sum(trajectory.action_mask, dtype=jnp.float32), 1.0)
        drift = jnp.where(trajectory.action_mask, trajectory.logp - signals.reference_logp, 0.0)
        found = {
            "kl_to_start": jnp.sum(drift) / tokens,
            "credit_abs": jnp.sum(jnp.abs(credit.advantage)) / tokens,
            "gradient_norm": metrics["gradient_norm"],
            "tokens": tokens / trajectory.tokens.shape[0],
        }  # fmt: skip
        return dataclasses.replace(state, key=key, step=state.step + 1), found

    return jax.jit(learn, donate_argnums=0)


def train(
    talk: Talk, config: Config, rule: Rule, arm: str, problems: Sequence[Problem], key: Array,
    note: Callable[[list[Row]], None],
) -> PyTree:  # fmt: skip
    """One arm from the start to its last update; `note` gets the rows of every update. Returns the parameters."""
    play_key, state_key = jax.random.split(key)
    state = init_state(state_key, jax.tree.map(jnp.copy, talk.start), config.learning_rate, talk.config)
    learn = make_learn(talk, METHODS[ARMS[arm]])
    for step, part in enumerate(track(batches(problems, config.batch), description=f"{arm}: updates")):
        began = time.perf_counter()
        tasks = tasks_of(talk, questions_of(part))
        trajectory, truth = talk.play(jax.random.fold_in(play_key, step), state.params, tasks)
        truth, kept = judged(talk, rule, truth, texts := texts_of(talk.tok, trajectory))
        played = time.perf_counter()
        state, metrics = learn(state, talk.start, trajectory, truth)
        raise_if_broken(state)
        right = [is_right(text, problem) for text, problem in zip(texts, part, strict=True)]
        found = {name: {"value": float(value)} for name, value in jax.device_get(metrics).items()}
        found |= {"first_reply_kept": share(kept), "first_reply_right": share(right)}
        found |= {"seconds_play": {"value": played - began}, "seconds_learn": {"value": time.perf_counter() - played}}
        mark = {"method": arm, "seed": config.seed, "step": step}
        note([mark | {"measure": name} | value for name, value in found.items()])
    return state.params


def examine(
    talk: Talk, config: Config, rule: Rule, arm: str, params: PyTree, problems: Sequence[Problem], key: Array
) -> tuple[list[Row], list[Row]]:
    """Rows of an arm on the held-out panel, and its replies. The same keys for every arm."""
    replies, drift = [], []
    began = time.perf_counter()
    for i, part in enumerate(track(batches(problems, config.batch), description=f"{arm}: panel")):
        trajectory, _ = talk.play(jax.random.fold_in(key, i), params, tasks_of(talk, questions_of(part)))
        length = jax.device_get(trajectory.action_mask.sum(axis=1))
        if arm != "frozen":
            here = jnp.where(trajectory.action_mask, trajectory.logp - talk.score(talk.start, trajectory), 0.0)
            drift.append(float(jax.device_get(here.sum())))
        for problem, text, size in zip(part, texts_of(talk.tok, trajectory), length, strict=True):
            replies.append({
                "method": arm, "question": problem.question, "reply": text, "kept": rule.kept(text),
                "right": is_right(text, problem), "tokens": int(size),
            })  # fmt: skip
    tokens = sum(reply["tokens"] for reply in replies)
    found = {
        "rule_kept": share([reply["kept"] for reply in replies]),
        "accuracy": share([reply["right"] for reply in replies]),
        "length": {"value": tokens / len(replies)},
        "panel_kl_to_start": {"value": sum(drift) / tokens},
        "seconds_panel": {"value": time.perf_counter() - began},
        "peak_gb": {"value": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20},
    }
    mark = {"method": arm, "seed": config.seed, "step": 0 if arm == "frozen" else config.updates}
    return [mark | {"measure": name} | value for name, value in found.items()], replies


Load = Callable[[str], tuple[Policy, PyTree, Tokenizer]]


def units(config: Config, cache: Path, load: Load = load_model) -> list[Unit]:
    """Screening, then an arm each. The model is loaded by the first unit that is not on file."""
    sets = question_sets(config)
    screen_key, panel_key, train_key = jax.random.split(jax.random.key(config.seed), 3)

    @functools.cache
    def talk() -> Talk:
        wishes = [rule.wish for rule in RULES.values()]
        return make_talk(*load(config.model), questions_of([p for part in sets for p in part]), wishes, config.train)

    def one(arm: str, ledger: Ledger) -> tuple[list[Row], dict[str, list[Row]]]:
        rule = pick(ledger.rows)
        if rule is None:
            raise RuntimeError(
                f"no rule has a base rate of at most {MOST_BASE} and a hint lift of at least {LEAST_LIFT} with this"
                f" model; the table is in {ledger.out / 'report.md'}"
            )
        rows: list[Row] = []
        params = talk().start
        if arm != "frozen":
            key = jax.random.clone(train_key)  # every arm on the same random numbers
            params = train(talk(), config, rule, arm, sets.train, key, rows.extend)
        panel, replies = examine(talk(), config, rule, arm, params, sets.panel, panel_key)
        return rows + panel, {REPLIES: replies}

    found = [Unit("screen", "talk", lambda _: screen(talk(), config, sets.screen, screen_key))]
    return found + [Unit(arm, "talk", functools.partial(one, arm), 0.5 if arm == "frozen" else 1.5) for arm in ARMS]


def check(config: Config) -> None:
    """Raises ValueError on what cannot be run."""
    command.positive(config, "updates", "batch", "panel", "screen", "tokens", "chunk")
    for name in ("panel", "screen"):
        command.multiple(name, getattr(config, name), "batch", config.batch)
    if config.learning_rate <= 0 or config.temperature <= 0:
        raise ValueError("learning_rate and temperature must be positive")
    find_model(config.model)


EXPERIMENT = Experiment("talk", PRESETS, check, units, lambda out, preset: talk_report.write(out), __doc__)
main = functools.partial(command.run, EXPERIMENT)

if __name__ == "__main__":
    main()
