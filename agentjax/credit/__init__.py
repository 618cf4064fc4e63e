"""Credit: a weight for every action token, from a trajectory and signals. Pure functions of arrays.

`ESTIMATORS[name].apply(trajectory, signals, axis_name=None) -> Credit`. To add one: a file here with a function
`(trajectory, signals, *, axis_name, **options) -> float32[B,S]`, and a line in the table; the property tests find it.
"""

from agentjax.credit import control, episode, gae, oracle_credit, token, trajectory, turn
from agentjax.credit.base import estimator, table
from agentjax.types import Estimator

GRPO, RLOO, DPO = "arXiv 2402.03300", "arXiv 2402.14740", "arXiv 2305.18290"
GAE, OPENCLAW, OURS = "arXiv 1506.02438", "arXiv 2603.10165", "this library"

__all__ = ["ESTIMATORS", "estimator", "table"]

ESTIMATORS: dict[str, Estimator] = table(
    # episode
    estimator("grpo", episode.group_relative, "episode", "no", GRPO, baseline="mean", scale="group", ddof=1, eps=1e-6),
    estimator(
        "dr_grpo", episode.group_relative, "episode", "up_to_scale", "arXiv 2503.20783", baseline="mean", scale="none"
    ),
    estimator("rloo", episode.group_relative, "episode", "yes", RLOO, baseline="loo", scale="none"),
    # turn
    estimator("prm", turn.judged, "turn", "no", OPENCLAW, needs=("judge",)),
    estimator("prm_return_to_go", turn.judged_to_go, "turn", "no", GRPO, needs=("judge",), gamma=1.0),
    estimator("biased_turn_index", turn.judged_by_turn_index, "turn", "no", "arXiv 2505.11821", needs=("judge",)),
    estimator(
        "prm_outcome", turn.outcome_and_judge_by_turn_index, "turn", "no", OPENCLAW, needs=("judge",), ddof=0, eps=1e-6
    ),
    estimator("prm_plus_rloo", turn.outcome_plus_judge, "turn", "no", OURS, needs=("judge",), weight=1.0),
    estimator("reward_to_go", episode.returns_to_go, "turn", "yes", "Williams 1992", baseline="none", gamma=1.0),
    estimator("reward_to_go_rloo", episode.returns_to_go, "turn", "yes", RLOO, baseline="loo", gamma=1.0),
    estimator("gae", gae.turn_gae, "turn", "no", GAE, needs=("value",), gamma=1.0, lam=0.95),
    estimator("gae_0", gae.turn_gae, "turn", "no", GAE, needs=("value",), gamma=1.0, lam=0.0),
    estimator("gae_1", gae.turn_gae, "turn", "yes", GAE, needs=("value",), gamma=1.0, lam=1.0),
    # token
    estimator("token_gae", gae.token_gae, "token", "no", GAE, needs=("token_value", "value"), gamma=1.0, lam=0.95),
    estimator("opd", token.teacher_log_ratio, "token", "no", OPENCLAW, needs=("teacher_logp",)),
    estimator(
        "prm_opd",
        token.judged_teacher_log_ratio,
        "token",
        "no",
        OPENCLAW,
        needs=("judge", "teacher_logp"),
        w_binary=1.0,
        w_opd=1.0,
    ),
    # trajectory
    estimator(
        "dpo_weight", trajectory.pair_weight, "trajectory", "no", DPO, needs=("reference_logp", "pairs"), beta=0.1
    ),
    estimator("dpo_logratio", trajectory.reference_log_ratio, "token", "no", DPO, needs=("reference_logp",), beta=0.1),
    # the oracle's own credit
    estimator("oracle_token", oracle_credit.by_token, "token", "yes", OURS, needs=("oracle_token",)),
    estimator("oracle_turn", oracle_credit.by_turn, "turn", "no", OURS, needs=("oracle_token",)),
    estimator("oracle_episode", oracle_credit.by_episode, "episode", "no", OURS, needs=("oracle_token",)),
    estimator("oracle_pair", oracle_credit.by_pair, "trajectory", "no", OURS, needs=("oracle_token", "pairs")),
    # controls
    estimator("permuted", control.permuted, "token", "no", OURS, needs=("oracle_token", "permutation_key")),
)
