"""How does the resolution of the learning signal change credit assignment?

    python -m experiments.signal_resolution --preset quick|paper|full [--out DIR] [--publish]

Question. Four families of signal, from one number per pair of trajectories (DPO) over one per episode (GRPO) and one
per turn (PRM) to one per token (OPD), on the same tasks, from the same start, with the same seeds: how close is each
one's credit to the true advantage A^pi, what is its gradient worth, how fast does it learn, and does the first predict
the last?

Factorial: the oracle's own credit at four resolutions has equal information; at one resolution it has as much
information as it is given branches (K = 1, 4, 16, 64 a place); judged and hinted methods differ in information;
permuted credit has the right values in the wrong places; placebo and wrong hints are information that should not help.

Tasks: `pivot` (five turns, two unmarked key turns, one lure that the judge praises and that does no harm; base success
p0 fixed by a shared warm start), `bait` (the same, and the lure spoils half of the errands; the headline arms go on to
300 iterations there, as `bait_long`), the umbrella chain (ten steps, a tabular policy, exact gradient), one 20-turn
`chapter` trajectory for the heat map. Each arm's learning rate is tuned on `pivot` at p0, and on the chain, over one
grid; `bait`, the other p0 and the arm with more branches take the rate of `pivot`.

Predictions: `signal_resolution_predictions`, written before the first paper run, after pilots at other sizes and one
trial of the assessment on `pivot` with other keys ("branches are worth a judge" rests on it); the report says which
held. The pilots also chose two things: a gain is the mean success over training less its start, since many arms meet at
the end, and training ends after 60 iterations, since they meet there by then.

Time on 2 CPU cores: quick about 5 minutes (three seeds, six arms: for trying things, not evidence); paper about two
hours (estimated from a fifth of its units), resumable at every unit. Rows go to results.jsonl as units of work finish.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from agentjax import train
from agentjax.envs.pivot_task import PRESETS as pivot_task_presets
from agentjax.methods import METHODS, Method, method
from agentjax.oracle import exact
from agentjax.signals.judges import Judge
from agentjax.types import PyTree, lookup
from experiments import signal_resolution_report, snr_horizon
from experiments.harness import command
from experiments.harness.arms import Plan, arm, tuned_rate, with_samples
from experiments.harness.assess import AssessConfig, make_assess
from experiments.harness.command import Experiment, Unit
from experiments.harness.ledger import Ledger, Row
from experiments.harness.one_trajectory import credit_rows
from experiments.harness.tasks import Task, pivot_task, umbrella_task
from experiments.signal_resolution_predictions import LADDER, PREDICTIONS, at

HEADLINE = ("dpo", "grpo", "prm_j1", "opd_gold", "oracle_token", "permuted")
SAME_INFORMATION = ("oracle_token", "oracle_turn", "oracle_episode", "oracle_pair", "permuted")
ARMS = (
    *SAME_INFORMATION, "dpo", "grpo", "prm_j1", "prm_j3_low", "prm_j3_high", "prm_outcome", "opd_gold", "opd_placebo",
    "opd_wrong", "prm_opd",
)  # fmt: skip
ALSO_ASSESSED = ("dr_grpo", "rloo", "prm_j0", "prm_plus_rloo")  # measured at the start, not trained
ERRORS = (0.1, 0.2, 0.3, 0.4, 0.5)  # judge error rates of the crossover
ASSESS_KEY, ALONG_KEY, CHAPTER_KEY = 31, 22, 5


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that the rows depend on; a run resumes only with the same settings."""

    pivot: str = "short"  # preset of the environment
    width: int = 64  # of the transformer
    p0: float = 0.1  # success before RL
    sweep: tuple[float, ...] = (0.02, 0.3, 0.5)  # further p0, headline arms only
    bait: float = 0.5  # share of errands that the lure spoils in `bait`; 0: no such task
    arms: tuple[str, ...] = ARMS  # methods that are trained
    seeds: int = 5  # paired, per arm
    iterations: int = 60  # of RL per run
    sweep_iterations: int = 40  # the same for further p0
    long_iterations: int = 300  # of the headline arms in `bait`; 0: as all arms
    every: int = 5  # iterations between evaluations on the panel
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)  # the one grid of learning rates, for every arm
    tune_iterations: int = 40  # of tuning, on seeds of its own; 0: take the middle rate
    tune_seeds: int = 3  # one seed was seen to choose a rate by luck
    samples: int = 16  # K of one more arm, oracle_token with K branches a place; 0: none
    panel: int = 256  # fixed tasks that measure success
    assess: AssessConfig = AssessConfig()  # sizes of the measurement of credit
    ladder: tuple[int, ...] = LADDER  # K at which the oracle's own credit is assessed in `pivot`
    along: tuple[int, ...] = (10, 30, 60)  # iterations after which the headline arms are assessed again in `pivot`
    umbrella: int = 10  # length of the chain that is learned; 0: none
    umbrella_rates: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)  # its grid: a table of logits
    umbrella_every: int = 2  # it learns within a few iterations
    umbrella_iterations: int = 40  # of RL per run, and of tuning
    chapter: bool = True  # the 20-turn trajectory
    horizon: str = "quick"  # preset of the signal-to-noise chart
    train: train.TrainConfig = train.TrainConfig(groups=4, size=8)  # batches


