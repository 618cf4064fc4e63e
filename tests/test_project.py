"""The project's own files agree with each other."""

import pathlib
import re
import subprocess

import pytest

import agentjax

ROOT = pathlib.Path(__file__).parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def tracked() -> list[pathlib.Path]:
    """Files under version control, or all text-like files where there is no git."""
    try:
        names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+", agentjax.__version__)


def test_every_make_command_that_the_docs_name_exists():
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md", ".ci/run"):
        named = set(re.findall(r"(?:^|[\s`])make ([a-z-]+)\b(?=[\s`]|$)", read(name), re.MULTILINE))
        assert named, name
        assert named <= targets, f"{name} names {named - targets}"
    assert {"reproduce", "test", "model"} <= targets


def test_ci_script_is_executable_and_runs_the_readme_test_command():
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    assert "make test\n" in read(".ci/run")


def test_links_in_the_docs_lead_somewhere():
    for name in ("README.md", "CONTRIBUTING.md", "TPU_SETUP.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", read(name)):
            assert (ROOT / target).exists(), f"{name} links to {target}"


def test_no_tracked_file_names_a_machine_path_or_a_registry_host():
    folders = "work|root|farm|home|tmp"
    path = re.compile(rf"(?<![\w.$}}/-])/(?:{folders})/\w")
    host = re.compile("pypi" + r"\.org|python" + r"hosted\.org|registry\.npm" + "js")
    bad = []
    for file in tracked():
        if (
            file.suffix in {".png", ".npz", ".gguf"}
            or ROOT / "agentjax/envs" in file.parents
            or ROOT / "tests/envs" in file.parents
        ):
            continue  # environments of the file-system kind may speak of paths
        text = file.read_text(encoding="utf-8", errors="ignore")
        bad += [f"{file.relative_to(ROOT)}: {m.group()}" for rule in (path, host) for m in rule.finditer(text)]
    assert not bad, bad
