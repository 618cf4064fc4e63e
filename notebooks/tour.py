# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # A tour: from an environment to the credit of every token
#
# One small agentic task, one tiny transformer, four signals, and the truth to compare them with. Sizes are so small
# that it runs in about two minutes on two CPU cores; nothing here is evidence (that is what `experiments/` is for).

# %%
import functools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from agentjax import envs, train
from agentjax.envs.demos import expert_act, play
from agentjax.envs.render import render
from agentjax.methods import METHODS
from agentjax.oracle import branch
from agentjax.policies.transformer import TransformerConfig, transformer
from agentjax.rollout import rollout
from agentjax.signals.collect import collect
from agentjax.warm_start import WarmStartConfig, fit

# %% [markdown]
# ## The task
# The prompt names places where the agent must act and places to avoid. At most turns nothing it does matters; nothing
# in what it sees marks the turns that do.

# %%
env = envs.make("pivot", preset="tiny", lure_harm=0.5)
shown = jax.jit(lambda key: play(key, env, expert_act(env), env.params, 1))(jax.random.key(0))
print(render(env.spec, shown.trajectory, truth=shown.truth))

# %% [markdown]
# ## A policy that succeeds now and then
# Supervised fine-tuning on noisy demonstrations fixes the base success; the gates are loose at this size.

# %%
config = TransformerConfig(vocab=len(env.spec.vocabulary), width=32, heads=2, kv_heads=1, ffn=64)
policy = transformer(config)
start, gates = fit(policy, env, 0.3, WarmStartConfig(steps=300, rounds=2, panel=256, factor=3.0, hinted=0.5))
print(gates)

# %% [markdown]
# ## Play, and the truth by branching
# The oracle continues every episode from every token, again and again, and takes differences.

# %%
play_batch = jax.jit(functools.partial(rollout, policy=policy, env=env, env_params=env.params, groups=4, size=8))
played = play_batch(jax.random.key(1), params=start)
truth = jax.jit(functools.partial(branch.measure, policy=policy, env=env, samples=16))(
    jax.random.key(2), params=start, played=played
)
won = np.asarray(played.trajectory.reward.sum(axis=1))
row = int(won.argmax())
print(f"success {won.mean():.2f}; one episode, + where the action helped:")
print(render(env.spec, played.trajectory, row, truth=played.truth, credit=truth.token.mean))

# %% [markdown]
# ## Four signals on the same batch
# Every method's credit is a weight per token, so all can be laid beside the truth.

# %%
names = ("dpo", "grpo", "prm_j1", "opd_gold")
rows = {}
for i, name in enumerate(names):
    method = METHODS[name]
    signals = collect(
        jax.random.key(10 + i), train.wishes_of(method, train.TrainConfig()), policy, start, start, env, played
    )
    rows[name] = method.build_estimator().apply(played.trajectory, signals).advantage[row]
rows["truth"] = truth.token.mean[row]
slots = np.flatnonzero(played.trajectory.role[row] == 3)
words = [env.spec.vocabulary[int(t)] for t in played.trajectory.tokens[row, slots]]
picture = np.stack([np.asarray(r)[slots] / max(np.abs(np.asarray(r)[slots]).max(), 1e-9) for r in rows.values()])
figure, axis = plt.subplots(figsize=(10, 2.6), layout="constrained")
axis.imshow(picture, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
axis.set_yticks(range(len(rows)), list(rows))
axis.set_xticks(range(len(words)), words, rotation=90)
axis.set_title("credit of every token, each row scaled by its largest")
plt.show()

# %% [markdown]
# ## One step of learning
# A method is an estimator, a loss and its signals by name; a step plays, collects, credits and updates, in one call.

# %%
step = jax.jit(train.make_step(policy, env, METHODS["grpo"], train.TrainConfig(groups=4, size=8)))
state = train.init_state(jax.random.key(3), start, 3e-4, train.TrainConfig())
for _ in range(3):
    state, metrics = step(state, start)
    print({name: round(float(metrics[name]), 3) for name in ("success", "loss", "gradient_norm", "dead_groups")})

# %% [markdown]
# ## An estimator of your own
# Arrays in, a weight per token out. One file in `agentjax/credit/` and one line in its table make it a method that the
# tests, sweeps and figures find.


# %%
def centred_return(trajectory):
    """Return less the batch mean, on every action token."""
    returns = trajectory.reward.sum(axis=1)
    return jnp.where(trajectory.action_mask, (returns - returns.mean())[:, None], 0.0)


mine = np.asarray(centred_return(played.trajectory))
mask = np.asarray(played.trajectory.action_mask)
print(
    "correlation with the truth over tokens:",
    np.corrcoef(mine[mask], np.asarray(truth.token.mean)[mask])[0, 1].round(3),
)
