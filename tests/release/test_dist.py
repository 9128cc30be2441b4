"""The release: one version everywhere, and archives that install and run."""

import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import dist
import pytest

import gpssm

ROOT = Path(__file__).resolve().parents[2]


def test_the_version_is_written_once_and_cited():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert "version" in project["dynamic"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {gpssm.__version__}\n" in citation
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## (\S+)", changes, re.MULTILINE)[1] == gpssm.__version__


def test_what_is_said_to_be_supported_is_what_may_be_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"Python :: 3\.(\d+)", "\n".join(project["classifiers"]))
    assert f">=3.{versions[0]}" == project["requires-python"]
    badge = re.search(r"!\[Python ([\d. |]+)\]", (ROOT / "README.md").read_text())[1]
    assert badge.split(" | ") == [f"3.{version}" for version in versions]


@pytest.mark.slow
def test_archives_hold_the_package_and_the_wheel_runs_in_an_empty_environment(tmp_path):
    for tool in ("build", "twine"):
        if importlib.util.find_spec(tool) is None:
            pytest.skip(f"{tool} is not installed: pip install 'gpssm[dev]'")
    sdist, wheel = dist.build(tmp_path / "dist")
    dist.check(sdist, wheel)
    interpreter = dist.install(sys.executable, wheel, tmp_path / "venv")
    dist.run_without_extras(interpreter, tmp_path)
    dist.run_readme(interpreter, tmp_path)
