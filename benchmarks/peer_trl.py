"""One GRPO iteration, play to update, against TRL 1.16's GRPOTrainer. In the peers' environment: `make bench-peers`.

    python -m benchmarks.peer_trl [small|smollm2]      # default: both; six minutes on 2 CPU cores

small: two layers of width 64, 128 rollouts of 64 tokens; smollm2: SmolLM2-135M in float32, 16 replies of 64 tokens.
Both sides: the same shape and token count, groups of 8, no KL, AdamW or Adam, every token sampled at temperature 1
with no early end, a reward that costs nothing. TRL generates with transformers; seconds are from step end
to step end, first steps (compilation, warm-up) left out.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import datasets
import jax
import jax.numpy as jnp
import tokenizers
import torch
import transformers
import trl

from agentjax.envs.one_reply import Question, one_reply
from agentjax.methods import method
from agentjax.policies.base import Policy
from agentjax.policies.pretrained import load_gguf
from agentjax.policies.transformer import TransformerConfig, transformer
from agentjax.rollout import rollout
from agentjax.signals.collect import collect
from agentjax.train import TrainConfig, init_state, update, wishes_of
from agentjax.types import PyTree
from benchmarks.timing import Row, interleaved, median_row, peak_row, ratio_row, report

MODEL = Path("models/smollm2.gguf")
SMALL = TransformerConfig(vocab=128, layers=2, width=64, heads=4, kv_heads=2, ffn=192)
TOKENS, PROMPT, SIZE = 64, 16, 8


def ours(policy: Policy, params: PyTree, rows: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Two programs: play; credit and update on what was played. Calling them in turn is one iteration."""
    entry = dataclasses.replace(method("grpo"), kl_coefficient=0.0)
    prompt = 1 + jnp.arange(rows // SIZE * PROMPT, dtype=jnp.int32).reshape(-1, PROMPT) % 100
    table = Question(index=jnp.arange(rows // SIZE), prompt=prompt, hint=jnp.zeros((rows // SIZE, 1), jnp.int32))
    env = one_reply(table, (5,), action_len=TOKENS, end=-1, pad=0)  # no token ends a reply
    config = TrainConfig(groups=rows // SIZE, size=SIZE, chunk=16 if rows <= 16 else 0, most=TOKENS)

    @jax.jit
    def play(key, params):
        played = rollout(key, policy, params, env, env.params, groups=config.groups, size=SIZE, tasks=table)
        paid = (played.trajectory.tokens.sum(axis=1) % 2).astype(jnp.float32)
        return dataclasses.replace(
            played, trajectory=dataclasses.replace(played.trajectory, reward=paid[:, None]), cache=None
        )

    def learn(state, played):
        signals = collect(jax.random.key(1), wishes_of(entry, config), policy, state.params, None, env, played)
        return update(policy, entry, config, state, played.trajectory, signals)[0]

    learn, now = jax.jit(learn, donate_argnums=0), {"state": init_state(jax.random.key(2), params, 1e-6, config)}

    def first() -> None:
        now["played"] = jax.block_until_ready(play(jax.random.key(3), now["state"].params))
        if int(now["played"].trajectory.action_mask.sum()) != rows * TOKENS:
            raise AssertionError("a reply ended early: token counts differ")

    def second() -> None:
        now["state"] = jax.block_until_ready(learn(now["state"], now["played"]))

    return first, second


class Clock(transformers.TrainerCallback):
    """Seconds of every step."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.ends.append(time.perf_counter())


def theirs(model: Any, tokenizer: Any, rows: int, steps: int) -> list[float]:
    """Seconds of each of TRL's steps but the first two."""
    clock = Clock()
    words = " ".join(["a"] * PROMPT)
    with tempfile.TemporaryDirectory() as folder:
        config = trl.GRPOConfig(
            output_dir=folder, per_device_train_batch_size=rows, num_generations=SIZE, max_completion_length=TOKENS,
            generation_kwargs={"min_new_tokens": TOKENS}, beta=0.0, max_steps=steps + 2, learning_rate=1e-6,
            report_to="none", save_strategy="no", logging_strategy="no", use_cpu=True, bf16=False, temperature=1.0,
            gradient_checkpointing=False, disable_tqdm=True,
        )  # fmt: skip
        trainer = trl.GRPOTrainer(
            model=model, args=config, processing_class=tokenizer, callbacks=[clock],
            reward_funcs=lambda completions, **_: [float(len(c) % 2) for c in completions],
            train_dataset=datasets.Dataset.from_dict({"prompt": [words] * 4 * rows}),
        )  # fmt: skip
        trainer.train()
    return [b - a for a, b in zip(clock.ends[1:], clock.ends[2:], strict=False)]


def compare(
    label: str, policy: Policy, params: PyTree, model: Any, tokenizer: Any, rows: int, steps: int, target: float
):  # fmt: skip
    """Blocks in turn (theirs, ours, theirs, ours): TRL's trainer cannot be stepped from outside."""
    play, learn = ours(policy, params, rows)
    play(), learn()
    seconds: dict[str, list[float]] = {"theirs": [], "play": [], "learn": []}
    for _ in range(2):
        seconds["theirs"] += theirs(model, tokenizer, rows, steps)
        time.sleep(1)
        found = interleaved({"play": play, "learn": learn}, steps, warmup=1)
        for name, values in found.items():
            seconds[name] += values
    whole = [a + b for a, b in zip(seconds["play"], seconds["learn"], strict=True)]
    tokens = rows * TOKENS
    return [
        ratio_row(f"{label}: one iteration against TRL's", seconds["theirs"], whole, target),
        median_row(f"{label}: our sampling", [tokens / s for s in seconds["play"]], "tokens/s"),
        median_row(f"{label}: our update, sampled tokens", [tokens / s for s in seconds["learn"]], "tokens/s"),
    ]


def small(rows: int = 128, steps: int = 12) -> list[Row]:
    """The two-layer model."""
    vocabulary = {"<pad>": 0, "<end>": 1, **{f"w{i}": i for i in range(2, 127)}, "a": 127}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<pad>"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<end>")
    shape = transformers.LlamaConfig(
        vocab_size=SMALL.vocab, hidden_size=SMALL.width, intermediate_size=SMALL.ffn, num_hidden_layers=SMALL.layers,
        num_attention_heads=SMALL.heads, num_key_value_heads=SMALL.kv_heads, tie_word_embeddings=True,
        pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    policy = transformer(SMALL)
    model = transformers.LlamaForCausalLM(shape).float()
    return compare("two layers", policy, policy.init(jax.random.key(0)), model, tokenizer, rows, steps, 2.0)


def smollm2(rows: int = 16, steps: int = 3) -> list[Row]:
    """The real model."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL.parent, gguf_file=MODEL.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL.parent, gguf_file=MODEL.name, dtype=torch.float32)
    sizes, params, _ = load_gguf(MODEL)
    rows_ = compare("SmolLM2-135M", transformer(sizes), params, model, tokenizer, rows, steps, 1.8)
    return [*rows_, peak_row("peak memory with both models loaded")]


def main() -> None:
    """What the command line names."""
    for name in sys.argv[1:] or ["small", "smollm2"]:
        report(f"peer_trl_{name}", {"small": small, "smollm2": smollm2}[name]())


if __name__ == "__main__":
    main()
