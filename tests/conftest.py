"""Strict mode for every test: what JAX would let pass in silence is an error here, on eight pretended devices.

Tests that feed or return missing rewards (NaN) carry `@pytest.mark.allow_nan`, which lifts the NaN check for them.
"""

import os

# tests compile far more than they compute: no optimisation makes them two to three times faster
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_debug_nans", True)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "error")
    config.addinivalue_line("markers", "allow_nan: the test means its NaN (missing rewards); no NaN check")


@pytest.fixture(autouse=True)
def _nan_check(request: pytest.FixtureRequest):
    with jax.debug_nans(request.node.get_closest_marker("allow_nan") is None):
        yield
