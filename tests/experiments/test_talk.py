"""`experiments.talk` with a tiny random model that reads bytes: no download, no file of weights."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from agentjax.envs.one_reply import Question, one_reply
from agentjax.envs.word_problems import Problem, found_number, is_right, word_problems
from agentjax.methods import METHODS
from agentjax.policies import tokenizer
from agentjax.policies.base import score_tokens
from agentjax.policies.transformer import TransformerConfig, transformer
from agentjax.signals.collect import collect
from agentjax.train import init_state, wishes_of
from agentjax.types import Rollout
from agentjax.viz import talk as chart
from experiments import talk, talk_model, talk_report, talk_user
from experiments.harness import command
from experiments.harness.ledger import Ledger, read_rows
from experiments.talk_user import RULES
from tests.experiments import looks

TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOK = tokenizer.from_metadata({
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.merges": [], "tokenizer.ggml.token_type": [3] * 3 + [1] * 256,
    "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.chat_template": TEMPLATE,
})  # fmt: skip
POLICY = transformer(TransformerConfig(vocab=len(TOKENS), layers=1, width=16, heads=2, kv_heads=1, ffn=16))
CONFIG = talk.Config(updates=2, batch=2, panel=4, screen=2, tokens=5, learning_rate=1e-2, chunk=2)
WISH = RULES["ten_words"].wish


@pytest.fixture(scope="module")
def start():
    return POLICY.init(jax.random.key(3))


@pytest.fixture(scope="module")
def chat(start):
    questions = talk.questions_of([p for part in talk.question_sets(CONFIG) for p in part])
    return talk_model.make_talk(POLICY, start, TOK, questions, [rule.wish for rule in RULES.values()], CONFIG.train)


@pytest.fixture(scope="module")
def batch(chat, start):
    """Two questions answered, and the user's reaction to a rule that the second reply is said to keep."""
    problems = talk.question_sets(CONFIG).train[:2]
    trajectory, truth = chat.play(
        jax.random.key(0), start, talk_model.tasks_of(chat, talk.questions_of(problems)), hinted=False
    )
    rule = RULES["ten_words"]._replace(kept=lambda text: text == "second")
    truth, kept = talk.judged(chat, rule, truth, ["first", "second"])
    assert kept == [False, True]
    return problems, trajectory, truth


def test_word_problems_are_different_and_their_answers_the_sum_of_their_numbers():
    problems = word_problems(seed=4, count=300)
    assert len({p.question for p in problems}) == 300
    for p in problems:
        a, b = map(int, re.findall(r"\d+", p.question))
        assert p.answer == a + b and 2 <= min(a, b) and max(a, b) <= 9
    assert word_problems(seed=4, count=10) == problems[:10] and word_problems(seed=5, count=10) != problems[:10]
    with pytest.raises(ValueError, match="count in"):
        word_problems(seed=0, count=0)


def test_sets_are_disjoint_and_the_panel_stays_when_training_grows():
    sets = talk.question_sets(CONFIG)
    assert [len(part) for part in sets] == [4, 2, 4]
    assert len({p.question for part in sets for p in part}) == 10
    assert talk.question_sets(dataclasses.replace(CONFIG, updates=9)).panel == sets.panel


def test_the_answer_is_the_first_number_that_the_question_lacks():
    problem = Problem("Mia has 4 pens and buys 7 more. How many?", 11)
    for reply, number in (
        ("4 + 7 = 11. Check: 11 - 7 = 4, and 12.", 11), ("1. Add 4 and 7.\n2. Get 11.", 11), ("eleven", None),
        ("4 x 7 = 28, so 11", 28), ("1,204 pens", 1204), ("", None),
    ):  # fmt: skip
        assert found_number(reply, problem.question) == number
        assert is_right(reply, problem) == (number == 11)


