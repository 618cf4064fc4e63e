"""One command line for every experiment: presets, resuming, shares of a run, progress, errors in one line.

    EXPERIMENT = Experiment("my_claim", PRESETS, check, units, write, __doc__)
    main = functools.partial(run, EXPERIMENT)            # main() reads the command line; main(["--preset", "quick"])
    if __name__ == "__main__":
        main()

A unit of work makes rows; the ledger keeps what is finished. Units of one `family` share compiled programs: they run in
order and on the same share of `--parts`, and their programs are dropped when the family is done.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import tyro
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.harness.ledger import RESULTS, Ledger, Row, gather, plain
from experiments.harness.tasks import forget

RESULTS_HOME = Path(__file__).parents[1] / "results"
UNFINISHED = "Unfinished:"  # how the report of an interrupted run begins
KNOWN = (ValueError, RuntimeError, OSError, FloatingPointError)  # of bad input, full disks and runs that diverge


@dataclasses.dataclass(frozen=True)
class Unit:
    """A piece of work that is done once. `run` may read the rows of earlier units of its family off the ledger."""

    name: str
    family: str
    run: Callable[[Ledger], Sequence[Row] | tuple[Sequence[Row], Mapping[str, Sequence[Row]]]]  # rows, side files
    size: float = 1.0  # about how long, beside the others; for the time left


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What the command needs to know of an experiment."""

    name: str  # of its module
    presets: Mapping[str, Any]  # frozen dataclasses: everything that the rows depend on, each field a flag
    check: Callable[[Any], None]  # raises ValueError on settings that cannot be run; before anything is made
    units: Callable[[Any, Path], Sequence[Unit]]  # (settings, cache) -> work in order; builds, does not compute
    write: Callable[[Path, str], None]  # figures and report.md in a folder, from its rows, for a preset
    doc: str = ""  # question, time and predictions, for --help: __doc__


@dataclasses.dataclass(frozen=True)
class Common:
    """Where and how; the rows do not depend on it."""

    preset: Literal["quick", "paper", "full"] = "quick"
    """quick: minutes, for trying things; paper: the committed evidence; full: what an accelerator adds."""
    out: Path | None = None
    """Folder of the rows; runs/NAME-PRESET without it. A rerun goes on from what it holds."""
    parts: str = ""
    """I/N: only the I-th of N shares, in a folder of its own; the command without it then merges them."""
    publish: bool = False
    """Copy the finished run to experiments/results/NAME."""
    cache: Path = Path("runs/warm")
    """Warm starts and compiled programs, shared by all runs."""


def multiple(name: str, value: int, of: str, step: int) -> None:
    """Raises ValueError unless `value` is a positive multiple of `step`."""
    if value < 1 or value % step:
        near = max(step, round(value / step) * step)
        raise ValueError(f"{name} {value} is no positive multiple of {of} {step}; {near} is the nearest")


def positive(settings: Any, *names: str, least: int = 1) -> None:
    """Raises ValueError naming the first of these settings that is below `least`."""
    for name in names:
        if getattr(settings, name) < least:
            raise ValueError(f"{name} must be at least {least}, got {getattr(settings, name)}")


def parse(experiment: Experiment, args: Sequence[str]) -> tuple[Common, Any]:
    """The command line: common flags, and the preset's settings with those that are given."""
    chosen = [args[i + 1] for i in range(len(args) - 1) if args[i] == "--preset"]
    chosen += [arg.partition("=")[2] for arg in args if arg.startswith("--preset=")]
    preset = chosen[-1] if chosen and chosen[-1] in experiment.presets else "quick"
    settings = experiment.presets[preset]
    flags = dataclasses.make_dataclass(
        "Flags",
        [
            ("common", Annotated[Common, tyro.conf.arg(name="")]),
            ("settings", Annotated[type(settings), tyro.conf.arg(name="")]),
        ],
    )
    found = tyro.cli(
        flags, prog=f"python -m experiments.{experiment.name}", description=experiment.doc, args=list(args),
        default=flags(Common(preset=preset), settings),
    )  # fmt: skip
    return found.common, found.settings


def share_of(text: str, units: Sequence[Unit]) -> tuple[Path | None, list[Unit]]:
    """"2/3": the folder of that share and its units, every third family beginning with the second."""
    if not text:
        return None, list(units)
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    part, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= part <= count:
        raise ValueError(f"--parts takes I/N with I from 1 to N, such as 1/2, got {text!r}")
    families = {family: i for i, family in enumerate(dict.fromkeys(unit.family for unit in units))}
    mine = [unit for unit in units if families[unit.family] % count == part - 1]
    return Path(f"part-{part}-of-{count}"), mine


