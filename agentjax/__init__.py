"""agentjax: credit assignment for agents, in JAX, measured against the truth."""

__version__ = "0.1.0"