KEPT = {
    "answer_first": (["11. She adds.", " **11** pens"], ["She has 11.", ""]),
    "bold_number": (["So **11** pens", "It is **11 pens**."], ["11", "**eleven** 11", "** 1\n1 **"]),
    "ends_with_question": (["11. Is that right? "], ["Right? Yes."]),
    "ten_words": (["a b c d e f g h i j"], ["a b c d e f g h i j k", ""]),
    "one_sentence": (["She has 11 pens."], ["She has 11. Yes.", "no stop", "w " * 17 + "."]),
    "because": (["11, because 4 + 7 = 11", "Because"], ["cause", "becauses"]),
    "greeting": (["Hello! 11", "hi, 11"], ["11. Hello", "History"]),
    "warm": (["Great question! 11", "Nice."], ["11"]),
    "steps": (["1. Add\n2. Done", "So:\n 1) add"], ["It is 1. Then", "11."]),
    "capitals": (["SHE HAS 11."], ["She has 11.", "11"]),
}


def test_every_rule_is_decided_on_text():
    assert set(KEPT) == set(RULES)
    for name, (kept, broken) in KEPT.items():
        assert [RULES[name].kept(text) for text in kept] == [True] * len(kept), name
        assert [RULES[name].kept(text) for text in broken] == [False] * len(broken), name


def test_a_complaint_holds_the_wish_and_thanks_hold_none():
    for rule in RULES.values():
        kept, broken = KEPT[rule.name][0][0], KEPT[rule.name][1][0]
        assert {talk_user.hint_in(talk_user.next_message(rule, broken, i)) for i in range(8)} == {rule.wish}
        assert {talk_user.hint_in(talk_user.next_message(rule, kept, i)) for i in range(8)} == {None}


def test_the_first_rule_that_passes_both_gates_is_picked():
    def rows(**rates):
        return [
            {"method": name, "measure": measure, "value": value}
            for name, (base, hinted) in rates.items()
            for measure, value in (("screen_base", base), ("screen_hinted", hinted))
            if value is not None
        ]

    rates = dict(answer_first=(0.0, 0.25), bold_number=(0.5, 1.0), ten_words=(0.25, 0.5625), because=(0.0, 1.0))
    assert talk.pick(rows(**rates)).name == "ten_words"  # lifts .25, .5 at too high a base, .3125
    assert talk.pick(rows(answer_first=(0.0, 0.29), greeting=(0.26, None))) is None
    assert talk.pick([]) is None


def test_the_hint_stands_at_the_end_of_the_users_message(chat):
    prompt, tail = talk_model.chat_pieces(TOK, "How many?")
    system = {"role": "system", "content": talk_model.SYSTEM}
    said = lambda text: TOK.chat([system, {"role": "user", "content": text}])  # noqa: E731
    assert TOK.decode(tail) == "<|im_end|>\n<|im_start|>assistant\n"
    assert [*prompt, *tail] == said("How many?")
    assert [*prompt, *talk_model.hint_ids(TOK, WISH), *tail] == said("How many?" + talk_user.MARKER + WISH)
    assert (chat.env.spec.pad, chat.env.spec.end, chat.env.spec.hint_at(0)) == (0, 2, chat.env.spec.prompt_len)


def test_play_lays_the_chat_out_and_an_empty_hint_changes_nothing(chat, start, batch):
    problems, trajectory, _ = batch
    tasks = talk_model.tasks_of(chat, talk.questions_of(problems))
    hinted, _ = chat.play(jax.random.key(0), start, tasks, hinted=True)
    np.testing.assert_array_equal(hinted.tokens, trajectory.tokens)
    for row, problem in enumerate(problems):
        tokens, mask = np.array(trajectory.tokens[row]), np.array(trajectory.action_mask[row])
        reply = tokens[mask].tolist()
        assert 1 <= len(reply) <= 5 and 2 not in reply[:-1]
        prompt, tail = talk_model.chat_pieces(TOK, problem.question)
        assert tokens[np.array(trajectory.valid[row])].tolist() == [*prompt, *tail, *reply]
    assert bool(trajectory.terminated.all())
    assert talk_model.texts_of(TOK, trajectory)[0] == TOK.decode(
        np.array(trajectory.tokens[0])[np.array(trajectory.action_mask[0])], skip_control=True
    )


