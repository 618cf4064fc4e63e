"""Figures and report of `signal_resolution`, made from its rows alone: `write(out, preset, predictions)`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agentjax.credit import ESTIMATORS
from agentjax.methods import METHODS, Method
from agentjax.viz import branches, crossover, heatmap, horizon, learning, resolution, tables
from agentjax.viz.resolution import estimate, rank_correlation
from agentjax.viz.rows import Rows, Where, at_end, cost_to, gain, median_cost, read, threshold
from agentjax.viz.statistics import Interval, interval
from agentjax.viz.style import Arm, in_order
from experiments import report
from experiments.report import Prediction, markdown_table, short, show

BUDGETS = ("episodes", "gradient_tokens", "label_bits", "teacher_tokens", "branch_tokens")
CONTROLS = ("permuted", "opd_placebo", "opd_wrong", "frozen")
ABBREVIATIONS = ("dpo", "grpo", "rloo", "prm", "opd", "j0", "j1", "j3")
NOISY = "prm_j3"  # the judge of the noise sweep
PREDICTORS = {  # measure -> sign with which it should go with the gain
    "gradient/snr_db": 1, "gradient/cosine_of_mean": 1, "gradient/bias": -1, "gradient/variance": -1,
    "fidelity/pearson_turn": 1, "fidelity/pearson_token": 1, "fidelity/key_auc": 1, "fidelity/sign_turn": 1,
    "fidelity/leakage_trajectory": -1, "fidelity/leakage_averaged": -1,
}  # fmt: skip
QUICK = "Quick preset: for trying things, not evidence."


def arm(method: Method) -> Arm:
    """How the figures show a method of the registry."""
    judge, hint, oracle = method.judge is not None, method.hint is not None, "oracle_token" in method.needs
    source = "judge and hint" if judge and hint else "judge" if judge else "hint" if hint else "outcome"
    words = method.name.split("_")
    label = " ".join(word.upper() if word in ABBREVIATIONS else word for word in words)
    return Arm(
        method.name, label, ESTIMATORS[method.estimator].resolution, "oracle" if oracle else source,
        control=method.name in CONTROLS,
    )  # fmt: skip


def information(method: Method) -> str:
    """Where a method's signal comes from, in words."""
    if not method.update:
        return "none"
    if "oracle_token" in method.needs:
        return "branches (A^pi), K = 1" + (", turns permuted" if method.estimator == "permuted" else "")
    parts = []
    if method.judge is not None:
        error = method.judge.false_positive
        parts.append(f"judge {method.judge.level}" + (f", {error:.0%} errors" if error else ""))
    if method.hint is not None:
        parts.append(f"hint: {method.hint}")
    if method.estimator == "prm_outcome":
        parts.insert(0, "outcome")
    return " and ".join(parts) or ("outcome, as pairs" if "pairs" in method.needs else "outcome")


class Line(NamedTuple):
    """One method in the first table."""

    name: str
    snr: Interval
    turn_correlation: Interval
    leakage: tuple[Interval, Interval]  # in a trajectory, averaged
    success: Interval
    gain: Interval  # over frozen: on a fixed panel, what a frozen policy scores is what the arm scored at step 0
    cost: Mapping[str, Mapping[int, float]]  # budget -> seed -> spent, inf if 80% of the expert was never reached
    rank: int | None  # by mean SNR over seeds, 1 is best, ties share the better rank; None if not measured
    cost_rank: int | None  # by median episodes; None if half of the seeds or more never got there


