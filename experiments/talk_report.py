"""Report and figure of `experiments.talk`, from its result files alone: `write(folder)`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agentjax.viz import talk as chart
from experiments.harness.ledger import Row, read_lines, read_rows
from experiments.talk_user import LEAST_LIFT, MOST_BASE, pick

REPLIES = "replies.jsonl"  # every reply on the panel
ARMS = ("frozen", "binary", "opd")
EXAMPLES = 6


def wilson(hits: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95% interval of a share: 8 of 10 gives (.490, .943); 0 of 10 gives (0, .278)."""
    share, spread = hits / n, z * z / n
    centre = share + spread / 2
    half = z * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(0.0, (centre - half) / (1 + spread)), min(1.0, (centre + half) / (1 + spread))


def share(hits: Sequence[bool]) -> Row:
    """Fields of a row that counts: value, low, high, n."""
    low, high = wilson(sum(hits), len(hits))
    return {"value": sum(hits) / len(hits), "low": low, "high": high, "n": len(hits)}


class Results:
    """Rows and replies of one run, read by arm."""

    def __init__(self, folder: Path) -> None:
        self.settings: Row = json.loads((folder / "settings.json").read_text())
        self.rows, self.replies = read_rows(folder), read_lines(folder / REPLIES)[0]

    def row(self, method: str, measure: str) -> Row | None:
        """The last row of a measure."""
        return next((r for r in reversed(self.rows) if (r["method"], r["measure"]) == (method, measure)), None)

    def value(self, method: str, measure: str) -> float:
        """Its value, nan without one."""
        row = self.row(method, measure)
        return math.nan if row is None else row["value"]

    def of(self, arm: str, field: str) -> np.ndarray:
        """A field of the arm's panel replies, in the panel's order."""
        return np.array([reply[field] for reply in self.replies if reply["method"] == arm])

    def change(self, arm: str, field: str) -> tuple[float, float, float]:
        """Mean difference to the frozen arm on the same questions, with its 95% interval (paired, normal)."""
        difference = self.of(arm, field).astype(float) - self.of("frozen", field).astype(float)
        half = 1.96 * difference.std(ddof=1) / math.sqrt(len(difference))
        return difference.mean(), difference.mean() - half, difference.mean() + half

    @property
    def arms(self) -> list[str]:
        """Arms that reached their panel."""
        return [arm for arm in ARMS if self.row(arm, "rule_kept")]


def interval(row: Row | None) -> str:
    """.52 [.43, .60]."""
    return "-" if row is None else f"{row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"


def screening(results: Results) -> list[str]:
    """The table of rules."""
    lines = [
        "| rule | kept without hint | kept with hint | lift | right answers with hint |",
        "|---|---|---|---|---|",
    ]
    for base in (row for row in results.rows if row["measure"] == "screen_base"):
        name, hinted = base["method"], results.row(base["method"], "screen_hinted")
        lift = "not played" if hinted is None else f"{hinted['value'] - base['value']:+.2f}"
        right = interval(results.row(name, "screen_hinted_accuracy"))
        lines.append(f"| {name} | {interval(base)} | {interval(hinted)} | {lift} | {right} |")
    return lines