def test_votes_and_teacher_are_those_of_the_chat_with_the_hint_written_out(chat, start, batch):
    problems, trajectory, truth = batch
    assert truth.judge.tolist() == [[-1.0], [1.0]]
    assert truth.hint_mask.any(axis=(1, 2)).tolist() == [True, False]
    played = Rollout(trajectory=trajectory, truth=truth, env_states=None, env_key=None)
    other = jax.tree.map(lambda x: x * jnp.float32(1.1), start)
    wishes = wishes_of(METHODS["opd_gold"], CONFIG.train)
    signals = jax.jit(lambda p: collect(jax.random.key(1), wishes, POLICY, p, p, chat.env, played))(other)
    for row, problem in enumerate(problems):
        mask = np.array(trajectory.action_mask[row])
        reply = np.array(trajectory.tokens[row])[mask].tolist()
        prompt, tail = talk_model.chat_pieces(TOK, problem.question)
        hint = talk_model.hint_ids(TOK, WISH) if row == 0 else []
        ids = jnp.asarray([[*prompt, *hint, *tail, *reply]], jnp.int32)
        here = jnp.arange(ids.shape[1])[None, :] >= ids.shape[1] - len(reply)
        expected, _ = score_tokens(POLICY, other, ids, jnp.ones_like(here), here, jnp.full(1, 0.6))
        np.testing.assert_allclose(
            np.array(signals.teacher_logp[row])[mask], np.array(expected)[np.array(here)], atol=1e-5
        )


