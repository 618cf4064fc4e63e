"""Losses: from the current policy's log-probabilities and credit to a scalar.

`LOSSES[name].apply(outputs, trajectory, signals, credit, *, aggregate, axis_name=None) -> (scalar, metrics)` with
`aggregate` one of `AGGREGATIONS` (bind its options with `functools.partial`). Metrics are sums and counts over the
shard's rows, and the shard's share of the loss, so that they add over shards and micro-batches. `with_kl` adds a
divergence to the reference.
"""

import functools

from agentjax.losses import distillation, preference, sft, surrogates
from agentjax.losses.aggregation import AGGREGATIONS, Aggregate
from agentjax.losses.kl import with_kl
from agentjax.types import Loss

__all__ = ["AGGREGATIONS", "LOSSES", "Aggregate", "with_kl"]

_ENTRIES = (
    Loss("ppo", (), functools.partial(surrogates.clipped_surrogate, clip_low=0.2, clip_high=0.28)),
    Loss("reinforce", (), surrogates.score_function),
    Loss("dpo", ("reference_logp", "pairs"), functools.partial(preference.dpo, beta=0.1)),
    Loss("opd_sampled", ("teacher_logp",), distillation.opd_sampled),
    Loss("sft", (), sft.sft),
)
LOSSES: dict[str, Loss] = {loss.name: loss for loss in _ENTRIES}