def outcomes(results: Results) -> list[str]:
    """The table of arms."""
    lines = [
        "| arm | rule kept | change | right answers | change | tokens a reply | KL to the start, nats a token |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm in results.arms:
        moved = ["-", "-"] if arm == "frozen" else [
            "{:+.2f} [{:+.2f}, {:+.2f}]".format(*results.change(arm, field)) for field in ("kept", "right")
        ]  # fmt: skip
        kept, right = (interval(results.row(arm, measure)) for measure in ("rule_kept", "accuracy"))
        drift = f"{results.value(arm, 'panel_kl_to_start'):.3f}"
        lines.append(
            f"| {arm} | {kept} | {moved[0]} | {right} | {moved[1]} | {results.value(arm, 'length'):.1f} | {drift} |"
        )
    return lines


def predictions(results: Results) -> list[str]:
    """The docstring's predictions against the rows."""
    found = [("(1) a rule passes both gates", bool(results.arms), "")]
    frozen, opd = (results.row(arm, "rule_kept") for arm in ("frozen", "opd"))
    if frozen and opd:
        lift = opd["value"] - frozen["value"]
        found.append((
            "(2) opd raises the rule by at least .15, intervals apart", lift >= 0.15 and opd["low"] > frozen["high"],
            f"{lift:+.3f}",
        ))  # fmt: skip
    if frozen and results.row("binary", "rule_kept"):
        moved = results.value("binary", "rule_kept") - frozen["value"]
        found.append(("(3) binary moves the rule by less than .10", abs(moved) < 0.10, f"{moved:+.3f}"))
    if frozen and opd:
        lost, low, high = results.change("opd", "right")
        found.append((
            "(4) accuracy under opd falls by no more than .05", lost >= -0.05,
            f"{lost:+.3f}, interval [{low:+.3f}, {high:+.3f}]",
        ))  # fmt: skip
    verdict = {True: "**held**", False: "**did not hold**"}
    return [f"- {text}: {verdict[held]}{value and f' ({value})'}" for text, held, value in found]


def examples(results: Results) -> list[str]:
    """The first questions of the panel with every arm's reply."""
    lines, tables = [], {arm: [r for r in results.replies if r["method"] == arm] for arm in results.arms}
    for i in range(min(EXAMPLES, len(tables["frozen"]) if results.arms else 0)):
        head = [f"| {' | '.join(tables)} |", "|---" * len(tables) + "|"]
        lines += ["", f"**{tables['frozen'][i]['question']}**", "", *head]
        cells = []
        for replies in tables.values():
            reply = replies[i]
            text = reply["reply"].strip().replace("|", "\\|").replace("\n", "<br>")
            marks = f"rule {'kept' if reply['kept'] else 'broken'}, answer {'right' if reply['right'] else 'wrong'}"
            cells.append(f"{text}<br>*({marks})*")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def report(results: Results, rule: str | None) -> str:
    """The text of report.md."""
    s = results.settings
    lines = [
        f"# Talk: one user, one wish, one seed ({s['preset']} preset)",
        "",
        "A demonstration, not evidence: one seed, one rule, one model (SmolLM2-135M-Instruct, all parameters trained), "
        "and a user who states the wish in quotes after every reply that breaks it.",
        "",
        "## Which rule",
        "",
        f"Kept on {s['screen']} questions apart from all others, without and with the wish in the prompt (95% Wilson "
        f"intervals). Chosen is the first rule, in the bank's order, with a base rate of at most {MOST_BASE} and a "
        f"lift of at least {LEAST_LIFT}. A rule that fails the first gate is not played with its hint. The lift of "
        "the chosen rule is the winner's: expect less on new questions.",
        "",
        *screening(results),
        "",
        f"Chosen: **{rule}**." if rule else "**No rule passes both gates: nothing was trained.**",
    ]
    if results.arms:
        lines += [
            "",
            "## What each arm learned",
            "",
            f"{s['panel']} held-out questions, the same and with the same random numbers for every arm; "
            f"{s['updates']} updates of {s['batch']} replies ({s['updates'] * s['batch']} conversations), at most "
            f"{s['tokens']} tokens, temperature {s['temperature']}, Adam at {s['learning_rate']:g}. Shares with 95% "
            "Wilson intervals, changes against frozen with paired 95% intervals.",
            "",
            *outcomes(results),
            "",
            "![rule kept and right answers by arm; first replies by update](talk.png)",
            "",
            "## Predictions",
            "",
            *predictions(results),
            "",
            "## Cost",
            "",
            *costs(results),
            "",
            "## Replies to the same questions",
            *examples(results),
        ]
    missing = [arm for arm in ARMS if arm not in results.arms]
    if rule and missing:
        lines += ["", f"Unfinished: {', '.join(missing)}. The same command goes on from here."]
    return "\n".join(lines) + "\n"


def costs(results: Results) -> list[str]:
    """Labels, hints and seconds."""
    s = results.settings
    lines = []
    for arm in results.arms[1:]:
        replies = s["updates"] * s["batch"]
        kept = [row["value"] for row in results.rows if (row["method"], row["measure"]) == (arm, "first_reply_kept")]
        hinted = round(sum((1 - k) * s["batch"] for k in kept))
        what = f"{replies} votes (1 bit each)" if arm == "binary" else f"{hinted} hints of {replies} replies"
        spent = {
            name: [row["value"] for row in results.rows if (row["method"], row["measure"]) == (arm, f"seconds_{name}")]
            for name in ("play", "learn")
        }
        lines.append(
            f"- {arm}: {what}; median seconds a batch {np.median(spent['play']):.1f} play, "
            f"{np.median(spent['learn']):.1f} signals and update"
        )
    panel = ", ".join(f"{results.value(arm, 'seconds_panel'):.0f}" for arm in results.arms)
    return [*lines, f"- seconds a panel: {panel}; peak memory {results.value(results.arms[-1], 'peak_gb'):.1f} GB"]


def write(folder: Path) -> None:
    """Writes report.md and, once an arm is done, talk.png beside the results."""
    results = Results(folder)
    if results.arms:
        chart.draw(results.rows, folder / "talk.png")
    rule = pick(results.rows)
    (folder / "report.md").write_text(report(results, rule.name if rule else None), encoding="utf-8")
