"""Environments by name. A new one is one file and one line in `ENVS`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from agentjax.envs import pivot
from agentjax.envs.base import Env
from agentjax.envs.random_mdp import random_mdp
from agentjax.envs.stop_continue import stop_continue
from agentjax.envs.umbrella import umbrella
from agentjax.types import lookup

ENVS: dict[str, Callable[..., Env]] = {
    "pivot": pivot.make,
    "random_mdp": random_mdp,
    "stop_continue": stop_continue,
    "umbrella": umbrella,
}


def make(name: str, **overrides: Any) -> Env:
    """ENVS[name](**overrides). Raises ValueError that lists what exists for an unknown name or override.

    make("umbrella", length=30).spec.turns == 30.
    """
    factory = lookup(ENVS, name, "environment")
    parameters = inspect.signature(factory).parameters
    unknown = [key for key in overrides if key not in parameters]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise ValueError(f"{name} has no parameter {', '.join(unknown)}; there are: {', '.join(parameters)}")
    return factory(**overrides)
