"""Package metadata. Tools are configured in pyproject.toml."""

import pathlib
import re

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "agentjax/__init__.py").read_text()).group(1)

LM = ["gguf>=0.19", "tokenizers>=0.23", "safetensors>=0.8", "jinja2>=3.1"]
NOTEBOOKS = ["ipykernel", "jupytext>=1.19", "nbclient>=0.11"]
TEST = [*LM, "hypothesis>=6.150", "pytest>=9", "pytest-xdist>=3.8", "scikit-learn>=1.6", "scipy>=1.14"]

setup(
    name="agentjax",
    version=VERSION,
    description="Credit assignment for language-model agents in JAX, measured against the true advantage",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["agentjax", "agentjax.*"]),
    python_requires=">=3.11",
    install_requires=[
        "jax>=0.10.2",
        'flax>=0.12.8; python_version < "3.12"',
        'flax>=0.12.9; python_version >= "3.12"',  # older ones break on jax >= 0.11.1
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12",
        "chex>=0.1.92",
        "numpy>=2",
        "tensorflow-datasets>=4.9.10",
        "array_record>=0.8",
        "matplotlib>=3.10",
        "tyro>=1.0",
        "rich>=14.1",
    ],
    extras_require={
        "lm": LM,
        "online": ["starlette>=1", "uvicorn>=0.54", "httpx>=0.28"],
        "host": ["textworld-express>=1.1"],
        "tpu": ["jax[tpu]>=0.10.2"],
        "cuda": ["jax[cuda]>=0.10.2"],
        "notebooks": NOTEBOOKS,
        "test": TEST,
        "dev": [*TEST, *NOTEBOOKS, "mypy>=2.4", "ruff>=0.17"],
    },
    classifiers=[
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
