"""One new file and one line in the table: the property tests find a new estimator, and catch a wrong one."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
TOY = '''"""Toy: the rollout's return, in equal parts on its action tokens."""

from agentjax import ops


def toy(trajectory, signals, *, axis_name):
    returns, vote, _ = ops.outcome(trajectory, axis_name=axis_name)
    return ops.rows_to_tokens({returns}, trajectory)
'''
RIGHT = "returns"
WRONG = "returns - returns.mean()"  # every row votes, and every shard has its own mean


def copy_with_toy(folder: pathlib.Path, returns: str) -> None:
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "agentjax", folder / "agentjax", ignore=ignore)
    (folder / "tests").mkdir()
    for name in ("conftest.py", "factories.py", "test_registry_properties.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests" / name)
    shutil.copy(ROOT / "pyproject.toml", folder / "pyproject.toml")
    (folder / "agentjax" / "credit" / "toy.py").write_text(TOY.format(returns=returns))
    table = folder / "agentjax" / "credit" / "__init__.py"
    text = table.read_text()
    line = '    estimator("toy", toy.toy, "episode", "yes", "a test"),\n'
    head, tail = text.split("] = table(\n", 1)
    head = head.replace("import control", "import toy, control")
    table.write_text(head + "] = table(\n" + line + tail)


@pytest.mark.slow
@pytest.mark.parametrize(("returns", "passes"), [(RIGHT, True), (WRONG, False)], ids=["right", "wrong"])
def test_a_new_file_and_a_line_are_found(tmp_path, returns, passes):
    copy_with_toy(tmp_path, returns)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "toy",
        "tests/test_registry_properties.py",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "XLA_FLAGS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if passes else 1), done.stdout + done.stderr
    if passes:
        assert int(done.stdout.split(" passed")[0].split()[-1]) >= 15, done.stdout
    else:
        for broken in ("test_sharded_is_unsharded[toy]", "test_form_changes_nothing[padding-plain-toy]"):
            assert f"FAILED tests/test_registry_properties.py::{broken}" in done.stdout, done.stdout
