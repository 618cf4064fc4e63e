"""Methods by name: an estimator, a loss and the signals they get. Experiments name methods only.

A method is data; `train` reads it and fills the signals. `METHODS["grpo"]`, or `method("grpo")` to be told what exists.
"""

from __future__ import annotations

import dataclasses
import functools

from agentjax.credit import ESTIMATORS
from agentjax.losses import AGGREGATIONS, LOSSES, Aggregate, with_kl
from agentjax.signals.hints import HINTS
from agentjax.signals.judges import Judge
from agentjax.types import Estimator, Loss, lookup


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to learn. Hashable, so it may be a static argument of jit."""

    name: str
    estimator: str  # of ESTIMATORS: the credit, also what is measured where the loss does not use it (dpo)
    loss: str = "ppo"  # of LOSSES
    aggregate: str = "token_mean"  # of AGGREGATIONS
    divisor: float = 0.0  # of `constant` only
    kl: str = "kl_reverse_grad"
    kl_coefficient: float = 0.01  # 0: no reference needed
    judge: Judge | None = None
    hint: str | None = None  # of HINTS: what the teacher is told
    oracle_samples: int = 0  # K branches per turn or token, 0: the oracle is not asked
    update: bool = True  # False: the policy stays as it is

    def __post_init__(self) -> None:
        lookup(ESTIMATORS, self.estimator, "estimator")
        lookup(LOSSES, self.loss, "loss")
        lookup(AGGREGATIONS, self.aggregate, "aggregation")
        if self.hint is not None and self.hint not in HINTS:
            raise ValueError(f"hint must be one of {', '.join(HINTS)}, got {self.hint!r}")
        for signal, given, field in (
            ("judge", self.judge, "judge"),
            ("teacher_logp", self.hint, "hint"),
            ("oracle_token", self.oracle_samples, "oracle_samples"),
        ):
            if signal in self.needs and not given:
                raise ValueError(f"method {self.name} needs the signal {signal}: set {field}")
        if self.judge is not None and self.judge.level == "J0" and not self.oracle_samples:
            raise ValueError(f"method {self.name} asks judge J0, the sign of A^pi: set oracle_samples")

    @property
    def needs(self) -> tuple[str, ...]:
        """Fields of Signals that the estimator and the loss read, without repeats."""
        both = ESTIMATORS[self.estimator].needs + self.build_loss().needs
        return tuple(dict.fromkeys(both))

    def build_estimator(self) -> Estimator:
        """The estimator itself."""
        return ESTIMATORS[self.estimator]

    def build_loss(self) -> Loss:
        """The loss with its divergence."""
        return with_kl(LOSSES[self.loss], kl=self.kl, coefficient=self.kl_coefficient)

    def build_aggregate(self) -> Aggregate:
        """The aggregation with its options."""
        if self.aggregate == "constant":
            return functools.partial(AGGREGATIONS["constant"], divisor=self.divisor)
        return AGGREGATIONS[self.aggregate]


ORACLE_SAMPLES = 16


def _table(*methods: Method) -> dict[str, Method]:
    names = [entry.name for entry in methods]
    if len(set(names)) < len(names):
        raise ValueError(f"method names are unique, got {', '.join(names)}")
    return dict(zip(names, methods, strict=True))


METHODS: dict[str, Method] = _table(
    # the oracle's own credit: equal information at four resolutions, and in the wrong places
    Method("oracle_token", "oracle_token", oracle_samples=ORACLE_SAMPLES),
    Method("oracle_turn", "oracle_turn", oracle_samples=ORACLE_SAMPLES),
    Method("oracle_episode", "oracle_episode", oracle_samples=ORACLE_SAMPLES),
    Method("oracle_pair", "oracle_pair", oracle_samples=ORACLE_SAMPLES),
    Method("permuted", "permuted", oracle_samples=ORACLE_SAMPLES),
    # trajectory
    Method("dpo", "dpo_weight", loss="dpo", kl_coefficient=0.0),
    # episode
    Method("grpo", "grpo"),
    Method("dr_grpo", "dr_grpo", aggregate="sequence_sum"),
    Method("rloo", "rloo"),
    # turn
    Method("prm_j0", "prm", judge=Judge("J0"), oracle_samples=ORACLE_SAMPLES),
    Method("prm_j1", "prm", judge=Judge("J1")),
    Method("prm_j3_low", "prm", judge=Judge("J3", false_positive=0.1, false_negative=0.1)),
    Method("prm_j3_high", "prm", judge=Judge("J3", false_positive=0.4, false_negative=0.4)),
    Method("prm_outcome", "prm_outcome", judge=Judge("J1")),
    Method("prm_plus_rloo", "prm_plus_rloo", judge=Judge("J1")),
    # token
    Method("opd_gold", "opd", hint="gold"),
    Method("opd_placebo", "opd", hint="placebo"),
    Method("opd_wrong", "opd", hint="wrong"),
    Method("prm_opd", "prm_opd", judge=Judge("J1"), hint="gold"),
    # control
    Method("frozen", "grpo", kl_coefficient=0.0, update=False),
)


def method(name: str) -> Method:
    """The method of that name; an unknown one raises and lists what exists."""
    return lookup(METHODS, name, "method")
