"""The harness: ledgers that survive anything, shares that merge, errors in one line, bounded memory mappings."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax import train
from agentjax.methods import METHODS
from experiments import figures, signal_resolution, snr_horizon
from experiments.harness import command, tasks
from experiments.harness.arms import Plan, arm, keys_of, learn, tuned_rate, with_samples
from experiments.harness.command import Experiment, Unit
from experiments.harness.costs import costs
from experiments.harness.ledger import Ledger, gather, read_lines
from tests.experiments import synthetic, user_experiment

ROOT = Path(signal_resolution.__file__).parents[1]


def lines(folder):
    return (folder / "results.jsonl").read_text()


@dataclasses.dataclass(frozen=True)
class Toy:
    units: int = 6  # of work
    seeds: int = 2  # rows per unit


def toy(log=None, fail_at=-1, error=KeyboardInterrupt):
    """Units a0, b0, a1, ...: families a and b; the second of a family reads the first, as arms read tuned rates."""

    def run(i, ledger):
        if log is not None:
            log.append(i)
        if i == fail_at:
            raise error("no space left")
        earlier = ledger.value(f"unit{i - 2}", "x") if i >= 2 else 0.0
        rows = [{"measure": "x", "value": earlier + i + seed, "seed": seed} for seed in range(2)]
        return rows, {"replies.jsonl": [{"text": f"reply {i}"}]}

    def units(settings, cache):
        return [Unit(f"unit{i}", "ab"[i % 2], lambda led, i=i: run(i, led)) for i in range(settings.units)]

    def check(settings):
        command.positive(settings, "units", "seeds")

    def write(out, preset):
        (out / "report.md").write_text(f"{preset}: {sum(row['value'] for row in read_lines(out / 'results.jsonl')[0])}")

    return Experiment("toy", {"quick": Toy(), "paper": Toy(), "full": Toy()}, check, units, write)


def test_a_run_stopped_at_any_unit_goes_on_to_the_same_rows(tmp_path):
    command.run(toy(), ["--out", str(tmp_path / "whole")])
    for stop in range(6):
        out = tmp_path / f"stop{stop}"
        with pytest.raises(SystemExit, match=r"toy: stopped\. " + ("No unit" if stop == 0 else f"{stop} finished")):
            command.run(toy(fail_at=stop), ["--out", str(out)])
        if stop:
            assert (out / "report.md").read_text().startswith(f"Unfinished: {stop} of 6 units of work.")
            (tmp_path / f"home{stop}").mkdir()
            out.rename(out := tmp_path / f"home{stop}" / "toy")
            assert figures.published(tmp_path / f"home{stop}") == []
        log = []
        command.run(toy(log), ["--out", str(out)])
        assert log == list(range(stop, 6)) and figures.published(out.parent) != []
        for name in ("results.jsonl", "replies.jsonl", "settings.json", "report.md"):
            assert (out / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_a_ledger_cut_anywhere_drops_the_unfinished_unit_and_goes_on(tmp_path, capsys, monkeypatch):
    command.run(toy(), ["--out", str(tmp_path / "whole")])
    text = lines(tmp_path / "whole")
    ends = [i + 1 for i, letter in enumerate(text) if letter == "\n"]  # whole lines, but not whole units
    monkeypatch.setattr(command, "forget", lambda: None)  # no programs here
    for cut in (*range(1, len(text), 211), *ends):
        out = tmp_path / f"cut{cut}"
        out.mkdir()
        for name in ("settings.json", "replies.jsonl"):
            (out / name).write_text((tmp_path / "whole" / name).read_text())
        (out / "results.jsonl").write_text(text[:cut])
        command.run(toy(), ["--out", str(out)])
        assert lines(out) == text
        assert sorted(read_lines(out / "replies.jsonl")[0], key=str) == sorted(
            read_lines(tmp_path / "whole" / "replies.jsonl")[0], key=str
        )
    assert re.search(r"unfinished write: unit\d is dropped and run again", capsys.readouterr().out)


def test_damage_before_the_last_line_is_named(tmp_path):
    command.run(toy(), ["--out", str(tmp_path)])
    text = lines(tmp_path).split("\n")
    text[2] = text[2][:9]
    (tmp_path / "results.jsonl").write_text("\n".join(text))
    with pytest.raises(SystemExit, match=r"results\.jsonl, line 3 is not JSON"):
        command.run(toy(), ["--out", str(tmp_path)])


def test_shares_of_a_run_merge_to_the_run(tmp_path):
    command.run(toy(), ["--out", str(tmp_path / "whole")])
    logs = [[], [], []]
    for i, log in enumerate(logs[:2], 1):
        command.run(toy(log), ["--out", str(tmp_path / "parts"), "--parts", f"{i}/2"])
    assert logs[:2] == [[0, 2, 4], [1, 3, 5]] and not (tmp_path / "parts" / "results.jsonl").exists()
    command.run(toy(logs[2]), ["--out", str(tmp_path / "parts")])
    assert logs[2] == []
    for name in ("results.jsonl", "replies.jsonl", "settings.json", "report.md"):
        assert (tmp_path / "parts" / name).read_text() == (tmp_path / "whole" / name).read_text()
    command.run(toy(), ["--out", str(tmp_path / "one"), "--parts", "2/2"])
    command.run(toy(logs[2]), ["--out", str(tmp_path / "one")])  # what no share holds is run
    assert logs[2] == [0, 2, 4] and lines(tmp_path / "one") == lines(tmp_path / "whole")
    with pytest.raises(ValueError, match="other settings"):
        gather(tmp_path / "parts", {"units": 7})


@pytest.mark.parametrize(
    "args, say",
    [
        (["--seeds", "-1"], "seeds must be at least 1, got -1"),
        (["--parts", "3/2"], "--parts takes I/N"),
        (["--parts", "half"], "--parts takes I/N"),
        (["--parts", "1/2", "--publish"], "--publish needs the whole run"),
    ],
)
def test_bad_input_is_one_line_and_makes_nothing(tmp_path, args, say):
    with pytest.raises(SystemExit) as error:
        command.run(toy(), ["--out", str(tmp_path / "out"), *args])
    assert say in str(error.value) and "\n" not in str(error.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "args, say",
    [
        (["--seeds", "-1"], "seeds must be at least 1"),
        (["--iterations", "0"], "iterations 0 is no positive multiple of every 20; 20 is the nearest"),
        (["--iterations", "50"], "iterations 50 is no positive multiple of every 20; 40 is the nearest"),
        (["--arms", "grpo", "gpro"], "gpro"),
        (["--p0", "1.5"], "success rates between 0 and 1, got 1.5"),
        (["--horizon", "long"], "horizon must be one of"),
        (["--ladder", "4"], "ladder must rise from 1"),
        (["--ladder", "1", "16", "4"], "ladder must rise from 1"),
        (["--arms"], "arms must be different and at least one, got none"),
        (["--arms", "grpo", "grpo"], "arms must be different"),
        (["--rates", "0"], "rates and umbrella_rates must be positive"),
        (["--bait", "2"], "bait is a share between 0 and 1"),
        (["--sweep", "0.1"], "sweep must not repeat p0"),
        (["--pivot", "shrot"], "shrot"),
    ],
)
def test_bad_settings_of_the_main_job_are_one_line(tmp_path, args, say):
    with pytest.raises(SystemExit) as error:
        signal_resolution.main(["--out", str(tmp_path / "out"), *args])
    assert say in str(error.value) and "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_known_errors_say_what_is_kept(tmp_path):
    with pytest.raises(SystemExit, match=r"toy: no space left\. 3 finished units are kept in .*same command goes on"):
        command.run(toy(fail_at=3, error=OSError), ["--out", str(tmp_path / "out")])
    (tmp_path / "file").write_text("")
    for out in ("file", "file/under"):
        log = []
        with pytest.raises(SystemExit, match="is a file; give a folder"):
            command.run(toy(log), ["--out", str(tmp_path / out)])
        assert not log
    with pytest.raises(SystemExit, match=r"other settings \(seeds: 2 there, 3 here\); choose another --out"):
        command.run(toy(), ["--out", str(tmp_path / "out"), "--seeds", "3"])


def test_publish_copies_rows_report_and_side_files(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "RESULTS_HOME", tmp_path / "home")
    command.run(toy(), ["--out", str(tmp_path / "out"), "--preset", "paper", "--publish"])
    found = {path.name for path in (tmp_path / "home" / "toy").iterdir()}
    assert found == {"results.jsonl", "replies.jsonl", "settings.json", "report.md"}
    (tmp_path / "out" / "report.md").unlink()
    command.redraw(toy(), tmp_path / "out")
    assert (tmp_path / "out" / "report.md").read_text().startswith("paper: ")


def test_units_are_closed_and_unique(tmp_path):
    ledger = Ledger(tmp_path / "out", {"a": 1})
    assert not (tmp_path / "out").exists()
    ledger.add("u", [{"measure": "x", "value": 1.0}])
    ledger.add("empty", [])
    with pytest.raises(ValueError, match="already"):
        ledger.add("u", [])
    assert [json.loads(line)["measure"] for line in lines(tmp_path / "out").splitlines()] == ["x", "unit", "unit"]
    again = Ledger(tmp_path / "out", {"a": 1})
    assert again.done == {"u", "empty"} and again.value("u", "x") == 1.0 and again.note() is None


KILLED = """
    import sys, time
    from pathlib import Path
    from tests.experiments import test_harness as t
    from experiments.harness import command
    def slow(experiment):
        def units(settings, cache):
            for unit in experiment.units(settings, cache):
                yield command.Unit(unit.name, unit.family, lambda led, u=unit: (time.sleep(.1), u.run(led))[1])
        return units
    e = t.toy()
    command.run(command.Experiment(e.name, e.presets, e.check, lambda s, c: list(slow(e)(s, c)), e.write), sys.argv[1:])
