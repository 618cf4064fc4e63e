"""The table of methods is consistent and says what is wrong with a bad one."""

import dataclasses

import pytest

from agentjax.methods import METHODS, Method, method
from agentjax.signals.judges import Judge


def test_every_method_builds_and_names_its_signals():
    for name, entry in METHODS.items():
        assert entry.name == name and hash(entry) == hash(dataclasses.replace(entry))
        entry.build_aggregate()
        assert set(entry.build_estimator().needs) <= set(entry.needs)
        assert ("reference_logp" in entry.needs) == (entry.kl_coefficient > 0 or entry.loss == "dpo")
    assert METHODS["prm_opd"].needs == ("judge", "teacher_logp", "reference_logp")
    assert METHODS["dpo"].needs == ("reference_logp", "pairs")


def test_unknown_names_list_what_exists():
    with pytest.raises(ValueError, match="unknown method 'gropo'; there are: .*grpo"):
        method("gropo")
    with pytest.raises(ValueError, match="unknown estimator 'x'; there are: .*rloo"):
        Method("m", "x")
    with pytest.raises(ValueError, match="unknown loss 'x'; there are: .*ppo"):
        Method("m", "grpo", loss="x")
    with pytest.raises(ValueError, match="unknown aggregation 'x'"):
        Method("m", "grpo", aggregate="x")


def test_a_method_without_the_source_of_a_signal_is_refused():
    with pytest.raises(ValueError, match="method m needs the signal judge: set judge"):
        Method("m", "prm")
    with pytest.raises(ValueError, match="method m needs the signal teacher_logp: set hint"):
        Method("m", "opd")
    with pytest.raises(ValueError, match="method m needs the signal oracle_token: set oracle_samples"):
        Method("m", "permuted")
    with pytest.raises(ValueError, match="judge J0"):
        Method("m", "prm", judge=Judge("J0"))
    with pytest.raises(ValueError, match="hint must be one of .*gold.*, got 'silver'"):
        Method("m", "opd", hint="silver")
