"""Rows as experiments/signal_resolution makes them, from a few made-up numbers."""

import math

import numpy as np

ARMS = {  # method: (SNR in dB, correlation by turn, success at the end)
    "oracle_token": (-9.0, 0.95, 0.92), "oracle_turn": (-12.0, 0.9, 0.85), "oracle_episode": (-19.0, 0.45, 0.5),
    "oracle_pair": (-24.0, 0.3, 0.35), "permuted": (-27.0, 0.1, 0.2), "dpo": (-26.0, 0.25, 0.3),
    "grpo": (-21.0, 0.4, 0.55), "prm_j1": (-16.0, 0.5, 0.12), "prm_j3_low": (-18.0, 0.4, 0.16),
    "prm_j3_high": (-25.0, 0.1, 0.1), "prm_outcome": (-17.0, 0.6, 0.7), "opd_gold": (-14.0, 0.55, 0.88),
    "opd_placebo": (-30.0, 0.02, 0.1), "opd_wrong": (-math.inf, -0.3, 0.02), "prm_opd": (-15.0, 0.6, 0.75),
}  # fmt: skip
BUDGETS = {
    "episodes": 64, "turns": 380, "gradient_tokens": 1500, "label_bits": 64, "teacher_tokens": 0, "branch_tokens": 0
}  # fmt: skip
CREDIT_WORDS = ("now", "unlock", "red", "<end>")


def learning(env, p0, method, end, *, seeds=3, iterations=60, start=0.1, noise=0.03):
    rng = np.random.default_rng(sum(map(ord, f"{env}{p0}{method}")))
    rows = []
    scale = {**BUDGETS, **({"teacher_tokens": 1500, "label_bits": 6000} if "opd" in method else {})}
    scale |= {"branch_tokens": 40_000, "label_bits": 0} if "oracle" in method or method == "permuted" else {}
    for seed in range(seeds):
        for step in range(0, iterations + 1, 10):
            at = {"env": env, "p0": p0, "method": method, "seed": seed, "step": step}
            value = start + (end - start) * (1 - math.exp(-3 * step / iterations))
            value += float(rng.normal(0, noise)) * (step > 0)
            rows.append({**at, "measure": "success", "value": min(max(value, 0.0), 1.0), "learning_rate": 3e-4})
            if step:
                rows += [{**at, "measure": m, "value": float(per * step)} for m, per in scale.items()]
                rows += [{**at, "measure": m, "value": 0.5} for m in ("entropy", "kl")]
    return rows


def fidelity(env, p0, method, snr, turn, *, step=0, error=None, signs=True):
    at = {"env": env, "p0": p0, "method": method, "seed": 0, "step": step} | ({} if error is None else {"error": error})
    leak = 0.9 - 0.9 * max(turn, 0)
    values = {
        "gradient/snr_db": snr, "gradient/snr_db_se": 0.4 if math.isfinite(snr) else 0.0, "gradient/slope": 0.8,
        "gradient/cosine_of_mean": max(turn, 0), "gradient/bias": 1 - turn, "gradient/variance": 10 ** (-snr / 10),
        "fidelity/pearson_turn": turn, "fidelity/pearson_token": turn * 0.8, "fidelity/key_auc": 0.5 + turn / 2,
        "fidelity/sign_turn": 0.5 + turn / 2, "fidelity/leakage_trajectory": leak,
        "fidelity/leakage_averaged": leak / 3, "fidelity/sign_turn_share": 0.4,
    }  # fmt: skip
    if signs:
        share = {"success": (0.06, 0.03, 0.01), "failure": (0.1, 0.5, 0.3)}
        for ending, by_truth in share.items():
            for direction, truth, size in zip((1, 0, -1), ("good", "neutral", "bad"), by_truth, strict=True):
                plus = 0.5 + direction * turn / 2
                split = {"plus": plus * 0.8, "zero": 0.2, "minus": (1 - plus) * 0.8}
                values |= {f"fidelity/sign_{ending}_{truth}_{k}": size * v for k, v in split.items()}
    return [{**at, "measure": name, "value": value} for name, value in values.items()]


