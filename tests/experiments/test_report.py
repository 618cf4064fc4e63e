"""Figures and report from made-up rows; statistics, costs and verdicts worked by hand."""

import json
import math

import numpy as np
import pytest

from agentjax.viz import branches, crossover, heatmap, resolution, rows, statistics, style
from agentjax.viz.resolution import rank_correlation
from agentjax.viz.statistics import Interval
from experiments import report, signal_resolution_report
from experiments.report import Prediction
from tests.experiments import looks, synthetic

FIGURES = (
    "spectrum", "fidelity_learning", "learning", "chapter", "leakage", "signs", "horizon", "crossover", "difficulty",
    "branches", "bait",
)  # fmt: skip
MAIN = {"env": "pivot", "p0": 0.1}


def curve_rows(values, budget, seed=0):
    at = {**MAIN, "method": "grpo", "seed": seed}
    made = [{**at, "step": 10 * i, "measure": "success", "value": v} for i, v in enumerate(values)]
    return made + [{**at, "step": 10 * (i + 1), "measure": "episodes", "value": v} for i, v in enumerate(budget)]


def test_kendall_counts_pairs_and_ties():
    assert statistics.kendall(np.array([1, 2, 3]), np.array([1, 3, 2])) == pytest.approx(1 / 3)
    assert statistics.kendall(np.array([-np.inf, 2, 3]), np.array([5, 6, 7])) == 1
    # one tie in x: 2 of 3 pairs count there, 3 in y: 2 / sqrt(2 * 3)
    assert statistics.kendall(np.array([1, 1, 3]), np.array([1, 2, 3])) == pytest.approx(2 / math.sqrt(6))
    assert statistics.kendall(np.array([1, 1, 1]), np.array([1, 2, 3])) == 0


def test_interval_of_few_seeds():
    # n = 5: t_{4, .975} = 2.776, times sqrt(5/4) = 3.104, whose normal tail is .00095
    assert statistics.tails(5)[0] == pytest.approx(0.095, abs=0.002)
    assert statistics.interval({0: 0.5, 1: 0.5, 2: 0.5}) == Interval(0.5, 0.5, 0.5, 3)
    assert not statistics.interval({3: 0.5}).bounded
    assert statistics.interval({0: 1.0, 1: -math.inf}).mean == -math.inf
    assert statistics.interval({}).seeds == 0


def test_interval_covers_the_mean():
    draws = np.random.default_rng(0).normal(size=(400, 5))
    hits = [found.low <= 0 <= found.high for found in (statistics.interval(dict(enumerate(d))) for d in draws)]
    assert np.mean(hits) > 0.88  # a plain percentile interval covers .83; sd of this share .015


def test_paired_differences_and_power():
    assert statistics.paired({0: 3.0, 1: 5.0}, {1: 1.0}) == {1: 4.0}
    difference = 0.1 * np.array([[-1, -1, 0, 1, 1]])  # sd .1 with ddof 1: sum of squares .04 / 4
    assert statistics.smallest_difference(difference) == pytest.approx((2.776 + 0.941) * 0.1 / math.sqrt(5), abs=1e-3)
    assert math.isnan(statistics.smallest_difference(np.zeros((3, 1))))


def test_gain_and_cost_of_a_curve():
    table = rows.index([*curve_rows([0.1, 0.3, 0.6], [64, 128]), *curve_rows([0.1, 0.2, 0.2], [64, 128], seed=1)])
    # means by trapezoids: (.2 + .45) / 2 = .325 and (.15 + .2) / 2 = .175
    assert rows.gain(table, method="grpo", **MAIN) == pytest.approx({0: 0.225, 1: 0.075})
    cost = rows.cost_to(table, "episodes", 0.3, method="grpo", **MAIN)
    assert cost == {0: 64, 1: math.inf}
    assert rows.cost_to(table, "episodes", 0.05, method="grpo", **MAIN) == {0: 0, 1: 0}
    assert math.isinf(rows.median_cost(cost))
    assert rows.median_cost({0: 1.0, 1: 2.0, 2: math.inf}) == 2
    assert signal_resolution_report.cost_text(cost) == "never (1 of 2)"
    assert signal_resolution_report.cost_text({0: 1200.0, 1: 900.0, 2: math.inf}) == "1.2k (2 of 3)"


def test_rows_are_read_up_to_a_line_cut_short(tmp_path):
    file = tmp_path / "results.jsonl"
    whole = json.dumps({"measure": "success", "seed": 0, "value": 1})
    file.write_text(whole + "\n" + whole[:20])
    assert len(rows.read(file).select("success")) == 1
    file.write_text(whole + "\n")
    assert rows.read(file).values("success") == {0: 1.0}


def test_crossing_of_a_line_and_a_level():
    assert crossover.crossing([0, 0.1, 0.2], [4, 2, 0], 1) == pytest.approx(0.15)
    assert crossover.crossing([0, 0.1], [4, -math.inf], 1) == 0.1
    assert crossover.crossing([0, 0.1], [0, 3], 1) == 0
    assert math.isinf(crossover.crossing([0, 0.1], [4, 2], 1))