"""


def test_a_killed_process_goes_on_to_the_same_rows(tmp_path):
    command.run(toy(), ["--out", str(tmp_path / "whole")])
    program = [sys.executable, "-c", textwrap.dedent(KILLED), "--out", str(tmp_path / "out")]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ}) as child:
        assert child.stdout.readline().startswith("unit0")  # killed somewhere after its first unit
        child.send_signal(signal.SIGKILL)
    assert len(Ledger(tmp_path / "out", json.loads((tmp_path / "out" / "settings.json").read_text())).done) < 6
    command.run(toy(), ["--out", str(tmp_path / "out")])
    assert lines(tmp_path / "out") == lines(tmp_path / "whole")


@pytest.mark.skipif(not tasks.mappings(), reason="the system does not say")
def test_fifty_units_leave_memory_mappings_bounded(tmp_path):
    seen, programs = [], []  # programs that something still refers to, as tasks do

    def run(i, ledger):
        programs.append(jax.jit(lambda x: jnp.sin(x) * (i + 1)))
        programs[-1](jnp.ones(8 + i)).block_until_ready()
        seen.append(tasks.mappings())
        return []

    units = lambda settings, cache: [Unit(f"u{i}", f"f{i}", lambda led, i=i: run(i, led)) for i in range(50)]  # noqa: E731
    e = toy()
    command.run(Experiment("toy", e.presets, e.check, units, e.write), ["--out", str(tmp_path)])
    assert seen[-1] <= seen[9] + 20, seen[::10]  # hundreds more without dropping any


@pytest.fixture(scope="module")
def chain():
    return tasks.umbrella_task({"env": "umbrella", "p0": None}, 2, panel=64)[0]


PLAN = Plan(train.TrainConfig(groups=2, size=4), seeds=2, every=2, tune_iterations=2, tune_seeds=3)


def test_tuning_goes_through_the_program_of_training(chain):
    chain.programs.clear()
    rate, rows = tuned_rate(chain, METHODS["grpo"], PLAN, (0.1, 1.0, 3.0))  # 9 runs in pieces of 2
    assert [row["learning_rate"] for row in rows] == [0.1, 1.0, 3.0]
    assert rate == max(rows, key=lambda row: row["value"])["learning_rate"]
    learned, kept = arm(chain, "grpo", METHODS["grpo"], PLAN, rate, 4, keep=(2,))
    assert chain.programs["grpo@0"]._cache_size() == 1 and set(kept) == {2}
    ends = [row for row in learned if row["measure"] == "success"]
    assert [(row["seed"], row["step"]) for row in ends] == [(s, t) for s in range(2) for t in (0, 2, 4)]
    assert [row["value"] for row in learned if row["measure"] == "episodes"] == [16.0, 32.0] * 2  # 8 an iteration
    alone, _, _ = learn(chain, METHODS["grpo"], PLAN, np.array([0.1, 3.0]), keys_of(2000, [1, 2]), 2)
    pairs, _, _ = learn(chain, METHODS["grpo"], PLAN, np.array([3.0, 0.1]), keys_of(2000, [2, 1]), 2)
    np.testing.assert_array_equal(alone, pairs[::-1])  # a run does not see its neighbours
    assert tuned_rate(chain, METHODS["grpo"], dataclasses.replace(PLAN, tune_iterations=0), (1, 2, 3)) == (2.0, [])


def test_costs_by_hand(chain):
    spec = chain.env.spec._replace(turns=3, action_len=2, hint_len=4, vocabulary=tuple("abcdefgh"))
    turns, tokens = np.array([20.0]), np.array([40.0])

    def of(name, samples=0):
        entry = with_samples(name, samples) if samples else METHODS[name]
        return {c: float(v[0]) for c, v in costs(entry, spec, PLAN.train, turns, tokens).items()}

    assert of("grpo") == {"episodes": 8, "turns": 20, "gradient_tokens": 40, "label_bits": 8, "teacher_tokens": 0,
                          "branch_tokens": 0}  # fmt: skip
    assert of("prm_j1")["label_bits"] == 20 and of("prm_outcome")["label_bits"] == 28
    assert of("opd_gold")["label_bits"] == 20 * 4 * 3 and of("opd_gold")["teacher_tokens"] == 40
    # from 3 places (before, between, after two tokens) of 8 episodes: 3 + 2 + 1 turns of 2 tokens to go, 5 times
    assert of("oracle_token", 5)["branch_tokens"] == 5 * 3 * 12 * 8
    assert of("oracle_turn", 5)["branch_tokens"] == 5 * 2 * 12 * 8


def test_an_experiment_of_a_user_is_one_short_file(tmp_path):
    assert len(Path(user_experiment.__file__).read_text().splitlines()) < 80
    user_experiment.main(["--out", str(tmp_path), "--iterations", "4"])
    assert (tmp_path / "gain.png").stat().st_size > 5000
    assert "- groups of 8: " in (tmp_path / "report.md").read_text()
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["iterations"] == 4 and settings["preset"] == "quick"


def test_figures_reports_and_verdicts_are_made_from_rows(tmp_path, capsys):
    folder = tmp_path / "home" / "signal_resolution"
    folder.mkdir(parents=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in synthetic.everything(seeds=2)))
    (folder / "settings.json").write_text('{"preset": "paper"}')
    claims = tmp_path / "CLAIMS.md"
    claims.write_text("| claim | verdict |\n|---|---|\n| C1 | pending |\n| C9 | pending |\n")
    album = tmp_path / "docs" / "figures.md"
    figures.main(tmp_path / "home", claims, album)
    assert capsys.readouterr().out == ""  # rows without a report: a run that is not finished
    (folder / "report.md").write_text("old")
    figures.main(tmp_path / "home", claims, album)
    links = re.findall(r"\]\((.+?)\)", album.read_text())
    assert "python -m experiments.signal_resolution --preset paper" in album.read_text()
    assert len(links) == 11 and all((album.parent / link).exists() for link in links)
    assert "Preset paper, 2 paired seeds" in (folder / "report.md").read_text()
    assert "1 of 1 predictions held" in claims.read_text() and "| C9 | pending |" in claims.read_text()
    assert "spectrum.png" in capsys.readouterr().out


def test_rows_are_those_of_the_code_before_the_harness():
    """Numbers printed by signal_resolution and snr_horizon at commit 2dc5ec4, which held all this themselves."""
    task, _ = tasks.umbrella_task({"env": "umbrella", "p0": None}, 2, panel=64)
    before = {
        "grpo": ([0.53125, 0.640625, 0.71875, 0.53125, 0.640625, 0.765625], [0.688172, 0.660963, 0.688172, 0.66372]),
        "oracle_token": ([0.53125, 0.640625, 0.671875, 0.53125, 0.640625, 0.71875],
                         [0.69066, 0.675932, 0.69066, 0.673959]),
    }  # fmt: skip
    for name, (success, entropy) in before.items():
        rows, _ = arm(task, name, with_samples(name, 1), PLAN, 0.1, 4)
        assert [row["value"] for row in rows if row["measure"] == "success"] == success
        assert [row["value"] for row in rows if row["measure"] == "entropy"] == pytest.approx(entropy, abs=1e-6)
    rows = snr_horizon.rows_of(snr_horizon.Config(episodes=256, chunk=128), 2)
    raw = [row["value"] for row in rows if row["measure"] == "snr_db_raw"]
    assert raw == pytest.approx([-8.129134, -7.149582, -9.165879, -3.521825, -3.521825, 0.137883], abs=1e-5)
