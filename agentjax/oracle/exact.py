"""The truth of enumerable tasks: values, advantages, gradients and variances of a softmax table, without sampling.

Everything is a pure function of `TabularModel` (N hidden states, A actions, O outcomes, horizon H) and `table`
float32[n,A] (softmax logits per observable). The policy acts on observables; values belong to hidden states, at turn t
of H (an episode that has not ended). Entries of states that cannot be reached at a turn are still the values that they
would have; terminal states have 0.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from agentjax import episodes
from agentjax.envs.base import Env, Observation
from agentjax.envs.tabular import END, START, TabularModel, TabularState, backup, optimal_q, token_ids
from agentjax.types import Array, Trajectory, Truth, record


@record
class Values:
    """State values, action values and advantages at every turn."""

    value: Array  # float32[H+1,N], zeros at H
    q: Array  # float32[H,N,A]
    advantage: Array  # float32[H,N,A], q - value


@record
class Paths:
    """All M trajectories of a task; `chance` is the probability of the outcomes and the start, without the policy's."""

    state: Array  # int32[M,H+1], hidden state before each turn and after the last
    obs: Array  # int32[M,H], observable index; 0 after the end
    action: Array  # int32[M,H]; 0 after the end
    reward: Array  # float32[M,H]; 0 after the end
    mask: Array  # bool[M,H], turns that were acted
    chance: Array  # float32[M]


def policy(model: TabularModel, table: Array) -> Array:
    """float32[N,A]: action probabilities in every hidden state."""
    return jax.nn.softmax(table, axis=-1)[model.obs]


def _values(value: Array, q: Array) -> Values:
    value = jnp.concatenate([value, jnp.zeros_like(value[:1])])
    return Values(value=value, q=q, advantage=q - value[:-1, :, None])