def gates(env, p0, base):
    at = {"env": env, "p0": p0, "seed": 0, "step": 0}
    named = (("frozen", "base_success", base), ("teacher", "hinted_success", 0.95), ("expert", "expert_success", 1.0))
    trust = (("oracle", "reliability/turn", 0.8), ("oracle", "reliability/token", 0.7))
    return [{**at, "method": m, "measure": name, "value": value} for m, name, value in (*named, *trust)]


def chapter(methods, turns=20, key=14):
    rng = np.random.default_rng(0)
    at = {"env": "chapter", "p0": 0.3, "seed": 0, "step": 0}
    rows = [{**at, "method": "truth", "measure": "outcome", "value": 1.0}]
    for turn in range(turns):
        rows.append({**at, "method": "truth", "measure": "key_step", "value": float(turn == key), "turn": turn})
        text = f"ok, at lamp, note door=red ({turn})"
        rows.append({**at, "method": "truth", "measure": "observation", "value": 0.0, "turn": turn, "text": text})
    for method in ("truth", *methods):
        clear = 1.0 if method == "truth" else ARMS[method][1]
        for turn in range(turns):
            for slot, word in enumerate(CREDIT_WORDS):
                value = clear * (turn == key) * (slot in (1, 2)) + (1 - clear) * float(rng.normal(0, 0.5))
                place = {"turn": turn, "slot": slot, "word": word}
                rows.append({**at, "method": method, "measure": "credit", "value": value, **place})
    return rows


def horizon():
    signals = {"full_return": (-2.5, -20), "reward_to_go": (-1, -20), "rloo": (-3, -20), "exact": (0, 0)}
    rows = []
    for name, (offset, slope) in signals.items():
        for length in (2, 10, 100):
            form = offset + slope * math.log10(length)
            rows.append({
                "env": "umbrella_horizon", "measure": "snr_db_raw", "estimator": name, "L": length, "value": form + 0.1,
                "se": 0.2, "closed_form": form, "episodes": 64, "seed": 0,
            })  # fmt: skip
    return rows


def everything(seeds=3):
    """Rows of a whole paper run."""
    rows = [*gates("pivot", 0.1, 0.11), *gates("umbrella", None, 0.5), *chapter(ARMS), *horizon()]
    for method, (snr, turn, end) in ARMS.items():
        rows += fidelity("pivot", 0.1, method, snr, turn) + learning("pivot", 0.1, method, end, seeds=seeds)
        rows += fidelity("umbrella", None, method, snr + 3, turn, signs=False)
        rows += learning("umbrella", None, method, 0.5 + end / 2, seeds=seeds, start=0.5)
        if method in ("dpo", "grpo", "prm_j1", "opd_gold", "oracle_token", "permuted"):
            rows += fidelity("pivot", 0.1, method, snr - 2, turn, step=30)
            for p0 in (0.02, 0.3, 0.5):
                rows += learning("pivot", p0, method, min(end + p0, 1.0), seeds=seeds, start=p0)
        rows += fidelity("bait", 0.1, method, snr, turn) + learning("bait", 0.1, method, min(end, 0.55), seeds=seeds)
        if method in ("grpo", "prm_j1"):
            rows += learning("bait_long", 0.1, method, end, seeds=seeds, iterations=120)
    for k in (4, 16, 64):  # 3 dB per factor 4
        snr = ARMS["oracle_token"][0] + 1.5 * math.log2(k)
        rows += fidelity("pivot", 0.1, f"oracle_token@{k}", snr, 0.96)
    for name in ("oracle_turn", "oracle_episode", "oracle_pair", "permuted"):
        rows += fidelity("pivot", 0.1, f"{name}@64", ARMS[name][0] + 5, 0.9)
    rows += learning("pivot", 0.1, "oracle_token@16", 0.95, seeds=seeds)
    for error in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5):
        snr = -16 - 30 * error if error < 0.5 else -math.inf
        rows += fidelity("pivot", 0.1, "prm_j3", snr, 0.5 - error, error=error)
    at = {"env": "pivot", "p0": 0.1, "seed": 0, "step": 0, "measure": "tuning_score", "value": 0.3}
    rows += [{**at, "method": m, "learning_rate": r} for m in ARMS for r in (1e-4, 3e-4, 1e-3)]
    return rows
