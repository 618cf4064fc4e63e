"""How does the resolution of the learning signal change credit assignment?

    python -m experiments.signal_resolution --preset quick|paper|full [--out DIR] [--publish]

Question. Four families of signal, from one number per pair of trajectories (DPO) over one per episode (GRPO) and one
per turn (PRM) to one per token (OPD), on the same tasks, from the same start, with the same seeds: how close is each
one's credit to the true advantage A^pi, what is its gradient worth, how fast does it learn, and does the first predict
the last?

Factorial: the oracle's own credit at four resolutions has equal information; judged and hinted methods differ in
information at one resolution; permuted credit has the right values in the wrong places; placebo and wrong hints are
information that should not help.

Tasks: `pivot` (five turns, two unmarked key turns, one lure that the judge praises, base success p0 fixed by a shared
warm start), the umbrella chain (ten steps, a tabular policy), one 20-turn `chapter` trajectory for the heat map.

Predictions: `PREDICTIONS` below, written before the first paper run, after pilot runs of grpo, prm_j1, opd_gold,
oracle_turn and oracle_token at other sizes; the report says which held. Those pilots also chose two things: at a lure
that spoils half of the errands every arm soon met at .5, the success of always taking the bait, so the lure spoils .15;
and a gain is the mean success over training less its start, since the end alone hides who learned first.

Time on 2 CPU cores: quick about 6 minutes (three seeds, six arms: for trying things, not evidence); paper about 80
minutes (estimated from its parts). Rows go to results.jsonl as units of work finish; a rerun with the same --out
resumes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.progress import Progress

from agentjax import envs, train
from agentjax.credit import ESTIMATORS
from agentjax.envs.base import Env
from agentjax.envs.demos import expert_act, play
from agentjax.envs.tabular import token_ids
from agentjax.methods import METHODS, Method, method
from agentjax.oracle import branch
from agentjax.policies.base import Policy
from agentjax.policies.tabular import tabular_policy
from agentjax.policies.transformer import TransformerConfig, transformer
from agentjax.rollout import rollout
from agentjax.signals.collect import collect
from agentjax.signals.judges import Judge
from agentjax.types import ACTION, OBSERVATION, Array, PyTree, Trajectory
from agentjax.viz.rows import Rows, gain
from agentjax.warm_start import WarmStartConfig, warm_start
from experiments import signal_resolution_report, snr_horizon
from experiments.assess import AssessConfig, make_assess
from experiments.report import Outcome, Prediction, all_of, exceeds, higher

HEADLINE = ("dpo", "grpo", "prm_j1", "opd_gold", "oracle_token", "permuted")
ARMS = (
    "oracle_token", "oracle_turn", "oracle_episode", "oracle_pair", "permuted", "dpo", "grpo", "prm_j1", "prm_j3_low",
    "prm_j3_high", "prm_outcome", "opd_gold", "opd_placebo", "opd_wrong", "prm_opd",
)  # fmt: skip
ALSO_ASSESSED = ("dr_grpo", "rloo", "prm_j0", "prm_plus_rloo")  # measured at the start, not trained
ERRORS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)  # judge error rates of the crossover


MAIN = {"env": "pivot", "p0": 0.1}


def _gains(first: str, second: str) -> Callable[[Rows], Outcome]:
    """Is the learning gain of `first` above that of `second`, paired by seed, with its whole interval?"""
    return lambda rows: exceeds(
        gain(rows, method=first, **MAIN), gain(rows, method=second, **MAIN), names=(first, second)
    )


def _finer(measure: str) -> Callable[[Rows], Outcome]:
    """Does the measure fall from token to turn to episode to pair for the oracle's own credit?"""
    steps = ("oracle_token", "oracle_turn", "oracle_episode", "oracle_pair")
    return lambda rows: all_of(*(higher(rows, measure, a, b, MAIN) for a, b in itertools.pairwise(steps)))


