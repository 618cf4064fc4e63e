"""results.jsonl by units of work: a run that was stopped anywhere goes on from its last finished unit.

    ledger = Ledger(out, settings)                       # nothing is written yet
    if unit not in ledger.done: ledger.add(unit, rows)   # appended in one write, closed by a line that counts them

Rows are dicts with "measure" and "value" among other fields; each is stored with the name of its unit. The closing line
is itself a row, {"unit": ..., "measure": "unit", "value": number of rows}: a unit without one, or with another number,
was cut by a crash or a full disk, and is dropped with a note when the folder is opened again. `settings` is everything
that the rows depend on; a folder belongs to one value of it.

Shares of one run (`--parts`) are ledgers of their own in folders part-I-of-N; `gather` reads them back.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]
RESULTS, SETTINGS = "results.jsonl", "settings.json"
CLOSING = "unit"  # measure of the line that closes a unit


def plain(settings: Any) -> dict[str, Any]:
    """A dataclass as JSON holds it: tuples become lists."""
    return json.loads(json.dumps(dataclasses.asdict(settings)))


def read_lines(path: Path) -> tuple[list[Row], bool]:
    """Rows of a file of one JSON object a line, and whether its last line was cut short. ([], False) without a file.

    Raises ValueError naming the line where one before the last cannot be read: that is damage, not an interruption.
    """
    if not path.exists():
        return [], False
    *whole, last = path.read_text(encoding="utf-8", errors="replace").split("\n")
    rows: list[Row] = []
    for number, line in enumerate(whole, 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(whole) and not last:  # padded by the file system after a crash
                return rows, True
            raise ValueError(
                f"{path}, line {number} is not JSON ({error.msg}); delete that line and all lines of its unit"
            ) from error
    return rows, bool(last)


def _finished(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows of every closed unit, closing line left out."""
    units: dict[str, list[Row]] = {}
    closed: dict[str, int] = {}
    for row in rows:
        mine = units.setdefault(row["unit"], [])
        if row["measure"] == CLOSING:
            closed[row["unit"]] = int(row["value"])
        else:
            mine.append(row)
    return {unit: mine for unit, mine in units.items() if closed.get(unit) == len(mine)}


def read_rows(folder: Path) -> list[Row]:
    """Rows of the finished units in a folder, [] without any."""
    return [row for mine in _finished(read_lines(folder / RESULTS)[0]).values() for row in mine]


class Ledger:
    """The rows of one folder. Nothing is created before the first `add`."""

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        self.out, self.settings = out, dict(settings)
        home = next(path for path in (out, *out.absolute().parents) if path.exists())
        if not home.is_dir():
            raise ValueError(f"--out {out}: {home} is a file; give a folder")
        if not os.access(home, os.W_OK):
            raise ValueError(f"--out {out}: {home} cannot be written to; choose another folder")
        _check_settings(out, self.settings)
        rows, cut = read_lines(out / RESULTS)
        self.units = _finished(rows)
        self.dropped = sorted({row["unit"] for row in rows} - self.units.keys())
        self.cut = cut or bool(self.dropped)

    @property
    def done(self) -> set[str]:
        """Names of the finished units."""
        return set(self.units)

    @property
    def rows(self) -> list[Row]:
        """All rows of finished units, in file order."""
        return [row for mine in self.units.values() for row in mine]

    def value(self, unit: str, measure: str) -> float | None:
        """The last value of a measure in a unit, None without one."""
        found = [row["value"] for row in self.units.get(unit, ()) if row["measure"] == measure]
        return found[-1] if found else None

    def note(self) -> str | None:
        """What opening the folder had to drop, in words."""
        if not self.cut:
            return None
        names = ", ".join(self.dropped) or "its last line"
        return f"{self.out / RESULTS} ends in an unfinished write: {names} is dropped and run again"

    def open(self) -> None:
        """Makes the folder, stores the settings and rewrites a file that was cut without its unfinished unit."""
        self.out.mkdir(parents=True, exist_ok=True)
        if not (self.out / RESULTS).exists():
            _write(self.out / SETTINGS, json.dumps(self.settings, indent=1) + "\n", "w")
        if self.cut:
            kept = self.out / f"{RESULTS}.kept"
            kept.write_text("".join(_lines(unit, rows) for unit, rows in self.units.items()), encoding="utf-8")
            os.replace(kept, self.out / RESULTS)
            self.cut = False

    def add(self, unit: str, rows: Iterable[Row], side: Mapping[str, Iterable[Row]] | None = None) -> None:
        """Appends the rows of a finished unit; `side` files (name -> rows, e.g. replies) are written before them.

        A unit that is run again after a crash may have left side rows behind: those are replaced.
        """
        if unit in self.units:
            raise ValueError(f"unit {unit} is already in {self.out / RESULTS}")
        self.open()
        for name, lines in (side or {}).items():
            others = [row for row in read_lines(self.out / name)[0] if row["unit"] != unit]
            new = [{"unit": unit, **row} for row in lines]
            _write(self.out / name, "".join(json.dumps(row) + "\n" for row in [*others, *new]), "w")
        mine = [{"unit": unit, **row} for row in rows]
        _write(self.out / RESULTS, _lines(unit, mine), "a")
        self.units[unit] = mine


def gather(out: Path, settings: Mapping[str, Any]) -> dict[str, tuple[list[Row], dict[str, list[Row]]]]:
    """Finished units of all shares under `out`: unit -> (rows, side rows by file), without the unit's name in them.

    Raises ValueError where a share was made with other settings.
    """
    found: dict[str, tuple[list[Row], dict[str, list[Row]]]] = {}
    bare = lambda rows: [{k: v for k, v in row.items() if k != "unit"} for row in rows]  # noqa: E731
    for folder in sorted(out.glob("part-*-of-*")):
        share = Ledger(folder, settings)
        sides = {path.name: read_lines(path)[0] for path in folder.glob("*.jsonl") if path.name != RESULTS}
        for unit, rows in share.units.items():
            mine = {name: bare(row for row in rows if row["unit"] == unit) for name, rows in sides.items()}
            found[unit] = bare(rows), {name: rows for name, rows in mine.items() if rows}
    return found


def _lines(unit: str, rows: Iterable[Row]) -> str:
    mine = list(rows)
    return "".join(json.dumps(row) + "\n" for row in [*mine, {"unit": unit, "measure": CLOSING, "value": len(mine)}])


def _write(path: Path, text: str, mode: str) -> None:
    with path.open(mode, encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _check_settings(out: Path, wanted: Mapping[str, Any]) -> None:
    note = out / SETTINGS
    if not note.exists():
        return
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        if not (out / RESULTS).exists():
            return  # cut while the folder was made: nothing depends on it yet
        raise ValueError(f"{note} is not JSON ({error.msg}); restore it or choose another --out") from error
    other = sorted(k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k))
    if other:
        change = "; ".join(f"{k}: {found.get(k)} there, {wanted.get(k)} here" for k in other[:3])
        raise ValueError(f"{out} was made with other settings ({change}); choose another --out")
