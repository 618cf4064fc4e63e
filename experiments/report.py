"""What every report is written with: tables, differences with intervals, predictions and their verdicts, claims.

A prediction is written before the run, as a sentence and a check of the rows:

    turn, episode = ({"method": name, "env": "pivot", "p0": 0.1} for name in ("oracle_turn", "oracle_episode"))
    Prediction("turn beats episode", "The oracle's credit learns more per turn than per episode.", "C3",
               lambda rows: exceeds(gain(rows, **turn), gain(rows, **episode)))
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from agentjax.viz.resolution import estimate
from agentjax.viz.rows import Rows, Where, at_end
from agentjax.viz.statistics import Interval, interval, paired, smallest_difference

Outcome = tuple[bool | None, str]  # held, did not hold, not measured (None); and the numbers
WORDS = {True: "held", False: "did not hold", None: "not measured"}


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Written before the run. `check` reads the rows: did it hold, and on what numbers."""

    name: str
    text: str
    claim: str  # of CLAIMS.md
    check: Callable[[Rows], Outcome]


def evaluate(predictions: Sequence[Prediction], rows: Rows) -> list[tuple[Prediction, bool | None, str]]:
    """Every prediction with its verdict and evidence, in order."""
    return [(prediction, *prediction.check(rows)) for prediction in predictions]


def exceeds(
    first: Mapping[int, float], second: Mapping[int, float], *, by: float = 0.0, names: tuple[str, str] = ("", "")
) -> Outcome:
    """Is first - second, paired by seed, above `by` with its whole 95% interval? Not measured without two seeds."""
    found = interval(paired(first, second))
    if found.seeds == 0 or not found.bounded and math.isfinite(found.mean):
        return None, f"{_versus(names)}{show(found)}"
    held = found.low > by if found.bounded else found.mean > by
    return held, f"{_versus(names)}{show(found, sign=True)}{_undecided(held, found, by)}"


def higher(
    rows: Rows, measure: str, first: str, second: str, where: Where, *, by: float = 0.0, step: int = 0
) -> Outcome:
    """Is a fidelity measure of the method `first` above that of `second` by more than `by`? As `exceeds`.

    Of a single seed, the interval is two standard errors of the difference, if the measure has `_se` rows.
    """
    a, b = (rows.values(measure, method=name, step=step, **where) for name in (first, second))
    if len(a.keys() & b.keys()) != 1:
        return exceeds(a, b, by=by, names=(first, second))
    x, y = (estimate(rows, measure, name, where, step=step) for name in (first, second))
    if not (x.bounded and y.bounded):
        return exceeds(a, b, by=by, names=(first, second))
    room = math.hypot(x.high - x.mean, y.high - y.mean)
    found = Interval(x.mean - y.mean, x.mean - y.mean - room, x.mean - y.mean + room, 1)
    return found.low > by, f"{_versus((first, second))}{show(found, sign=True)}{_undecided(found.low > by, found, by)}"


def all_of(*outcomes: Outcome) -> Outcome:
    """Held if all did, not if one did not; not measured if one is missing and none failed."""
    verdicts = [held for held, _ in outcomes]
    held = False if False in verdicts else None if None in verdicts else True
    return held, "; ".join(evidence for _, evidence in outcomes)


def _versus(names: tuple[str, str]) -> str:
    return f"{names[0]} less {names[1]}: " if names[0] else "difference: "


def _undecided(held: bool, found: Interval, by: float) -> str:
    return " (undecided: the interval holds the bound)" if not held and found.bounded and found.high > by else ""


def show(found: Interval, digits: int = 2, *, sign: bool = False) -> str:
    """"0.45 [0.40, 0.50]"; without an interval the mean alone; "-" if there is nothing."""
    if not found.seeds or math.isnan(found.mean):
        return "-"
    if math.isinf(found.mean):
        return "-inf" if found.mean < 0 else "inf"
    form = f"{'+' if sign else ''}.{digits}f"
    tail = f" [{found.low:{form}}, {found.high:{form}}]" if found.bounded else ""
    return f"{found.mean:{form}}{tail}"


def short(number: float) -> str:
    """12345.6 as "12.3k": three digits and a unit."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table; `|` inside a cell is escaped."""
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in (header, *lines)]
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in (escaped[0], rule, *escaped[1:])) + "\n"


def power_note(rows: Rows, methods: Sequence[str], where: Where, measure: str = "success") -> str:
    """The smallest difference between two arms at the end of training that this panel could have seen."""
    ends = [values for name in methods if (values := at_end(rows, measure, method=name, **where))]
    seeds = sorted(set.intersection(*(set(values) for values in ends))) if len(ends) > 1 else []
    if len(seeds) < 2:
        return "Power: two seeds and two arms are needed to say what difference could have been seen."
    pairs = [[a[s] - b[s] for s in seeds] for i, a in enumerate(ends) for b in ends[:i]]
    found = smallest_difference(pairs)
    return (
        f"Power: with {len(seeds)} paired seeds and the spread seen here, a true difference of {found:.2f} in {measure}"
        " at the end would be found with probability .8 (paired t-test, 5%, one pair of arms). Smaller differences may"
        " exist and not show."
    )


def claim_verdicts(evaluated: Sequence[tuple[Prediction, bool | None, str]]) -> dict[str, str]:
    """Claim id -> "3 of 4 predictions held (did not: ...)"; those not measured are named too."""
    verdicts = {}
    for claim in dict.fromkeys(prediction.claim for prediction, _, _ in evaluated):
        mine = [(p.name, held) for p, held, _ in evaluated if p.claim == claim]
        others = {verdict: [name for name, held in mine if held is verdict] for verdict in (False, None)}
        notes = [f"{WORDS[verdict]}: {', '.join(names)}" for verdict, names in others.items() if names]
        held = sum(held is True for _, held in mine)
        verdicts[claim] = f"{held} of {len(mine)} predictions held" + (f" ({'; '.join(notes)})" if notes else "")
    return verdicts


def fill_claims(path: Path, verdicts: Mapping[str, str]) -> None:
    """Writes the verdicts into the last column of the rows `| C1 | ... |` of the ledger; other rows stay."""
    lines = path.read_text(encoding="utf-8").split("\n")
    for i, line in enumerate(lines):
        found = re.match(r"\| (C\d+) \|", line)
        if found and found[1] in verdicts:
            lines[i] = f"{line.rstrip(' |').rsplit(' | ', 1)[0]} | {verdicts[found[1]]} |"
    path.write_text("\n".join(lines), encoding="utf-8")