def ranking(rows: Rows, where: Where) -> list[Line]:
    """The first table: best fidelity first, methods without a measured SNR and `frozen` last."""
    names = [m for m in METHODS if rows.select("success", method=m, **where) or _snr(rows, m, where)]
    level = threshold(rows, **where)
    snr = {m: estimate(rows, "gradient/snr_db", m, where) for m in names if m != "frozen"}
    cost = {m: {b: cost_to(rows, b, level, method=m, **where) for b in BUDGETS} for m in names}
    episodes = {m: median_cost(cost[m]["episodes"]) for m in names if m != "frozen"}
    lines = []
    for name in names:
        mine, end = snr.get(name), at_end(rows, "success", method=name, **where)
        spent = episodes.get(name, math.nan)
        lines.append(Line(
            name=name, snr=mine or interval({}), turn_correlation=estimate(rows, "fidelity/pearson_turn", name, where),
            leakage=tuple(estimate(rows, f"fidelity/leakage_{of}", name, where) for of in ("trajectory", "averaged")),
            success=interval(end), gain=interval(gain(rows, method=name, **where)), cost=cost[name],
            rank=1 + sum(o.mean > mine.mean for o in snr.values() if o.seeds) if mine and mine.seeds else None,
            cost_rank=1 + sum(o < spent for o in episodes.values()) if math.isfinite(spent) else None,
        ))  # fmt: skip
    return sorted(lines, key=lambda line: (line.rank is None, line.rank, line.name == "frozen"))


def _snr(rows: Rows, method: str, where: Where) -> dict[int, float]:
    return rows.values("gradient/snr_db", method=method, step=0, **where)


def ranking_table(rows: Rows, where: Where) -> str:
    """`ranking` as Markdown."""
    header = (
        "fidelity rank", "method", "resolution", "information", "SNR, slope-corrected (dB)", "correlation by turn",
        "leakage: trajectory / averaged", "success at the end", "gain over frozen", "cost rank",
        *(f"{budget.replace('_', ' ')} to 80%" for budget in BUDGETS),
    )  # fmt: skip
    lines = []
    for line in ranking(rows, where):
        method = METHODS[line.name]
        leakage = " / ".join(show(each._replace(low=math.nan)) for each in line.leakage)
        lines.append((
            _rank(line.rank), line.name, ESTIMATORS[method.estimator].resolution, information(method),
            snr_text(rows, line.name, where), show(line.turn_correlation), leakage,
            show(line.success), show(line.gain, sign=True), _rank(line.cost_rank),
            *(cost_text(line.cost[budget], counted=budget == "episodes") for budget in BUDGETS),
        ))  # fmt: skip
    return markdown_table(header, lines)


def snr_text(rows: Rows, name: str, where: Where, *, step: int = 0) -> str:
    """The SNR with its interval; where the mean gradient points away from the true one, the slope with its own."""
    found = estimate(rows, "gradient/snr_db", name, where, step=step)
    against = found.seeds and not math.isfinite(found.mean)
    return resolution.slope(rows, name, where, step=step) if against else show(found, 1)


def _rank(rank: int | None) -> str:
    return "-" if rank is None else str(rank)


def cost_text(cost: Mapping[int, float], *, counted: bool = True) -> str:
    """"1.2k"; "1.2k (4 of 5)" where a seed never got there; "never (1 of 5)" where half of them or more did not."""
    if not cost:
        return "-"
    reached, median = sum(map(math.isfinite, cost.values())), median_cost(cost)
    count = f" ({reached} of {len(cost)})" if counted and reached < len(cost) else ""
    return ("never" if math.isinf(median) else short(median)) + count


def settings(rows: Rows) -> list[tuple[str, dict[str, Any]]]:
    """(title, selection) of pivot at the p0 nearest to .1, then of every umbrella length with learning curves."""
    rates = rows.distinct("p0", "success", env="pivot") or rows.distinct("p0", "gradient/snr_db", env="pivot")
    found: list[tuple[str, dict[str, Any]]] = []
    if rates:
        main = min(rates, key=lambda p0: abs(p0 - 0.1))
        found.append((f"pivot, p0 = {main:g}", {"env": "pivot", "p0": main}))
        if rows.select("success", env="bait", p0=main):
            found.append((f"pivot with a bait that spoils, p0 = {main:g}", {"env": "bait", "p0": main}))
    for length in sorted(rows.distinct("length", "success", env="umbrella")):
        found.append((f"umbrella chain, L = {length}", {"env": "umbrella", "length": length}))
    if rows.select("success", env="umbrella", length=None):
        found.append(("umbrella chain", {"env": "umbrella", "length": None}))
    return found


