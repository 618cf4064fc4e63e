"""Every committed figure, report and verdict again, from the committed rows: `make figures`.

    python -m experiments.figures [--home experiments/results]

For each folder NAME of the home that holds rows, experiments.NAME draws its figures and writes its report; verdicts go
to CLAIMS.md. Seconds, no compute.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import tyro

from agentjax.viz.rows import read
from experiments.harness.command import RESULTS_HOME, redraw
from experiments.harness.ledger import RESULTS
from experiments.report import claim_verdicts, evaluate, fill_claims

CLAIMS = Path(__file__).parent / "CLAIMS.md"


def published(home: Path) -> list[Path]:
    """Folders of finished runs: those with a report beside their rows."""
    return sorted(path.parent for path in home.glob(f"*/{RESULTS}") if (path.parent / "report.md").exists())


def main(home: Path = RESULTS_HOME, claims: Path = CLAIMS) -> None:
    """Redraws all.

    Args:
        home: folder of published results, one folder per experiment.
        claims: ledger of claims whose verdicts are filled in.
    """
    for folder in published(home):
        module = importlib.import_module(f"experiments.{folder.name}")
        redraw(module.EXPERIMENT, folder)
        predictions = getattr(module, "PREDICTIONS", ())
        fill_claims(claims, claim_verdicts(evaluate(predictions, read(folder / RESULTS))))
        print(f"{folder.name}: {', '.join(sorted(path.name for path in folder.glob('*.png')))}")


if __name__ == "__main__":
    tyro.cli(main)
