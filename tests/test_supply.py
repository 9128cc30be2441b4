"""Dependencies: bounds in pyproject.toml, and the tested versions."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def requirements():
    """Names and bounds of all that users and tests need: `jax>=0.10` is ("jax", ">=0.10")."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    bundles = (extras[name][0].split("[")[1] for name in ("all", "test"))
    names = {"test", *(name for bundle in bundles for name in re.findall(r"\w+", bundle))} - {"all"}
    listed = [*project["dependencies"], *(one for name in names for one in extras[name])]
    found = (re.fullmatch(r"([\w-]+)(?:\[\w+\])?(.*)", one).groups() for one in listed)
    return [(name.lower(), bound) for name, bound in found if name != "gpssm"]


def pinned(file):
    lines = (ROOT / file).read_text().lower().replace("_", "-").split()
    return dict(line.split("==") for line in lines)


def numbers(version):
    return [int(part) for part in re.findall(r"\d+", version)]


def padded(version, length):
    return (numbers(version) + [0] * length)[:length]


def test_lower_bounds_are_the_oldest_versions_that_are_tested_and_there_are_no_upper_ones():
    oldest, newest = pinned("constraints-oldest.txt"), pinned("constraints.txt")
    assert len(requirements()) > 25
    for name, bound in requirements():
        assert re.fullmatch(r">=[\d.]+", bound), f"{name}{bound}: a bound that no test asks for"
        least = bound.removeprefix(">=")
        assert padded(oldest[name], 3) == padded(least, 3), name
        assert padded(newest[name], 3) >= padded(least, 3), name