def test_token_window_holds_whole_turns_around_the_key_turn():
    places = [(turn, slot) for turn in range(20) for slot in range(4)]
    near = heatmap.window(places, [14])
    assert len(near) == heatmap.MOST_TOKENS and {turn for turn, _ in near} == set(range(10, 19))
    assert heatmap.window(places[:8], []) == places[:8]


def test_verdicts():
    first, second = {0: 0.5, 1: 0.6, 2: 0.7}, {0: 0.1, 1: 0.2, 2: 0.3}
    assert report.exceeds(first, second, names=("a", "b")) == (True, "a less b: +0.40 [+0.40, +0.40]")
    assert report.exceeds(first, second, by=0.5)[0] is False
    held, evidence = report.exceeds({0: 0.0, 1: 1.0}, {0: 0.5, 1: 0.2})
    assert held is False and "undecided" in evidence
    assert report.exceeds({0: 1.0}, {0: 0.0})[0] is None and report.exceeds({}, {})[0] is None
    assert report.all_of((True, "x"), (None, "y")) == (None, "x; y")
    assert report.all_of((False, "x"), (None, "y"))[0] is False


def test_one_measurement_is_judged_by_its_standard_errors():
    at = {**MAIN, "seed": 0, "step": 0}
    made = [
        {**at, "method": method, "measure": measure, "value": value}
        for method, snr, error in (("a", 3.0, 0.3), ("b", 1.0, 0.4), ("c", 2.5, 0.4))
        for measure, value in (("snr", snr), ("snr_se", error))
    ]
    table = rows.index(made)
    # the difference has standard error sqrt(.3^2 + .4^2) = .5
    assert report.higher(table, "snr", "a", "b", MAIN) == (True, "a less b: +2.00 [+1.00, +3.00]")
    assert report.higher(table, "snr", "a", "c", MAIN)[0] is False
    assert report.higher(table, "snr", "a", "nobody", MAIN)[0] is None


def test_claims_ledger_is_filled_by_row(tmp_path):
    file = tmp_path / "CLAIMS.md"
    file.write_text("| claim | verdict |\n|---|---|\n| C1 | pending |\n| C10 | pending |\n")
    predictions = [
        Prediction("good", "", "C1", lambda _: (True, "")), Prediction("poor", "", "C1", lambda _: (False, ""))
    ]  # fmt: skip
    verdicts = report.claim_verdicts(report.evaluate(predictions, rows.index([])))
    assert verdicts == {"C1": "1 of 2 predictions held (did not hold: poor)"}
    report.fill_claims(file, verdicts)
    report.fill_claims(file, verdicts)
    assert file.read_text().split("\n")[2:4] == [f"| C1 | {verdicts['C1']} |", "| C10 | pending |"]


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """The folder of a report on made-up rows, and its figures by name."""

    def wrong_beats_gold(table):
        wrong, gold = (rows.gain(table, method=name, **MAIN) for name in ("opd_wrong", "opd_gold"))
        return report.exceeds(wrong, gold)

    out = tmp_path_factory.mktemp("paper")
    (out / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in synthetic.everything(seeds=3)))
    predictions = [
        Prediction("token first", "Oracle token credit is cleaner than GRPO.", "C3",
                   lambda r: report.higher(r, "gradient/snr_db", "oracle_token", "grpo", MAIN)),
        Prediction("hints mislead", "Wrong hints learn more than gold ones.", "C5", wrong_beats_gold),
        Prediction("nobody", "An arm that was not run.", "C5", lambda r: report.higher(r, "nothing", "x", "y", MAIN)),
    ]  # fmt: skip
    drawn, save = {}, style.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "save", lambda figure, path: (drawn.update({path.stem: figure}), save(figure, path)))
        signal_resolution_report.write(out, "paper", predictions)
    return out, drawn


@pytest.fixture(scope="module")
def written(reported):
    return reported[0]


@pytest.mark.parametrize("name", FIGURES)
def test_figures_share_a_width_and_a_size_of_letters_and_no_words_overlap(reported, name):
    looks.check(reported[1][name])


def test_every_figure_is_drawn(written):
    text = (written / "report.md").read_text()
    for name in FIGURES:
        image = (written / f"{name}.png").read_bytes()
        assert image[:4] == b"\x89PNG" and len(image) > 10_000, name
        assert f"({name}.png)" in text
    assert "Skipped" not in text and "nan" not in text.replace("(nats)", "")


def test_first_table_ranks_as_the_rows_do(written):
    text = (written / "report.md").read_text()
    lines = [line.split(" | ") for line in text.split("\n") if line.startswith("| ")]
    table = lines[2 : 2 + len(synthetic.ARMS)]
    assert [line[1] for line in table] == sorted(synthetic.ARMS, key=lambda m: -synthetic.ARMS[m][0])
    assert [line[0] for line in table] == [f"| {i + 1}" for i in range(len(table))]
    costs, read = {}, rows.read(written / "results.jsonl")
    for line in table:
        curve = read.curve("success", method=line[1], **MAIN)
        first = [np.append(64.0 * curve.steps[row >= 0.8], math.inf)[0] for row in curve.value]
        costs[line[1]] = sorted(first)[1]  # median of three
    for line in table:
        better = sum(cost < costs[line[1]] for cost in costs.values())
        assert line[9] == ("-" if math.isinf(costs[line[1]]) else str(1 + better)), line[1]
    assert costs["oracle_token"] < math.inf and math.isinf(costs["dpo"])


