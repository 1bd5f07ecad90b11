"""The repository keeps its own promises: what the wheel holds, and what each package needs to be imported."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "optimus_client",
    "optimus_contract",
    "optimus_models",
    "optimus_scheduler",
    "optimus_simulator",
    "optimus_service",
    "optimus_workers",
    "optimus_cli",
}
HEAVY = {"pydantic", "fastapi", "sqlalchemy", "kubernetes", "torch", "matplotlib", "sklearn"}


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("optimus_client", set()),
        ("optimus_contract.answers", set()),
        ("optimus_contract.job", set()),
        ("optimus_models.loss.curve", set()),
        ("optimus_models.speed.servers", set()),
        ("optimus_scheduler.round", set()),
        ("optimus_simulator.replay", set()),
        ("optimus_service.server", {"fastapi", "pydantic", "sqlalchemy"}),
        ("optimus_service.settings", {"pydantic"}),
        ("optimus_workers.coordinator", set()),
        ("optimus_workers.telemetry", set()),
        ("optimus_workers.check_task", set()),
        ("optimus_workers.zoo.digits", {"torch"}),
        ("optimus_cli.__main__", set()),
    ],
)
def test_import_needs_only_its_own_extra(module: str, allowed: set[str]) -> None:
    banned = sorted(HEAVY - allowed)
    code = f"import sys; sys.modules.update(dict.fromkeys({banned!r})); import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_wheel_holds_every_package_and_the_migrations(tmp_path: Path) -> None:
    """Hatchling skips a misspelled folder silently."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == PACKAGES
    assert "optimus_service/migrations/env.py" in names
    assert "optimus_service/runbooks/OptimusNoLeader.md" in names
    assert any(name.startswith("optimus_service/migrations/versions/0001") for name in names)


def test_the_client_is_a_package_of_its_own(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT / "client", check=True, capture_output=True)
    (wheel,) = tmp_path.glob("optimus_client-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"optimus_client"}
    assert "optimus_client/py.typed" in names


@pytest.mark.parametrize("path", sorted((ROOT / "client").rglob("*.py")), ids=lambda path: path.name)
def test_the_client_is_python_39(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))