def figures(rows: Rows, out: Path) -> dict[str, str]:
    """Draws what the rows allow. File name -> caption, or a note that starts with "Skipped"."""
    arms = [arm(method) for method in METHODS.values()]
    trained = [a for a in arms if a.name != "frozen"]
    found = settings(rows)
    main = found[0][1] if found and found[0][1]["env"] == "pivot" else {"env": "pivot", "p0": 0.1}
    judges = {n: METHODS[n].judge.false_positive for n in ("prm_j1", "prm_j3_low", "prm_j3_high")}
    chain = [row for row in rows.by_measure.get("snr_db_raw", ()) if row["env"] == "umbrella_horizon"]

    def draw_horizon(path: Path) -> bool:
        if chain:
            horizon.draw(chain, path)
        return bool(chain)

    drawings = {
        "spectrum.png": ("Resolution and measured fidelity", lambda p: resolution.spectrum(rows, trained, main, p)),
        "fidelity_learning.png": (
            "Fidelity against what was learned", lambda p: resolution.fidelity_learning(rows, trained, found, p)
        ),
        "branches.png": (
            "What branches buy: the oracle's own credit against K", lambda p: branches.branches(rows, trained, main, p)
        ),
        "bait.png": (
            "Who leaves the bait: success over 300 iterations",
            lambda p: learning.curves(rows, arms, {**main, "env": "bait_long"}, p),
        ),
        "learning.png": ("Success against cost", lambda p: learning.curves(rows, arms, main, p)),
        "chapter.png": ("One trajectory, every method's credit", lambda p: heatmap.chapter(rows, trained, p)),
        "leakage.png": ("Credit on turns that do not matter", lambda p: tables.leakage(rows, trained, main, p)),
        "signs.png": ("Sign of the credit by outcome and truth", lambda p: tables.signs(rows, trained, main, p)),
        "horizon.png": ("Signal-to-noise against horizon, with closed forms", draw_horizon),
        "crossover.png": (
            "Noise that makes a finer signal worse",
            lambda p: crossover.crossover(rows, main, p, judge=NOISY, judges=judges, reference="grpo"),
        ),
        "difficulty.png": (
            "Gain against the success before RL", lambda p: learning.difficulty(rows, trained, {"env": "pivot"}, p)
        ),
    }  # fmt: skip
    return {
        name: caption if draw(out / name) else f"Skipped: the rows for it are missing ({caption.lower()})."
        for name, (caption, draw) in drawings.items()
    }


def gates(rows: Rows) -> str:
    """Base, hinted and expert success, and the oracle's reliability, by setting, against what was asked of them."""
    lines = []
    fields = ("env", "p0", "length")
    names = ("base_success", "hinted_success", "expert_success", "reliability/turn", "reliability/token")
    keys = dict.fromkeys(tuple(row.get(f) for f in fields) for name in names for row in rows.by_measure.get(name, ()))
    for key in keys:
        where = dict(zip(fields, key, strict=True))
        found = [interval(rows.values(name, **where)) for name in names[:3]]
        trust = [interval(rows.values(name, step=0, **where)) for name in names[3:]]
        base, hinted, _ = found
        verdicts = []
        if where["p0"] and base.seeds:
            within = 1 / 1.5 <= base.mean / where["p0"] <= 1.5
            verdicts.append(f"base success {'within' if within else 'NOT within'} a factor 1.5 of p0")
        if hinted.seeds:
            verdicts.append(f"hinted success {'at least' if hinted.mean >= 0.9 else 'BELOW'} .9")
        title = ", ".join(f"{f} {v}" if f != "env" else v for f, v in where.items() if v is not None)
        lines.append((title, *(show(each) for each in (*found, *trust)), "; ".join(verdicts) or "-"))
    header = ("setting", "base", "hinted", "expert", "reliability by turn", "by token", "gates")
    return markdown_table(header, lines) if lines else "Not measured.\n"


def truth_note(rows: Rows, where: Where) -> str:
    """How much of the truth has a sign, and what that does to leakage and sign tables."""
    share = list(rows.values("fidelity/sign_turn_share", step=0, **where).values())
    floor = list(rows.values("fidelity/leakage_trajectory", step=0, method="oracle_token", **where).values())
    if not share:
        return ""
    text = (
        f"A^pi counts as non-zero beyond two standard errors of the oracle: {np.mean(share):.1%} of the turns. Leakage"
        " and the sign table count all others as neutral, so leakage is an upper bound"
    )
    return text + (f"; the oracle's own token credit leaks {np.mean(floor):.2f}.\n" if floor else ".\n")