def test_report_says_what_held_and_what_was_spent(written):
    text = (written / "report.md").read_text()
    assert not text.startswith("Quick") and text.startswith("# ")
    assert "**token first** (C3): *held*. Oracle token credit is cleaner than GRPO." in text
    assert "Numbers: oracle_token less grpo: +12.00 [" in text
    assert "**hints mislead** (C5): *did not hold*." in text and "**nobody** (C5): *not measured*." in text
    assert "C5: 0 of 2 predictions held (did not hold: hints mislead; not measured: nobody)" in text
    assert "Equal in every trained arm, to 1%: RL iterations (60), episodes (3.84k)" in text
    assert "label bits (from 0, oracle_token, to 360k, opd_gold)" in text
    assert "base success within a factor 1.5 of p0" in text
    # the judge's SNR falls from -16 by 3 dB per .1 and meets GRPO's -21 at error 1/6
    assert "By signal-to-noise: crossover at 0.17 [0.1" in text
    assert "40.0% of the turns" in text and "the oracle's own token credit leaks 0.05" in text  # .9 - .9 * .95 = .045
    assert "turn 14* ok, at lamp, note door=red (14)" in text
    arms = [signal_resolution_report.arm(method) for method in signal_resolution_report.METHODS.values()]
    tau, used = rank_correlation(rows.read(written / "results.jsonl"), arms, MAIN)
    assert sorted(used) == sorted(synthetic.ARMS)
    assert tau.low <= tau.mean <= tau.high and f"+{tau.mean:.2f} [+{tau.low:.2f}" in text


def test_what_branches_are_worth():
    # -21 dB at K = 1 and -18 at 4: -19.5 is half of the way in log K
    assert branches.worth(-19.5, [(1, -21.0), (4, -18.0), (16, -17.0)]) == pytest.approx(2)
    assert branches.worth(-21.5, [(1, -21.0), (4, -18.0)]) == 0 and math.isinf(branches.worth(-3, [(1, -21.0)]))
    table = rows.index(synthetic.everything(seeds=2))
    found = branches.ladder(table, "gradient/snr_db", "oracle_token", MAIN)
    assert found == {1: "oracle_token", 4: "oracle_token@4", 16: "oracle_token@16", 64: "oracle_token@64"}
    text = signal_resolution_report.branch_table(table, MAIN)
    assert "| oracle_token | 16 | -3.0 [-3.8, -2.2] |" in text and "grpo fewer than 1" in text


def test_a_gradient_that_points_away_shows_its_slope():
    at = {**MAIN, "method": "opd_gold", "seed": 0, "step": 0}
    named = {"gradient/snr_db": -math.inf, "gradient/slope": -21.71, "gradient/slope_se": 1.14}
    table = rows.index({**at, "measure": m, "value": v} for m, v in named.items())
    assert resolution.slope(table, "opd_gold", MAIN) == "slope -22 [-24, -19]"
    assert signal_resolution_report.snr_text(table, "opd_gold", MAIN) == "slope -22 [-24, -19]"
    assert signal_resolution_report.snr_text(table, "grpo", MAIN) == "-"
    line = "| main | opd_gold | away | -21.71 [-23.99, -19.43] | - |"
    assert line in signal_resolution_report.away(table, [("main", MAIN)])


def test_missing_rows_skip_figures_and_say_so(tmp_path):
    made = synthetic.learning("pivot", 0.1, "grpo", 0.5, seeds=1) + synthetic.gates("pivot", 0.1, 0.2)
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    signal_resolution_report.write(tmp_path, "quick")
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("Quick preset: for trying things, not evidence.\n")
    assert sorted(path.stem for path in tmp_path.glob("*.png")) == ["learning"]
    assert text.count("Skipped") == len(FIGURES) - 1 and "base success NOT within" in text


def test_no_rows_at_all(tmp_path):
    (tmp_path / "results.jsonl").write_text("")
    signal_resolution_report.write(tmp_path, "quick")
    assert (tmp_path / "report.md").read_text().count("Skipped") == len(FIGURES)


def test_information_and_labels_come_from_the_registry():
    methods = signal_resolution_report.METHODS
    described = {name: signal_resolution_report.information(m) for name, m in methods.items()}
    assert described["prm_j3_high"] == "judge J3, 40% errors" and described["dpo"] == "outcome, as pairs"
    assert described["prm_opd"] == "judge J1 and hint: gold" and described["frozen"] == "none"
    assert described["oracle_turn"] == "branches (A^pi), K = 1" and described["grpo"] == "outcome"
    assert signal_resolution_report.arm(methods["prm_j3_low"]).label == "PRM J3 low"
