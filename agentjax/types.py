"""The records that every part of the library exchanges.

Letters used for shapes everywhere: B rows, S token slots, T turns, G group size, H hint tokens, V vocabulary, K support
size, D width, A action slots of a turn, O observation slots of a turn. Batch first.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, dataclass_transform

import jax
import numpy as np

Array = jax.Array
PyTree = Any

PAD, PROMPT, OBSERVATION, ACTION = 0, 1, 2, 3  # values of Trajectory.role
RESOLUTIONS = ("trajectory", "episode", "turn", "token")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type) -> type:
    """Makes a class a frozen dataclass that is a pytree; fields made with `static()` become part of the compile key."""
    cls = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    return jax.tree_util.register_dataclass(cls)


static = functools.partial(dataclasses.field, metadata={"static": True})


@record
class Trajectory:
    """What happened, token by token and turn by turn: the only thing an estimator or a loss sees besides `Signals`.

    Turn t is observation o_t, then action a_t; `reward[t]` pays a_t; keys are taken before a_t. The closing observation
    (which judges and hints for the last turn need) stands after the last action with role OBSERVATION and turn = number
    of turns. Padding may stand anywhere. NaN reward means missing: left out of statistics, advantage 0.
    """

    tokens: Array  # int32[B,S]
    role: Array  # int8[B,S], PAD | PROMPT | OBSERVATION | ACTION
    turn: Array  # int32[B,S], >= 0 on observations and actions of that turn, -1 on prompt and padding
    position: Array  # int32[B,S], running count of non-padding tokens (the first has 0)
    logp: Array  # float32[B,S], under the policy that sampled, at `temperature`; 0 off actions
    policy_version: Array  # int32[B,S]
    reward: Array  # float32[B,T]
    turn_mask: Array  # bool[B,T], turns that were acted
    observation_key: Array  # uint32[B,T,2], equal: same observation
    state_key: Array  # uint32[B,T,2], equal: same state
    terminated: Array  # bool[B], the environment ended it: no bootstrap
    truncated: Array  # bool[B], cut by a limit: bootstrap
    temperature: Array  # float32[B]
    weight: Array  # float32[B], 0: padding or rejected
    rollout: Array  # int32[B] in [0, B), rows that are parts of one rollout share it
    group: Array  # int32[B] in [0, B)
    parent: Array  # int32[B], row this one branched from, -1: none
    branch_turn: Array  # int32[B], turn at which it branched, -1: none
    token_reward: Array | None = None  # float32[B,S]

    @property
    def action_mask(self) -> Array:
        """bool[B,S]: tokens that the policy sampled."""
        return self.role == ACTION

    @property
    def valid(self) -> Array:
        """bool[B,S]: everything but padding."""
        return self.role != PAD


@record
class Truth:
    """What the environment knows. Never shown to the policy; judges and hints see only `judge` and `hint`."""

    judge: Array  # float32[B,T], J1 without noise: local validity in {-1, 0, 1}
    key_step: Array  # bool[B,T]
    hint: Array  # int32[B,T,H]
    hint_mask: Array  # bool[B,T,H]
    hint_at: Array  # int32[B,T], slot before which the hint is inserted (first after the content of the last message)
    true_reward: Array  # float32[B,T]
    proxy_reward: Array  # float32[B,T]
    hack: Array  # int32[B,T], 0: none


@record
class Cache:
    """Keys and values of every slot of a rollout, read-only once written; one array per layer, so none is ever copied.

    `visible[b,s]` says whether slot s holds a token; policies without attention keep `key` and `value` empty.
    """

    key: tuple[Array, ...]  # each [B,kv_heads,S,head]
    value: tuple[Array, ...]  # each [B,kv_heads,S,head]
    visible: Array  # bool[B,S]


@record
class Rollout:
    """A batch of finished episodes with all that is needed to score them and to branch from them."""

    trajectory: Trajectory
    truth: Truth
    env_states: PyTree  # leaves [B,T+1,...], the state before each turn and the final one
    env_key: Array  # key[B], from which fold_in(key, t) draws the environment's randomness of turn t
    cache: Cache | None = None


@record
class Signals:
    """What judges, critics, teachers and verifiers say, noise included. Every field is an array or None."""

    judge: Array | None = None  # float32[B,T], mean or majority of votes; NaN: no vote
    value: Array | None = None  # float32[B,T+1], V before each turn, and after the last
    token_value: Array | None = None  # float32[B,S], V before each action token
    teacher_logp: Array | None = None  # float32[B,S], of the taken tokens in the hinted context
    reference_logp: Array | None = None  # float32[B,S]
    current_logp: Array | None = None  # float32[B,S]
    pairs: Array | None = None  # int32[P,2], (winner row, loser row), -1: empty
    oracle_turn: Array | None = None  # float32[B,T], A^pi of the turn
    oracle_token: Array | None = None  # float32[B,S], A^pi of each action token
    permutation_key: Array | None = None  # key[], for the permuted-credit control


@record
class Credit:
    """The one currency: a weight per action token. Zero off action tokens.

    The optional support carries estimators that weigh several tokens at a position.
    """

    advantage: Array  # float32[B,S]
    support_ids: Array | None = None  # int32[B,S,K]
    support_weight: Array | None = None  # float32[B,S,K]


@record
class Outputs:
    """What the current policy says about a trajectory, computed once per loss evaluation."""

    logp: Array  # float32[B,S] of the taken tokens, at the trajectory's temperature; 0 off actions
    entropy: Array  # float32[B,S]; 0 off actions


class Estimator(NamedTuple):
    """Credit from arrays: `apply(trajectory, signals, *, axis_name=None) -> Credit`. Stateless and pure.

    `axis_name` names the mapped axis when rows are sharded by `shard_map` or `pmap`; statistics then run over all rows.
    """

    name: str
    resolution: str  # one of RESOLUTIONS
    needs: tuple[str, ...]  # fields of Signals, all float32 arrays unless types.Signals says otherwise
    unbiased: str  # "yes" | "up_to_scale" | "no": is the expected score-function gradient that of the return?
    reference: str
    apply: Callable[..., Credit]


class Loss(NamedTuple):
    """`apply(outputs, trajectory, signals, credit, *, aggregate) -> (scalar, metrics)`."""

    name: str
    needs: tuple[str, ...]  # fields of Signals
    apply: Callable[..., tuple[Array, dict[str, Array]]]


def require(signals: Signals, needs: tuple[str, ...], who: str) -> None:
    """Raises if a signal that `who` needs is None, naming every missing one."""
    missing = [name for name in needs if getattr(signals, name) is None]
    if missing:
        raise ValueError(f"{who} needs the signals {', '.join(missing)}; fill them in Signals before calling it")


def lookup(table: dict[str, Any], name: str, kind: str) -> Any:
    """table[name], or a KeyError-free message that lists what exists."""
    if name not in table:
        raise ValueError(f"unknown {kind} {name!r}; there are: {', '.join(sorted(table))}")
    return table[name]


def validate(trajectory: Trajectory) -> None:
    """Checks a batch on the host, outside jit; raises ValueError naming the field and the way out.

    Shapes that disagree, an empty batch, group or rollout ids out of range, infinite rewards, tokens without a turn.
    """
    tr = jax.tree.map(np.asarray, trajectory)
    if tr.tokens.ndim != 2 or tr.reward.ndim != 2:
        raise ValueError(f"tokens must be [B,S] and reward [B,T], got {tr.tokens.shape} and {tr.reward.shape}")
    (rows, slots), turns = tr.tokens.shape, tr.reward.shape[1]
    if rows == 0 or slots == 0 or turns == 0:
        raise ValueError(f"empty batch: B={rows}, S={slots}, T={turns}; every one must be at least 1")
    expected = {
        **dict.fromkeys(("role", "turn", "position", "logp", "policy_version"), (rows, slots)),
        "turn_mask": (rows, turns),
        **dict.fromkeys(("observation_key", "state_key"), (rows, turns, 2)),
        **dict.fromkeys(("terminated", "truncated", "temperature", "weight", "rollout", "group"), (rows,)),
        **dict.fromkeys(("parent", "branch_turn"), (rows,)),
    }
    for name, shape in expected.items():
        if getattr(tr, name).shape != shape:
            raise ValueError(
                f"{name} has shape {getattr(tr, name).shape}, expected {shape} to go with tokens and reward"
            )
    if tr.token_reward is not None and tr.token_reward.shape != (rows, slots):
        raise ValueError(f"token_reward has shape {tr.token_reward.shape}, expected {(rows, slots)}")
    for name in ("group", "rollout"):
        ids = getattr(tr, name)
        if ids.min() < 0 or ids.max() >= rows:
            raise ValueError(f"{name} ids must lie in [0, {rows}), got {ids.min()}..{ids.max()}; renumber them")
    for name in ("reward", "token_reward"):
        if getattr(tr, name) is not None and np.isinf(getattr(tr, name)).any():
            raise ValueError(f"{name} holds infinite values; use NaN for a missing reward, clip the rest")
    bad = (tr.role == ACTION) & ((tr.turn < 0) | (tr.turn >= turns))
    if bad.any():
        raise ValueError(f"{int(bad.sum())} action tokens have a turn outside [0, {turns})")