def budgets(rows: Rows, where: Where) -> str:
    """What all trained arms spent alike by the end of training, and what they did not."""
    names = [m for m in METHODS if m != "frozen" and rows.select("success", method=m, **where)]
    curve = rows.curve("success", method=names[0], **where) if names else None
    if curve is None:
        return "Not measured."
    equal, unequal = [f"RL iterations ({curve.steps[-1]})"], []
    for budget in (*BUDGETS, "turns"):
        spent = {m: interval(values).mean for m in names if (values := at_end(rows, budget, method=m, **where))}
        if not spent:
            continue
        low, high = (choose(spent, key=spent.__getitem__) for choose in (min, max))
        name = budget.replace("_", " ")
        if spent[high] <= 1.01 * spent[low]:
            equal.append(f"{name} ({short(spent[high])})")
        else:
            unequal.append(f"{name} (from {short(spent[low])}, {low}, to {short(spent[high])}, {high})")
    text = f"Equal in every trained arm, to 1%: {', '.join(equal)}."
    return text + (f" Not equal: {'; '.join(unequal)}." if unequal else "")


def predictors(rows: Rows, arms: Sequence[Arm], found: Sequence[tuple[str, Where]]) -> str:
    """Which measure of fidelity at the start goes with the gain: tau by setting, and the test on the last setting."""
    taus = {
        m: [rank_correlation(rows, arms, where, measure=m)[0] for _, where in found] for m in PREDICTORS
    }  # fmt: skip
    taus = {m: each for m, each in taus.items() if any(not math.isnan(t.mean) for t in each)}
    if not taus:
        return "Not measured.\n"
    text = markdown_table(
        ("measure at the start", "expected sign", *(title for title, _ in found)),
        [(m, "+" if PREDICTORS[m] > 0 else "-", *(show(t, sign=True) for t in each)) for m, each in taus.items()],
    )
    if len(found) > 1 and all(not math.isnan(t.mean) for t in next(iter(taus.values()))):
        best = max(taus, key=lambda m: PREDICTORS[m] * taus[m][0].mean)
        text += (
            f"\nHeld-out environment: the measure chosen on {found[0][0]} is {best} (tau"
            f" {show(taus[best][0], sign=True)}); on {found[-1][0]}, which had no part in the choice, its tau is"
            f" {show(taus[best][-1], sign=True)}.\n"
        )
    return text


def along_training(rows: Rows, where: Where) -> str:
    """SNR and correlation by turn at the checkpoints where fidelity was measured."""
    steps = sorted(rows.distinct("step", "gradient/snr_db", **where))
    names = [m for m in METHODS if len(rows.distinct("step", "gradient/snr_db", method=m, **where)) > 1]
    if len(steps) < 2 or not names:
        return "Measured at the start only.\n"
    return markdown_table(
        ("method", *(f"{title}, step {step}" for title in ("SNR (dB)", "correlation by turn") for step in steps)),
        [
            (
                m,
                *(snr_text(rows, m, where, step=s) for s in steps),
                *(show(estimate(rows, "fidelity/pearson_turn", m, where, step=s)) for s in steps),
            )
            for m in names
        ],
    )


def endings(rows: Rows, where: Where) -> str:
    """The learning rate that tuning chose for each arm, and entropy and divergence from the start at the end."""
    grid = sorted(rows.distinct("learning_rate", "tuning_score", **where))
    lines = []
    for name in (m for m in METHODS if rows.select("success", method=m, **where)):
        rates = sorted(rows.distinct("learning_rate", "success", method=name, **where))
        edge = " (edge of the grid)" if grid and rates and rates[-1] in (grid[0], grid[-1]) else ""
        ends = (interval(at_end(rows, m, method=name, **where)) for m in ("entropy", "kl"))
        lines.append((name, ", ".join(f"{r:g}" for r in rates) + edge or "-", *(show(each) for each in ends)))
    tuned = f"One grid for every arm, {', '.join(f'{r:g}' for r in grid)}, tuned on seeds that are not reported.\n\n"
    header = ("method", "learning rate", "entropy of a token at the end (nats)", "KL from the start at the end")
    return (tuned if grid else "Not tuned.\n\n") + markdown_table(header, lines)


