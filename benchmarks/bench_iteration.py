"""One RL iteration of the two-layer model: tokens per second, compilations, drift over 1,000 iterations, memory.

    python -m benchmarks.bench_iteration            # four minutes on 2 CPU cores

`pivot` "main" (6 turns of 6 action tokens), GRPO, 128 rollouts in 16 groups, width 64; the 1,000 iterations have 32.
"""

from __future__ import annotations

import functools
import statistics
import time

import jax
import jax.numpy as jnp

from agentjax import envs
from agentjax.envs.base import Env
from agentjax.methods import method
from agentjax.oracle import branch
from agentjax.policies.base import Policy
from agentjax.policies.transformer import TransformerConfig, transformer
from agentjax.rollout import rollout
from agentjax.signals.collect import collect
from agentjax.train import TrainConfig, init_state, make_step, run_steps, update, wishes_of
from agentjax.types import PyTree
from benchmarks.timing import Row, interleaved, median_row, peak_row, ratio_row, report


def setting(width: int = 64) -> tuple[Env, Policy, PyTree]:
    """Environment, policy and its start."""
    env = envs.make("pivot", preset="main")
    policy = transformer(TransformerConfig(vocab=len(env.spec.vocabulary), width=width, ffn=3 * width))
    return env, policy, policy.init(jax.random.key(0))


def throughput(groups: int = 16, size: int = 8, repeats: int = 15) -> list[Row]:
    """Tokens per second of play and of credit + update, apart."""
    env, policy, start = setting()
    config, entry = TrainConfig(groups=groups, size=size), method("grpo")
    play = jax.jit(lambda key: rollout(key, policy, start, env, env.params, groups=groups, size=size))

    @jax.jit
    def learn(state, played):
        signals = collect(jax.random.key(1), wishes_of(entry, config), policy, state.params, start, env, played)
        return update(policy, entry, config, state, played.trajectory, signals)[0].params

    played, state = play(jax.random.key(0)), init_state(jax.random.key(2), start, 1e-4, config)
    seconds = interleaved(
        {
            "play": lambda: jax.block_until_ready(play(jax.random.key(0)).trajectory),
            "learn": lambda: jax.block_until_ready(learn(state, played)),
        },
        repeats,
        warmup=2,
    )
    tokens, every = (int(jnp.sum(m)) for m in (played.trajectory.action_mask, played.trajectory.valid))
    note = f"{groups * size} episodes, {tokens} sampled of {every} tokens"
    return [
        median_row("rollout, sampled tokens", [tokens / s for s in seconds["play"]], "tokens/s", detail=note),
        median_row("credit and update, all tokens", [every / s for s in seconds["learn"]], "tokens/s", detail=note),
    ]


def steady(iterations: int = 1000, chunk: int = 50) -> list[Row]:
    """Compilations and the time of the last fifth of many iterations against the first."""
    env, policy, start = setting()
    config = TrainConfig(groups=4, size=8)
    step = make_step(policy, env, method("grpo"), config)
    advance = jax.jit(lambda state: run_steps(step, state, start, chunk), donate_argnums=0)
    state, _ = advance(init_state(jax.random.key(3), jax.tree.map(jnp.copy, start), 1e-4, config))
    took = []
    for _ in range(iterations // chunk):
        began = time.perf_counter()
        state, metrics = advance(state)
        jax.block_until_ready(metrics)
        took.append((time.perf_counter() - began) / chunk)
    fifth = len(took) // 5
    flat = statistics.median(took[-fifth:]) / statistics.median(took[:fifth])
    per = f"{1e3 * statistics.median(took):.1f} ms per iteration of 32 episodes"
    return [
        median_row("compilations of the training step", [advance._cache_size()], "", 1.0, most=True),
        median_row(f"last fifth of {iterations} iterations against the first", [flat], "x", 1.1, most=True, detail=per),
        peak_row("peak memory of this process"),
    ]


def oracle_memory(few: int = 2, many: int = 256) -> list[Row]:
    """Temporary memory of the compiled branch oracle at two numbers of samples."""
    env, policy, start = setting()
    played = jax.jit(lambda key: rollout(key, policy, start, env, env.params, groups=4, size=8))(jax.random.key(4))

    def held(samples: int) -> float:
        run = functools.partial(branch.measure, policy=policy, params=start, env=env, samples=samples)
        program = jax.jit(lambda key, played: run(key, played=played)).lower(jax.random.key(5), played).compile()
        return program.memory_analysis().temp_size_in_bytes / 2**20

    first, last = held(few), held(many)
    what = f"branch oracle's working memory, K={many} against K={few}"
    return [median_row(what, [last / first], "x", 1.01, most=True, detail=f"{last:.1f} MB")]


def packed_cost(repeats: int = 9) -> list[Row]:
    """One GRPO iteration against one OPD iteration, whose teacher reads a hint at every turn."""
    env, policy, start = setting()
    config = TrainConfig(groups=16, size=8)
    programs = {}
    for name in ("grpo", "opd_gold"):
        step = jax.jit(make_step(policy, env, method(name), config))
        state = init_state(jax.random.key(6), start, 1e-4, config)
        programs[name] = lambda step=step, state=state: jax.block_until_ready(step(state, start)[0].params)
    seconds = interleaved(programs, repeats)
    return [ratio_row("an iteration of opd_gold against one of grpo", seconds["opd_gold"], seconds["grpo"])]


def main() -> None:
    """All of them."""
    report("iteration", [*throughput(), *packed_cost(), *oracle_memory(), *steady()])


if __name__ == "__main__":
    main()