PRESETS = {
    "quick": Settings(
        pivot="tiny", arms=HEADLINE, sweep=(), bait=0.0, seeds=3, iterations=60, every=20, tune_iterations=0, samples=0,
        panel=128, assess=AssessConfig(pieces=4, reference_pieces=6, truth_pieces=1, truth_samples=32),
        ladder=(1, 4), along=(), umbrella=0, chapter=False,
    ),
    "paper": Settings(),
    "full": Settings(
        pivot="main", width=128, seeds=10, iterations=600, sweep_iterations=600, long_iterations=3000,
        tune_iterations=150, samples=64, panel=1024, umbrella=30, umbrella_iterations=200, horizon="full",
        assess=AssessConfig(pieces=64, reference_pieces=256, truth_pieces=8, truth_samples=256),
        train=train.TrainConfig(groups=16, size=8),
    ),
}  # fmt: skip


def check(settings: Settings) -> None:
    """Raises ValueError on what cannot be run."""
    s = settings
    for name in s.arms:
        method(name)
    for name in ("arms", "rates", "umbrella_rates"):
        values = getattr(s, name)
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{name} must be different and at least one, got {' '.join(map(str, values)) or 'none'}")
    if min(*s.rates, *s.umbrella_rates) <= 0:
        raise ValueError("rates and umbrella_rates must be positive")
    lookup(pivot_task_presets, s.pivot, "pivot preset")
    command.positive(s, "seeds", "panel", "every", "tune_seeds", "width", "umbrella_every", "umbrella_iterations")
    command.positive(s, "tune_iterations", "samples", "umbrella", "long_iterations", least=0)
    lengths = [("iterations", s.iterations), ("sweep_iterations", s.sweep_iterations)]
    lengths += [("along", step) for step in s.along]
    lengths += [(name, getattr(s, name)) for name in ("tune_iterations", "long_iterations") if getattr(s, name)]
    for name, value in lengths:
        command.multiple(name, value, "every", s.every)
    command.multiple("umbrella_iterations", s.umbrella_iterations, "umbrella_every", s.umbrella_every)
    if not 0 <= s.bait <= 1:
        raise ValueError(f"bait is a share between 0 and 1, got {s.bait:g}")
    if s.p0 in s.sweep or s.samples == 1:
        raise ValueError("sweep must not repeat p0, nor samples the one branch a place that every arm has")
    for p0 in (s.p0, *s.sweep):
        if not 0 < p0 < 1:
            raise ValueError(f"p0 and sweep are success rates between 0 and 1, got {p0:g}")
    if s.horizon not in snr_horizon.PRESETS:
        raise ValueError(f"horizon must be one of {', '.join(snr_horizon.PRESETS)}, got {s.horizon!r}")
    if s.ladder != tuple(sorted({1, *s.ladder})) or s.ladder[0] < 1:
        raise ValueError(f"ladder must rise from 1, the K of training, got {' '.join(map(str, s.ladder))}")


