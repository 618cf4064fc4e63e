"""Does a larger group help GRPO on the umbrella chain? An experiment as a user of the harness writes it.

    python -m tests.experiments.user_experiment --preset quick

Prediction, written before the run: the gain with groups of 8 is above the gain with groups of 2.
"""

import dataclasses
import functools

from agentjax.methods import METHODS
from agentjax.train import TrainConfig
from agentjax.viz import style
from agentjax.viz.rows import gain, read
from agentjax.viz.statistics import interval
from experiments.harness import command
from experiments.harness.arms import Plan, arm
from experiments.harness.command import Experiment, Unit
from experiments.harness.tasks import umbrella_task
from experiments.report import Prediction, evaluate, exceeds, show

WHERE = {"env": "umbrella", "p0": None}
NAMES = {"groups of 2": 2, "groups of 8": 8}
PREDICTIONS = (
    Prediction("larger groups", "Groups of 8 gain more than groups of 2.", "C3",
               lambda rows: exceeds(*(gain(rows, method=name) for name in reversed(NAMES)))),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Settings:
    length: int = 4  # of the chain
    seeds: int = 2
    iterations: int = 8
    every: int = 2
    episodes: int = 16  # per batch


def check(s):
    command.positive(s, "length", "seeds")
    command.multiple("iterations", s.iterations, "every", s.every)


def units(s, cache):
    def one(name, ledger):
        task, _ = umbrella_task(WHERE, s.length, panel=128)
        size = NAMES[name]
        plan = Plan(TrainConfig(groups=s.episodes // size, size=size), s.seeds, s.every, 0, 1)
        return arm(task, name, METHODS["grpo"], plan, 0.1, s.iterations)[0]

    return [Unit(name, name, functools.partial(one, name)) for name in NAMES]


def write(out, preset):
    rows = read(out / "results.jsonl")
    figure, axes = style.figure(4, 3)
    for i, name in enumerate(NAMES):
        found = interval(gain(rows, method=name))
        axes[0, 0].errorbar(i, found.mean, yerr=style.bars(found), marker="o", capsize=3)
    axes[0, 0].set_xticks(range(len(NAMES)), list(NAMES))
    axes[0, 0].set_ylabel("learning gain")
    style.save(figure, out / "gain.png")
    lines = [f"- {name}: {show(interval(gain(rows, method=name)))}" for name in NAMES]
    lines += [f"- {p.name}: {held} ({evidence})" for p, held, evidence in evaluate(PREDICTIONS, rows)]
    (out / "report.md").write_text(f"# Groups ({preset})\n\n" + "\n".join(lines) + "\n")


PRESETS = {"quick": Settings(), "paper": Settings(length=10, seeds=5), "full": Settings(length=30, seeds=10)}
main = functools.partial(command.run, Experiment("user_experiment", PRESETS, check, units, write, __doc__))

if __name__ == "__main__":
    main()