@jax.jit
def evaluate(model: TabularModel, table: Array) -> Values:
    """V^pi, Q^pi, A^pi by backward induction: Q_t = backup(V_{t+1}), V_t(s) = sum_a pi(a|s) Q_t(s,a)."""
    pi = policy(model, table)

    def step(value: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        q = backup(model, value)
        value = jnp.sum(pi * q, axis=-1)
        return value, (value, q)

    zero = jnp.zeros(model.obs.shape, jnp.float32)
    return _values(*jax.lax.scan(step, zero, None, length=model.horizon, reverse=True)[1])


@jax.jit
def optimal(model: TabularModel) -> Values:
    """V*, Q*, and Q* - V* (at most 0) of an agent that sees the hidden state."""
    q = optimal_q(model)
    return _values(jnp.max(q, axis=-1), q)


def _flow(model: TabularModel, weight: Array) -> Array:
    """Moves weight[N,A,O] to the states it leads to, [N]; terminal states receive nothing."""
    moved = jnp.zeros(model.obs.shape, jnp.float32).at[model.next].add(weight)
    return jnp.where(model.terminal, 0.0, moved)


@jax.jit
def occupancy(model: TabularModel, table: Array) -> Array:
    """float32[H,N]: probability that turn t is acted in state s. Rows sum to the probability of getting that far."""
    pi = policy(model, table)

    def step(here: Array, _: None) -> tuple[Array, Array]:
        return _flow(model, here[:, None, None] * pi[..., None] * model.prob), here

    return jax.lax.scan(step, model.start, None, length=model.horizon)[1]


@jax.jit
def expected_return(model: TabularModel, table: Array) -> Array:
    """J = sum_s start(s) V_0(s), float32[]. Differentiable in `table`."""
    return jnp.sum(model.start * evaluate(model, table).value[0])


@jax.jit
def policy_gradient(model: TabularModel, table: Array) -> Array:
    """dJ/dtable, float32[n,A], by the policy gradient theorem.

    g[j,a] = sum_t sum_{s: obs(s)=j} P(s at t) pi(a|s) A^pi_t(s,a)
    """
    values, reach = evaluate(model, table), occupancy(model, table)
    per_state = jnp.sum(reach[..., None] * policy(model, table)[None] * values.advantage, axis=0)
    return jnp.zeros_like(table).at[model.obs].add(per_state)


@jax.jit
def success(model: TabularModel, table: Array) -> Array:
    """Probability that the last reward of an episode is positive, float32[]."""
    pi = policy(model, table)

    def step(later: Array, last: Array) -> tuple[Array, None]:
        ended = model.terminal[model.next] | last
        won = jnp.where(ended, (model.reward > 0).astype(jnp.float32), later[model.next])
        return jnp.sum(pi[..., None] * model.prob * won, axis=(1, 2)), None

    last = jnp.arange(model.horizon) == model.horizon - 1
    chance, _ = jax.lax.scan(step, jnp.zeros(model.obs.shape, jnp.float32), last, reverse=True)
    return jnp.sum(model.start * chance)


@record
class ReturnVariance:
    """Variance of the return to go; divided by K it is that of the mean of K independent continuations."""

    state: Array  # float32[H+1,N], action drawn from the policy
    action: Array  # float32[H,N,A], action given


@jax.jit
def return_variance(model: TabularModel, table: Array) -> ReturnVariance:
    """Exact variance of one Monte-Carlo return, by the law of total variance.

    Var_t(s,a) = sum_o p_o [Var_{t+1}(s_o) + (r_o + V_{t+1}(s_o) - Q_t(s,a))^2]
    Var_t(s)   = sum_a pi(a|s) [Var_t(s,a) + A_t(s,a)^2]
    """
    pi, values = policy(model, table), evaluate(model, table)

    def step(later: Array, xs: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        value, q, advantage = xs
        going = ~model.terminal[model.next]
        spread = model.reward + jnp.where(going, value[model.next], 0.0) - q[..., None]
        inside = jnp.where(going, later[model.next], 0.0)
        action = jnp.sum(model.prob * (inside + jnp.square(spread)), axis=-1)
        action = jnp.where(model.terminal[:, None], 0.0, action)
        state = jnp.sum(pi * (action + jnp.square(advantage)), axis=-1)
        return state, (state, action)

    zero = jnp.zeros(model.obs.shape, jnp.float32)
    xs = (values.value[1:], values.q, values.advantage)
    _, (state, action) = jax.lax.scan(step, zero, xs, reverse=True)
    return ReturnVariance(state=jnp.concatenate([state, zero[None]]), action=action)


def enumerate_paths(model: TabularModel, *, limit: int = 200_000) -> Paths:
    """Every trajectory of positive chance under a policy that gives every action a chance. Host side, small tasks only.

    Raises ValueError when there are more than `limit`.
    """
    m = jax.tree.map(np.asarray, model)
    actions, outcomes = m.prob.shape[1:]
    state = np.flatnonzero(m.start > 0)[:, None]
    chance, live = m.start[state[:, 0]].astype(np.float64), np.ones(len(state), bool)
    columns: list[np.ndarray] = []  # per turn: [M,3] of action, reward, acted
    for _ in range(m.horizon):
        branch, a, o = (x.ravel() for x in np.indices((len(state), actions, outcomes)))
        here, alive = state[branch, -1], live[branch]
        keep = np.where(alive, m.prob[here, a, o] > 0, (a == 0) & (o == 0))  # ended paths are carried along once
        branch, a, o, here, alive = (x[keep] for x in (branch, a, o, here, alive))
        if len(branch) > limit:
            raise ValueError(f"more than {limit} trajectories; enumerate a smaller task or use the backward recursions")
        new = np.where(alive, m.next[here, a, o], here)
        columns = [c[branch] for c in columns]
        columns.append(np.stack([np.where(alive, a, 0), np.where(alive, m.reward[here, a, o], 0.0), alive], axis=1))
        chance = chance[branch] * np.where(alive, m.prob[here, a, o], 1.0)
        state = np.concatenate([state[branch], new[:, None]], axis=1)
        live = alive & ~m.terminal[new]
    table = np.stack(columns, axis=1)  # [M,H,3]
    mask = table[..., 2] > 0
    return Paths(
        state=jnp.asarray(state, jnp.int32),
        obs=jnp.asarray(np.where(mask, m.obs[state[:, :-1]], 0), jnp.int32),
        action=jnp.asarray(table[..., 0], jnp.int32),
        reward=jnp.asarray(table[..., 1], jnp.float32),
        mask=jnp.asarray(mask),
        chance=jnp.asarray(chance, jnp.float32),
    )


def path_logp(paths: Paths, table: Array) -> Array:
    """float32[M,H]: log-probability of every action under the table; 0 after the end."""
    logp = jax.nn.log_softmax(table, axis=-1)[paths.obs, paths.action]
    return jnp.where(paths.mask, logp, 0.0)


def path_probability(paths: Paths, table: Array) -> Array:
    """float32[M], sums to 1: chance times the policy's part. Differentiable in `table`."""
    return paths.chance * jnp.exp(jnp.sum(path_logp(paths, table), axis=1))


def path_values(values: Values, paths: Paths) -> tuple[Array, Array]:
    """V before each turn and after the last, float32[M,H+1]; A of the actions taken, float32[M,H]; 0 after the end."""
    return along(values, paths.state, paths.action, paths.mask)


def along(values: Values, state: Array, action: Array, mask: Array) -> tuple[Array, Array]:
    """`path_values` for hidden states int32[B,H+1], action indices int32[B,H] and acted turns bool[B,H]."""
    turn = jnp.arange(action.shape[1])[None, :]
    value = jnp.where(mask, values.value[turn, state[:, :-1]], 0.0)
    value = jnp.concatenate([value, jnp.zeros_like(value[:, :1])], axis=1)
    return value, jnp.where(mask, values.advantage[turn, state[:, :-1], action], 0.0)


def path_trajectories(env: Env, paths: Paths, table: Array) -> tuple[Trajectory, Truth]:
    """The M paths as rows of a batch with log-probabilities under `table`, each row its own rollout, all of group 0."""
    model: TabularModel = env.exact
    ids, turns = token_ids(model), model.horizon
    rows = paths.chance.shape[0]
    turn = jnp.broadcast_to(jnp.arange(turns, dtype=jnp.int32)[None, :], (rows, turns))
    state = TabularState(index=paths.state[:, :-1], turn=turn)
    truth = jax.vmap(jax.vmap(env.truth_of))(state)
    q = optimal_q(model)[turn, paths.state[:, :-1]]
    taken = jnp.take_along_axis(q, paths.action[..., None], axis=-1)[..., 0]
    ended = paths.mask & jnp.concatenate([~paths.mask[:, 1:], jnp.ones((rows, 1), bool)], axis=1)

    def after(x: Array) -> Array:  # consequences: [M,H] -> [M,H+1], nothing after reset
        return jnp.concatenate([jnp.zeros_like(x[:, :1]), x], axis=1)

    seen = ids.observation[model.obs[paths.state]]
    tokens = jnp.where(after(ended), END, seen)[..., None]
    reward = after(paths.reward)
    observations = Observation(
        tokens=tokens, reward=reward, true_reward=reward, proxy_reward=reward, terminated=after(ended),
        truncated=jnp.zeros_like(after(ended)), hack=jnp.zeros_like(reward, jnp.int32),
        judge=after(jnp.where(taken >= jnp.max(q, axis=-1) - 1e-6, 1.0, -1.0)),
    )  # fmt: skip
    return episodes.assemble(
        env.spec, prompt=jnp.full((rows, 1), START, jnp.int32), observations=observations,
        actions=ids.action[paths.action][..., None], turn_truth=truth, turn_mask=paths.mask,
        action_logp=path_logp(paths, table)[..., None],
    )  # fmt: skip