def _named(name: str, samples: int) -> Method:
    """A method that asks the oracle `samples` times, under the name that its rows carry."""
    return dataclasses.replace(with_samples(name, samples), name=at(name, samples))


def _assessment(task: Task, settings: Settings, names: tuple[str, ...], ladder: tuple[int, ...]) -> Callable:
    """assess(key, params, step, share) -> rows of the methods, K branches more for the oracle's own, judges that err.

    The ladder's largest K measures all resolutions; between, the token's.
    """
    entries = [with_samples(name, 1) for name in names]
    for k in ladder[1:]:
        entries += [_named(n, k) for n in (SAME_INFORMATION if k == max(ladder) else ("oracle_token",)) if n in names]
    if "prm_j3_low" in names:
        judge = METHODS["prm_j3_low"]
        entries += [
            dataclasses.replace(judge, name=f"prm_j3~{e}", judge=Judge("J3", false_positive=e, false_negative=e))
            for e in (0.0, *ERRORS)
        ]
    known = None
    if task.env.exact is not None:
        known = lambda params: exact.policy_gradient(task.env.exact, params["table"]).ravel()  # noqa: E731
    run = make_assess(task.policy, task.env, tuple(entries), settings.assess, known)

    def rows(key: int, params: PyTree, step: int = 0, share: int = 1) -> list[Row]:
        out = []
        for row in run(jax.random.key(key), params, task.start, share):
            name, _, error = str(row["method"]).partition("~")
            more = {"error": float(error)} if error else {}
            label = f"oracle:{names[0]}" if name == "oracle" and step else name
            out.append(task.row(label, row["measure"], row["value"], row["seed"], step, **more))
        return out

    return rows


def plan_of(settings: Settings, task: Task) -> Plan:
    """How the arms of a task are trained."""
    s = settings
    if task.where["env"] == "umbrella":
        tune = s.umbrella_iterations if s.tune_iterations else 0
        return Plan(s.train, s.seeds, s.umbrella_every, tune, s.tune_seeds)
    return Plan(s.train, s.seeds, s.every, s.tune_iterations, s.tune_seeds)


