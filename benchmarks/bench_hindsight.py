"""Packed hindsight against one padded row per turn, and against one exact unpadded pass per turn.

    python -m benchmarks.bench_hindsight            # four minutes on 2 CPU cores

16 episodes of T turns, prompt, observations, actions and hints of 6 tokens, the last observation token behind the hint;
two layers of width 64. All three programs score the taken actions in their hinted contexts, and only those positions
pass through the output layer; the packed one returns the plain log-probabilities of the actions besides.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from agentjax import episodes
from agentjax.envs.base import EnvSpec, Observation, TurnTruth
from agentjax.policies.base import Policy, score_hidden, score_tokens, trunk_layout
from agentjax.policies.transformer import TransformerConfig, transformer
from agentjax.signals.hindsight import teacher_logp
from agentjax.types import Array, PyTree, Trajectory, Truth
from benchmarks.timing import Row, interleaved, median_row, ratio_row, report

WORDS = 6
CONFIG = TransformerConfig(vocab=128, layers=2, width=64)
TARGETS = {  # (turns, compared with): ratio
    (5, "padded"): 1.0, (5, "exact"): 1.0, (20, "padded"): 12.0, (20, "exact"): 4.0, (80, "padded"): 15.0,
}  # fmt: skip


def spec_of(turns: int) -> EnvSpec:
    """Every message has WORDS tokens."""
    return EnvSpec(
        name="spoken", vocabulary=(), prompt_len=WORDS, observation_len=WORDS, action_len=WORDS, hint_len=WORDS,
        turns=turns,
    )  # fmt: skip


def talks(key: Array, spec: EnvSpec, rows: int, vocab: int) -> tuple[Trajectory, Truth]:
    """Random episodes that use every turn and every slot."""
    keys = jax.random.split(key, 4)
    turns, zero, none = spec.turns, jnp.zeros((rows, spec.turns + 1)), jnp.zeros((rows, spec.turns + 1), bool)
    words = lambda k, *shape: jax.random.randint(keys[k], (rows, *shape), 1, vocab, jnp.int32)  # noqa: E731
    said = Observation(
        tokens=words(0, turns + 1, spec.observation_len), reward=zero, true_reward=zero, proxy_reward=zero, judge=zero,
        terminated=none, truncated=none, hack=zero.astype(jnp.int32),
    )  # fmt: skip
    known = TurnTruth(
        key_step=jnp.ones((rows, turns), bool), hint=words(1, turns, spec.hint_len),
        observation_key=jnp.zeros((rows, turns, 2), jnp.uint32), state_key=jnp.zeros((rows, turns, 2), jnp.uint32),
    )  # fmt: skip
    return episodes.assemble(
        spec, prompt=words(2, spec.prompt_len), observations=said, actions=words(3, turns, spec.action_len),
        turn_truth=known, turn_mask=jnp.ones((rows, turns), bool),
    )  # fmt: skip


def packed(policy: Policy, spec: EnvSpec) -> Callable[..., Array]:
    """The library's way: one pass over trunk and branches. (params, trajectory, truth) -> float32[B,S]."""

    def score(params: PyTree, trajectory: Trajectory, truth: Truth) -> Array:
        return teacher_logp(
            policy, params, trajectory, truth, truth.hint, truth.hint_mask, window=spec.tail_len + spec.action_len,
            most=spec.turns * spec.action_len,
        )  # fmt: skip

    return jax.jit(score)