def _leaks(rows: Rows) -> Outcome:
    """Does GRPO's credit leak more than the oracle's per trajectory, and less once it is averaged over rollouts?"""
    names = (("trajectory", "grpo"), ("averaged", "grpo"), ("trajectory", "oracle_token"))
    found = [rows.values(f"fidelity/leakage_{kind}", method=name, step=0, **MAIN) for kind, name in names]
    if not all(found):
        return None, "no rows"
    single, averaged, oracle = (float(np.mean(list(values.values()))) for values in found)
    evidence = f"GRPO {single:.2f} per trajectory, {averaged:.2f} averaged over rollouts; oracle {oracle:.2f}"
    return single > 0.5 and single > oracle and averaged < single, evidence


def _mixed(rows: Rows) -> Outcome:
    """Among turns with a true sign, does DPO's credit have the wrong one on at least a fifth?"""
    cell = "fidelity/sign_{}_{}_{}".format
    total = {}
    for right, kinds in ((True, (("good", "plus"), ("bad", "minus"))), (False, (("good", "minus"), ("bad", "plus")))):
        values = [rows.values(cell(o, *k), method="dpo", step=0, **MAIN) for o in ("success", "failure") for k in kinds]
        if not all(values):
            return None, "no rows"
        total[right] = sum(float(np.mean(list(v.values()))) for v in values)
    share = total[False] / max(total[True] + total[False], 1e-9)
    return share >= 0.2, f"wrong sign on {share:.0%} of the turns that it credits and that matter"