def write(out: Path, preset: str, predictions: Sequence[Prediction] = ()) -> None:
    """Draws every figure and writes report.md from out/results.jsonl; what the rows lack is said, never an error."""
    rows = read(out / "results.jsonl")
    found = settings(rows)
    drawn = figures(rows, out)
    main = found[0][1] if found else {"env": "pivot", "p0": 0.1}
    trained = in_order([arm(m) for m in METHODS.values() if m.update])
    evaluated = report.evaluate(predictions, rows)
    seeds = rows.distinct("seed", "success", **main)
    parts = [QUICK + "\n"] if preset == "quick" else []
    parts += [
        "# How the resolution of the learning signal changes credit assignment\n",
        f"Preset {preset}, {len(seeds)} paired seeds. Square brackets: 95% bootstrap intervals of the mean over seeds,"
        " drawn for all arms together and expanded for small numbers (of a single seed: two standard errors of the"
        " measurement).\n",
        f"## Methods by fidelity ({found[0][0] if found else 'pivot'})\n",
        ranking_table(rows, main),
        "\nFidelity rank: by mean slope-corrected signal-to-noise of the gradient, per trajectory, at the start of RL;"
        " the slope E[g].g* / |g*|^2 instead, where it is below 0: the mean gradient points away from the true"
        " one. Cost: what was spent when success on the panel"
        f" first reached 80% of the expert's ({threshold(rows, **main):.2f}), median over seeds; never (k of n): k of n"
        " seeds got there. Cost rank: by episodes. Gain over frozen: mean success over training less at the start, as a"
        " frozen policy scores the same on the fixed panel at any time. K: the oracle's branches a place.\n",
    ]  # fmt: skip
    for title, where in found[1:]:
        parts += [f"### {title}\n", ranking_table(rows, where)]
    parts.append("## Predictions, written before the run\n")
    for each, held, evidence in evaluated:
        word = report.WORDS[held]
        parts.append(f"**{each.name}** ({each.claim}): *{word}*. {each.text} Numbers: {evidence}.\n")
    verdicts = report.claim_verdicts(evaluated)
    if verdicts:
        parts.append("By claim: " + "; ".join(f"{claim}: {verdict}" for claim, verdict in verdicts.items()) + ".\n")
    parts += [
        "## Does fidelity predict learning?\n",
        "Kendall's tau over arms between a measure at the start and the gain (mean success over training less at its"
        " start). The interval is over seeds; the arms are those we chose, not a sample of all arms.\n",
        predictors(rows, trained, found),
        "## Gradients that point away from the true one at the start\n",
        "The slope is E[g].g* / |g*|^2: 1 if unbiased, and positive for every multiple of an unbiased gradient. On the"
        " chain g* is exact; elsewhere it is measured on a batch of its own.\n",
        away(rows, found),
        "## Fidelity along training\n",
        "Measured on the policy that each arm has become, so later columns compare different policies.\n",
        along_training(rows, main),
        "## What branches buy\n",
        branch_table(rows, main),
        "## Who leaves the bait?\n",
        bait(rows, {**main, "env": "bait_long"}),
        "## Where noise makes the finer signal worse\n",
        noise_note(rows, main),
        "## Budgets\n",
        budgets(rows, main) + "\n",
        report.power_note(rows, [a.name for a in trained], main) + "\n",
        "## Learning rates, and where the policies ended\n",
        endings(rows, main),
        "## Gates\n",
        gates(rows),
        truth_note(rows, main),
        "## Figures\n",
    ]
    for name, caption in drawn.items():
        drawn_line = f"![{caption}]({name})\n\n*{caption}.*\n"
        parts.append(f"- {name}: {caption}\n" if caption.startswith("Skipped") else drawn_line)
    parts += transcript(rows)
    (out / "report.md").write_text("\n".join(parts), encoding="utf-8")