def padded(policy: Policy, spec: EnvSpec) -> Callable[..., Array]:
    """One row per turn, each as long as the longest: B * T rows of S + H slots in one pass."""

    def score(params: PyTree, trajectory: Trajectory, truth: Truth) -> Array:
        rows, slots = trajectory.tokens.shape
        turns, size = truth.hint.shape[1:]
        at = truth.hint_at[:, :, None]
        slot = jnp.arange(slots + size, dtype=jnp.int32)[None, None, :]
        hint_slot = jnp.clip(slot - at, 0, size - 1)
        trunk = jnp.where(slot < at, slot, jnp.maximum(slot - size, 0))  # the trajectory's slot that stands there
        hinted = (slot >= at) & (slot < at + size)
        row = jnp.arange(rows)[:, None, None]
        turn = jnp.arange(turns, dtype=jnp.int32)[None, :, None]
        tokens = jnp.where(hinted, jnp.take_along_axis(truth.hint, hint_slot, axis=2), trajectory.tokens[row, trunk])
        own = trajectory.turn[row, trunk] == turn
        valid = (slot < at) | hinted | own
        target = own & ~hinted & trajectory.action_mask[row, trunk]
        flat = lambda x: x.reshape(rows * turns, slots + size)  # noqa: E731
        logp, _ = score_tokens(
            policy, params, flat(tokens), flat(valid), flat(target), jnp.repeat(trajectory.temperature, turns),
            most=spec.action_len,
        )  # fmt: skip
        per_turn = jnp.where(target, logp.reshape(rows, turns, -1), 0.0)
        return jnp.zeros((rows, slots)).at[row, trunk].add(per_turn)

    return jax.jit(score)


def exact(policy: Policy, spec: EnvSpec) -> Callable[..., Array]:
    """A loop of T passes, each over exactly the tokens that it needs."""

    def one(turn: int) -> Callable[..., Array]:
        at, end = spec.hint_at(turn), spec.action_at(turn) + spec.action_len

        def score(params: PyTree, tokens: Array, hint: Array, temperature: Array) -> Array:
            whole = jnp.concatenate([tokens[:, :at], hint[:, turn], tokens[:, at:end]], axis=1)
            hidden, _ = policy.apply(params, whole, trunk_layout(jnp.ones(whole.shape, bool)))
            taken = whole[:, -spec.action_len :]
            return score_hidden(policy, params, hidden[:, -spec.action_len - 1 : -1], taken, temperature)[0]

        return jax.jit(score)

    passes = [one(turn) for turn in range(spec.turns)]

    def score(params: PyTree, trajectory: Trajectory, truth: Truth) -> Array:
        taken = [one(params, trajectory.tokens, truth.hint, trajectory.temperature) for one in passes]
        out = np.zeros(trajectory.tokens.shape, np.float32)
        for turn, logp in enumerate(taken):
            start = spec.action_at(turn)
            out[:, start : start + spec.action_len] = logp
        return out

    return score


WAYS = {"padded": padded, "exact": exact}


def measure(
    turns: int, ways: tuple[str, ...], *, rows: int = 16, config: TransformerConfig = CONFIG, repeats: int = 5
) -> list[Row]:
    """Ratios and the largest difference of log-probabilities at one number of turns."""
    policy, spec = transformer(config), spec_of(turns)
    params = policy.init(jax.random.key(0))
    trajectory, truth = talks(jax.random.key(1), spec, rows, config.vocab)
    programs = {"packed": packed(policy, spec)} | {name: WAYS[name](policy, spec) for name in ways}
    found = {name: program(params, trajectory, truth) for name, program in programs.items()}
    hinted, found = np.asarray(found["packed"][0]), {name: np.asarray(found[name]) for name in ways}
    seconds = interleaved(
        {
            name: lambda program=program: jax.block_until_ready(program(params, trajectory, truth))
            for name, program in programs.items()
        },
        repeats,
    )
    label = f"packed hindsight, T={turns}"
    ratios = [
        ratio_row(f"{label}, against {name}", seconds[name], seconds["packed"], TARGETS.get((turns, name), 0.0))
        for name in ways
    ]
    worst = max(float(np.abs(hinted - found[name]).max()) for name in ways)
    return [*ratios, median_row(f"{label}, difference of log-probabilities", [worst], "nats", 1e-5, most=True)]


def main() -> None:
    """The three sizes of the table."""
    both = ("padded", "exact")
    rows = [*measure(5, both, repeats=15), *measure(20, both, repeats=9), *measure(80, ("padded",), repeats=3)]
    report("hindsight", rows)


if __name__ == "__main__":
    main()
