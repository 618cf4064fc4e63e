"""Imports go one way (design: types -> ops -> the rest), and only public APIs of JAX are used."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "agentjax"
BASE = {"types", "ops"}
PLAY = BASE | {"envs", "policies", "episodes", "rollout"}
LEARN = PLAY | {
    "oracle",
    "signals",
    "credit",
    "losses",
    "measure",
    "methods",
    "parallel",
    "checkpoint",
    "data",
    "train",
}
MAY_IMPORT = {
    "types": set(),
    "ops": {"types"},
    "envs": BASE | {"episodes"},
    "policies": BASE,
    "credit": BASE,
    "losses": BASE,
    "measure": BASE,
    "episodes": BASE | {"envs"},
    "rollout": BASE | {"envs", "policies", "episodes"},
    "oracle": PLAY,
    "signals": PLAY | {"oracle"},
    "methods": BASE | {"credit", "losses", "signals"},
    "parallel": BASE,
    "checkpoint": BASE,
    "data": PLAY,
    "train": LEARN,
    "warm_start": LEARN,
    "online": LEARN | {"host"},
    "host": LEARN,
    "viz": set(),
    "audit": LEARN,
    "plan": LEARN,
}
FILES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: pathlib.Path) -> str:
    """The folder or file directly under the package."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(path: pathlib.Path) -> set[str]:
    """Every module that a file imports anywhere, inside functions too; `from x import y` counts as x.y."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def violations(path: pathlib.Path, names: set[str]) -> list[str]:
    part = part_of(path)
    inner = {name.split(".")[1] for name in names if name.startswith("agentjax.")}
    bad = [
        f"{part} must not import {other}"
        for other in sorted(inner - MAY_IMPORT.get(part, set()) - {part, "__version__"})
    ]
    bad += [f"private API {name}" for name in names if name.startswith(("jax._src", "jax.interpreters", "jaxlib"))]
    bad += [
        f"{part} imports experiments" for name in names if name.split(".")[0] in {"experiments", "tests", "benchmarks"}
    ]
    return bad


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    if path == PACKAGE / "__init__.py":
        pytest.skip("re-exports")
    assert part_of(path) in MAY_IMPORT, f"say in tests/test_imports.py what {part_of(path)} may import"
    assert not violations(path, imported(path))


def test_the_rule_catches_what_it_should():
    credit = PACKAGE / "credit" / "toy.py"
    assert violations(credit, {"agentjax.oracle.branch"}) == ["credit must not import oracle"]
    assert violations(PACKAGE / "oracle" / "branch.py", {"agentjax.credit"}) == ["oracle must not import credit"]
    assert violations(credit, {"jax._src.lax"}) == ["private API jax._src.lax"]
    assert violations(credit, {"agentjax.ops", "agentjax.types.Array", "agentjax.credit.base", "jax.numpy"}) == []