PREDICTIONS = (
    Prediction(
        "outcome leaks",
        "More than half of GRPO's |credit| in a trajectory falls on turns with A^pi = 0, more than of the oracle's, and"
        " less when it is averaged over rollouts: variance, not bias.",
        "C1",
        _leaks,
    ),
    Prediction(
        "pairs are coarse", "DPO credits at least a fifth of the turns that matter with the wrong sign.", "C2", _mixed
    ),
    Prediction(
        "finer is cleaner",
        "At equal information, the oracle's credit loses signal-to-noise from token to turn to episode to pair.",
        "C3",
        _finer("gradient/snr_db"),
    ),
    Prediction(
        "finer learns",
        "The oracle's token credit gains more than its episode credit.",
        "C3",
        _gains("oracle_token", "oracle_episode"),
    ),
    Prediction(
        "places matter",
        "Permuted credit, right values in wrong places, gains less than the oracle's token credit.",
        "C3",
        _gains("oracle_token", "permuted"),
    ),
    Prediction(
        "dense beats outcome", "Turn votes of the judge (J1) gain more than GRPO.", "C3", _gains("prm_j1", "grpo")
    ),
    Prediction(
        "noise undoes resolution",
        "A judge that errs on 40% gains less than GRPO.",
        "C3",
        _gains("grpo", "prm_j3_high"),
    ),
    Prediction("OPD beats DPO", "OPD with gold hints gains more than DPO.", "C5", _gains("opd_gold", "dpo")),
    Prediction(
        "hints carry it",
        "OPD with gold hints gains more than with placebo hints.",
        "C5",
        _gains("opd_gold", "opd_placebo"),
    ),
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that the rows depend on; a run resumes only with the same settings."""

    pivot: str = "short"
    lure_harm: float = 0.15  # always taking the bait earns .85: 80% of the expert is within reach of every arm
    width: int = 64
    p0: float = 0.1
    sweep: tuple[float, ...] = (0.02, 0.3, 0.5)  # further p0, headline arms only
    arms: tuple[str, ...] = ARMS
    seeds: int = 5
    iterations: int = 100
    sweep_iterations: int = 40
    every: int = 10  # iterations between evaluations on the panel
    rates: tuple[float, ...] = (1e-4, 2e-4, 5e-4, 1e-3)  # the one grid of learning rates, for every arm
    tune_iterations: int = 60  # of tuning, on seeds of its own; 0: take the middle rate
    tune_seeds: int = 3  # one seed was seen to choose a rate by luck: 2e-3 for oracle_token, which then fell back
    oracle_samples: int = 1  # K of the oracle's own credit in training
    panel: int = 256  # fixed tasks that measure success
    assess: AssessConfig = AssessConfig(credit_samples=1)
    along: bool = True  # assess the headline arms at the end, too
    umbrella: int = 10  # length of the chain that is learned; 0: none
    umbrella_rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    chapter: bool = True
    horizon: str = "quick"  # preset of the signal-to-noise chart
    train: train.TrainConfig = train.TrainConfig(groups=4, size=8)


PRESETS = {
    "quick": Settings(
        pivot="tiny",
        arms=HEADLINE,
        sweep=(),
        seeds=3,
        iterations=60,
        every=20,
        tune_iterations=0,
        panel=128,
        assess=AssessConfig(pieces=4, reference_pieces=6, truth_pieces=1, truth_samples=32, credit_samples=1),
        along=False,
        umbrella=0,
        chapter=False,
    ),
    "paper": Settings(),
    "full": Settings(
        pivot="main",
        width=128,
        seeds=10,
        iterations=600,
        sweep_iterations=600,
        tune_iterations=150,
        tune_seeds=3,
        oracle_samples=4,
        panel=1024,
        assess=AssessConfig(pieces=64, reference_pieces=256, truth_pieces=8, truth_samples=256, credit_samples=4),
        umbrella=30,
        horizon="full",
        train=train.TrainConfig(groups=16, size=8),
    ),
}


class Ledger:
    """results.jsonl by units of work: a unit's rows are appended in one write when it is finished."""

    def __init__(self, out: Path, settings: Settings) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.path, note = out / "results.jsonl", out / "settings.json"
        wanted = json.loads(json.dumps(dataclasses.asdict(settings)))
        if note.exists():
            found = json.loads(note.read_text())
            other = sorted(k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k))
            if other:
                raise SystemExit(f"{out} was made with other settings ({', '.join(other)}); choose another --out")
        note.write_text(json.dumps(wanted, indent=1))
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.rows = [json.loads(line) for line in lines]
        self.done = {row["unit"] for row in self.rows}

    def add(self, unit: str, rows: Iterable[dict[str, Any]]) -> None:
        """Appends the rows of a finished unit."""
        new = [{"unit": unit, **row} for row in rows]
        with self.path.open("a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in new))
        self.rows += new
        self.done.add(unit)


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment with a policy, its start, and how success is read off a batch."""

    name: str
    p0: float | None
    env: Env
    policy: Policy
    start: PyTree
    rates: tuple[float, ...]
    panel: Callable[[PyTree], Array]  # parameters [runs, ...] -> success on the fixed panel [runs], jitted
    programs: dict[str, Callable]  # jitted training by method, shared by tasks that differ in their start only


def returns(trajectory: Trajectory) -> Array:
    """Mean return: the success rate of a task that pays 1 or 0 at its end."""
    return jnp.mean(jnp.sum(jnp.where(trajectory.turn_mask, trajectory.reward, 0.0), axis=1))


def last_reward_won(trajectory: Trajectory) -> Array:
    """Share of episodes whose last reward is positive: the umbrella chain's outcome without its distractors."""
    return jnp.mean((trajectory.reward[:, -1] > 0).astype(jnp.float32))


def panel_of(env: Env, policy: Policy, success: Callable[[Trajectory], Array], size: int) -> Callable[[PyTree], Array]:
    """Success on `size` fixed tasks with fixed keys, for a stack of parameters."""

    def score(params: PyTree) -> Array:
        return success(rollout(jax.random.key(11), policy, params, env, env.params, groups=size, size=1).trajectory)

    return jax.jit(jax.vmap(score))


def pivot_task(
    settings: Settings, p0: float, cache: Path, preset: str | None = None, twin: Task | None = None
) -> tuple[Task, list[dict[str, Any]]]:
    """pivot started at p0, and the rows of its gates. A `twin` at another p0 lends its compiled programs."""
    env = twin.env if twin else envs.make("pivot", preset=preset or settings.pivot, lure_harm=settings.lure_harm)
    config = TransformerConfig(vocab=len(env.spec.vocabulary), width=settings.width, ffn=3 * settings.width)
    policy = twin.policy if twin else transformer(config)
    panel = twin.panel if twin else panel_of(env, policy, returns, settings.panel)
    start, gates = warm_start(policy, config, env, p0, WarmStartConfig(), cache)
    expert = returns(
        jax.jit(lambda key: play(key, env, expert_act(env), env.params, 256).trajectory)(jax.random.key(3))
    )
    programs = twin.programs if twin else {}
    task = Task("pivot" if preset is None else preset, p0, env, policy, start, settings.rates, panel, programs)
    rows = [("frozen", "base_success", gates.base_success), ("teacher", "hinted_success", gates.hinted_success),
            ("expert", "expert_success", float(expert))]  # fmt: skip
    return task, [_row(task, name, measure, value) for name, measure, value in rows]


def umbrella_task(settings: Settings) -> Task:
    """The umbrella chain with a uniform table."""
    env = envs.make("umbrella", length=settings.umbrella)
    ids = token_ids(env.exact)
    policy = tabular_policy(len(env.spec.vocabulary), action=ids.action, observation=ids.observation, hint=ids.hint)
    start = policy.init(jax.random.key(0))
    panel = panel_of(env, policy, last_reward_won, settings.panel)
    return Task("umbrella", None, env, policy, start, settings.umbrella_rates, panel, {})


def _row(
    task: Task, name: str, measure: str, value: float, seed: int = 0, step: int = 0, **more: Any
) -> dict[str, Any]:
    return {"env": task.name, "p0": task.p0, "method": name, "seed": seed, "step": step, "measure": measure,
            "value": float(value), **more}  # fmt: skip


def with_samples(name: str, samples: int) -> Method:
    """A method, its oracle asked `samples` times per place."""
    found = method(name)
    return dataclasses.replace(found, oracle_samples=samples) if found.oracle_samples else found


def costs(entry: Method, task: Task, config: train.TrainConfig, turns: Array, tokens: Array) -> dict[str, Array]:
    """What one batch costs, by currency; label bits: vote, pair and outcome 1 each, hint slots log2 V each."""
    spec, episodes = task.env.spec, float(config.groups * config.size)
    per_hint = spec.hint_len * math.log2(len(spec.vocabulary))
    needs, zero = entry.needs, np.zeros_like(turns)
    bits = zero
    if entry.judge is not None:
        bits = bits + turns * entry.judge.votes
    if "teacher_logp" in needs:
        bits = bits + turns * per_hint
    if entry.loss == "dpo" or entry.estimator in ("grpo", "rloo", "dr_grpo", "prm_outcome", "prm_plus_rloo"):
        bits = bits + episodes
    places = (spec.action_len + 1) if ESTIMATORS[entry.estimator].resolution == "token" else 2
    rest = spec.turns * (spec.turns + 1) / 2 * spec.action_len
    return {
        "episodes": zero + episodes, "turns": turns, "gradient_tokens": tokens, "label_bits": bits,
        "teacher_tokens": tokens if "teacher_logp" in needs else zero,
        "branch_tokens": zero + (entry.oracle_samples * places * rest * episodes if entry.oracle_samples else 0.0),
    }  # fmt: skip


def learn(
    task: Task, entry: Method, settings: Settings, rates: np.ndarray, keys: Array, iterations: int
) -> tuple[np.ndarray, dict[str, np.ndarray], PyTree]:
    """Trains one run per (rate, key) pair, all on one vmap axis.

    Returns success on the panel [runs, evaluations], metrics per iteration [runs, iterations], and the last parameters.
    """
    config, every = settings.train, settings.every
    if entry.name not in task.programs:
        runs = jax.vmap(train.make_step(task.policy, task.env, entry, config), (0, None))
        task.programs[entry.name] = jax.jit(lambda s, start: train.run_steps(runs, s, start, every), donate_argnums=0)
    advance = task.programs[entry.name]
    state = jax.vmap(lambda k, r: train.init_state(k, task.start, r, config))(keys, jnp.asarray(rates, jnp.float32))
    curve, metrics = [np.asarray(task.panel(state.params))], []
    for _ in range(iterations // every):
        state, measured = advance(state, task.start)
        train.raise_if_broken(state)
        metrics.append(jax.device_get(measured))
        curve.append(np.asarray(task.panel(state.params)))
    stacked = {name: np.concatenate([m[name] for m in metrics]).T for name in metrics[0]}
    return np.stack(curve, axis=1), stacked, state.params


def tuned_rate(task: Task, entry: Method, settings: Settings) -> tuple[float, list[dict[str, Any]]]:
    """The rate of the grid with the best mean success over tuning's second half, on seeds that are not reported."""
    grid, seeds = np.asarray(task.rates), settings.tune_seeds
    if settings.tune_iterations == 0:
        return float(grid[len(grid) // 2]), []
    keys = jax.vmap(lambda s: jax.random.fold_in(jax.random.key(2000), s))(jnp.tile(jnp.arange(seeds), len(grid)))
    curve, _, _ = learn(task, entry, settings, np.repeat(grid, seeds), keys, settings.tune_iterations)
    score = curve[:, curve.shape[1] // 2 :].mean(axis=1).reshape(len(grid), seeds).mean(axis=1)
    rows = [_row(task, entry.name, "tuning_score", s, learning_rate=float(r)) for r, s in zip(grid, score, strict=True)]
    return float(grid[int(np.argmax(score))]), rows


def arm(task: Task, name: str, settings: Settings, rate: float, iterations: int) -> tuple[list[dict[str, Any]], PyTree]:
    """Learning rows of one arm over all seeds, and seed 0's last parameters."""
    entry = with_samples(name, settings.oracle_samples)
    seeds = jnp.arange(settings.seeds)
    keys = jax.vmap(lambda s: jax.random.fold_in(jax.random.key(1000), s))(seeds)
    curve, metrics, kept = learn(task, entry, settings, np.full(settings.seeds, rate), keys, iterations)
    spent = costs(entry, task, settings.train, metrics["turns"], metrics["gradient_tokens"])
    series = {k: np.cumsum(v, axis=1) for k, v in spent.items()}
    tokens = np.maximum(metrics["gradient_tokens"], 1.0)
    for measure, total in (("entropy", "entropy_sum"), ("kl", "kl_sum")):
        if total in metrics:
            series[measure] = metrics[total] / tokens
    rows = []
    for seed in range(settings.seeds):
        for i, value in enumerate(curve[seed]):
            step = i * settings.every
            rows.append(_row(task, name, "success", value, seed, step, learning_rate=rate))
            if step > 0:
                rows += [_row(task, name, k, v[seed, step - 1], seed, step) for k, v in series.items()]
    return rows, jax.tree.map(lambda x: x[0], kept)


def assessment(task: Task, settings: Settings, names: tuple[str, ...]) -> Callable[..., list[dict[str, Any]]]:
    """assess(key, params) -> rows of every method in names, and of the judge at every error rate."""
    entries = [with_samples(name, settings.assess.credit_samples) for name in names]
    noisy = [
        dataclasses.replace(
            METHODS["prm_j3_low"], name=f"prm_j3@{e}", judge=Judge("J3", false_positive=e, false_negative=e)
        )
        for e in ERRORS
    ]
    run = make_assess(task.policy, task.env, tuple(entries + noisy), settings.assess)

    def rows(
        key: Array, params: PyTree, step: int = 0, only: str | None = None, share: int = 1
    ) -> list[dict[str, Any]]:
        out = []
        for row in run(key, params, task.start, share):
            name, _, error = str(row["method"]).partition("@")
            more = {"error": float(error)} if error else {}
            if only is None or name in (only, "oracle") and not error:
                label = name if name != "oracle" or only is None else f"oracle:{only}"
                out.append(_row(task, label, str(row["measure"]), float(row["value"]), int(row["seed"]), step, **more))  # type: ignore[arg-type]
        return out

    return rows


def chapter_rows(settings: Settings, cache: Path) -> list[dict[str, Any]]:
    """Credit of every method on one 20-turn trajectory, the first success of a batch, token by token."""
    task, _ = pivot_task(settings, 0.3, cache, preset="chapter")
    names = tuple(name for name in settings.arms if name in METHODS)
    entries = [with_samples(name, 8) for name in names]

    @jax.jit
    def batch(key: Array) -> tuple:
        play_key, truth_key, oracle_key, signal_key = jax.random.split(key, 4)
        played = rollout(play_key, task.policy, task.start, task.env, task.env.params, groups=4, size=8)
        measure = functools.partial(branch.measure, policy=task.policy, params=task.start, env=task.env, played=played)
        truth, own = measure(truth_key, samples=8), measure(oracle_key, samples=4)
        credits = []
        for i, entry in enumerate(entries):
            signals = collect(jax.random.fold_in(signal_key, i), train.wishes_of(entry, settings.train), task.policy,
                              task.start, task.start, task.env, played, own)  # fmt: skip
            credits.append(entry.build_estimator().apply(played.trajectory, signals).advantage)
        return dataclasses.replace(played, cache=None), truth.token.mean, jnp.stack(credits)

    played, truth, credits = batch(jax.random.key(5))
    trajectory = jax.tree.map(np.asarray, played.trajectory)
    won = np.flatnonzero((trajectory.reward * trajectory.turn_mask).sum(axis=1) > 0)
    row = int(won[0]) if won.size else 0
    words, slots = task.env.spec.vocabulary, np.flatnonzero(trajectory.role[row] == ACTION)
    out = [_row(task, "truth", "outcome", (trajectory.reward[row] * trajectory.turn_mask[row]).sum())]
    key_step = np.asarray(played.truth.key_step)[row]
    out += [_row(task, "truth", "key_step", float(k), turn=t) for t, k in enumerate(key_step)]
    for t in range(int(trajectory.turn_mask[row].sum())):
        seen = (trajectory.turn[row] == t) & (trajectory.role[row] == OBSERVATION)
        text = " ".join(words[int(token)] for token in trajectory.tokens[row, seen])
        out.append(_row(task, "truth", "observation", 1.0, turn=t, text=text))
    for name, credit in zip(("truth", *names), (truth, *credits), strict=True):
        for slot in slots:
            t = int(trajectory.turn[row, slot])
            place = {"turn": t, "slot": int(slot - task.env.spec.action_at(t))}
            word = words[int(trajectory.tokens[row, slot])]
            out.append(_row(task, name, "credit", float(credit[row, slot]), word=word, **place))
    return out


def run(settings: Settings, out: Path, cache: Path, preset: str) -> None:
    """All units of work that `out` does not hold yet, then figures and report."""
    ledger = Ledger(out, settings)
    with Progress() as progress:
        for name in settings.arms:
            method(name)  # an unknown arm is refused before any compute
        if "horizon" not in ledger.done:
            rows = snr_horizon.snr_against_horizon(snr_horizon.PRESETS[settings.horizon])
            ledger.add("horizon", [{"env": "umbrella_horizon", **row} for row in rows])
        tasks: list[tuple[Task, tuple[str, ...]]] = []
        for p0 in (settings.p0, *settings.sweep):
            task, gates = pivot_task(settings, p0, cache, twin=tasks[0][0] if tasks else None)
            if f"gates/{p0}" not in ledger.done:
                ledger.add(f"gates/{p0}", gates)
            tasks.append(
                (task, settings.arms if p0 == settings.p0 else tuple(a for a in HEADLINE if a in settings.arms))
            )
        if settings.umbrella:
            tasks.append((umbrella_task(settings), settings.arms))
        bar = progress.add_task("arms", total=sum(len(arms) for _, arms in tasks))
        assess_main = None
        rates: dict[str, float] = {
            row["unit"]: row["value"] for row in ledger.rows if row["measure"] == "learning_rate"
        }
        for task, arms in tasks:
            label = f"{task.name}/{task.p0}"
            main = task.p0 in (settings.p0, None)
            if main:
                assess = assessment(
                    task, settings, tuple(dict.fromkeys(arms + (ALSO_ASSESSED if len(arms) > 6 else ())))
                )
                assess_main = assess if task.name == "pivot" else assess_main
                if f"assess/{label}" not in ledger.done:
                    progress.update(bar, description=f"credit of every method on {label}")
                    ledger.add(f"assess/{label}", assess(jax.random.key(21), task.start))
            for name in arms:
                progress.update(bar, description=f"{name} on {label}")
                unit, tuning = f"arm/{label}/{name}", f"tune/{task.name}/{name}"
                if unit not in ledger.done:
                    if tuning not in rates:
                        rates[tuning], rows = tuned_rate(task, with_samples(name, settings.oracle_samples), settings)
                        ledger.add(tuning, [*rows, _row(task, name, "learning_rate", rates[tuning])])
                    length = settings.iterations if main else settings.sweep_iterations
                    rows, kept = arm(task, name, settings, rates[tuning], length)
                    if (
                        main
                        and settings.along
                        and name in HEADLINE
                        and task.name == "pivot"
                        and assess_main is not None
                    ):
                        rows += assess_main(jax.random.key(22), kept, settings.iterations, name, 8)
                    ledger.add(unit, rows)
                progress.advance(bar)
        if settings.chapter and "chapter" not in ledger.done:
            progress.update(bar, description="one 20-turn trajectory")
            ledger.add("chapter", chapter_rows(settings, cache))
    signal_resolution_report.write(out, preset, PREDICTIONS)


def main(
    preset: Literal["quick", "paper", "full"] = "quick",
    out: Path | None = None,
    cache: Path = Path("runs/warm"),
    seeds: int | None = None,
    iterations: int | None = None,
    arms: tuple[str, ...] | None = None,
    publish: bool = False,
) -> None:
    """Runs a preset, resuming what --out holds.

    Args:
        preset: quick (minutes, not evidence), paper (the committed evidence), full (for an accelerator).
        out: results folder; default runs/signal_resolution-PRESET.
        cache: folder of warm starts, shared by all runs.
        seeds: paired seeds per arm, instead of the preset's.
        iterations: RL iterations per run, instead of the preset's.
        arms: methods to train, instead of the preset's.
        publish: copy the finished paper run to experiments/results/signal_resolution.
    """
    given: dict[str, Any] = {"seeds": seeds, "iterations": iterations, "arms": arms}
    settings = dataclasses.replace(PRESETS[preset], **{k: v for k, v in given.items() if v is not None})
    out = out or Path("runs") / f"signal_resolution-{preset}"
    jax.config.update("jax_compilation_cache_dir", str((cache / "compiled").absolute()))
    try:
        run(settings, out, cache, preset)
    except (ValueError, RuntimeError, OSError, FloatingPointError) as error:
        raise SystemExit(f"{type(error).__name__}: {error}. Finished units of work are kept in {out}") from error
    print(f"rows, figures and report.md in {out}")
    if publish:
        target = Path(__file__).parent / "results" / "signal_resolution"
        target.mkdir(parents=True, exist_ok=True)
        for file in (*out.glob("*.png"), *out.glob("*.md"), out / "results.jsonl", out / "settings.json"):
            shutil.copy(file, target / file.name)
        print(f"published to {target}")


if __name__ == "__main__":
    tyro.cli(main)
