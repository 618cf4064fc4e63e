"""How close credit is to the true advantage A^pi: correlation, localisation, signs, leakage. Arrays in, floats out.

Rows stand for whole rollouts; rows of weight 0 and everything off the action tokens are ignored. The credit of a turn
is the sum over its tokens. Where a standard error of the truth is given, A^pi counts as non-zero only beyond `z` of
them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from agentjax import ops
from agentjax.types import Array, Trajectory, record

TINY = 1e-6  # what float32 leaves of an exact zero, relative to the largest entry
OUTCOMES, TRUTHS, SIGNS = ("success", "failure"), ("good", "neutral", "bad"), ("plus", "zero", "minus")


@record
class Target:
    """The truth, as the oracle gives it. Errors are standard errors, None if the truth is exact.

    Reliabilities (split halves, Spearman-Brown) in [0, 1] turn a correlation into what it would be with exact truth.
    """

    token: Array  # float32[B,S], A^pi
    turn: Array  # float32[B,T], A^pi
    token_error: Array | None = None
    turn_error: Array | None = None
    token_reliability: Array | None = None  # float32[]
    turn_reliability: Array | None = None  # float32[]


def fidelity(
    credit: Array, target: Target, trajectory: Trajectory, *, key_step: Array, outcome: Array, z: float = 2.0
) -> dict[str, Array]:
    """Every measure below by name: credit float32[B,S], key_step bool[B,T], outcome float32[B] (> 0 is a success)."""
    live = ops.live_weight(trajectory) > 0
    tokens, turns = trajectory.action_mask & live[:, None], trajectory.turn_mask & live[:, None]
    by_turn = ops.tokens_to_turns(credit, trajectory)
    token_truth = truth_sign(target.token, target.token_error, tokens, z)
    turn_truth = truth_sign(target.turn, target.turn_error, turns, z)
    result = {
        **correlations(credit, target.token, tokens, "token", target.token_reliability),
        **correlations(by_turn, target.turn, turns, "turn", target.turn_reliability),
        **localisation(by_turn, key_step, turns),
        **sign_agreement(credit, token_truth, tokens, "token"),
        **sign_agreement(by_turn, turn_truth, turns, "turn"),
        "leakage_trajectory": leakage(by_turn, turn_truth, turns),
        "leakage_averaged": leakage(averaged(by_turn, turn_truth, turns, trajectory.group), turn_truth, turns),
    }
    table = sign_table(by_turn, turn_truth, turns, outcome)
    for i, ending in enumerate(OUTCOMES):
        for j, truth in enumerate(TRUTHS):
            for k, sign in enumerate(SIGNS):
                result[f"sign_{ending}_{truth}_{sign}"] = table[i, j, k]
    return result


def truth_sign(truth: Array, error: Array | None, mask: Array, z: float) -> Array:
    """int32, the sign of A^pi where it is beyond z standard errors (or rounding), else 0; 0 off mask."""
    return _sign(jnp.where(mask, truth, 0.0), 0.0 if error is None else z * error)


def correlations(
    credit: Array, truth: Array, mask: Array, unit: str, reliability: Array | None = None
) -> dict[str, Array]:
    """M1, Pearson and Spearman of credit and truth over the entries of mask [B,N], pooled, and averaged over rows.

    A constant credit has correlation 0: `constant_{unit}` says if it is so in the batch, `constant_{unit}_rows` in what
    share of rows. Credit [1, 2, 4], truth [1, 2, 3]: Pearson .982, Spearman 1. With a reliability, `..._disattenuated`
    divides the pooled figures by its square root (0 where it is 0).
    """
    rows, flat = jnp.any(mask, axis=1), mask.reshape(-1)
    each_rank, by_row = jax.vmap(ranks), jax.vmap(ops.correlation)
    credit_rank, truth_rank = (ranks(x.reshape(-1), flat) for x in (credit, truth))
    result = {
        f"pearson_{unit}": ops.correlation(credit, truth, mask),
        f"spearman_{unit}": ops.correlation(credit_rank, truth_rank, flat),
        f"pearson_{unit}_rows": _mean(by_row(credit, truth, mask), rows),
        f"spearman_{unit}_rows": _mean(by_row(each_rank(credit, mask), each_rank(truth, mask), mask), rows),
        f"constant_{unit}": _constant(credit, mask).astype(jnp.float32),
        f"constant_{unit}_rows": _mean(jax.vmap(_constant)(credit, mask).astype(jnp.float32), rows),
    }
    if reliability is not None:
        root = jnp.sqrt(reliability)
        for name in ("pearson", "spearman"):
            raw = result[f"{name}_{unit}"]
            result[f"{name}_{unit}_disattenuated"] = jnp.where(root > 0, raw / jnp.where(root > 0, root, 1.0), 0.0)
    return result


def localisation(by_turn: Array, key_step: Array, turns: Array) -> dict[str, Array]:
    """M7, does |credit| find the key turns? All over the rows that have a key turn (AUC: and another one).

    `key_auc`: chance that a key turn has more |credit| than another turn of its row, ties one half, mean over rows.
    `key_hit`: is the turn with the most |credit| a key turn, ties shared. `key_precision`, `key_recall`: of the turns
    with at least half of the row's largest |credit|. A row |credit| [3, 1, 2], key turn 0: AUC 1, hit 1, precision 1/2
    (turns 0 and 2), recall 1. Constant credit: AUC 1/2, hit = share of key turns, as chance has it.
    """
    size, key = jnp.where(turns, jnp.abs(by_turn), 0.0), key_step & turns
    count, keys = (jnp.sum(x, axis=1, dtype=jnp.float32) for x in (turns, key))
    others = count - keys
    rank_sum = jnp.sum(jnp.where(key, jax.vmap(ranks)(size, turns), 0.0), axis=1)
    auc = (rank_sum - keys * (keys + 1) / 2) / jnp.maximum(keys * others, 1.0)
    largest = jnp.max(size, axis=1, keepdims=True)
    top = turns & (size >= largest * (1 - TINY))
    hit = jnp.sum(top & key, axis=1) / jnp.maximum(jnp.sum(top, axis=1), 1)
    with_key = keys > 0
    chosen = turns & (size >= largest / 2) & (largest > 0) & with_key[:, None]
    right = jnp.sum(chosen & key, dtype=jnp.float32)
    return {
        "key_auc": _mean(auc, with_key & (others > 0)),
        "key_hit": _mean(hit.astype(jnp.float32), with_key),
        "key_precision": right / jnp.maximum(jnp.sum(chosen, dtype=jnp.float32), 1.0),
        "key_recall": right / jnp.maximum(jnp.sum(keys), 1.0),
    }


def sign_agreement(credit: Array, truth: Array, mask: Array, unit: str) -> dict[str, Array]:
    """M8, share of the entries with a sign in truth (int32, from `truth_sign`) where credit has the same; and their
    share.

    Truth [1, -1, 0], credit [2, 0, 5]: `sign_token` 1/2 (no credit is no agreement), `sign_token_share` 2/3.
    """
    counted = mask & (truth != 0)
    agree = (_sign(jnp.where(mask, credit, 0.0), 0.0) == truth).astype(jnp.float32)
    return {f"sign_{unit}": _mean(agree, counted), f"sign_{unit}_share": _mean(counted.astype(jnp.float32), mask)}


def leakage(by_turn: Array, truth: Array, turns: Array) -> Array:
    """sum |credit| over the turns whose truth is 0, over sum |credit| of all; 0 if there is no credit.

    |Credit| [1, 2, 1] with truth [0, 1, -1]: 1/4.
    """
    size = jnp.where(turns, jnp.abs(by_turn), 0.0)
    total = jnp.sum(size)
    return jnp.sum(jnp.where(truth == 0, size, 0.0)) / jnp.where(total > 0, total, 1.0)


def averaged(by_turn: Array, truth: Array, turns: Array, group: Array) -> Array:
    """Credit [B,T] replaced by its mean over the rollouts of the same task and turn whose truth has the same sign.

    What of the leakage is bias and not variance: credit +1 and -1 on a turn that never matters averages to 0.
    (Averaging over turns of both signs would wipe out the good and the bad turn too.)
    """
    rows, count = by_turn.shape
    index = jnp.arange(count, dtype=jnp.int32)[None, :]
    cell = ((group[:, None] * count + index) * 3 + truth + 1).reshape(-1)
    mean, _ = ops.segment_mean(by_turn.reshape(-1), cell, turns.astype(jnp.float32).reshape(-1), rows * count * 3)
    return mean[cell].reshape(by_turn.shape)


def sign_table(by_turn: Array, truth: Array, turns: Array, outcome: Array) -> Array:
    """float32[2,3,3], share of turns: outcome (success, failure) x truth (good, neutral, bad) x credit (+, 0, -)."""
    failed = jnp.broadcast_to((outcome <= 0).astype(jnp.int32)[:, None], turns.shape)
    cell = (failed * 3 + 1 - truth) * 3 + 1 - _sign(jnp.where(turns, by_turn, 0.0), 0.0)
    counts = jax.ops.segment_sum(turns.astype(jnp.float32).reshape(-1), cell.reshape(-1), 18).reshape(2, 3, 3)
    return counts / jnp.maximum(jnp.sum(counts), 1.0)


def zero_variance_groups(returns: Array, vote: Array, group: Array) -> Array:
    """M12, share of the groups with a vote whose returns are all equal; arrays [B] as `ops.outcome` gives them.

    Groups [1, 1], [0, 1] and [5]: 2/3.
    """
    _, std, total = ops.segment_moments(returns, group, vote, group.shape[0], ddof=0)
    return _mean((std == 0).astype(jnp.float32), total > 0)


def episodes_to(episodes: np.ndarray, score: np.ndarray, threshold: float) -> float:
    """M10, episodes spent when a learning curve first reaches the threshold, on the host; nan if it never does.

    Episodes [0, 64, 128], score [.1, .5, .4], threshold .45: 64.
    """
    reached = np.flatnonzero(np.asarray(score) >= threshold)
    return float(np.asarray(episodes)[reached[0]]) if reached.size else float("nan")


def ranks(x: Array, mask: Array) -> Array:
    """Rank of x[N] among the entries of mask, from 1, ties (equal up to rounding) sharing their mean rank; meaningless
    off mask.

    x = [5, 2, 5, 9], last one masked out: [2.5, 1, 2.5, -].
    """
    room = TINY * jnp.max(jnp.where(mask, jnp.abs(x), 0.0))
    ordered = jnp.sort(jnp.where(mask, x, jnp.inf))
    below = jnp.searchsorted(ordered, x - room, side="left")
    up_to = jnp.searchsorted(ordered, x + room, side="right")
    return (below + up_to + 1).astype(jnp.float32) / 2


def _sign(x: Array, room: Array | float) -> Array:
    """int32: sign of x, 0 within `room` or rounding of 0."""
    return jnp.where(jnp.abs(x) > room + TINY * jnp.max(jnp.abs(x)), jnp.sign(x), 0.0).astype(jnp.int32)


def _mean(x: Array, mask: Array) -> Array:
    """Mean over mask, 0 where it is empty."""
    return jnp.sum(jnp.where(mask, x, 0.0)) / jnp.maximum(jnp.sum(mask, dtype=jnp.float32), 1.0)


def _constant(x: Array, mask: Array) -> Array:
    """bool[]: at most one value on mask."""
    return jnp.max(jnp.where(mask, x, -jnp.inf)) <= jnp.min(jnp.where(mask, x, jnp.inf))
