"""The chart of a talk: rule kept and right answers by arm on held-out questions, and first replies by update."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentjax.viz import style

COLOURS = {"frozen": style.GREY, "binary": style.COLOURS["turn"], "opd": style.COLOURS["token"]}
LINES = {"frozen": "o--", "binary": "s:", "opd": "^-"}
PANELS = {"rule_kept": "rule kept", "accuracy": "answer right"}


@style.drawing
def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Bars are shares with 95% Wilson intervals, dots one batch of first replies each; writes `path` (.png).

    Rows: {"method", "measure", "step", "value"} with "low" and "high" on shares; arms without a panel are left out.
    """
    figure, [[left, right]] = style.figure(4.0, 1, 2)
    arms = [arm for arm in COLOURS if any((r["method"], r["measure"]) == (arm, "rule_kept") for r in rows)]
    for offset, measure in enumerate(PANELS):
        for index, arm in enumerate(arms):
            row = next(r for r in rows if (r["method"], r["measure"]) == (arm, measure))
            error = [[row["value"] - row["low"]], [row["high"] - row["value"]]]
            place = offset * (len(arms) + 1) + index
            left.bar(place, row["value"], yerr=error, color=COLOURS[arm], capsize=3)
            left.annotate(arm, (place, row["high"] + 0.03), ha="center", color=COLOURS[arm])
    middle = (len(arms) - 1) / 2
    left.set_xticks([middle, len(arms) + 1 + middle], list(PANELS.values()))
    left.set(ylim=(0, 1.1), ylabel="share of held-out replies")
    ends = []
    for arm in arms:
        mine = [r for r in rows if (r["method"], r["measure"]) == (arm, "first_reply_kept")]
        if mine:
            steps, values = [r["step"] for r in mine], [r["value"] for r in mine]
            right.plot(steps, values, LINES[arm], ms=4, lw=1, color=COLOURS[arm])
            ends.append((steps[-1], values[-1], arm, COLOURS[arm]))
    frozen = next((r for r in rows if (r["method"], r["measure"]) == ("frozen", "rule_kept")), None)
    if frozen is not None:
        right.axhline(frozen["value"], color=COLOURS["frozen"], lw=1, ls="--")
        ends.append((right.get_xlim()[1], frozen["value"], "frozen,\nheld-out", COLOURS["frozen"]))
    right.set(ylim=(0, 1.1), xlabel="updates before the reply", ylabel="rule kept in first replies")
    style.label_ends(right, ends)
    style.save(figure, path)