def test_opd_learns_from_hinted_replies_only_and_goes_where_the_teacher_points(chat, start, batch):
    _, trajectory, truth = batch
    learn = talk.make_learn(chat, METHODS["opd_gold"])
    fresh = lambda: init_state(jax.random.key(5), jax.tree.map(jnp.copy, start), 1e-3, CONFIG.train)  # noqa: E731
    state, metrics = learn(fresh(), start, trajectory, truth)
    assert float(metrics["kl_to_start"]) == pytest.approx(0.0, abs=1e-5)
    assert float(metrics["credit_abs"]) > 1e-3
    before, after = chat.score(start, trajectory), chat.score(state.params, trajectory)
    played = Rollout(trajectory=trajectory, truth=truth, env_states=None, env_key=None)
    wishes = wishes_of(METHODS["opd_gold"], CONFIG.train)
    signals = jax.jit(lambda p: collect(jax.random.key(1), wishes, POLICY, p, p, chat.env, played))(start)
    credit = jnp.where(trajectory.action_mask, signals.teacher_logp - before, 0.0)[0]
    assert float(jnp.sum(credit * (after - before)[0])) > 0  # first order: the step of the surrogate goes up
    silent = dataclasses.replace(truth, hint_mask=jnp.zeros_like(truth.hint_mask))
    state, _ = learn(fresh(), start, trajectory, silent)
    for old, new in zip(jax.tree.leaves(start), jax.tree.leaves(state.params), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.fixture
def always_ten_words(monkeypatch):
    """A random model passes no gate: the choice is made for it."""
    for module in (talk, talk_report):
        monkeypatch.setattr(module, "pick", lambda rows: RULES["ten_words"])


def run(start, out, stop_at=""):
    """The command on the tiny model; Ctrl-C at the start of a unit."""

    def units(config, cache):
        def stopped(ledger):
            raise KeyboardInterrupt

        found = talk.units(config, cache, load=lambda path: (POLICY, start, TOK))
        return [dataclasses.replace(u, run=stopped) if u.name == stop_at else u for u in found]

    here = dataclasses.replace(talk.EXPERIMENT, presets=dict.fromkeys(talk.PRESETS, CONFIG), check=lambda c: None)
    command.run(dataclasses.replace(here, units=units), ["--out", str(out)])


def test_an_interrupted_run_goes_on_to_the_same_rows(tmp_path, start, always_ten_words):
    run(start, tmp_path / "whole")
    with pytest.raises(SystemExit, match="talk: stopped. 2 finished units are kept"):
        run(start, tmp_path / "cut", stop_at="binary")
    assert "Unfinished: binary, opd" in (tmp_path / "cut" / "report.md").read_text()
    run(start, tmp_path / "cut")
    lasting = lambda rows: [r for r in rows if not r["measure"].startswith(("seconds", "peak"))]  # noqa: E731
    mine, theirs = (lasting(read_rows(tmp_path / name)) for name in ("cut", "whole"))
    assert mine == theirs
    assert (tmp_path / "cut" / "replies.jsonl").read_text() == (tmp_path / "whole" / "replies.jsonl").read_text()
    assert [(r["method"], r["step"], r["n"]) for r in mine if r["measure"] == "rule_kept"] == [
        ("frozen", 0, 4), ("binary", 2, 4), ("opd", 2, 4),
    ]  # fmt: skip
    first = [r["value"] for r in mine if (r["measure"], r.get("step")) == ("first_reply_kept", 0)]
    assert first[0] == first[1]  # both arms begin with the same replies
    frozen, *learned = (abs(r["value"]) for r in mine if r["measure"] == "panel_kl_to_start")
    assert frozen == 0.0 and learned[0] > 1e-6  # opd learns only from replies that were told off, if there were any
    text = (tmp_path / "whole" / "report.md").read_text()
    assert "Chosen: **ten_words**" in text and text.count("*(rule ") == 3 * 4 and "Unfinished" not in text
    assert (tmp_path / "whole" / "talk.png").stat().st_size > 10_000


def test_figure_is_readable(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(chart.style, "save", lambda figure, path: kept.append(figure))
    shares = [(0.05, 0.4), (0.5, 0.45), (0.95, 0.5)]
    rows = [
        {"method": arm, "measure": measure, "step": 0, "value": v, "low": v - 0.04, "high": v + 0.04}
        for arm, both in zip(("frozen", "binary", "opd"), shares, strict=True)
        for measure, v in zip(("rule_kept", "accuracy"), both, strict=True)
    ]
    rows += [{"method": arm, "measure": "first_reply_kept", "step": step, "value": 0.1 * step}
             for arm in ("binary", "opd") for step in range(10)]  # fmt: skip
    chart.draw(rows, tmp_path / "talk.png")
    looks.check(kept[0])


def test_without_a_rule_nothing_is_trained(tmp_path, start, monkeypatch):
    for module in (talk, talk_report):
        monkeypatch.setattr(module, "pick", lambda rows: None)
    with pytest.raises(SystemExit, match=r"talk: no rule has a base rate of at most .* 1 finished units"):
        run(start, tmp_path / "out")
    assert "No rule passes both gates" in (tmp_path / "out" / "report.md").read_text()


def test_predictions_are_read_off_the_rows(tmp_path):
    def panel(method, kept, right, n=128):
        rows = [{"method": method, "measure": m, "step": 0, **talk_report.share([True] * k + [False] * (n - k))}
                for m, k in (("rule_kept", kept), ("accuracy", right))]  # fmt: skip
        replies = [{"method": method, "kept": i < kept, "right": i < right} for i in range(n)]
        return rows, replies

    parts = [panel("frozen", 10, 90), panel("binary", 30, 90), panel("opd", 60, 80)]
    ledger = Ledger(tmp_path, {})
    for i, (rows, replies) in enumerate(parts):
        ledger.add(str(i), rows, {talk_report.REPLIES: replies})
    verdicts = talk_report.predictions(talk_report.Results(tmp_path))
    assert ["did not hold" in line for line in verdicts] == [False, False, True, True]  # +.39; +.16; -.078
    assert "-0.078, interval [-0.125, -0.031]" in verdicts[3]  # ten of 128 lost: sd .26942, half 1.96 sd / sqrt(128)


def test_wilson_by_hand():
    # 8 of 10: centre (.8 + .19208) / 1.38416, half 1.96 sqrt(.016 + .009604) / 1.38416
    assert talk_report.wilson(8, 10) == pytest.approx((0.49016, 0.94331), abs=1e-4)
    assert talk_report.wilson(0, 10) == pytest.approx((0.0, 0.27754), abs=1e-4)


def test_bad_input_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\0" * 40)
    for args, say in (
        (["--model", "absent.gguf"], "no model file absent.gguf; `make model` fetches"),
        (["--model", "broken.gguf"], "broken.gguf"),
        (["--updates", "0"], "updates must be at least 1, got 0"),
        (["--panel", "20"], "panel 20 is no positive multiple of batch 16; 16 is the nearest"),
    ):
        with pytest.raises(SystemExit) as error:
            talk.main(["--out", "out", *args])
        message = str(error.value)
        assert say in message and "\n" not in message and not (tmp_path / "out").exists()
        assert message.count("make model") <= 1
    ids = jnp.ones((1, 2), jnp.int32)
    table = Question(index=ids[:, 0], prompt=ids, hint=ids)
    with pytest.raises(ValueError, match="pad 2 must differ"):
        one_reply(table, (1,), action_len=2, end=2, pad=2)
