"""The images' locks: they hold what pyproject.toml asks for, with hashes, and nothing is installed past them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
BASE = PROJECT["project"]["dependencies"]
LOCKS = {
    "service": [*BASE, *EXTRAS["service"], *EXTRAS["cli"]],
    "worker": [*BASE, *EXTRAS["server"], *EXTRAS["datasets"]],
    "server": [each for each in [*BASE, *EXTRAS["server"]] if not each.startswith("scipy")],
    "build": PROJECT["build-system"]["requires"],
}
_PINNED = re.compile(
    r"^([A-Za-z0-9._-]+)==(\S+?)(?: ; .*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)


def pins(lock: str) -> dict[str, set[Version]]:
    """The versions of each package; several where they depend on the Python."""
    found: dict[str, set[Version]] = {}
    for name, version, _ in _PINNED.findall((REPOSITORY / "docker" / f"{lock}.lock").read_text()):
        found.setdefault(canonicalize_name(name), set()).add(Version(version))
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_what_pyproject_asks_for(lock: str) -> None:
    there = pins(lock)
    for requirement in map(Requirement, LOCKS[lock]):
        versions = there[canonicalize_name(requirement.name)]
        assert all(version in requirement.specifier for version in versions), f"{requirement}: run `make lock`"


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_of_a_lock_is_a_version_with_hashes(lock: str) -> None:
    text = (REPOSITORY / "docker" / f"{lock}.lock").read_text()
    rest = [line for line in _PINNED.sub("", text).splitlines() if line and not line.startswith("#")]
    assert rest == []
    assert "://" not in text


def test_locks_that_are_installed_together_agree() -> None:
    service, worker = pins("service"), pins("worker")
    assert {name: worker[name] for name in service.keys() & worker.keys()} == {
        name: service[name] for name in service.keys() & worker.keys()
    }
    assert "torch" not in service.keys() | worker.keys() | pins("server").keys()
    assert "scipy" not in pins("server")


@pytest.mark.parametrize("image", ["service", "worker"])
def test_images_install_from_locks_only(image: str) -> None:
    text = (REPOSITORY / "docker" / f"{image}.Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install ((?:(?!&&|;).)*)", text.replace("\n#", "\n #").partition("FROM")[2])
    assert len(installs) >= 4
    for install in installs:
        allowed = ("--require-hashes -r ", "--no-deps /wheels/", '${PIP_OPTIONS} "${TORCH}"')
        assert install.strip().startswith(allowed), install
    assert "pip wheel --no-deps --no-build-isolation" in text


def test_the_lowest_version_of_every_dependency_is_one_that_make_floors_installs() -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "scripts" / "floors"], capture_output=True, text=True, check=True
    )
    floors = set(map(Requirement, done.stdout.split()))
    given = [Requirement(each) for requirements in [BASE, *EXTRAS.values()] for each in requirements]
    assert {each.name for each in given} - {each.name for each in floors} == {"torch", "s3fs", "optimus-scheduler"}
    for floor in floors:
        (version,) = (each.version for each in floor.specifier)
        assert all(Version(version) in each.specifier for each in given if each.name == floor.name), floor
