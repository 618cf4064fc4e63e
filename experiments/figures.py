"""Every committed figure, report and verdict again, from the committed rows: `make figures`.

    python -m experiments.figures [--home experiments/results]

For each folder NAME of the home that holds rows, experiments.NAME draws its figures and writes its report; verdicts go
to CLAIMS.md and an album of all figures to docs/figures.md. Seconds, no compute.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path

import tyro

from agentjax.viz.rows import read
from experiments.harness.command import RESULTS_HOME, UNFINISHED, redraw
from experiments.harness.ledger import RESULTS, SETTINGS
from experiments.report import claim_verdicts, evaluate, fill_claims

CLAIMS = Path(__file__).parent / "CLAIMS.md"
ALBUM = Path(__file__).parents[1] / "docs" / "figures.md"


def published(home: Path) -> list[Path]:
    """Folders of finished runs: those with a report beside their rows that does not call itself unfinished."""
    reports = {path.parent: path.parent / "report.md" for path in home.glob(f"*/{RESULTS}")}
    return sorted(f for f, r in reports.items() if r.exists() and not r.read_text("utf-8").startswith(UNFINISHED))


def album(folders: list[Path], page: Path) -> None:
    """Every figure that a report shows, with its caption and the command that made its rows."""
    parts = ["# Figures\n", "Made from the committed rows by `make figures`.\n"]
    for folder in folders:
        preset = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))["preset"]
        parts.append(f"## {folder.name}\n\n    python -m experiments.{folder.name} --preset {preset}\n")
        link = os.path.relpath(folder, page.parent)
        for caption, name in re.findall(r"!\[(.+?)\]\((.+?)\)", (folder / "report.md").read_text(encoding="utf-8")):
            parts.append(f"![{caption}]({link}/{name})\n\n*{caption}.*\n")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(parts), encoding="utf-8")


def main(home: Path = RESULTS_HOME, claims: Path = CLAIMS, page: Path = ALBUM) -> None:
    """Redraws all.

    Args:
        home: folder of published results, one folder per experiment.
        claims: ledger of claims whose verdicts are filled in.
        page: album of all figures.
    """
    folders = published(home)
    for folder in folders:
        module = importlib.import_module(f"experiments.{folder.name}")
        redraw(module.EXPERIMENT, folder)
        predictions = getattr(module, "PREDICTIONS", ())
        fill_claims(claims, claim_verdicts(evaluate(predictions, read(folder / RESULTS))))
        print(f"{folder.name}: {', '.join(sorted(path.name for path in folder.glob('*.png')))}")
    album(folders, page)


if __name__ == "__main__":
    tyro.cli(main)
