"""What `signal_resolution` is expected to show, written before its paper run; the report says which held."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from agentjax.viz.rows import Rows, at_end, gain
from experiments.report import Outcome, Prediction, all_of, exceeds, higher

MAIN = {"env": "pivot", "p0": 0.1}
LONG = {"env": "bait_long", "p0": 0.1}
LADDER = (1, 4, 16, 64)  # K, branches per place, at which the oracle's own credit is assessed


def at(name: str, samples: int) -> str:
    """How rows name a method whose oracle was asked `samples` times a place: once goes without saying."""
    return name if samples == 1 else f"{name}@{samples}"


def _gains(first: str, second: str, where: dict = MAIN) -> Callable[[Rows], Outcome]:
    """Is the learning gain of `first` above that of `second`, paired by seed, with its whole interval?"""
    return lambda rows: exceeds(
        gain(rows, method=first, **where), gain(rows, method=second, **where), names=(first, second)
    )


def _ends(first: str, second: str, where: dict) -> Callable[[Rows], Outcome]:
    """The same of success at the end."""
    return lambda rows: exceeds(
        at_end(rows, "success", method=first, **where), at_end(rows, "success", method=second, **where),
        names=(first, second),
    )  # fmt: skip


def _finer(measure: str) -> Callable[[Rows], Outcome]:
    """Does the measure fall from token to turn to episode to pair for the oracle's own credit?"""
    steps = [at(name, LADDER[-1]) for name in ("oracle_token", "oracle_turn", "oracle_episode", "oracle_pair")]
    return lambda rows: all_of(*(higher(rows, measure, a, b, MAIN) for a, b in itertools.pairwise(steps)))


def _leaks(rows: Rows) -> Outcome:
    """Does GRPO's credit leak more than the oracle's per trajectory, and less once it is averaged over rollouts?"""
    names = (("trajectory", "grpo"), ("averaged", "grpo"), ("trajectory", "oracle_token"))
    found = [rows.values(f"fidelity/leakage_{kind}", method=name, step=0, **MAIN) for kind, name in names]
    if not all(found):
        return None, "no rows"
    single, averaged, oracle = (float(np.mean(list(values.values()))) for values in found)
    evidence = f"GRPO {single:.2f} per trajectory, {averaged:.2f} averaged over rollouts; oracle {oracle:.2f}"
    return single > 0.5 and single > oracle and averaged < single, evidence


def _mixed(rows: Rows) -> Outcome:
    """Among turns with a true sign, does DPO's credit have the wrong one on at least a fifth?"""
    cell = "fidelity/sign_{}_{}_{}".format
    total = {}
    for right, kinds in ((True, (("good", "plus"), ("bad", "minus"))), (False, (("good", "minus"), ("bad", "plus")))):
        values = [rows.values(cell(o, *k), method="dpo", step=0, **MAIN) for o in ("success", "failure") for k in kinds]
        if not all(values):
            return None, "no rows"
        total[right] = sum(float(np.mean(list(v.values()))) for v in values)
    share = total[False] / max(total[True] + total[False], 1e-9)
    return share >= 0.2, f"wrong sign on {share:.0%} of the turns that it credits and that matter"


PREDICTIONS = (
    Prediction(
        "outcome leaks",
        "More than half of GRPO's |credit| in a trajectory falls on turns with A^pi = 0, more than of the oracle's, and"
        " less when it is averaged over rollouts: variance, not bias.",
        "C1",
        _leaks,
    ),
    Prediction(
        "pairs are coarse", "DPO credits at least a fifth of the turns that matter with the wrong sign.", "C2", _mixed
    ),
    Prediction(
        "finer is cleaner",
        "At equal information (K = 64) the oracle's credit loses signal-to-noise from token to turn to episode to"
        " pair.",
        "C3",
        _finer("gradient/snr_db"),
    ),
    Prediction(
        "finer learns",
        "The oracle's token credit gains more than its episode credit.",
        "C3",
        _gains("oracle_token", "oracle_episode"),
    ),
    Prediction(
        "places matter",
        "Permuted credit, right values in wrong places, gains less than the oracle's token credit.",
        "C3",
        _gains("oracle_token", "permuted"),
    ),
    Prediction(
        "dense beats outcome", "Turn votes of the judge (J1) gain more than GRPO.", "C3", _gains("prm_j1", "grpo")
    ),
    Prediction(
        "noise undoes resolution",
        "A judge that errs on 40% gains less than GRPO.",
        "C3",
        _gains("grpo", "prm_j3_high"),
    ),
    Prediction("OPD beats DPO", "OPD with gold hints gains more than DPO.", "C5", _gains("opd_gold", "dpo")),
    Prediction(
        "hints carry it",
        "OPD with gold hints gains more than with placebo hints.",
        "C5",
        _gains("opd_gold", "opd_placebo"),
    ),
    Prediction(
        "branches are worth a judge",
        "With 16 branches a place, the oracle's token credit has a higher signal-to-noise than the judge's votes; with"
        " one it has a lower one.",
        "C3",
        lambda rows: all_of(
            higher(rows, "gradient/snr_db", "oracle_token@16", "prm_j1", MAIN),
            higher(rows, "gradient/snr_db", "prm_j1", "oracle_token", MAIN),
        ),
    ),
    Prediction(
        "the truth learns faster when it is sharp",
        "The oracle's token credit gains more with 16 branches a place than with one, at the same rate.",
        "C3",
        _gains("oracle_token@16", "oracle_token"),
    ),
    Prediction(
        "bait",
        "Where the bait spoils half of the errands, turn votes that praise it end below GRPO after 300 iterations.",
        "C3",
        _ends("grpo", "prm_j1", LONG),
    ),
    Prediction(
        "hints leave the bait",
        "After 300 iterations under the bait, OPD with gold hints (which never take it) ends above the judge's votes.",
        "C5",
        _ends("opd_gold", "prm_j1", LONG),
    ),
)