def units(settings: Settings, cache: Path) -> Iterator[Unit]:
    """All work, in order."""
    s = settings

    @functools.cache
    def task_of(env: str, p0: float | None = None) -> tuple[Task, list[Row]]:
        if env == "umbrella":
            return umbrella_task({"env": env, "p0": None}, s.umbrella, panel=s.panel)
        preset, harm = ("chapter", s.bait) if env == "chapter" else (s.pivot, s.bait if env == "bait" else 0.0)
        twin = None if env == "chapter" or (env, p0) == ("pivot", s.p0) else task_of("pivot", s.p0)[0]
        where = {"env": env, "p0": p0}
        return pivot_task(where, preset, p0, cache, width=s.width, panel=s.panel, twin=twin, lure_harm=harm)

    def learned(env: str, p0: float | None, name: str, iterations: int, ledger: Ledger, samples: int = 1) -> list[Row]:
        task, entry = task_of(env, p0)[0], with_samples(name, samples)
        rate = ledger.value(f"tune/{'umbrella' if env == 'umbrella' else 'pivot'}/{name}", "learning_rate")
        headline = env == "pivot" and p0 == s.p0 and name in HEADLINE and samples == 1
        long = env == "bait" and name in HEADLINE and s.long_iterations
        length = max(iterations, s.long_iterations) if long else iterations
        keep = [step for step in s.along if step <= iterations] if headline else []
        rows, kept = arm(task, at(name, samples), entry, plan_of(s, task), rate, length, keep)
        if long:
            rows = [row for row in rows if row["step"] <= iterations] + [{**row, "env": "bait_long"} for row in rows]
        if keep:
            assess = _assessment(task, s, (name,), (1,))
            rows += [row for step in keep for row in assess(ALONG_KEY, kept[step], step, 4)]
        return rows

    def tuned(env: str, name: str, ledger: Ledger) -> list[Row]:
        task = task_of(env, None if env == "umbrella" else s.p0)[0]
        grid = s.umbrella_rates if env == "umbrella" else s.rates
        rate, rows = tuned_rate(task, with_samples(name, 1), plan_of(s, task), grid)
        return [*rows, task.row(name, "learning_rate", rate)]

    def assessed(env: str, p0: float | None, ledger: Ledger) -> list[Row]:
        more = ALSO_ASSESSED if len(s.arms) > len(HEADLINE) else ()
        ladder = s.ladder if env == "pivot" else (1,)
        return _assessment(task_of(env, p0)[0], s, tuple(dict.fromkeys(s.arms + more)), ladder)(
            ASSESS_KEY, task_of(env, p0)[0].start
        )

    def chapter(ledger: Ledger) -> list[Row]:
        return credit_rows(
            jax.random.key(CHAPTER_KEY), task_of("chapter", 0.3)[0], [with_samples(name, 4) for name in s.arms]
        )

    bind = functools.partial
    horizon = snr_horizon.PRESETS[s.horizon]
    yield Unit("horizon", "horizon", lambda _: [
        {"env": "umbrella_horizon", **row} for n in horizon.lengths for row in snr_horizon.rows_of(horizon, n)
    ])  # fmt: skip
    places = [("pivot", p0) for p0 in (s.p0, *s.sweep)] + ([("bait", s.p0)] if s.bait else [])
    for env, p0 in places:
        yield Unit(f"gates/{env}/{p0:g}", "gates", lambda _, at=(env, p0): task_of(*at)[1])
    if s.umbrella:
        yield Unit("gates/umbrella", "gates", lambda _: task_of("umbrella")[1])
    for env, p0 in [*((e, p) for e, p in places if p == s.p0), *([("umbrella", None)] if s.umbrella else [])]:
        yield Unit(f"assess/{env}", f"assess/{env}", bind(assessed, env, p0), 6.0 if env == "pivot" else 2.0)
    for name in sorted(s.arms, key=lambda name: name not in HEADLINE):
        slow = 3.0 if name in SAME_INFORMATION else 1.0
        yield Unit(f"tune/pivot/{name}", name, bind(tuned, "pivot", name), slow)
        for env, p0 in places:
            main = p0 == s.p0
            if main or name in HEADLINE:
                length = s.iterations if main else s.sweep_iterations
                yield Unit(f"arm/{env}/{p0:g}/{name}", name, bind(learned, env, p0, name, length), slow)
        if s.umbrella:
            for kind, run in (("tune", bind(tuned, "umbrella", name)),
                              ("arm", bind(learned, "umbrella", None, name, s.umbrella_iterations))):  # fmt: skip
                yield Unit(f"{kind}/umbrella/{name}", name, run, 0.3)
    if s.samples and "oracle_token" in s.arms:
        run = bind(learned, "pivot", s.p0, "oracle_token", s.iterations, samples=s.samples)
        yield Unit(f"arm/pivot/{s.p0:g}/{at('oracle_token', s.samples)}", "oracle_token", run, 12.0)
    if s.chapter:
        yield Unit("chapter", "chapter", chapter, 3.0)


def write(out: Path, preset: str) -> None:
    """Figures and report from the rows in `out`."""
    signal_resolution_report.write(out, preset, PREDICTIONS)


EXPERIMENT = Experiment("signal_resolution", PRESETS, check, lambda s, cache: list(units(s, cache)), write, __doc__)
main = functools.partial(command.run, EXPERIMENT)

if __name__ == "__main__":
    main()