def work(ledger: Ledger, units: Sequence[Unit], found: Mapping[str, Any]) -> None:
    """Does the units that the ledger lacks, or takes them from `found`, in order, with progress and the time left."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    )  # fmt: skip
    todo = [unit for unit in units if unit.name not in ledger.done]
    left = sum(unit.size for unit in todo if unit.name not in found)
    began, spent = time.monotonic(), 0.0
    with Progress(*columns, disable=not sys.stdout.isatty()) as progress:
        bar = progress.add_task("", total=len(todo))
        for i, unit in enumerate(todo):
            progress.update(bar, description=unit.name)
            made, began_unit = found.get(unit.name), time.monotonic()
            if made is None:
                made = unit.run(ledger)
                spent, left = spent + unit.size, left - unit.size
            rows, side = made if isinstance(made, tuple) else (made, {})
            ledger.add(unit.name, rows, side)
            progress.advance(bar)
            if not sys.stdout.isatty():
                seconds, rest = time.monotonic() - began_unit, (time.monotonic() - began) / max(spent, 1e-9) * left / 60
                print(f"{unit.name}: {seconds:.0f} s, {i + 1} of {len(todo)}, {rest:.0f} min left", flush=True)
            if i + 1 == len(todo) or todo[i + 1].family != unit.family:
                forget()


def publish(out: Path, home: Path) -> None:
    """Copies rows, settings, side files, figures and report."""
    home.mkdir(parents=True, exist_ok=True)
    for file in (*out.glob("*.png"), *out.glob("*.md"), *out.glob("*.jsonl"), out / "settings.json"):
        shutil.copy(file, home / file.name)


def run(experiment: Experiment, args: Sequence[str] | None = None) -> None:
    """The command of an experiment. Every known error and Ctrl-C end in one line that says what is kept."""
    common, settings = parse(experiment, sys.argv[1:] if args is None else args)
    name = experiment.name
    out = common.out or Path("runs") / f"{name}-{common.preset}"
    try:
        experiment.check(settings)
        wanted = {"preset": common.preset, **plain(settings)}
        units = experiment.units(settings, common.cache)
        folder, mine = share_of(common.parts, units)
        if folder is not None and common.publish:
            raise ValueError("--publish needs the whole run: repeat the command without --parts to merge the shares")
        ledger = Ledger(out / folder if folder else out, wanted)
        found = {} if folder else gather(out, wanted)
    except (ValueError, OSError) as error:
        raise SystemExit(f"{name}: {error}") from error
    if note := ledger.note():
        print(f"{name}: {note}")
    jax.config.update("jax_compilation_cache_dir", str((common.cache / "compiled").absolute()))
    try:
        work(ledger, mine, found)
    except (KeyboardInterrupt, *KNOWN) as error:
        if not folder and ledger.done:
            write_unfinished(experiment, ledger, common.preset, len(mine))
        said = "stopped" if isinstance(error, KeyboardInterrupt) else " ".join(str(error).split())
        raise SystemExit(f"{name}: {said}. {kept(ledger)}") from error
    if folder:
        print(f"{name}: share {common.parts} is in {ledger.out}; the command without --parts merges what it finds")
        return
    experiment.write(out, common.preset)
    print(f"rows, figures and report.md in {out}")
    if common.publish:
        publish(out, RESULTS_HOME / name)
        print(f"published to {RESULTS_HOME / name}")


def write_unfinished(experiment: Experiment, ledger: Ledger, preset: str, units: int) -> None:
    """Figures and report of what is there, marked as such; nothing where the disk or the rows do not allow it."""
    try:
        experiment.write(ledger.out, preset)
        report = ledger.out / "report.md"
        head = f"{UNFINISHED} {len(ledger.done)} of {units} units of work.\n\n"
        report.write_text(head + report.read_text(encoding="utf-8"), encoding="utf-8")
    except KNOWN as error:
        print(f"{experiment.name}: no report of what is there ({' '.join(str(error).split())})")


def kept(ledger: Ledger) -> str:
    """What an interrupted run leaves behind, and how to go on."""
    if not ledger.done:
        return "No unit was finished, nothing is kept"
    return f"{len(ledger.done)} finished units are kept in {ledger.out}; the same command goes on from there"


def redraw(experiment: Experiment, folder: Path) -> None:
    """Figures and report of a folder, again from its rows."""
    if not (folder / RESULTS).exists():
        raise SystemExit(f"{experiment.name}: no {RESULTS} in {folder}")
    preset = json.loads((folder / "settings.json").read_text())["preset"]
    experiment.write(folder, preset)