def branch_table(rows: Rows, where: Where) -> str:
    """The oracle's own credit by K: SNR, correlation, gain; and how many branches every other signal is worth."""
    by_k = branches.ladder(rows, "gradient/snr_db", "oracle_token", where)
    if len(by_k) < 2:
        return "Not measured.\n"
    last = max(by_k)
    names = [*by_k.values(), *(f"{n}@{last}" for n in ("oracle_turn", "oracle_episode", "oracle_pair", "permuted"))]
    text = markdown_table(
        ("credit", "K", "SNR (dB)", "correlation by turn", "by token", "learning gain"),
        [
            (
                name.partition("@")[0], name.partition("@")[2] or "1", snr_text(rows, name, where),
                *(show(estimate(rows, f"fidelity/pearson_{of}", name, where)) for of in ("turn", "token")),
                show(interval(gain(rows, method=name, **where)), sign=True),
            )
            for name in names
        ],
    )  # fmt: skip
    points = [(k, estimate(rows, "gradient/snr_db", name, where).mean) for k, name in by_k.items()]
    said = []
    for method in (m for m in METHODS.values() if "oracle_token" not in m.needs and m.update):
        snr = estimate(rows, "gradient/snr_db", method.name, where)
        if snr.seeds and math.isfinite(snr.mean):
            worth = branches.worth(snr.mean, points)
            word = "fewer than 1" if worth < 1 else f"more than {last}" if math.isinf(worth) else f"{worth:.2g}"
            said.append(f"{method.name} {word}")
    return text + f"\nBranches a place at which the oracle's token credit has the same SNR: {', '.join(said)}.\n"


def away(rows: Rows, found: Sequence[tuple[str, Where]]) -> str:
    """Methods whose mean gradient at the start points away from the true one, or may: slope, and what they gained."""
    lines = []
    for title, where in found:
        for name in METHODS:
            slope = estimate(rows, "gradient/slope", name, where)
            if slope.seeds and not slope.low > 0:
                sure = "away" if slope.high < 0 else "undecided"
                gained = show(interval(gain(rows, method=name, **where)), sign=True)
                lines.append((title, name, sure, show(slope), gained))
    if not lines:
        return "None: every slope's interval lies above 0.\n"
    return markdown_table(("setting", "method", "mean gradient points", "slope", "learning gain"), lines)


def bait(rows: Rows, where: Where) -> str:
    """Success under the bait at 60 iterations and at the end: always taking it earns one half."""
    names = [m for m in METHODS if rows.select("success", method=m, **where)]
    if not names:
        return "Not measured.\n"
    steps = sorted(rows.distinct("step", "success", **where))
    shown = [steps[0], *(s for s in (60,) if steps[0] < s < steps[-1]), steps[-1]]
    values = lambda m, s: show(interval(rows.values("success", method=m, step=s, **where)))  # noqa: E731
    header = ("method", *(f"success, iteration {s}" for s in shown))
    return markdown_table(header, [(m, *(values(m, s) for s in shown)) for m in names])


def noise_note(rows: Rows, where: Where) -> str:
    """The crossover of the judge against GRPO, by SNR and by gain, in a sentence each."""
    judges = {n: METHODS[n].judge.false_positive for n in ("prm_j1", "prm_j3_low", "prm_j3_high")}
    swept = crossover.snr_crossing(rows, where, judge=NOISY, reference="grpo")
    learned = crossover.gain_crossing(rows, where, judges=judges, reference="grpo")
    text = []
    if swept is not None:
        tried = f"error rates {swept[0][0]:g} to {swept[0][-1]:g}"
        text.append(f"By signal-to-noise: {crossover.describe(swept[1])} ({tried}).")
    if learned is not None:
        text.append(f"By learning gain: {crossover.describe(learned)}.")
    return (" ".join(text) or "Not measured.") + "\n"


def transcript(rows: Rows) -> list[str]:
    """The turns around the key turns of the trajectory in chapter.png."""
    lines = heatmap.transcript(rows)
    return ["The turns around its key turn (*), seen > done:\n", "```", *lines, "```", ""] if lines else []
